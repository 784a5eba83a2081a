"""Recipes of vLLM's perf-eval (``workloads/*.yaml``) -> cell documents.

A recipe is a server on one kind of GPU with its benchmarks (``vllm_bench``) and accuracy tasks, which are no
cells. Serve arguments are split at white space, as its scripts do: quotes are part of a value. Variables of
the kind of GPU are in ``lib/gpu_profiles.yaml`` beside the recipes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfbisect.cells.importers.base import (
    ImportedCell,
    Specification,
    SpecificationFile,
    file_stem,
    kebab,
)
from perfbisect.cells.importers.vllm_ci import client_fields, judged_fields, server_fields
from perfbisect.common.arguments import parse_options
from perfbisect.common.yaml_source import collecting, parse

FORM = "a recipe of perf-eval (vllm, vllm_bench)"

_KEYS = (
    *("name", "gpu", "num_gpus", "nightly", "timeout_in_minutes", "bench_only"),
    *("vllm", "vllm_bench", "lm_eval", "bfcl"),
)
_SERVER_KEYS = ("model", "image", "env", "serve_args")
_CONFIG_KEYS = (
    *("name", "backend", "dataset", "input_len", "output_len", "num_prompts", "max_concurrency"),
    *("repetitions", "args", "speed_bench_dataset_subset", "speed_bench_category"),
)
_SPEED_BENCH = ("speed_bench_dataset_subset", "speed_bench_category")
_REPORTING = ("disable-tqdm", "save-detailed", "append-result", "result-dir", "metadata")
"""Options about the result file, which an attempt sets itself."""

_PROFILES = "../lib/gpu_profiles.yaml"

_ENDPOINTS = {"openai-chat": "/v1/chat/completions"}
_READY_S = 3600.0
"""For how long its scripts wait for a server, and tell vLLM to wait for its engine."""


def takes(document: object) -> bool:
    return isinstance(document, Mapping) and bool({"vllm", "vllm_bench"} & set(document))


def read(source: SpecificationFile, recipe: Any) -> Specification:
    """The cells of a recipe, one of each benchmark. :raises LocatedError: what they share is invalid."""
    source.check_keys("", recipe, _KEYS)
    vllm, bench = (source.mapping("", recipe, name) for name in ("vllm", "vllm_bench"))
    source.check_keys("vllm", vllm, _SERVER_KEYS)
    source.check_keys("vllm_bench", bench, ("configs", "metadata"))
    found = Specification()
    for task in filter(recipe.get, ("lm_eval", "bfcl")):
        found.left_out[task] = "measures accuracy, no speed"
    configs = bench.get("configs") or []
    source.check_type("vllm_bench.configs", configs, list, "a list of benchmarks")
    if not configs:
        return found
    name, model, arguments = recipe.get("name"), vllm.get("model"), vllm.get("serve_args") or ""
    source.check_type("name", name, str, "a name")
    source.check_type("vllm.model", model, str, "the model's name")
    source.check_type("vllm.serve_args", arguments, str, "the options of vllm serve, as one text")
    try:
        options = parse_options(arguments.split(), negatable=True)
    except ValueError as error:
        raise source.wrong("vllm.serve_args", str(error)) from None
    missing: dict[str, str] = {}
    variables = _variables(source, recipe, vllm, missing)
    if vllm.get("image"):
        missing["vllm.image"] = "the environment of a change decides it, not a cell"
    server: dict[str, object] = {
        "family": "text",
        "description": f"{name} of {source.name}",
        "model": model,
        "task": "generate",
        **server_fields(variables, options),
        "ready_timeout": _READY_S,
    }
    for i, config in enumerate(configs):
        place = f"vllm_bench.configs[{i}]"
        with collecting(found.errors):
            source.check_type(place, config, Mapping, "a mapping with name, input_len and output_len")
            source.check_keys(place, config, _CONFIG_KEYS)
            dataset = config.get("dataset", "random")
            if dataset != "random":
                found.left_out[place] = f"its data set {dataset} is prepared by perf-eval's own scripts"
                continue
            found.cells.append(_cell(source, place, str(name), config, server, options))
            only = "only the data set speed_bench has a use for it"
            found.left_out |= {f"{place}.{key}": only for key in _SPEED_BENCH if key in config}
            found.left_out |= {
                f"{place}.args.{key}": "an attempt sets it"
                for key in config.get("args") or {}
                if _option(key) in _REPORTING
            }
            if config.get("repetitions", 1) != 1:
                why = f"no part of a cell: perfbisect run --runs {config['repetitions']}"
                found.left_out[f"{place}.repetitions"] = why
    found.left_out |= missing
    return found


def _variables(
    source: SpecificationFile, recipe: Mapping[str, Any], vllm: Mapping[str, Any], missing: dict[str, str]
) -> dict[str, str]:
    """Variables of the kind of GPU, then those of the recipe; what is not known of them is ``missing``."""
    gpu, own = str(recipe.get("gpu")), source.mapping("vllm", vllm, "env")
    text = source.read_beside(_PROFILES)
    profiles = parse(text, source.path.parent / _PROFILES).mapping() if text is not None else {}
    profile = profiles.get(gpu)
    common = profile.get("env") or {} if isinstance(profile, Mapping) else None
    if not isinstance(common, Mapping):
        why = f"lib/gpu_profiles.yaml beside the recipes has no {gpu}: its variables are not in the cells"
        missing["gpu"] = why
        common = {}
    waiting = {"VLLM_ENGINE_READY_TIMEOUT_S": f"{_READY_S:g}"}
    for name, value in own.items():
        source.check_type(f"vllm.env.{name}", value, (str, int, float), "text or a number")
    return {**waiting, **{name: str(value) for name, value in {**common, **own}.items()}}


def _cell(
    source: SpecificationFile,
    place: str,
    name: str,
    config: Mapping[str, Any],
    server: Mapping[str, object],
    options: Mapping[str, object],
) -> ImportedCell:
    source.check_type(f"{place}.name", config.get("name"), str, "a name")
    for key in ("input_len", "output_len"):
        source.check_type(f"{place}.{key}", config.get(key), int, "a whole number")
    for key in ("num_prompts", "max_concurrency"):
        source.check_type(f"{place}.{key}", config.get(key), (int, list), "a whole number, or a list of them")
    backend = str(config.get("backend") or "openai")
    given: dict[str, object] = {
        "backend": backend,
        "endpoint": _ENDPOINTS.get(backend, "/v1/completions"),
        "dataset-name": "random",
        "random-input-len": config["input_len"],
        "random-output-len": config["output_len"],
        "ignore-eos": True,
        "num-prompts": config["num_prompts"],
    }
    for key, value in source.mapping(place, config, "args").items():
        option = _option(key)
        if option in given or option == "max-concurrency":
            raise source.wrong(f"{place}.args.{key}", "is set by a key of the benchmark", "other options")
        source.check_type(f"{place}.args.{key}", value, (int, float, str, type(None)), "one value")
        if value is not False and value is not None and option not in _REPORTING:
            given[option] = value
    load = {"max_concurrency": config["max_concurrency"]}
    if "request-rate" in given:
        load["request_rate"] = given.pop("request-rate")
    client = {"client": {"args": {"trust-remote-code": True}}} if options.get("trust-remote-code") else {}
    document = {
        **server,
        **client_fields(given),
        **load,
        **client,
        **judged_fields(options),
    }
    return ImportedCell(file_stem(f"{name}-{config['name']}"), document, place)


def _option(name: str) -> str:
    """An option as its scripts read it: with or without dashes, or with underscores."""
    return kebab(name).lstrip("-")
