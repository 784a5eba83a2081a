"""Results of SGLang's ``bench_serving``."""

from __future__ import annotations

from perfbisect.cells.reports.report import ReportedWorkload
from perfbisect.cells.reports.results.base import Record, load_fields

KEYS = frozenset({"backend", "completed", "random_input_len"})


def read(record: Record) -> ReportedWorkload:
    """SGLang's ``bench_serving``, which names no model."""
    fields = {
        "dataset_name": "random",
        **load_fields(record, max_concurrency="max_concurrency", num_prompts="completed"),
        **load_fields(record, request_rate="request_rate"),
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
