"""Rows of tables in which nightlies are reported -> the workload that they are of."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise

from perfbisect.cells.reports.arguments import dataset_arguments
from perfbisect.cells.reports.report import ReportedWorkload
from perfbisect.cells.reports.revisions import commits_in, judged_in, releases_in

_ROW = re.compile(r"^\s*\|(.+)\|\s*$")
_RULE = re.compile(r"[\s|:-]+")
_LOAD = re.compile(r"(?<![A-Za-z0-9])(?P<name>c|n|in|out|qps)[ =]?(?P<value>\d{1,9})(?![\w.])")
"""The load in the column of a nightly's table: ``c64-n512``."""
_COUNT = re.compile(r"[0-9]{1,9}|[0-9]{1,3}(?:,[0-9]{3}){1,2}")
_RATE = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?|inf(?:inity)?", re.IGNORECASE)
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


def read(text: str) -> ReportedWorkload | None:
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
    notes = []
    for name, value in values.items():
        if name in (None, "config") or value in ("", "-"):
            continue
        if name in ("model", "dataset_name"):
            said[str(name)] = value
        elif name == "request_rate" and _RATE.fullmatch(value):
            said[name] = float(value)
        elif _COUNT.fullmatch(value):
            said[str(name)] = int(value.replace(",", ""))
        else:
            notes.append(f"{name} of the table is not read: {value[:40]!r}")
    dataset = str(said.get("dataset_name", "random"))
    lengths: dict[str, object] = {
        side: said.pop(side) for side in ("input-len", "output-len") if side in said
    }
    served = {name: said.pop(name) for name in ("tensor-parallel-size",) if name in said}
    parts = {"dataset": "dataset_name", "prompts": "num_prompts", "load": "max_concurrency"}
    missing = ["task", "deploy YAML", *(part for part, name in parts.items() if name not in said), "warm-ups"]
    return ReportedWorkload(
        said,
        tuple(missing),
        arguments=dataset_arguments(dataset, lengths),
        serve_args=served or None,
        notes=tuple(notes),
        releases=releases_in(text),
        commits=commits_in(text),
        judged=judged_in(text),
    )
