"""vLLM-Omni's nightly performance specifications -> cell documents.

A specification is a JSON list of servers, each with its workloads. A workload's ``max_concurrency`` (or
``request_rate``) and ``num_prompts`` are paired place by place, a single value serves every place: the same
rule as a cell file's own ladder. What is switched off is counted, not imported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from perfbisect.clients.eras import NIGHTLY
from perfbisect.clients.omni_bench import BACKENDS
from perfbisect.config.perf_spec_servers import serving
from perfbisect.config.specifications import (
    HUB_NAME,
    Imported,
    LeftOut,
    Need,
    Source,
    Specification,
    distinct,
    kebab,
    kind,
    plain,
)
from perfbisect.core.digest import digest
from perfbisect.core.expand import LADDERS
from perfbisect.families import FAMILIES

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

_KEYS = (
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


def read(source: Source, servers: Sequence[Any]) -> Specification:
    """The cells of a file.

    :raises LocatedError: not servers with workloads, a key that is not known, or lists that cannot be paired.
    """
    cells: list[Imported] = []
    off: list[str] = []
    left_out: list[LeftOut] = []
    for i, server in enumerate(servers):
        if not isinstance(server, Mapping):
            raise source.wrong(f"[{i}]", f"is {kind(server)}", "a mapping with server_params")
        for j, workload in enumerate(_workloads(source, i, server)):
            place = f"[{i}].benchmark_params[{j}]"
            given = {kebab(name): value for name, value in workload.items()}
            if workload.get("enabled") is False:
                off.append(place)
            elif why := _not_here(server, given):
                left_out.append(LeftOut(place, why))
            else:
                cells.append(_cell(source, f"[{i}]", place, server, given))
    return Specification(distinct(cells), tuple(off), tuple(left_out))


def _workloads(source: Source, i: int, server: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    source.unknown(f"[{i}]", server, _KEYS)
    for name, wanted, allowed in _SHAPE:
        if not isinstance(server.get(name), wanted):
            raise source.wrong(f"[{i}].{name}", f"is {kind(server.get(name))}", allowed)
    workloads: Sequence[Any] = server["benchmark_params"]
    for j, workload in enumerate(workloads):
        if not isinstance(workload, Mapping):
            raise source.wrong(f"[{i}].benchmark_params[{j}]", f"is {kind(workload)}", "a mapping")
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
    source: Source, above: str, place: str, server: Mapping[str, Any], given: Mapping[str, Any]
) -> Imported:
    params = server["server_params"]
    model = params.get("model")
    if not isinstance(model, str):
        raise source.wrong(f"{above}.server_params.model", f"is {kind(model)}", "the model's name")
    family = _family(params, given)
    stem = _stem(source, server, family, given)
    files: dict[str, str] = {}
    document: dict[str, object] = {
        "family": family,
        "description": str(server.get("description") or f"{server['test_name']} of {source.name}"),
        "model": model,
        **({"task": str(given["task"])} if given.get("task") else {}),
        **serving(source, above, server, staged=family in ("tts", "omni")),
        **_loading(source, family, server, given),
        **_ladder(source, place, given),
        **_judged(family, given),
    }
    if family == "diffusion":
        document.setdefault("max_concurrency", 1)
    needs: tuple[Need, ...] = ()
    inline = given.get("dataset-path-inline")
    if isinstance(inline, Mapping):
        rows = _inline(inline)
        name = f"{stem}-{digest(rows)[:8]}.jsonl"
        files[name] = rows
        document["dataset_path"] = name
    elif (path := given.get("dataset-path")) and not HUB_NAME.match(str(path)):
        needs = (Need(str(path), "a folder of vLLM-Omni's repository"),)
    if given.get("baseline"):
        document["known_baselines"] = given["baseline"]
    return Imported(stem, document, files, needs)


def _family(params: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    if params.get("use_omni") is False:
        return "text"
    if given.get("endpoint") == "/v1/audio/speech":
        return "tts"
    return "omni" if given.get("endpoint") else "diffusion"


def _loading(
    source: Source, family: str, server: Mapping[str, Any], given: Mapping[str, Any]
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
        usual = 0 if NIGHTLY[-1].reached(date) is False else WARMUPS
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
    out: dict[str, object] = {
        "headline": FAMILIES[family].headline,
        "guards": list(FAMILIES[family].guards),
    }
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


def _ladder(source: Source, place: str, given: Mapping[str, Any]) -> dict[str, object]:
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


def _stem(source: Source, server: Mapping[str, Any], family: str, given: Mapping[str, Any]) -> str:
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
    return plain("-".join(part for part in parts if part))


def _rest(file: str, test: str) -> str:
    """The words of a test's name after those with which the file's name begins too."""
    told, words = file.split("_"), test.split("_")
    same = next((i for i, word in enumerate(words) if told[i : i + 1] != [word]), len(words))
    return "_".join(words[same:])
