"""Result files of clients -> the workload that they are of; one file a client, one entry each here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from perfbisect.cells.reports.report import WORKLOAD_PARTS, ReportedWorkload
from perfbisect.cells.reports.results import aiperf, guidellm, sglang, vllm_bench
from perfbisect.common.digests import canonical
from perfbisect.common.json_text import WRONG_SHAPE, parse_json
from perfbisect.common.text import line as shown
from perfbisect.errors import UsageError

_READERS = (aiperf, guidellm, vllm_bench, sglang)
"""Each reads the results that have its keys."""

_OFFLINE: Mapping[str, frozenset[str]] = {
    "latency": frozenset({"avg_latency", "latencies"}),
    "throughput": frozenset({"elapsed_time", "requests_per_second"}),
    "startup": frozenset({"avg_cold_startup_time"}),
}
"""Results of benchmarks without a server, which say what was measured and no workload."""

_JSON = ('{"', "{\n", '[{"', "[\n")
"""How results begin, and how a list of options does not."""


def read(text: str) -> ReportedWorkload | None:
    """Read a result file of a client; None: it is no JSON. :raises UsageError: it has no workload."""
    try:
        records = _records(text)
    except ValueError as error:
        if not text.startswith(_JSON):
            return None
        step = "give the file as the client wrote it"
        raise UsageError(f"the report is no JSON: {error}", next_step=step) from None
    if not isinstance(records[0], Mapping):
        return None
    found = read_record(records[0])
    if found.offline:
        raise UsageError(
            f"a result of vllm bench {found.offline} says neither model nor load",
            next_step="give the command that wrote it",
        )
    several = f"of {len(records)} results the first is read"
    return replace(found, notes=(*found.notes, several)) if len(records) > 1 else found


def read_record(record: object) -> ReportedWorkload:
    """The workload of one result. :raises UsageError: it is of no known client, or damaged."""
    known = record if isinstance(record, Mapping) else {}
    for reader in _READERS:
        if known.keys() >= reader.KEYS:
            try:
                found: ReportedWorkload = reader.read(known)
                canonical((found.fields, found.arguments, found.serve_args))
            except WRONG_SHAPE as error:
                reason = shown(f"{type(error).__name__}: {error}")
                raise UsageError(f"the result cannot be read ({reason})") from None
            return found
    for name, keys in _OFFLINE.items():
        if known.keys() >= keys:
            missing = tuple(part for part in WORKLOAD_PARTS if part != "task")
            return ReportedWorkload({"task": name}, missing, offline=name)
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
