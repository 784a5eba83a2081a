"""Result files and rows of tables -> the workload that they are of."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from perfbisect.cells.reports.arguments import BACKENDS, ENDPOINTS
from perfbisect.cells.reports.report import WORKLOAD_PARTS, ReportedWorkload
from perfbisect.cells.reports.revisions import commits_in, releases_in
from perfbisect.cells.reports.vllm_options import SERVER_OPTIONS
from perfbisect.common.json_text import WRONG_SHAPE, parse_json
from perfbisect.common.text import line as shown
from perfbisect.errors import UsageError
from perfbisect.serving.families.text import CHAT, COMPLETIONS

_RESULT = re.compile(
    r"^result_(?P<test>.+)_(?P<dataset>[^_]+)_(?P<flow>\d{1,15}(?:\.\d{1,15})?|inf)_(?P<prompts>\d{1,15})"
    r"(?:_in(?P<input>\d{1,15}|na)_out(?P<output>\d{1,15}|na))?_(?P<time>\d{8}-\d{6})\.json$"
)
_DIFFUSION = re.compile(r"^(?:benchmark_results|diffusion_result)_(?P<test>.+)_(?P<time>\d{8}-\d{6})\.json$")

_JSON = ('{"', "{\n", '[{"', "[\n")
"""How results begin, and how a list of options does not."""
_LARGEST = 1e15
"""No number of a load is as large."""

_Record = Mapping[str, Any]

_KINDS = {"chat": ("openai-chat", CHAT), "completions": ("openai", COMPLETIONS)}
"""Kinds of endpoints of AIPerf and GuideLLM, as backend and endpoint."""
_PAIR = re.compile(r"\b(\w{1,40})=(\d{1,9})\b")
_ROW = re.compile(r"^\s*\|(.+)\|\s*$")
_RULE = re.compile(r"[\s|:-]+")
_LOAD = re.compile(r"(?<![A-Za-z0-9])(?P<name>c|n|in|out|qps)[ =]?(?P<value>\d{1,9})(?![\w.])")
"""The load in the column of a nightly's table: ``c64-n512``."""
_LOADS = {
    "c": "max_concurrency",
    "n": "num_prompts",
    "qps": "request_rate",
    "in": "input-len",
    "out": "output-len",
}
_COLUMNS: Mapping[str, str] = {
    **dict.fromkeys(("model", "model name", "model_id"), "model"),
    **dict.fromkeys(("dataset", "data set", "dataset name", "dataset_name"), "dataset_name"),
    **dict.fromkeys(
        ("concurrency", "max concurrency", "max_concurrency", "c", "batch size"), "max_concurrency"
    ),
    **dict.fromkeys(("prompts", "num prompts", "num_prompts", "# of req.", "requests"), "num_prompts"),
    **dict.fromkeys(("request rate", "request_rate", "qps", "rps"), "request_rate"),
    **dict.fromkeys(("input", "input len", "input_len", "input length", "isl"), "input-len"),
    **dict.fromkeys(("output", "output len", "output_len", "output length", "osl"), "output-len"),
    **dict.fromkeys(("tp", "tensor parallel size"), "tensor-parallel-size"),
    **dict.fromkeys(("config", "test", "cell", "load"), "config"),
}
"""Headers of nightlies' tables, in small letters, and what stands below."""


def parse_result_name(name: str) -> ReportedWorkload:
    """Read the name of a result file of any era. :raises UsageError: it is not one.

    A load with a point is a request rate (``2.0``), one without a concurrency (``2``). The name is read from
    its end, since a test's own name may contain what looks like a load.
    """
    if found := _DIFFUSION.match(name):
        test = found["test"].removeprefix("test_")
        return ReportedWorkload({}, WORKLOAD_PARTS, test, found["time"])
    found = _RESULT.match(name)
    if found is None:
        raise UsageError(
            f"{name!r} is no name of a result file",
            next_step="such as result_test_qwen3_tts_base_seed-tts_64_128_inna_outna_20260519-190024.json",
        )
    is_rate = "." in found["flow"] or found["flow"] == "inf"
    known: dict[str, object] = {
        "dataset_name": found["dataset"],
        "num_prompts": int(found["prompts"]),
        "request_rate": float(found["flow"]) if is_rate else math.inf,
        "max_concurrency": None if is_rate else int(found["flow"]),
    }
    lengths = {f"random-{side}-len": found[side] for side in ("input", "output")}
    arguments = {option: int(length) for option, length in lengths.items() if length not in (None, "na")}
    missing = ("model", "task", "deploy YAML", "warm-ups")
    test = found["test"].removeprefix("test_")
    return ReportedWorkload(known, missing, test, found["time"], arguments)


def parse_document(text: str) -> ReportedWorkload | None:
    """Read a result file of a client; None: it is no JSON. :raises UsageError: it has no workload."""
    try:
        records = _records(text)
    except ValueError as error:
        if not text.startswith(_JSON):
            return None
        step = "give the file as the client wrote it"
        raise UsageError(f"the report is no JSON: {error}", next_step=step) from None
    record = records[0]
    if not isinstance(record, Mapping):
        return None
    for keys, reader in _READERS:
        if keys <= record.keys():
            try:
                found = reader(record)
            except WRONG_SHAPE as error:
                reason = shown(f"{type(error).__name__}: {error}")
                raise UsageError(f"the result cannot be read ({reason})") from None
            several = f"of {len(records)} results the first is read"
            return replace(found, notes=(*found.notes, several)) if len(records) > 1 else found
    for keys, name in _WITHOUT_WORKLOAD:
        if keys <= record.keys():
            raise UsageError(
                f"a result of {name} says neither model nor load",
                next_step="give the command that wrote it",
            )
    raise UsageError(
        "the JSON is no result of a client that is known",
        next_step="perfbisect cells import reads specifications of nightlies",
    )


def _records(text: str) -> Sequence[Any]:
    """The records of a JSON text or of JSON lines. :raises ValueError: it is neither."""
    try:
        document = parse_json(text)
    except json.JSONDecodeError:
        document = [parse_json(row) for row in text.splitlines() if row.strip()]
    records = document if isinstance(document, list) else [document]
    if not records:
        raise ValueError("it holds no result")
    return records


def _number(value: object) -> int | float | None:
    """A number of a load, whole where it is."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < _LARGEST:
        return None
    return int(value) if float(value).is_integer() else value


def _count(value: object) -> int | None:
    number = _number(value)
    return number if isinstance(number, int) else None


def _load(record: _Record, **names: str) -> dict[str, object]:
    """Fields of the load, of which a result says ``null`` where there is no limit."""
    fields: dict[str, object] = {}
    for field, name in names.items():
        if name in record:
            value = record[name]
            fields[field] = math.inf if value == "inf" else _number(value)
    return {name: value for name, value in fields.items() if value is not None or name == "max_concurrency"}


def _lengths(given: object, taken: object) -> dict[str, object]:
    """The data set of a result that has only lengths."""
    pairs = {"random-input-len": _number(given), "random-output-len": _number(taken)}
    lengths = {name: round(value) for name, value in pairs.items() if value is not None and value >= 1}
    return {"dataset_name": "random", "dataset_args": lengths} if lengths else {}


def _vllm(record: _Record) -> ReportedWorkload:
    """``vllm bench serve``, which names no data set; a sweep adds the parameters that it varies."""
    backend = BACKENDS.get(str(record.get("backend")), record.get("backend") or record.get("endpoint_type"))
    fields = {
        "model": record["model_id"],
        **_load(record, num_prompts="num_prompts", max_concurrency="max_concurrency"),
        **_load(record, request_rate="request_rate", burstiness="burstiness"),
    }
    if isinstance(backend, str):
        fields |= {"backend": backend, "endpoint": ENDPOINTS.get(backend, COMPLETIONS)}
    if record.get("tokenizer_id") not in (None, record["model_id"]):
        fields["tokenizer"] = record["tokenizer_id"]
    varied = {key.replace("_", "-"): value for key, value in record.items()}
    served = {key: v for key, v in varied.items() if key in SERVER_OPTIONS and key not in ("model", "seed")}
    completed = _number(record.get("completed")) or 1
    means = [(_number(record.get(f"total_{side}_tokens")) or 0) / completed for side in ("input", "output")]
    missing = ("task", "deploy YAML", "dataset", "warm-ups")
    return ReportedWorkload(
        fields, missing, serve_args=served or None, likely=_lengths(*means), notes=(_MEANS,)
    )


_MEANS = "the result names no data set: the lengths are the means of its requests"


def _sglang(record: _Record) -> ReportedWorkload:
    """SGLang's ``bench_serving``, which names no model."""
    fields = {
        "dataset_name": "random",
        **_load(record, max_concurrency="max_concurrency", num_prompts="completed"),
        **_load(record, request_rate="request_rate"),
    }
    lengths = {f"random-{side}-len": record.get(f"random_{side}_len") for side in ("input", "output")}
    arguments = {name: value for name, value in lengths.items() if value is not None}
    ratio = record.get("random_range_ratio")
    # SGLang's ratio is the least length over the largest, vLLM's is how far a length may be from it.
    notes = [f"random_range_ratio {ratio:g} of SGLang is 0 of vLLM"] if ratio == 1 else []
    notes += [f"random_range_ratio {ratio} of SGLang is none of vLLM's"] if ratio not in (None, 1) else []
    missing = ("model", "task", "deploy YAML", "warm-ups")
    other = ("the server, which may be SGLang's",) if str(record.get("backend")).startswith("sglang") else ()
    return ReportedWorkload(fields, missing, arguments=arguments, unread=other, notes=tuple(notes))


def _aiperf(record: _Record) -> ReportedWorkload:
    config = record["input_config"]
    names = [one["name"] for one in config["models"]["items"]]
    tokenizer = (config.get("tokenizer") or {}).get("name")
    # The name that the server answers to is often no hub's; the tokenizer's is.
    model = tokenizer if tokenizer and "/" not in str(names[0]) else names[0]
    endpoint = config.get("endpoint") or {}
    phase: _Record = next((one for one in config.get("phases") or [] if one.get("name") != "warmup"), {})
    fields = {
        "model": model,
        **_kind(str(endpoint.get("type"))),
        **_load(phase, max_concurrency="concurrency", num_prompts="requests"),
        **_load(phase, request_rate="rate"),
    }
    fields.setdefault("num_prompts", _count((record.get("request_count") or {}).get("avg")) or 1)
    means = [(record.get(f"{side}_sequence_length") or {}).get("avg") for side in ("input", "output")]
    if means[1] is None:
        means[1] = (record.get("total_output_tokens") or {}).get("avg", 0) / fields["num_prompts"]
    notes = ["its client is AIPerf: vLLM's sends the same load", _MEANS]
    notes += (
        [f"the model is that of the tokenizer, {model}; the server answers to {names[0]}"]
        if model != names[0]
        else []
    )
    missing = ("task", "deploy YAML", "dataset", "warm-ups")
    return ReportedWorkload(fields, missing, likely=_lengths(*means), notes=tuple(notes))


def _kind(kind: str) -> dict[str, object]:
    backend, endpoint = _KINDS.get(kind, ("", ""))
    return {"backend": backend, "endpoint": endpoint} if backend else {}


def _guidellm(record: _Record) -> ReportedWorkload:
    args, run = record.get("args") or {}, record["benchmarks"][0]
    strategy = (run.get("config") or {}).get("strategy") or {}
    totals = (run.get("metrics") or {}).get("request_totals") or {}
    fields: dict[str, object] = {
        **({"model": args["model"]} if args.get("model") else {}),
        **_kind(str(args.get("request_type") or "chat_completions").partition("_")[0]),
        **_load(strategy, max_concurrency="streams", request_rate="rate"),
    }
    # It measures for a time: as many requests as it completed are the nearest.
    fields["num_prompts"] = _count(totals.get("successful")) or 1
    lengths = dict(_PAIR.findall(str(args.get("data"))))
    given, taken = (
        int(lengths[name]) if name in lengths else None for name in ("prompt_tokens", "output_tokens")
    )
    notes = ["its client is GuideLLM: vLLM's sends the same load"]
    if len(record["benchmarks"]) > 1:
        notes.append(f"of {len(record['benchmarks'])} benchmarks the first is read")
    missing = ("task", "deploy YAML", "dataset", "warm-ups")
    return ReportedWorkload(fields, missing, likely=_lengths(given, taken), notes=tuple(notes))


_READERS: Sequence[tuple[frozenset[str], Callable[[_Record], ReportedWorkload]]] = (
    (frozenset({"aiperf_version", "input_config"}), _aiperf),
    (frozenset({"metadata", "benchmarks"}), _guidellm),
    (frozenset({"model_id", "num_prompts"}), _vllm),
    (frozenset({"backend", "completed", "random_input_len"}), _sglang),
)
"""Keys of a client's result, and what reads it."""

_WITHOUT_WORKLOAD: Sequence[tuple[frozenset[str], str]] = (
    (frozenset({"avg_latency", "latencies"}), "vllm bench latency"),
    (frozenset({"elapsed_time", "requests_per_second"}), "vllm bench throughput"),
    (frozenset({"avg_cold_startup_time"}), "vllm bench startup"),
)


def parse_table(text: str) -> ReportedWorkload | None:
    """Read the first row of a table in Markdown, or with tabs, below its header; None: no table."""
    rows = [_cells(row) for row in text.splitlines() if row.strip() and not _RULE.fullmatch(row)]
    for header, row in pairwise(rows):
        columns = [_COLUMNS.get(name.lower()) for name in header]
        if "model" in columns and len(header) == len(row) > 1:
            return _row(dict(zip(columns, row, strict=True)), text)
    return None


def _cells(row: str) -> list[str]:
    found = _ROW.match(row)
    parts = found[1].split("|") if found else row.split("\t")
    return [part.strip().strip("`*") for part in parts]


def _row(values: Mapping[str | None, str], text: str) -> ReportedWorkload:
    load = {found["name"]: int(found["value"]) for found in _LOAD.finditer(values.get("config", ""))}
    said: dict[str, object] = {_LOADS[name]: value for name, value in load.items()}
    for name, value in values.items():
        if name in ("model", "dataset_name") and value:
            said[name] = value
        elif name not in (None, "config") and value.replace(",", "").isdigit() and len(value) < 10:
            said[str(name)] = int(value.replace(",", ""))
    dataset = str(said.get("dataset_name", "random"))
    lengths = {f"{dataset}-{side}": said.pop(side) for side in ("input-len", "output-len") if side in said}
    served = {name: said.pop(name) for name in ("tensor-parallel-size",) if name in said}
    parts = {"dataset": "dataset_name", "prompts": "num_prompts", "load": "max_concurrency"}
    missing = ["task", "deploy YAML", *(part for part, name in parts.items() if name not in said), "warm-ups"]
    return ReportedWorkload(
        said,
        tuple(missing),
        arguments=lengths,
        serve_args=served or None,
        releases=releases_in(text),
        commits=commits_in(text),
    )
