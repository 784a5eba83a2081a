"""Nightly cases of vllm-ascend (``tests/e2e/nightly/single_node``) -> cell documents.

A case is a server with benchmarks of AISBench, another client: the cell has the server as it is, and the
load of a benchmark as ``vllm bench serve`` sends it. AISBench's data sets name their prompts' length and
the shared part of it: ``prefix75-in3500-bs210``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from perfbisect.cells.importers.base import (
    ImportedCell,
    Specification,
    SpecificationFile,
    describe_value,
    file_stem,
)
from perfbisect.cells.importers.vllm_ci import judged_fields, server_fields
from perfbisect.common.arguments import parse_options
from perfbisect.common.yaml_source import collecting
from perfbisect.serving.families.text import CHAT

FORM = "vllm-ascend's nightly cases (test_cases with server_cmd)"

_SEVERAL_NODES = "its deployment is several servers, of which one is measured here"
_VARIABLE = re.compile(r"\$(\w+)|\$\{(\w+)\}")
_LENGTH = re.compile(r"(?<![a-z])in(\d{1,7})", re.IGNORECASE)
_PREFIX = re.compile(r"prefix(\d{1,2})(?!\d)", re.IGNORECASE)
_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty"),
    "repetition_penalty",
)
_INPUT, _OUTPUT, _PROMPTS = 1024, 128, 100
"""The load of a server without a benchmark whose load is known."""


def takes(document: object) -> bool:
    return isinstance(document, Mapping) and bool({"test_cases", "num_nodes"} & document.keys())


def read(source: SpecificationFile, document: Any) -> Specification:
    """The cells of a file; keys that begin with ``_`` are shared parts, which the cases have anyway."""
    found = Specification()
    if "num_nodes" in document:
        found.left_out["num_nodes"] = _SEVERAL_NODES
        return found
    cases = document["test_cases"]
    source.check_type("test_cases", cases, list, "a list of cases")
    for i, case in enumerate(cases):
        place = f"test_cases[{i}]"
        with collecting(found.errors):
            source.check_type(place, case, Mapping, "a mapping with name, model and server_cmd")
            if case.get("epd_server_cmds") or case.get("service_mode", "openai") != "openai":
                found.left_out[place] = _SEVERAL_NODES
                continue
            server = _server(source, place, case, found)
            loads = dict(_loads(source, place, case, found))
            if not loads:
                why = f"has no benchmark of speed: its server is asked with random prompts ({_INPUT} tokens)"
                found.left_out[f"{place}.benchmarks"] = why
            for name, load in (loads or {"": {}}).items():
                stem = file_stem(f"{case['name']}-{name}" if name else case["name"])
                found.cells.append(ImportedCell(stem, {**server, **_client_fields(load)}, place))
    return found


def _server(
    source: SpecificationFile, place: str, case: Mapping[str, Any], found: Specification
) -> dict[str, object]:
    for key in ("name", "model"):
        source.check_type(f"{place}.{key}", case.get(key), str, "a name")
    if not file_stem(case["name"]):
        raise source.wrong(f"{place}.name", f"is {describe_value(case['name'])}", "a name")
    variables = source.mapping(place, case, "envs")
    words: list[str] = []
    for key in ("server_cmd", "server_cmd_extra"):
        tokens = case.get(key) or []
        source.check_type(f"{place}.{key}", tokens, list, "a list of options")
        # What the variables do not say stays as it stands, as in the case's own scripts.
        words += [
            _VARIABLE.sub(lambda name: str(variables.get(name[1] or name[2], name[0])), str(token))
            for token in tokens
        ]
    try:
        options = parse_options(words, negatable=True)
    except ValueError as error:
        raise source.wrong(f"{place}.server_cmd", str(error), "options of vllm serve") from None
    env = {key: str(value) for key, value in variables.items() if not key.endswith("_PORT")}
    for key in [key for key in env if not key.isidentifier()]:
        found.left_out[f"{place}.envs.{key}"] = "is no name of an environment variable"
        del env[key]
    return {
        "family": "text",
        "description": f"{case['name']} of {source.name}",
        "model": case["model"],
        "task": "generate",
        **server_fields(env, options),
        **judged_fields(options),
        **({"client": {"args": {"trust-remote-code": True}}} if options.get("trust-remote-code") else {}),
    }


def _loads(
    source: SpecificationFile, place: str, case: Mapping[str, Any], found: Specification
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The benchmarks of speed; of each what is not as AISBench does it, of others why they are left out."""
    for name, given in source.mapping(place, case, "benchmarks").items():
        where = f"{place}.benchmarks.{name}"
        if not given:
            continue
        source.check_type(where, given, Mapping, "a mapping with case_type")
        if given.get("case_type") != "performance":
            found.left_out[where] = f"measures {given.get('case_type')}, no speed"
            continue
        for key in ("num_prompts", "max_out_len", "batch_size"):
            if key in given:
                source.check_type(f"{where}.{key}", given[key], int, "a whole number")
        data = given.get("dataset_path")
        found.left_out[where] = (
            f"its client AISBench and its data set {data}: the cell has the server, and random prompts of "
            "the same lengths by vllm bench serve"
        )
        yield str(name), given


def _client_fields(load: Mapping[str, Any]) -> dict[str, object]:
    data = str(load.get("dataset_path") or "")
    length, shared = _LENGTH.search(data), _PREFIX.search(data)
    tokens = int(length[1]) if length else _INPUT
    prefix = tokens * int(shared[1]) // 100 if shared else 0
    arguments = {"random-input-len": tokens - prefix, "random-output-len": load.get("max_out_len", _OUTPUT)}
    # AISBench asks for one answer of speed after another: greedy, and as long as its limit.
    sampling = {"temperature": 0, **{name: load[name] for name in _SAMPLING if name in load}}
    return {
        # An answer of one token has no time between tokens.
        **({"headline": "ttft"} if load.get("max_out_len") == 1 else {}),
        "backend": "openai-chat",
        "endpoint": CHAT,
        "dataset_name": "random",
        "dataset_args": {**arguments, **({"random-prefix-len": prefix} if prefix else {})},
        "num_prompts": load.get("num_prompts", _PROMPTS),
        "ignore_eos": True,
        "sampling": sampling,
        **({"max_concurrency": load["batch_size"]} if "batch_size" in load else {}),
        **({"request_rate": load["request_rate"]} if load.get("request_rate") else {}),
    }
