"""vLLM's own serving tests (``serving-tests*.json`` of its nightly) -> cell documents.

A test is a server and a client, each by its options, which a shell read: text may be quoted, ``""`` is a
switch. ``qps_list`` and ``max_concurrency_list`` are crossed: every rate at every concurrency. The newer form
has ``defaults`` for all ``tests``; a test's own options replace those of the same name.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

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
from perfbisect.model.cell import Sampling
from perfbisect.serving.families import FAMILIES

_LISTS = ("qps_list", "max_concurrency_list")
_MAPPINGS = ("server_environment_variables", "server_parameters", "client_parameters")
_KEYS = ("test_name", "tier", *_LISTS, *_MAPPINGS)

_ENDPOINTS = ("/v1/completions", "/v1/chat/completions")
_PLACES = ("host", "port", "base-url")
"""Where the server listens: an attempt has a port of its own."""

_PARALLEL = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")
_OWN = (
    *("backend", "endpoint", "tokenizer", "ignore-eos", "extra-body", "seed", "num-warmups", "burstiness"),
    *("percentile-metrics", "metric-percentiles", "dataset-name", "dataset-path", "num-prompts"),
)
"""Options of the client that are keys of a cell."""

_SHAREGPT = (
    "huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered, which vLLM's script downloads first"
)


def read_tests(source: SpecificationFile, document: Mapping[str, Any], *, at: str = "tests") -> Specification:
    """The cells of a file; ``at`` is where its tests stand in it, for messages.

    :raises LocatedError: not tests with a server and a client, a key that is not known, or a list, number or
        text that is none.
    """
    source.unknown("", document, ("defaults", "tests"))
    tests, defaults = document["tests"], document.get("defaults") or {}
    if not isinstance(tests, list):
        raise source.wrong(at, f"is {describe_value(tests)}", "a list of tests")
    if not isinstance(defaults, Mapping):
        raise source.wrong("defaults", f"is {describe_value(defaults)}", "a mapping")
    source.unknown("defaults", defaults, (*_LISTS, *_MAPPINGS))
    cells: list[ImportedCell] = []
    left_out: list[SkippedWorkload] = []
    for i, test in enumerate(tests):
        place = f"{at}[{i}]"
        if not isinstance(test, Mapping):
            raise source.wrong(place, f"is {describe_value(test)}", "a mapping with server_parameters")
        source.unknown(place, test, _KEYS)
        if not isinstance(test.get("test_name"), str) or not file_stem(test["test_name"]):
            raise source.wrong(f"{place}.test_name", f"is {describe_value(test.get('test_name'))}", "a name")
        variables, server, client = (
            {**_mapping(source, "defaults", defaults, name), **_mapping(source, place, test, name)}
            for name in _MAPPINGS
        )
        endpoint = client.get("endpoint", _ENDPOINTS[0])
        if endpoint not in _ENDPOINTS:
            left_out.append(
                SkippedWorkload(place, f"no family here asks at {endpoint} ({test['test_name']})")
            )
            continue
        lists = {name: defaults.get(name) if test.get(name) is None else test[name] for name in _LISTS}
        cells.append(_cell(source, place, test["test_name"], variables, server, client, lists))
    return Specification(number_duplicates(cells), left_out=tuple(left_out))


def _mapping(source: SpecificationFile, place: str, above: Mapping[str, Any], name: str) -> dict[str, object]:
    """The options of a mapping by their long names (variables of the environment as they are)."""
    found = above.get(name) or {}
    if not isinstance(found, Mapping):
        raise source.wrong(f"{place}.{name}", f"is {describe_value(found)}", "a mapping of names to values")
    if name == _MAPPINGS[0]:
        return {key: str(value) for key, value in found.items()}
    return {kebab(key): _value(source, f"{place}.{name}.{key}", value) for key, value in found.items()}


def _value(source: SpecificationFile, place: str, value: object) -> object:
    """What the program is given after a shell has read it; ``""`` is a switch."""
    if value == "":
        return True
    if not isinstance(value, str):
        return value
    try:
        words = shlex.split(value)
    except ValueError as error:
        raise source.wrong(
            place, f"is {describe_value(value)}, which a shell cannot read: {error}", "text"
        ) from None
    return words[0] if len(words) == 1 else words


def _cell(
    source: SpecificationFile,
    place: str,
    name: str,
    variables: Mapping[str, object],
    server: dict[str, object],
    client: dict[str, object],
    lists: Mapping[str, object],
) -> ImportedCell:
    model, asked = server.pop("model", None), client.pop("model", None)
    if not isinstance(model, str):
        raise source.wrong(
            f"{place}.server_parameters.model", f"is {describe_value(model)}", "the model's name"
        )
    if asked not in (None, model):
        raise source.wrong(
            f"{place}.client_parameters.model", f"is {describe_value(asked)}", f"the server's, {model}"
        )
    given = {key: value for key, value in client.items() if key not in _PLACES}
    document: dict[str, object] = {
        "family": "text",
        "description": f"{name} of {source.name}",
        "model": model,
        "task": "generate",
        **_serving(variables, server),
        **_loading(given),
        **_load(source, place, given, lists),
        "headline": FAMILIES["text"].headline,
        "guards": [
            *FAMILIES["text"].guards,
            *(["spec_decode_acceptance_rate"] if "speculative-config" in server else []),
        ],
    }
    path = str(document.get("dataset_path", ""))
    local = path and given.get("dataset-name") != "hf" and not HUB_NAME.match(path)
    origin = _SHAREGPT if path.startswith("ShareGPT") else "a file that vLLM's script expects"
    return ImportedCell(file_stem(name), document, needs=(RequiredFile(path, origin),) if local else ())


def _serving(variables: Mapping[str, object], server: Mapping[str, object]) -> dict[str, object]:
    """Serve arguments, environment and devices; tokenizer and revisions have keys of their own in a cell."""
    options = {key: value for key, value in server.items() if key not in _PLACES}
    revision = {
        key: options.pop(name)
        for key, name in (("model", "revision"), ("tokenizer", "tokenizer-revision"))
        if name in options
    }
    out = {name: options.pop(name) for name in ("tokenizer",) if name in options}
    out |= {"revision": revision} if revision else {}
    out |= {"serve_args": options} if options else {}
    out |= {"env": dict(variables)} if variables else {}
    return {**out, "gpus": _gpus(variables, options)}


def _gpus(variables: Mapping[str, object], options: Mapping[str, object]) -> int:
    """As many as the parallel sizes multiply to; none where the server is one of the CPU's."""
    if options.get("device") == "cpu" or any(name.startswith("VLLM_CPU_") for name in variables):
        return 0
    return math.prod(size for name in _PARALLEL if isinstance(size := options.get(name), int))


def _loading(given: Mapping[str, object]) -> dict[str, object]:
    """Data set, requests and sampling; what has no key of its own in a cell is an option of the client."""
    out = {name.replace("-", "_"): given[name] for name in _OWN if name in given}
    if "dataset-path" in given:
        out["dataset_path"] = str(given["dataset-path"]).removeprefix("./")
    sampling = {kebab(name): name for name in Sampling.model_fields}
    if told := {name: given[option] for option, name in sampling.items() if option in given}:
        out["sampling"] = told
    arguments = {name: value for name, value in given.items() if name not in (*_OWN, *sampling)}
    return {**out, "dataset_args": arguments} if arguments else out


def _load(
    source: SpecificationFile, place: str, given: Mapping[str, object], lists: Mapping[str, object]
) -> dict[str, object]:
    """Rates and concurrencies crossed, as paired lists; what is the same everywhere as one value."""
    for name in ("request-rate", "max-concurrency"):
        if name in given:
            raise source.wrong(
                f"{place}.client_parameters.{name}", "is set by the lists of a test", " and ".join(_LISTS)
            )
    if not isinstance(given.get("num-prompts"), int):
        found = describe_value(given.get("num-prompts"))
        raise source.wrong(f"{place}.client_parameters.num_prompts", f"is {found}", "a whole number")
    rates, users = (_numbers(source, f"{place}.{name}", lists[name]) for name in _LISTS)
    pairs = list(product(rates or ["inf"], users or ["all"]))
    out: dict[str, object] = {}
    for key, column in (("request_rate", 0), ("max_concurrency", 1)):
        values = [pair[column] for pair in pairs]
        if set(values) not in ({"inf"}, {"all"}):
            out[key] = values if len(set(values)) > 1 else values[0]
    return out


def _numbers(source: SpecificationFile, place: str, values: object) -> Sequence[int | float | str]:
    if values is None:
        return []
    allowed = 'a list of different numbers over 0 (of rates also "inf")'
    if not isinstance(values, list) or not values:
        raise source.wrong(place, f"is {describe_value(values)}", allowed)
    rates = place.endswith(_LISTS[0])
    for i, value in enumerate(values):
        number = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
        if not (number or (rates and value == "inf")) or value in values[:i]:
            raise source.wrong(f"{place}[{i}]", f"is {describe_value(value)}", allowed)
    return values
