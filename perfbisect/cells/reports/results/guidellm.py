"""Results of GuideLLM (``benchmarks.json``)."""

from __future__ import annotations

import re

from perfbisect.cells.reports.report import ReportedWorkload
from perfbisect.cells.reports.results.base import (
    Record,
    endpoint_fields,
    length_fields,
    load_count,
    load_fields,
)

_PAIR = re.compile(r"\b(\w{1,40})=(\d{1,9})\b")

KEYS = frozenset({"metadata", "benchmarks"})


def read(record: Record) -> ReportedWorkload:
    # Newer reports have the options as config.
    config = record.get("config") or {}
    newer = {"model": (config.get("backend") or {}).get("model"), "data": config.get("data")}
    args, run = record.get("args") or newer, record["benchmarks"][0]
    strategy = (run.get("config") or {}).get("strategy") or {}
    totals = (run.get("metrics") or {}).get("request_totals") or {}
    fields: dict[str, object] = {
        **({"model": args["model"]} if args.get("model") else {}),
        **endpoint_fields(str(args.get("request_type") or "chat_completions").partition("_")[0]),
        **load_fields(strategy, max_concurrency="streams", request_rate="rate"),
    }
    # It measures for a time: as many requests as it completed are the nearest.
    fields["num_prompts"] = load_count(totals.get("successful")) or 1
    lengths = dict(_PAIR.findall(str(args.get("data"))))
    given, taken = (
        int(lengths[name]) if name in lengths else None for name in ("prompt_tokens", "output_tokens")
    )
    notes = ["its client is GuideLLM: vLLM's sends the same load"]
    if len(record["benchmarks"]) > 1:
        notes.append(f"of {len(record['benchmarks'])} benchmarks the first is read")
    missing = ("task", "deploy YAML", "dataset", "warm-ups")
    return ReportedWorkload(fields, missing, likely=length_fields(given, taken), notes=tuple(notes))
