"""Results of GuideLLM (``benchmarks.json``): a report of several benchmarks, each a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from perfbisect.cells.reports.results import guidellm as reports
from perfbisect.clients.base import check_number
from perfbisect.common.quantities import stamp
from perfbisect.series.points import ReportedResult
from perfbisect.series.sources.forms.base import Record, workload_of

# Its inter-token latency is a request's mean without the first token, which vLLM's client calls TPOT; its
# time per output token has the first one in it.
_TIMES = {
    "time_to_first_token_ms": "ttft_ms",
    "inter_token_latency_ms": "tpot_ms",
    "request_latency": "e2el_s",
}
_MEANS = {
    "requests_per_second": "request_throughput",
    "output_tokens_per_second": "output_throughput",
    "tokens_per_second": "total_token_throughput",
    "prompt_token_count": "input_tokens",
    "output_token_count": "output_tokens",
}
_PERCENTILES = ("p10", "p25", "p75", "p90", "p95", "p99")


def takes(record: Record) -> bool:
    return isinstance(record.get("benchmarks"), list) and isinstance(record.get("metadata"), Mapping)


def split(record: Record) -> list[Record]:
    return [{**record, "benchmarks": [one]} for one in record["benchmarks"]]


def read(record: Record) -> ReportedResult[object]:
    (run,) = record["benchmarks"]
    metrics = run["metrics"]
    answered: dict[str, Mapping[str, Any]] = {
        name: (metrics.get(name) or {}).get("successful") or {} for name in (*_TIMES, *_MEANS)
    }
    values: dict[str, object] = {ours: answered[name].get("mean") for name, ours in _MEANS.items()}
    for name, ours in _TIMES.items():
        values |= {f"{part}_{ours}": answered[name].get(part) for part in ("mean", "median")}
        found = answered[name].get("percentiles") or {}
        values |= {f"{part}_{ours}": found.get(part) for part in _PERCENTILES}
    totals = metrics["request_totals"]
    # Requests that were under way when its time was over are incomplete, which is no failure.
    completed, failed = totals["successful"], totals.get("errored") or 0
    values |= {"completed": completed, "failed": failed, "num_prompts": completed + failed}
    values["duration"] = run["duration"]
    workload = workload_of(reports.read(record), has_count=False)
    if (run.get("config") or {}).get("strategy", {}).get("type_") == "synchronous":
        workload = replace(workload, concurrency=1)
    return ReportedResult(
        workload=workload,
        **{
            name: stamp(
                datetime.fromtimestamp(check_number(run[key], "start_time or end_time"), timezone.utc)
            )
            for name, key in (("began", "start_time"), ("ended", "end_time"))
        },
        values={name: value for name, value in values.items() if value is not None},
        covariates={"client": "GuideLLM"},
    )
