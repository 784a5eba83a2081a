"""vLLM-Omni's nightly performance specifications -> cell documents.

A specification is a JSON list of servers, each with its workloads. A workload's ``max_concurrency`` (or
``request_rate``) and ``num_prompts`` are paired place by place, a single value serves every place: the same
rule as a cell file's own ladder. What is switched off is counted, not imported.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from perfbisect.cells import deploy
from perfbisect.cells.deploy import placed_stages, read_deploy
from perfbisect.cells.importers.base import (
    HUB_NAME,
    ImportedCell,
    RequiredFile,
    SkippedWorkload,
    Specification,
    SpecificationFile,
    describe_value,
    file_stem,
    kebab,
    number_duplicates,
)
from perfbisect.cells.ladder import LADDERS
from perfbisect.clients.eras import NIGHTLY_ERAS
from perfbisect.clients.omni_bench import BACKENDS
from perfbisect.common.digests import digest
from perfbisect.serving.families import FAMILIES

_KEYS = (
    *("model", "serve_args", "extra_cli_args", "stage_overrides", "use_omni", "trust_remote_code"),
    *("stage_config_name", "update", "delete"),
)
_STAGE_CONFIGS = ("../stage_configs", "../deploy")
"""Where the YAML of a ``stage_config_name`` stands, seen from the specification: at first, and since."""

_ENVIRONMENT = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
"""What the harness sets for every server."""

_STAGED = 2
"""Devices of the nightly's machine, on which a server of stages runs where nothing says which it takes."""

_PLATFORM = "cuda"
"""The kind of machine that the specifications are of."""

_PARALLEL = (
    *("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "cfg-parallel-size"),
    *("ulysses-degree", "usp", "ring-degree", "ring"),
)
"""Options of which each multiplies the devices. The VAE and HSDP share those of the others."""


def server_fields(
    source: SpecificationFile, place: str, server: Mapping[str, Any], *, staged: bool
) -> dict[str, object]:
    """Serve arguments, deploy YAML, stage overrides, environment and number of devices of a server.

    ``staged``: it runs a pipeline of stages, each on devices of its own.

    :raises LocatedError: a key that is not known, what is no option, or a stage config that is not there.
    """
    params: Mapping[str, Any] = server["server_params"]
    above = f"{place}.server_params"
    source.unknown(above, params, _KEYS)
    options = _options(source, above, params)
    text = _pinned(source, above, params, options.pop("deploy-config-inline", None))
    deploy = options.pop("deploy-config", None)
    out: dict[str, object] = {}
    if text is not None:
        out["deploy_yaml"] = {"text": text}
    elif deploy is not None:
        out["deploy_yaml"] = {"from": "change", "path": str(deploy).removeprefix("../")}
    if params.get("stage_overrides"):
        out["stage_overrides"] = params["stage_overrides"]
    if options:
        out["serve_args"] = options
    named = _named(text, params.get("stage_overrides"))
    return {**out, "env": dict(_ENVIRONMENT), "gpus": _gpus(server, named, options, staged=staged)}


def _options(source: SpecificationFile, above: str, params: Mapping[str, Any]) -> dict[str, object]:
    """Serve arguments by name and as tokens, as options by name."""
    named, tokens = params.get("serve_args") or {}, params.get("extra_cli_args") or []
    for name, value, kinds in (("serve_args", named, (dict, list)), ("extra_cli_args", tokens, (list,))):
        if not isinstance(value, kinds):
            raise source.wrong(
                f"{above}.{name}", f"is {describe_value(value)}", "options, by name or as tokens"
            )
    by_name, listed = (named, []) if isinstance(named, dict) else ({}, named)
    options: dict[str, object] = {kebab(name): value for name, value in by_name.items()}
    options |= _from_tokens(source, above, [*listed, *tokens])
    if params.get("trust_remote_code"):
        options["trust-remote-code"] = True
    return options


def _from_tokens(source: SpecificationFile, above: str, tokens: Sequence[object]) -> dict[str, object]:
    """What follows a name is its value."""
    options: dict[str, object] = {}
    name = ""
    for token in tokens:
        text = str(token)
        if text.startswith("--"):
            name, equals, value = text.removeprefix("--").partition("=")
            options[name] = value if equals else True
        elif not name or options[name] is not True:
            raise source.wrong(above, f"holds {text!r}", "options such as --max-len 1")
        else:
            options[name] = token
    return options


def _pinned(source: SpecificationFile, above: str, params: Mapping[str, Any], inline: object) -> str | None:
    """The text of a deploy YAML that stands in the specification or beside it.

    What stands beside it is carried as text: other commits have it otherwise, or not at all.
    """
    name = params.get("stage_config_name")
    if inline is None and name is None:
        return None
    field = "stage_config_name" if inline is None else "serve_args.deploy-config-inline"
    try:
        text = _stage_config(source, above, params) if inline is None else _content(inline)
        deploy.check_mapping(text)
    except ValueError as error:
        told = f"{name} {error}" if inline is None else str(error)
        raise source.wrong(f"{above}.{field}", told, "a deploy YAML with stages") from None
    return text


def _content(inline: object) -> str:
    if not isinstance(inline, Mapping):
        raise ValueError(f"is {describe_value(inline)}")
    return yaml.safe_dump(inline.get("content"), sort_keys=False, allow_unicode=True)


def _stage_config(source: SpecificationFile, above: str, params: Mapping[str, Any]) -> str:
    """The text of a YAML that lies beside the specifications, with what the specification changes in it."""
    name = str(params["stage_config_name"])
    texts = (source.beside(f"{folder}/{name}") for folder in _STAGE_CONFIGS if "/" not in name)
    text = next((text for text in texts if text is not None), None)
    if text is None:
        raise source.wrong(
            f"{above}.stage_config_name",
            f"names {name}, which is not there",
            f"a file of {' or '.join(_STAGE_CONFIGS)}, seen from the specification",
        )
    update, delete = params.get("update"), params.get("delete")
    return deploy.apply_edits(text, update or {}, delete or {}) if update or delete else text


def _named(text: str | None, overrides: object) -> int:
    """How many devices there must be for those that the stages name; 0 where they name none."""
    document = None if text is None else read_deploy(text, Path("deploy.yaml"))
    changed = overrides if isinstance(overrides, Mapping) else {}
    found = placed_stages([document] if document else [], changed, _PLATFORM)
    return max((stage.needs for stage in found), default=0)


def _gpus(server: Mapping[str, Any], named: int, options: Mapping[str, object], *, staged: bool) -> int:
    """As many devices as the specification's mark says, else as the stages name, else as its parallel sizes
    multiply to."""
    if cards := _cards(server.get("mark")):
        return cards
    if named:
        return named
    sizes = [size for name in _PARALLEL if isinstance(size := options.get(name), int)]
    return max(math.prod(sizes), _STAGED if staged else 1)


def _cards(mark: object) -> int:
    """``num_cards`` of a pytest mark, 0 where none says it."""
    for entry in mark if isinstance(mark, list) else ():
        hardware = entry.get("hardware_marks") if isinstance(entry, Mapping) else None
        cards = hardware.get("num_cards") if isinstance(hardware, Mapping) else None
        if isinstance(cards, int):
            return cards
    return 0


WARMUPS = 2
"""Warm-up requests that vLLM-Omni's harness sends since it sends any, where the workload does not say; of a
specification that is read at an older commit none."""

DIFFUSION_WARMUPS = 1
"""What its diffusion benchmark sends where the workload does not say."""

_DIFFUSION_BACKEND = "vllm-omni"
_TEXT = ("ttft", "tpot", "itl", "e2el")
_SOUND = ("audio_ttfp", "audio_rtf", "audio_duration")
_AUDIBLE = {"headline": "audio_rtf", "guards": ["failed", "output_tokens", "audio_duration"]}
"""How a chat with sound is judged: by the time per second of sound, since a shorter answer is no gain."""

_PERF_SPECS_KEYS = (
    *("test_name", "description", "mark", "server_type", "server_params", "benchmark_params"),
    *("benchmark_endpoint", "benchmark_backend"),
)

_SHAPE = (
    ("test_name", str, "a name"),
    ("server_params", Mapping, "a mapping with model"),
    ("benchmark_params", list, "a list of workloads"),
)

_NOT_CLIENT = {
    *("task", "name", "eval-phase", "enabled", "baseline", "trust-remote-code", "skip-performance-assertion"),
    *("dataset", "dataset-name", "dataset-path", "dataset-path-inline", "backend", "endpoint", "model"),
    *("num-prompts", "max-concurrency", "request-rate", "ignore-eos", "extra-body", "percentile-metrics"),
    *("seed", "num-warmups", "warmup-requests", "headline", "guards"),
}
"""Keys of a workload that are no argument of the data set: they have a key of their own, or none."""


def read_servers(source: SpecificationFile, servers: Sequence[Any]) -> Specification:
    """The cells of a file.

    :raises LocatedError: not servers with workloads, a key that is not known, or lists that cannot be paired.
    """
    cells: list[ImportedCell] = []
    off: list[str] = []
    left_out: list[SkippedWorkload] = []
    for i, server in enumerate(servers):
        if not isinstance(server, Mapping):
            raise source.wrong(f"[{i}]", f"is {describe_value(server)}", "a mapping with server_params")
        for j, workload in enumerate(_workloads(source, i, server)):
            place = f"[{i}].benchmark_params[{j}]"
            given = {kebab(name): value for name, value in workload.items()}
            if workload.get("enabled") is False:
                off.append(place)
            elif why := _not_here(server, given):
                left_out.append(SkippedWorkload(place, why))
            else:
                cells.append(_cell(source, f"[{i}]", place, server, given))
    return Specification(number_duplicates(cells), tuple(off), tuple(left_out))


def _workloads(source: SpecificationFile, i: int, server: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    source.unknown(f"[{i}]", server, _PERF_SPECS_KEYS)
    for name, wanted, allowed in _SHAPE:
        if not isinstance(server.get(name), wanted):
            raise source.wrong(f"[{i}].{name}", f"is {describe_value(server.get(name))}", allowed)
    workloads: Sequence[Any] = server["benchmark_params"]
    for j, workload in enumerate(workloads):
        if not isinstance(workload, Mapping):
            raise source.wrong(f"[{i}].benchmark_params[{j}]", f"is {describe_value(workload)}", "a mapping")
    return workloads


def _not_here(server: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Why a workload cannot be measured here; empty where it can."""
    served = server.get("server_type", _DIFFUSION_BACKEND)
    if served != _DIFFUSION_BACKEND:
        return f"it is served by {served}"
    backend = str(given.get("backend"))
    if _family(server["server_params"], given) in ("tts", "omni") and backend not in BACKENDS:
        return f"client omni_bench has no backend {backend}"
    return ""


def _cell(
    source: SpecificationFile, above: str, place: str, server: Mapping[str, Any], given: Mapping[str, Any]
) -> ImportedCell:
    params = server["server_params"]
    model = params.get("model")
    if not isinstance(model, str):
        raise source.wrong(f"{above}.server_params.model", f"is {describe_value(model)}", "the model's name")
    family = _family(params, given)
    stem = _stem(source, server, family, given)
    files: dict[str, str] = {}
    document: dict[str, object] = {
        "family": family,
        "description": str(server.get("description") or f"{server['test_name']} of {source.name}"),
        "model": model,
        **({"task": str(given["task"])} if given.get("task") else {}),
        **server_fields(source, above, server, staged=family in ("tts", "omni")),
        **_loading(source, family, server, given),
        **_ladder(source, place, given),
        **_judged(family, given),
    }
    if family == "diffusion":
        document.setdefault("max_concurrency", 1)
    needs: tuple[RequiredFile, ...] = ()
    inline = given.get("dataset-path-inline")
    if isinstance(inline, Mapping):
        rows = _inline(inline)
        name = f"{stem}-{digest(rows)[:8]}.jsonl"
        files[name] = rows
        document["dataset_path"] = name
    elif (path := given.get("dataset-path")) and not HUB_NAME.match(str(path)):
        needs = (RequiredFile(str(path), "a folder of vLLM-Omni's repository"),)
    if given.get("baseline"):
        document["known_baselines"] = given["baseline"]
    return ImportedCell(stem, document, files, needs)


def _family(params: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    if params.get("use_omni") is False:
        return "text"
    if given.get("endpoint") == "/v1/audio/speech":
        return "tts"
    return "omni" if given.get("endpoint") else "diffusion"


def _loading(
    source: SpecificationFile, family: str, server: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, object]:
    """Client, data set, endpoint and requests of a workload."""
    out: dict[str, object] = {}
    if family == "diffusion":
        out["client"] = "diffusion_bench"
        out["backend"] = str(given.get("backend") or server.get("benchmark_backend") or _DIFFUSION_BACKEND)
        if server.get("benchmark_endpoint"):
            out["endpoint"] = str(server["benchmark_endpoint"])
        out["num_warmups"] = given.get("warmup-requests", DIFFUSION_WARMUPS)
    else:
        out |= {"client": "omni_bench"} if family != "text" else {}
        out["backend"] = str(given.get("backend", "openai"))
        out["endpoint"] = str(given.get("endpoint", "/v1/completions"))
        date = source.commit.date if source.commit else ""
        usual = 0 if NIGHTLY_ERAS[-1].reached(date) is False else WARMUPS
        out["num_warmups"] = given.get("num-warmups", usual)
    out["dataset_name"] = str(given.get("dataset-name") or given.get("dataset") or "random")
    if given.get("dataset-path"):
        out["dataset_path"] = str(given["dataset-path"])
    arguments = {name: _argument(value) for name, value in given.items() if name not in _NOT_CLIENT}
    if arguments:
        out["dataset_args"] = arguments
    for name in ("ignore-eos", "extra-body", "percentile-metrics", "seed"):
        if name in given:
            out[name.replace("-", "_")] = given[name]
    return out


def _argument(value: object) -> object:
    """An argument of the client: the harness gives a list as one word, in JSON."""
    return json.dumps(value, separators=(",", ":")) if isinstance(value, list) else value


def _judged(family: str, given: Mapping[str, Any]) -> dict[str, object]:
    """Headline and guards: the workload's own, else those of what its answers hold."""
    out: dict[str, object] = {"headline": FAMILIES[family].headline, "guards": list(FAMILIES[family].guards)}
    if family == "omni" and _audible(given):
        asked = _words(given) or _TEXT
        out = {**_AUDIBLE, "percentile_metrics": list(dict.fromkeys((*asked, *_SOUND)))}
    return {**out, **{name: given[name] for name in ("headline", "guards") if name in given}}


def _audible(given: Mapping[str, Any]) -> bool:
    """True if the answers of a chat hold sound: it names the modality, or asks for metrics of sound."""
    modalities = _modalities(given)
    if isinstance(modalities, list):
        return "audio" in modalities
    return any(word.startswith("audio") for word in _words(given))


def _modalities(given: Mapping[str, Any]) -> object:
    body = given.get("extra-body")
    return body.get("modalities") if isinstance(body, Mapping) else None


def _words(given: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(word.strip() for word in str(given.get("percentile-metrics", "")).split(",") if word.strip())


def _ladder(source: SpecificationFile, place: str, given: Mapping[str, Any]) -> dict[str, object]:
    """The paired lists; lists of one value are that value, and all have one length."""
    found = {name: given[kebab(name)] for name in LADDERS if given.get(kebab(name)) is not None}
    lists = {name: value for name, value in found.items() if isinstance(value, list)}
    lengths = {len(value) for value in lists.values()}
    if "num_prompts" not in found:
        raise source.wrong(f"{place}.num_prompts", "is missing", "a number, or a list of numbers")
    if len(found) == len(LADDERS):
        told = "request_rate and max_concurrency, which the harness runs one after the other"
        raise source.wrong(place, f"has both {told}", "one of them")
    if 0 in lengths or len(lengths - {1}) > 1:
        told = ", ".join(f"{name} has {len(value)}" for name, value in lists.items())
        raise source.wrong(place, f"has lists that cannot be paired: {told}", "lists of one length")
    return {
        name: value[0] if isinstance(value, list) and len(value) == 1 else value
        for name, value in found.items()
    }


def _inline(inline: Mapping[str, Any]) -> str:
    content = inline.get("content")
    rows = content if isinstance(content, list) else [content]
    return "".join(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n" for row in rows)


def _stem(source: SpecificationFile, server: Mapping[str, Any], family: str, given: Mapping[str, Any]) -> str:
    """``TEST-DATASET[-TASK][-PHASE][-text]`` of a served model; of a diffusion workload ``FILE[-TEST]-NAME``,
    since its results are named by the file: of the test what the file's name does not say."""
    test = str(server["test_name"]).removeprefix("test_")
    if family == "diffusion":
        file = source.path.stem.removeprefix("test_")
        parts = [file, _rest(file, test), kebab(given.get("name") or given.get("task") or "")]
    else:
        only_text = family == "omni" and _modalities(given) == ["text"]
        words = (given.get(name) or "" for name in ("dataset-name", "task", "eval-phase"))
        parts = [test, *map(kebab, words), "text" if only_text else ""]
    return file_stem("-".join(part for part in parts if part))


def _rest(file: str, test: str) -> str:
    """The words of a test's name after those with which the file's name begins too."""
    told, words = file.split("_"), test.split("_")
    same = next((i for i, word in enumerate(words) if told[i : i + 1] != [word]), len(words))
    return "_".join(words[same:])
