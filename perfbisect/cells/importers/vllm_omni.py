"""vLLM-Omni's nightly performance specifications -> cell documents.

A specification is a JSON list of servers with their workloads. ``max_concurrency`` (or ``request_rate``) and
``num_prompts`` of a workload are paired lists, as in a cell file. Disabled workloads are counted only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from perfbisect.cells.deploy import placed_stages, read_deploy
from perfbisect.cells.importers.base import (
    HUB_NAME,
    SAMPLING,
    ImportedCell,
    Specification,
    SpecificationFile,
    describe_value,
    entry_keys,
    file_stem,
    kebab,
    sampling_fields,
)
from perfbisect.cells.loading import LADDERS
from perfbisect.clients.omni_bench import BACKENDS
from perfbisect.common.digests import digest
from perfbisect.common.yaml_source import Located, collecting
from perfbisect.model.cell import PARALLEL_SIZES, parallel_devices
from perfbisect.serving.eras import nightly_warmups
from perfbisect.serving.families import FAMILIES

FORM = "vLLM-Omni's list of servers (test_name, server_params, benchmark_params)"

_SERVER_KEYS = (
    *("test_name", "description", "mark", "server_type", "server_params", "benchmark_params"),
    *("benchmark_endpoint", "benchmark_backend"),
)
_SHAPE = (
    ("test_name", str, "a name"),
    ("server_params", Mapping, "a mapping with model"),
    ("benchmark_params", list, "a list of workloads"),
)
_PARAM_KEYS = (
    *("model", "serve_args", "extra_cli_args", "stage_overrides", "use_omni", "trust_remote_code"),
    *("stage_config_name", "update", "delete"),
)
_STAGE_CONFIG = "its stage config is a file beside the specification, as before #2383"

_ENVIRONMENT = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
"""Set by the harness for every server."""

_STAGED_DEVICES = 2
"""Devices of the nightly's machine, which a server of stages has by default."""

_PLATFORM = "cuda"

_PARALLEL = (*PARALLEL_SIZES, "cfg-parallel-size", "ulysses-degree", "usp", "ring-degree", "ring")
"""Options that multiply the devices. The VAE and HSDP share those of the others."""

_TIMEOUTS = ("stage-init-timeout", "init-timeout")
"""Options about the time of a start, which is a cell's ``ready_timeout``."""

_DIFFUSION_WARMUPS = 1
_DIFFUSION_BACKEND = "vllm-omni"
_TEXT = ("ttft", "tpot", "itl", "e2el")
_SOUND = ("audio_ttfp", "audio_rtf", "audio_duration")
_AUDIBLE = {"headline": "audio_rtf", "guards": ["failed", "output_tokens", "audio_duration"]}
"""Of chats with sound: time per second of sound, since a shorter answer is no improvement."""

_NOT_CLIENT = {
    *("task", "name", "eval-phase", "enabled", "baseline", "trust-remote-code", "skip-performance-assertion"),
    *("dataset", "dataset-name", "dataset-path", "dataset-path-inline", "backend", "endpoint", "model"),
    *("num-prompts", "max-concurrency", "request-rate", "ignore-eos", "extra-body", "percentile-metrics"),
    *("seed", "num-warmups", "warmup-requests", "headline", "guards"),
}
"""Keys of a workload that are no dataset arguments."""


def takes(document: object) -> bool:
    return bool(entry_keys(document) & {"server_params", "benchmark_params"})


def read(source: SpecificationFile, servers: Any) -> Specification:
    """The cells of a file."""
    found = Specification()
    for i, server in enumerate(servers):
        with collecting(found.errors):
            source.check_type(f"[{i}]", server, Mapping, "a mapping with server_params")
            source.check_keys(f"[{i}]", server, _SERVER_KEYS)
            for name, wanted, allowed in _SHAPE:
                source.check_type(f"[{i}].{name}", server.get(name), wanted, allowed)
            source.check_keys(f"[{i}].server_params", server["server_params"], _PARAM_KEYS)
            for j, workload in enumerate(server["benchmark_params"]):
                place = f"[{i}].benchmark_params[{j}]"
                with collecting(found.errors):
                    source.check_type(place, workload, Mapping, "a mapping")
                    given = {kebab(name): value for name, value in workload.items()}
                    if workload.get("enabled") is False:
                        found.off.append(place)
                    elif reason := _unsupported(server, given):
                        found.left_out[place] = reason
                    else:
                        found.cells.append(_cell(source, f"[{i}]", place, server, given))
    return found


def _unsupported(server: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Why a workload cannot be measured; empty if it can."""
    if "stage_config_name" in server["server_params"]:
        return _STAGE_CONFIG
    served = server.get("server_type", _DIFFUSION_BACKEND)
    if served != _DIFFUSION_BACKEND:
        return f"it is served by {served}"
    if "duration-sec" in given:
        return "it runs for a time, not for a number of prompts: a test of stability"
    backend = str(given.get("backend"))
    if _family(server["server_params"], given) in ("tts", "omni") and backend not in BACKENDS:
        return f"client omni_bench has no backend {backend}"
    return ""


def _family(params: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    # The harness starts plain vLLM for such a server.
    if params.get("use_omni") is False:
        return "text"
    if given.get("endpoint") == "/v1/audio/speech":
        return "tts"
    return "omni" if given.get("endpoint") else "diffusion"


def _cell(
    source: SpecificationFile, above: str, place: str, server: Mapping[str, Any], given: Mapping[str, Any]
) -> ImportedCell:
    params = server["server_params"]
    model = params.get("model")
    source.check_type(f"{above}.server_params.model", model, str, "the model's name")
    family = _family(params, given)
    stem = _stem(source, server, family, given)
    load = _load_fields(source, place, given)
    document: dict[str, object] = {
        "family": family,
        "description": str(server.get("description") or f"{server['test_name']} of {source.name}"),
        "model": model,
        **({"task": str(given["task"])} if given.get("task") else {}),
        **_server_fields(source, above, server, staged=family in ("tts", "omni")),
        **_client_fields(family, server, given),
        **load,
        "num_warmups": _warmups(source, family, given, load),
        **_judged_fields(family, given),
    }
    if family == "diffusion":
        document.setdefault("max_concurrency", 1)
    files: dict[str, str] = {}
    needs: dict[str, str] = {}
    inline, path = given.get("dataset-path-inline"), given.get("dataset-path")
    if isinstance(inline, Mapping):
        content = inline.get("content")
        rows = content if isinstance(content, list) else [content]
        text = "".join(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n" for row in rows)
        name = f"{stem}-{digest(text)[:8]}.jsonl"
        files[name] = text
        document["dataset_path"] = name
    elif path and not HUB_NAME.match(str(path)):
        needs[str(path)] = "a folder of vLLM-Omni's repository"
    if given.get("baseline"):
        document["known_baselines"] = given["baseline"]
    return ImportedCell(stem, document, place, files, needs)


def _stem(source: SpecificationFile, server: Mapping[str, Any], family: str, given: Mapping[str, Any]) -> str:
    """``TEST-DATASET[-TASK][-PHASE][-text]``; of diffusion ``FILE[-TEST]-NAME``, as its results are named.

    TEST is there without the words that begin FILE, too.
    """
    test = str(server["test_name"]).removeprefix("test_")
    if family == "diffusion":
        file = source.path.stem.removeprefix("test_")
        beginning, words = file.split("_"), test.split("_")
        same = next((i for i, word in enumerate(words) if beginning[i : i + 1] != [word]), len(words))
        parts = [file, "_".join(words[same:]), kebab(given.get("name") or given.get("task") or "")]
    else:
        words = [kebab(given.get(name) or "") for name in ("dataset-name", "task", "eval-phase")]
        parts = [test, *words, "text" if family == "omni" and _modalities(given) == ["text"] else ""]
    return file_stem("-".join(part for part in parts if part))


def _server_fields(
    source: SpecificationFile, place: str, server: Mapping[str, Any], *, staged: bool
) -> dict[str, object]:
    """Deploy YAML, stage overrides, serve arguments, environment and number of devices."""
    params: Mapping[str, Any] = server["server_params"]
    above = f"{place}.server_params"
    options = _options(source, above, params)
    timeouts = [_seconds(source, above, options.pop(name)) for name in _TIMEOUTS if name in options]
    inline = options.pop("deploy-config-inline", None)
    path, overrides = options.pop("deploy-config", None), params.get("stage_overrides")
    fields: dict[str, object] = {}
    documents: list[Located] = []
    if inline is not None:
        content = inline.get("content") if isinstance(inline, Mapping) else None
        where = f"{above}.serve_args.deploy-config-inline"
        source.check_type(where, content, Mapping, "a deploy YAML with stages, as content")
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        fields["deploy_yaml"] = {"text": text}
        documents += filter(None, [read_deploy(text, Path("deploy.yaml"))])
    elif path is not None:
        # The harness runs in a folder of the repository; a cell's path is relative to the repository's root.
        fields["deploy_yaml"] = {"from": "change", "path": str(path).removeprefix("../")}
    if overrides:
        fields["stage_overrides"] = overrides
    if timeouts:
        fields["ready_timeout"] = max(timeouts)
    if options:
        fields["serve_args"] = options
    product = max(parallel_devices(options, _PARALLEL), _STAGED_DEVICES if staged else 1)
    stages = placed_stages(documents, overrides if isinstance(overrides, Mapping) else {}, _PLATFORM)
    named = max((stage.needs for stage in stages), default=0)
    mark = server.get("mark")
    entries = [entry for entry in (mark if isinstance(mark, list) else [mark]) if isinstance(entry, Mapping)]
    hardware = [entry.get("hardware_marks") for entry in entries]
    cards = [marks.get("num_cards") for marks in hardware if isinstance(marks, Mapping)]
    reserved = next((count for count in cards if isinstance(count, int)), 0)
    # What CI reserves comes first: the product of the options is a guess where stages share devices.
    return {**fields, "env": dict(_ENVIRONMENT), "gpus": reserved or named or product}


def _options(source: SpecificationFile, above: str, params: Mapping[str, Any]) -> dict[str, object]:
    """Serve arguments, by name or as tokens, as options by name; a token after a name is its value."""
    named, tokens = params.get("serve_args") or {}, params.get("extra_cli_args") or []
    allowed = "options, by name or as tokens"
    source.check_type(f"{above}.serve_args", named, (dict, list), allowed)
    source.check_type(f"{above}.extra_cli_args", tokens, list, allowed)
    options: dict[str, object] = {}
    if isinstance(named, dict):
        options = {kebab(name): value for name, value in named.items()}
    name = ""
    for token in [*(named if isinstance(named, list) else ()), *tokens]:
        text = str(token)
        if text.startswith("--"):
            name, equals, value = text.removeprefix("--").partition("=")
            options[name] = value if equals else True
        elif not name or options[name] is not True:
            raise source.wrong(above, f"holds {text!r}", "options such as --max-len 1")
        else:
            options[name] = token
    if params.get("trust_remote_code"):
        options["trust-remote-code"] = True
    return options


def _seconds(source: SpecificationFile, above: str, value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        raise source.wrong(above, f"has a timeout of {describe_value(value)}", "seconds") from None


def _warmups(
    source: SpecificationFile, family: str, given: Mapping[str, Any], load: Mapping[str, Any]
) -> object:
    """The workload's own, else those of its client or of the harness; a list where loads differ in them."""
    if family == "diffusion":
        return given.get("warmup-requests", _DIFFUSION_WARMUPS)
    if "num-warmups" in given:
        return given["num-warmups"]
    users = load.get("max_concurrency")
    date = source.commit.date if source.commit else ""
    each = [
        nightly_warmups(date, user if isinstance(user, int) else None)
        for user in (users if isinstance(users, list) else [users])
    ]
    return each if len(set(each)) > 1 else each[0]


def _client_fields(family: str, server: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, object]:
    """Client, data set, endpoint and requests of a workload."""
    fields: dict[str, object] = {}
    if family == "diffusion":
        fields["client"] = "diffusion_bench"
        fields["backend"] = str(given.get("backend") or server.get("benchmark_backend") or _DIFFUSION_BACKEND)
        if server.get("benchmark_endpoint"):
            fields["endpoint"] = str(server["benchmark_endpoint"])
    else:
        client = "vllm_bench" if family == "text" else "omni_bench"
        is_trusted = server["server_params"].get("trust_remote_code") or given.get("trust-remote-code")
        if is_trusted:
            fields["client"] = {"name": client, "args": {"trust-remote-code": True}}
        elif family != "text":
            fields["client"] = client
        fields["backend"] = str(given.get("backend", "openai"))
        fields["endpoint"] = str(given.get("endpoint", "/v1/completions"))
    fields["dataset_name"] = str(given.get("dataset-name") or given.get("dataset") or "random")
    if given.get("dataset-path"):
        fields["dataset_path"] = str(given["dataset-path"])
    # The harness passes a list as one word, in JSON.
    arguments = {
        name: json.dumps(value, separators=(",", ":")) if isinstance(value, list) else value
        for name, value in given.items()
        if name not in {*_NOT_CLIENT, *SAMPLING}
    }
    if arguments:
        fields["dataset_args"] = arguments
    own = ("ignore-eos", "extra-body", "percentile-metrics", "seed")
    own_fields = {name.replace("-", "_"): given[name] for name in own if name in given}
    return {**fields, **sampling_fields(given), **own_fields}


def _judged_fields(family: str, given: Mapping[str, Any]) -> dict[str, object]:
    """Headline and guards: the workload's own, else those that suit its answers."""
    fields: dict[str, object] = {
        "headline": FAMILIES[family].headline,
        "guards": list(FAMILIES[family].guards),
    }
    metrics = [word.strip() for word in str(given.get("percentile-metrics", "")).split(",") if word.strip()]
    modalities = _modalities(given)
    is_audible = any(word.startswith("audio") for word in metrics)
    if isinstance(modalities, list):
        is_audible = "audio" in modalities
    if family == "omni" and is_audible:
        fields = {**_AUDIBLE, "percentile_metrics": list(dict.fromkeys((*(metrics or _TEXT), *_SOUND)))}
    return {**fields, **{name: given[name] for name in ("headline", "guards") if name in given}}


def _modalities(given: Mapping[str, Any]) -> object:
    body = given.get("extra-body")
    return body.get("modalities") if isinstance(body, Mapping) else None


def _load_fields(source: SpecificationFile, place: str, given: Mapping[str, Any]) -> dict[str, object]:
    """The paired lists, which must have one length; a list of one value is that value."""
    own = [name for name in LADDERS if name != "num_warmups"]
    found = {name: given[kebab(name)] for name in own if given.get(kebab(name)) is not None}
    lists = {name: value for name, value in found.items() if isinstance(value, list)}
    lengths = {len(value) for value in lists.values()}
    if "num_prompts" not in found:
        raise source.wrong(f"{place}.num_prompts", "is missing", "a number, or a list of numbers")
    if len(found) == len(own):
        both = "request_rate and max_concurrency, which the harness runs one after the other"
        raise source.wrong(place, f"has both {both}", "one of them")
    if 0 in lengths or len(lengths - {1}) > 1:
        sizes = ", ".join(f"{name} has {len(value)}" for name, value in lists.items())
        raise source.wrong(place, f"has lists that cannot be paired: {sizes}", "lists of one length")
    return found | {name: value[0] for name, value in lists.items() if len(value) == 1}
