"""Benchmark cases of tpu-inference (``.buildkite/benchmark/cases``) -> cell documents.

A case is a server and a client, each by its long options; a mapping as value says it for each kind of
machine, which the case's queues name. ``false`` leaves an option out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from perfbisect.cells.importers.base import (
    ImportedCell,
    Specification,
    SpecificationFile,
    describe_value,
    file_stem,
)
from perfbisect.cells.importers.vllm_ci import client_fields, judged_fields, server_fields
from perfbisect.common.yaml_source import collecting

FORM = "tpu-inference's benchmark cases (benchmark_cases)"

_KEYS = (
    *("case_name", "ci_queue", "env", "server_command_options", "client_command_options"),
    "accuracy_command_options",
)
_COMMAND_KEYS = ("command_type", "env", "args")
_QUEUE = re.compile(r"tpu_(?P<kind>v\d+\w?)(?:_(?P<count>\d+))?_queue")

# Both maps of variables are exported to the server; these are read by the scripts alone.
_OF_SCRIPTS = re.compile(
    r"GCP_\w+|GCS_\w+|MODELTAG|EXPECTED_ETEL|(?:INPUT|OUTPUT|PREFIX)_LEN|RUN_\w+|DEVICE|DATASET|MODEL_NAME|"
    r"BENCHMARK_TIMEOUT|BK_\w+|IS_MULTI_HOST_BENCH|SERVER_WAIT_MINS|MLCOMPASS_\w+|MAX_\w+|__COMMENT__"
)
_DEFAULT_DEVICES = 1


def takes(document: object) -> bool:
    return isinstance(document, Mapping) and "benchmark_cases" in document


def read(source: SpecificationFile, document: Any) -> Specification:
    """The cells of a file, one of each case and kind of machine."""
    source.check_keys("", document, ("global_env", "benchmark_cases"))
    shared, cases = source.mapping("", document, "global_env"), document["benchmark_cases"]
    source.check_type("benchmark_cases", cases, list, "a list of cases")
    found = Specification()
    for i, case in enumerate(cases):
        place = f"benchmark_cases[{i}]"
        with collecting(found.errors):
            source.check_type(place, case, Mapping, "a mapping with case_name")
            source.check_keys(place, case, _KEYS)
            name = case.get("case_name")
            if not isinstance(name, str) or not file_stem(name):
                raise source.wrong(f"{place}.case_name", f"is {describe_value(name)}", "a name")
            sides = [source.mapping(place, case, f"{side}_command_options") for side in ("server", "client")]
            kinds = [side.get("command_type") for side in sides]
            if kinds != ["vllm_serve", "vllm_bench_serve"]:
                found.left_out[place] = f"it is no vllm serve with vllm bench serve, but {kinds[1]} ({name})"
                continue
            if "accuracy_command_options" in case:
                found.left_out[f"{place}.accuracy_command_options"] = "measures accuracy, no speed"
            machines = _machines(source, place, case)
            variables = {**shared, **source.mapping(place, case, "env")}
            documents = dict[str, ImportedCell]()
            for machine in machines:
                stem = name if len(machines) == 1 else f"{name}-{machine}"
                documents[stem] = _cell(source, place, stem, machine, variables, sides)
            found.cells += documents.values()
    return found


def _machines(source: SpecificationFile, place: str, case: Mapping[str, Any]) -> list[str]:
    """The kinds of machines of a case, as its options name them: ``v7x-8``."""
    queues = case.get("ci_queue") or []
    source.check_type(f"{place}.ci_queue", queues, list, "a list of queues")
    found = [_QUEUE.fullmatch(str(queue)) for queue in queues]
    return [f"{queue['kind']}-{queue['count'] or _DEFAULT_DEVICES}" for queue in found if queue] or [
        "default"
    ]


def _cell(
    source: SpecificationFile,
    place: str,
    stem: str,
    machine: str,
    variables: Mapping[str, object],
    sides: list[Mapping[str, Any]],
) -> ImportedCell:
    options = []
    for side, given in zip(("server", "client"), sides, strict=True):
        where = f"{place}.{side}_command_options"
        source.check_keys(where, given, _COMMAND_KEYS)
        chosen: dict[str, Any] = {}
        for option, said in source.mapping(where, given, "args").items():
            value = said
            if isinstance(said, Mapping):
                value = said.get(machine, said.get("default"))
                if value is None:
                    message = f"says nothing of {machine}, the machine of its queue"
                    raise source.wrong(f"{where}.args.{option}", message, ", ".join(map(str, said)))
            if value is not False:
                chosen[option] = value
        # The scripts serve a copy in a bucket under the model's name.
        chosen |= {"model": chosen["model-path"]} if "model-path" in chosen else {}
        chosen.pop("model-path", None)
        options.append(chosen)
    server, client = options
    model = server.pop("model", None)
    source.check_type(f"{place}.server_command_options.args.model", model, str, "the model's name")
    own = source.mapping(f"{place}.server_command_options", sides[0], "env")
    env = {key: str(value) for key, value in {**variables, **own}.items() if not _OF_SCRIPTS.fullmatch(key)}
    client.pop("model", None)
    client.setdefault("dataset-name", "random")
    load: dict[str, object] = {}
    if (rate := client.pop("request-rate", "inf")) != "inf":
        try:
            load["request_rate"] = float(rate)
        except (TypeError, ValueError):
            where = f"{place}.client_command_options.args.request-rate"
            raise source.wrong(where, f"is {describe_value(rate)}", 'a number or "inf"') from None
    if (users := client.pop("max-concurrency", None)) is not None:
        load["max_concurrency"] = users
    # The client's own reports are chosen by the cell's metrics.
    client.pop("metric-percentiles", None)
    trusted = client.pop("trust-remote-code", None)
    document: dict[str, object] = {
        "family": "text",
        "description": f"{stem} of {source.name}",
        "model": model,
        "task": "generate",
        **server_fields(env, server),
        **client_fields({"endpoint": "/v1/completions", **client}),
        **load,
        **({"client": {"args": {"trust-remote-code": True}}} if trusted else {}),
        **judged_fields(server),
    }
    if "tpot" not in str(client.get("percentile-metrics", "tpot")) or client.get("random-output-len") == 1:
        document["headline"] = "ttft"
    needs: dict[str, str] = {}
    if path := str(document.get("dataset_path", "")):
        document["dataset_path"] = name = path.rpartition("/")[2]
        needs[name] = f"{path}, which tpu-inference's scripts prepare"
    return ImportedCell(file_stem(stem), document, place, needs=needs)
