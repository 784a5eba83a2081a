"""Result files of clients -> the workload that they are of; one file a client, one entry each here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from perfbisect.cells.reports.report import ReportedWorkload
from perfbisect.cells.reports.results import aiperf, guidellm, sglang, vllm_bench
from perfbisect.common.json_text import WRONG_SHAPE, parse_json
from perfbisect.common.text import line as shown
from perfbisect.errors import UsageError

_READERS = (aiperf, guidellm, vllm_bench, sglang)
"""Each reads the results that have its keys."""

_WITHOUT_WORKLOAD: Sequence[tuple[frozenset[str], str]] = (
    (frozenset({"avg_latency", "latencies"}), "vllm bench latency"),
    (frozenset({"elapsed_time", "requests_per_second"}), "vllm bench throughput"),
    (frozenset({"avg_cold_startup_time"}), "vllm bench startup"),
)

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
    record = records[0]
    if not isinstance(record, Mapping):
        return None
    for reader in _READERS:
        if record.keys() >= reader.KEYS:
            try:
                found: ReportedWorkload = reader.read(record)
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
