"""vLLM's serving tests (``serving-tests*.json``, ``nightly-tests.json``) -> cell documents.

A test is a server and a client, each by its options as a shell reads them: text may be quoted, ``""`` is a
switch. ``qps_list`` and ``max_concurrency_list`` are crossed. The newer form has ``defaults`` for all
``tests``; a test's own options take precedence. The nightly's form has common parameters and a server and a
client of each engine, of which vLLM's are read.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

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
from perfbisect.common.yaml_source import collecting
from perfbisect.model.cell import parallel_devices
from perfbisect.serving.families import FAMILIES, family_at
from perfbisect.serving.families.text import COMPLETIONS

FORM = (
    "vLLM's serving tests (test_name, server_parameters, client_parameters; in a list, or under tests with "
    "defaults), its nightly tests (common_parameters, vllm_server_parameters)"
)

_LISTS = ("qps_list", "max_concurrency_list")
_MAPPINGS = ("server_environment_variables", "server_parameters", "client_parameters")
_KEYS = ("test_name", "tier", *_LISTS, *_MAPPINGS)

_OFFLINE_KEYS = ("test_name", "environment_variables", "parameters")
"""Keys of vLLM's latency and throughput tests."""

_NIGHTLY_COMMON = ("model", "tp", "dataset_name", "dataset_path", "num_prompts", "port", "reuse_server")
_NIGHTLY_MAPPINGS = ("common_parameters", "vllm_server_parameters", "vllm_client_parameters")

_ADDRESS = ("host", "port", "base-url", "served-model-name")
"""Options that an attempt sets itself."""

_OWN = (
    *("backend", "endpoint", "tokenizer", "ignore-eos", "extra-body", "seed", "num-warmups", "burstiness"),
    *("percentile-metrics", "metric-percentiles", "dataset-name", "dataset-path", "num-prompts"),
)
"""Options of the client that are keys of a cell."""

_SHAREGPT = (
    "huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered, which vLLM's script downloads first"
)


def takes(document: object) -> bool:
    keys = entry_keys(document)
    is_of_tests = isinstance(document, Mapping) and "tests" in document
    is_served = bool(keys & {"server_parameters", "client_parameters", "common_parameters"})
    return is_of_tests or is_served or ("parameters" in keys and keys <= set(_OFFLINE_KEYS))


def read(source: SpecificationFile, document: Any) -> Specification:
    """The cells of any of vLLM's forms. :raises LocatedError: invalid defaults."""
    if isinstance(document, Mapping):
        return read_tests(source, document)
    keys = entry_keys(document)
    if keys & {"server_parameters", "client_parameters"}:
        return read_tests(source, {"tests": document}, at="")
    if "common_parameters" in keys:
        return read_nightly(source, document)
    why = "it measures the engine without a server (vllm bench latency or throughput)"
    return Specification(left_out={f"[{i}]": why for i in range(len(document))})


def read_tests(source: SpecificationFile, document: Mapping[str, Any], *, at: str = "tests") -> Specification:
    """The cells of a file; ``at``: the place of its tests. :raises LocatedError: invalid defaults."""
    source.check_keys("", document, ("defaults", "tests"))
    tests, defaults = document["tests"], document.get("defaults") or {}
    source.check_type(at, tests, list, "a list of tests")
    source.check_type("defaults", defaults, Mapping, "a mapping")
    source.check_keys("defaults", defaults, (*_LISTS, *_MAPPINGS))
    inherited = [_options(source, "defaults", defaults, key) for key in _MAPPINGS]
    found = Specification()
    for i, test in enumerate(tests):
        place = f"{at}[{i}]"
        with collecting(found.errors):
            name = _test_name(source, place, test, _KEYS)
            variables, server, client = (
                {**above, **_options(source, place, test, key)}
                for key, above in zip(_MAPPINGS, inherited, strict=True)
            )
            endpoint = client.get("endpoint", COMPLETIONS)
            if family_at(str(endpoint)) is None:
                found.left_out[place] = f"no family here asks at {endpoint} ({name})"
                continue
            lists = {key: defaults.get(key) if test.get(key) is None else test[key] for key in _LISTS}
            found.cells.append(_cell(source, place, name, variables, server, client, lists))
    return found


def read_nightly(source: SpecificationFile, tests: Sequence[Any]) -> Specification:
    """The cells of vLLM in its comparison with other engines, as its script called server and client."""
    found = Specification()
    for i, test in enumerate(tests):
        place = f"[{i}]"
        with collecting(found.errors):
            name = _test_name(source, place, test, ())
            if "genai_perf_input_parameters" in test:
                found.left_out[place] = f"its client is genai-perf ({name})"
                continue
            common, server, client = (_options(source, place, test, key) for key in _NIGHTLY_MAPPINGS)
            of_data = {
                key: value for key, value in common.items() if key.replace("-", "_") not in _NIGHTLY_COMMON
            }
            if unknown := [key for key in of_data if not key.startswith(f"{common.get('dataset-name')}-")]:
                where = f"{place}.common_parameters.{unknown[0].replace('-', '_')}"
                raise source.wrong(where, "unknown key", ", ".join(_NIGHTLY_COMMON))
            served = {"model": common.get("model"), "tensor-parallel-size": common.get("tp", 1)}
            asked = {key: common.get(key) for key in ("dataset-name", "dataset-path", "num-prompts")}
            called = {"backend": "vllm", "ignore-eos": True, **asked, **of_data}
            lists = {key: test.get(key) for key in _LISTS}
            found.cells.append(_cell(source, place, name, {}, server | served, called | client, lists))
    return found


def _test_name(source: SpecificationFile, place: str, test: Any, keys: Sequence[str]) -> str:
    """The name of a test; ``keys``: all that are known, empty where others belong to other engines."""
    source.check_type(place, test, Mapping, "a mapping with server_parameters")
    if keys:
        source.check_keys(place, test, keys)
    name = test.get("test_name")
    if not isinstance(name, str) or not file_stem(name):
        raise source.wrong(f"{place}.test_name", f"is {describe_value(name)}", "a name")
    return name


def _options(source: SpecificationFile, place: str, above: Mapping[str, Any], name: str) -> dict[str, object]:
    """Options by their long names; environment variables as they are."""
    found = source.mapping(place, above, name)
    if name == _MAPPINGS[0]:
        return {key: str(value) for key, value in found.items()}
    options: dict[str, object] = {}
    for key, value in found.items():
        # vLLM's scripts paste values into a command line: quotes in them are for the shell.
        try:
            words = shlex.split(value) if isinstance(value, str) else [value]
        except ValueError as error:
            message = f"is {describe_value(value)}, which a shell cannot read: {error}"
            raise source.wrong(f"{place}.{name}.{key}", message, "text") from None
        # The empty text is a switch.
        options[kebab(key)] = True if value == "" else words[0] if len(words) == 1 else words
    return options


def _cell(
    source: SpecificationFile,
    place: str,
    name: str,
    variables: Mapping[str, object],
    server: dict[str, object],
    client: dict[str, object],
    lists: Mapping[str, object],
) -> ImportedCell:
    model, client_model = server.pop("model", None), client.pop("model", None)
    source.check_type(f"{place}.server_parameters.model", model, str, "the model's name")
    if client_model not in (None, model):
        asked = f"is {describe_value(client_model)}"
        raise source.wrong(f"{place}.client_parameters.model", asked, f"the server's, {model}")
    given = {key: value for key, value in client.items() if key not in _ADDRESS}
    family = family_at(str(given.get("endpoint", COMPLETIONS))) or FAMILIES["text"]
    document: dict[str, object] = {
        "family": family.name,
        "description": f"{name} of {source.name}",
        "model": model,
        **({"task": "generate"} if family.has_sampling else {}),
        **server_fields(variables, server),
        **client_fields(given),
        **_load_fields(source, place, given, lists),
        **judged_fields(server, family.name),
    }
    path = str(document.get("dataset_path", ""))
    # With the data set "hf" the path is a repository of the hub.
    is_local = path and given.get("dataset-name") != "hf" and not HUB_NAME.match(path)
    origin = _SHAREGPT if path.startswith("ShareGPT") else "a file that vLLM's script expects"
    needs = {path: origin} if is_local else {}
    return ImportedCell(file_stem(name), document, place, needs=needs)


def server_fields(variables: Mapping[str, object], server: Mapping[str, object]) -> dict[str, object]:
    """Tokenizer, revisions, serve arguments, environment and devices."""
    options = {key: value for key, value in server.items() if key not in _ADDRESS}
    tokenizer = options.pop("tokenizer", None)
    pins = {"model": options.pop("revision", None), "tokenizer": options.pop("tokenizer-revision", None)}
    fields = {
        "tokenizer": tokenizer,
        "seed": options.pop("seed", None),
        "revision": {name: pin for name, pin in pins.items() if pin is not None},
        "serve_args": options,
        "env": dict(variables),
    }
    # Not every test of the CPU build names its device.
    is_cpu = options.get("device") == "cpu" or any(name.startswith("VLLM_CPU_") for name in variables)
    return {
        **{name: value for name, value in fields.items() if value not in (None, {})},
        "gpus": 0 if is_cpu else parallel_devices(options),
    }


def judged_fields(server: Mapping[str, object], family: str = "text") -> dict[str, object]:
    """Headline and guards of a server; of one that speculates the share of accepted tokens too."""
    is_speculative = any(name.startswith("speculative-config") for name in server)
    speculation = ["spec_decode_acceptance_rate"] if is_speculative else []
    return {"headline": FAMILIES[family].headline, "guards": [*FAMILIES[family].guards, *speculation]}


def client_fields(given: Mapping[str, object]) -> dict[str, object]:
    """Data set, requests and sampling; other options of the client are dataset arguments."""
    fields = {name.replace("-", "_"): given[name] for name in _OWN if name in given}
    if "dataset-path" in given:
        fields["dataset_path"] = str(given["dataset-path"]).removeprefix("./")
    arguments = {name: value for name, value in given.items() if name not in (*_OWN, *SAMPLING)}
    return {**fields, **sampling_fields(given), **({"dataset_args": arguments} if arguments else {})}


def _load_fields(
    source: SpecificationFile, place: str, given: Mapping[str, object], lists: Mapping[str, object]
) -> dict[str, object]:
    """Rates and concurrencies crossed, as paired lists; a constant as one value."""
    client = f"{place}.client_parameters"
    for name in ("request-rate", "max-concurrency"):
        if name in given:
            raise source.wrong(f"{client}.{name}", "is set by the lists of a test", " and ".join(_LISTS))
    source.check_type(f"{client}.num_prompts", given.get("num-prompts"), int, "a whole number")
    rates, users = (_numbers(source, f"{place}.{name}", lists[name]) for name in _LISTS)
    # The script runs each rate with each concurrency; a cell has them as paired lists.
    pairs = tuple(product(rates or ["inf"], users or ["all"]))
    fields: dict[str, object] = {}
    for key, values in zip(("request_rate", "max_concurrency"), zip(*pairs, strict=True), strict=True):
        if set(values) not in ({"inf"}, {"all"}):
            fields[key] = list(values) if len(set(values)) > 1 else values[0]
    return fields


def _numbers(source: SpecificationFile, place: str, values: object) -> Sequence[int | float | str]:
    if values is None:
        return []
    allowed = 'a list of different numbers over 0 (of rates also "inf")'
    if not isinstance(values, list) or not values:
        raise source.wrong(place, f"is {describe_value(values)}", allowed)
    is_rates = place.endswith(_LISTS[0])
    for i, value in enumerate(values):
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
        if not (is_number or (is_rates and value == "inf")) or value in values[:i]:
            raise source.wrong(f"{place}[{i}]", f"is {describe_value(value)}", allowed)
    return values
