"""vLLM-Omni's nightly performance specifications -> cell documents.

A specification is a JSON list of servers, each with its workloads. A workload's ``max_concurrency`` (or
``request_rate``) and ``num_prompts`` are paired place by place, a single value serves every place: the same
rule as a cell file's own ladder. What is switched off is counted, not imported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from perfbisect.core.expand import LADDERS
from perfbisect.errors import LocatedError

WARMUPS = 2
"""Warm-up requests that vLLM-Omni's harness sends since it sends any."""

_DIFFUSION_BACKEND = "vllm-omni"

_NOT_CLIENT = {
    *("task", "name", "eval_phase", "enabled", "baseline", "trust-remote-code", "skip-performance-assertion"),
    *("dataset", "dataset-name", "dataset-path", "dataset-path-inline", "backend", "endpoint", "model"),
    *("num-prompts", "max-concurrency", "request-rate", "ignore-eos", "extra-body", "percentile-metrics"),
    *("seed", "num-warmups"),
}
"""Keys of a workload that are no argument of the data set: they have a key of their own, or none."""


@dataclass(frozen=True)
class Imported:
    """One cell file: its stem, its document, and the files that lie beside it by name."""

    stem: str
    document: Mapping[str, object]
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Specification:
    """What a file of specifications holds; ``off``: workloads that are switched off, by where they stand."""

    cells: tuple[Imported, ...]
    off: tuple[str, ...]


def read_specification(path: Path) -> Specification:
    """The cells of a file.

    :raises LocatedError: not JSON, not a list of servers with workloads, or lists that cannot be paired.
    """
    try:
        servers = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise LocatedError(f"is no JSON: {error.msg}", file=path, line=error.lineno) from None
    except (OSError, UnicodeDecodeError) as error:
        raise LocatedError(f"cannot be read: {error}", file=path) from None
    if not isinstance(servers, list):
        raise _wrong(path, "", f"holds {_kind(servers)}", "a list of servers")
    cells: list[Imported] = []
    off: list[str] = []
    for i, server in enumerate(servers):
        if not isinstance(server, Mapping):
            raise _wrong(path, f"[{i}]", f"is {_kind(server)}", "a mapping with server_params")
        for j, workload in enumerate(_workloads(path, i, server)):
            place = f"[{i}].benchmark_params[{j}]"
            if workload.get("enabled") is False:
                off.append(place)
                continue
            cells.append(_cell(path, f"[{i}]", place, server, workload))
    return Specification(_distinct(cells), tuple(off))


def _workloads(path: Path, i: int, server: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    for name, kind in (("test_name", str), ("server_params", Mapping), ("benchmark_params", list)):
        if not isinstance(server.get(name), kind):
            raise _wrong(path, f"[{i}].{name}", f"is {_kind(server.get(name))}", "see the file's others")
    workloads: Sequence[Any] = server["benchmark_params"]
    for j, workload in enumerate(workloads):
        if not isinstance(workload, Mapping):
            raise _wrong(path, f"[{i}].benchmark_params[{j}]", f"is {_kind(workload)}", "a mapping")
    return workloads


def _cell(
    path: Path, above: str, place: str, server: Mapping[str, Any], workload: Mapping[str, Any]
) -> Imported:
    params = server["server_params"]
    model = params.get("model")
    if not isinstance(model, str):
        raise _wrong(path, f"{above}.server_params.model", f"is {_kind(model)}", "the model's name")
    given = {_kebab(name): value for name, value in workload.items()}
    family = _family(params, given)
    files: dict[str, str] = {}
    test = str(server["test_name"]).removeprefix("test_")
    document: dict[str, object] = {"family": family}
    if server.get("description"):
        document["description"] = str(server["description"])
    document |= {"model": model, "task": str(given.get("task", ""))}
    document |= _serving(path, above, params)
    document |= _loading(family, server, given)
    document |= _ladder(path, place, given)
    if inline := given.get("dataset-path-inline"):
        name = f"{test}.{inline.get('type', 'jsonl')}"
        files[name] = _inline(inline)
        document["dataset_path"] = name
    if given.get("baseline"):
        document["known_baselines"] = given["baseline"]
    return Imported(_stem(test, family, given), document, files)


def _family(params: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    if params.get("use_omni") is False:
        return "text"
    if given.get("endpoint") == "/v1/audio/speech":
        return "tts"
    return "omni" if given.get("endpoint") else "diffusion"


def _serving(path: Path, above: str, params: Mapping[str, Any]) -> dict[str, object]:
    """Serve arguments, deploy YAML and stage overrides of a server."""
    named = params.get("serve_args") or {}
    tokens = list(params.get("extra_cli_args") or ())
    options: dict[str, object] = {}
    if isinstance(named, Mapping):
        options = {_kebab(name): value for name, value in named.items()}
    else:
        tokens = [*named, *tokens]
    options |= _options(path, above, tokens)
    if params.get("trust_remote_code"):
        options["trust-remote-code"] = True
    out: dict[str, object] = {}
    inline, deploy = options.pop("deploy-config-inline", None), options.pop("deploy-config", None)
    if isinstance(inline, Mapping):
        out["deploy_yaml"] = {"text": yaml.safe_dump(inline.get("content"), sort_keys=False)}
    elif deploy is not None:
        out["deploy_yaml"] = {"from": "change", "path": str(deploy).removeprefix("../")}
    if params.get("stage_overrides"):
        out["stage_overrides"] = params["stage_overrides"]
    if options:
        out["serve_args"] = options
    return out


def _options(path: Path, above: str, tokens: Sequence[object]) -> dict[str, object]:
    """Tokens -> options by name; what follows a name is its value."""
    options: dict[str, object] = {}
    name = ""
    for token in tokens:
        text = str(token)
        if text.startswith("--"):
            name, equals, value = text.removeprefix("--").partition("=")
            options[name] = value if equals else True
        elif not name or options[name] is not True:
            raise _wrong(path, f"{above}.server_params", f"holds {text!r}", "options such as --max-len 1")
        else:
            options[name] = token
    return options


def _loading(family: str, server: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, object]:
    """Client, data set, endpoint and requests of a workload."""
    out: dict[str, object] = {}
    if family == "diffusion":
        out["client"] = "diffusion_bench"
        out["backend"] = str(given.get("backend", _DIFFUSION_BACKEND))
        if server.get("benchmark_endpoint"):
            out["endpoint"] = str(server["benchmark_endpoint"])
    else:
        out |= {"client": "omni_bench"} if family != "text" else {}
        out |= {"backend": str(given["backend"]), "endpoint": str(given["endpoint"])}
        out["num_warmups"] = WARMUPS
    out["dataset_name"] = str(given.get("dataset-name") or given.get("dataset") or "random")
    if given.get("dataset-path"):
        out["dataset_path"] = str(given["dataset-path"])
    arguments = {name: value for name, value in given.items() if name not in _NOT_CLIENT}
    if arguments:
        out["dataset_args"] = arguments
    for name in ("ignore-eos", "extra-body", "percentile-metrics", "seed", "num-warmups"):
        if name in given:
            out[name.replace("-", "_")] = given[name]
    return out


def _ladder(path: Path, place: str, given: Mapping[str, Any]) -> dict[str, object]:
    """The paired lists; lists of one value are that value, and all have one length."""
    found = {name: given[_kebab(name)] for name in LADDERS if _kebab(name) in given}
    lists = {name: value for name, value in found.items() if isinstance(value, list)}
    lengths = {len(value) for value in lists.values()}
    if "num_prompts" not in found:
        raise _wrong(path, f"{place}.num_prompts", "is missing", "a number, or a list of numbers")
    if 0 in lengths or len(lengths - {1}) > 1:
        told = ", ".join(f"{name} has {len(value)}" for name, value in lists.items())
        raise _wrong(path, place, f"has lists that cannot be paired: {told}", "lists of one length")
    longest = max(lengths, default=1)
    return {
        name: value[0] if isinstance(value, list) and (len(value) == 1 or longest == 1) else value
        for name, value in found.items()
    }


def _inline(inline: Mapping[str, Any]) -> str:
    content = inline.get("content")
    rows = content if isinstance(content, list) else [content]
    return "".join(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n" for row in rows)


def _stem(test: str, family: str, given: Mapping[str, Any]) -> str:
    """``TEST-DATASET[-TASK][-text]`` of a served model, ``TEST-NAME`` of a diffusion workload."""
    if family == "diffusion":
        parts = [test, str(given.get("name") or given.get("task") or "")]
    else:
        modalities = (given.get("extra-body") or {}).get("modalities")
        only_text = family == "omni" and modalities == ["text"]
        parts = [test, str(given.get("dataset-name")), str(given.get("task", ""))]
        parts += ["text"] if only_text else []
    return "-".join(part.replace("_", "-") if k else part for k, part in enumerate(parts) if part)


def _distinct(cells: Sequence[Imported]) -> tuple[Imported, ...]:
    """Cells whose stems are told apart: by the load, where a server has several workloads of one name."""
    stems = [cell.stem for cell in cells]
    return tuple(
        replace(cell, stem=f"{cell.stem}-{stems[: i + 1].count(cell.stem)}")
        if stems.count(cell.stem) > 1
        else cell
        for i, cell in enumerate(cells)
    )


def _kebab(name: str) -> str:
    return str(name).replace("_", "-")


def _kind(value: object) -> str:
    return "missing" if value is None else f"{json.dumps(value, default=str)[:40]} ({type(value).__name__})"


def _wrong(path: Path, place: str, message: str, allowed: str) -> LocatedError:
    return LocatedError(message, file=path, field=place or None, allowed=allowed)
