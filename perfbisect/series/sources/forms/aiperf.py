"""Results of AIPerf (``profile_export_aiperf.json``)."""

from __future__ import annotations

from perfbisect.cells.reports.results import aiperf as reports
from perfbisect.clients.base import check_number
from perfbisect.errors import ClientError
from perfbisect.series.points import ReportedResult
from perfbisect.series.sources.forms.base import Record, workload_of

# Its inter-token latency is a request's mean, which vLLM's client calls TPOT; vLLM's ITL is that of chunks.
_TIMES = {
    "time_to_first_token": "ttft",
    "inter_token_latency": "tpot",
    "inter_chunk_latency": "itl",
    "request_latency": "e2el",
}
_STATISTICS = {"avg": "mean", "p50": "median", **{f"p{n}": f"p{n}" for n in (10, 25, 75, 90, 95, 99)}}
_MILLISECONDS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3}
_AVERAGES = {
    "request_throughput": "request_throughput",
    "output_token_throughput": "output_throughput",
    "total_token_throughput": "total_token_throughput",
    "goodput": "request_goodput",
    "input_sequence_length": "input_tokens",
    "output_sequence_length": "output_tokens",
}


def takes(record: Record) -> bool:
    return "input_config" in record and isinstance(record.get("request_latency"), dict)


def split(record: Record) -> list[Record]:
    return [record]


def read(record: Record) -> ReportedResult[object]:
    """Raises ClientError: it was cancelled, or a unit is unknown."""
    if record.get("was_cancelled"):
        raise ClientError("it was cancelled before its end")
    config = record["input_config"]
    values: dict[str, object] = {
        ours: record[name]["avg"] for name, ours in _AVERAGES.items() if record.get(name)
    }
    for name, ours in _TIMES.items():
        if metric := record.get(name):
            values |= {
                f"{_STATISTICS[key]}_{ours}_ms": _milliseconds(metric, key, name)
                for key in _STATISTICS.keys() & metric.keys()
            }
    completed = record["request_count"]["avg"]
    failed = sum(one["count"] for one in record.get("error_summary") or [])
    duration = _milliseconds(record["benchmark_duration"], "avg", "benchmark_duration") / 1000
    values |= {
        "completed": completed,
        "failed": failed,
        "num_prompts": completed + failed,
        "duration": duration,
    }
    total = (record.get("total_output_tokens") or {}).get("avg")
    values |= {} if total is None else {"total_output_tokens": total}
    phases = config.get("phases") or [config.get("loadgen") or {}]
    has_count = any(phase.get("requests") or phase.get("request_count") for phase in phases)
    return ReportedResult(
        workload=workload_of(reports.read(record), has_count=has_count),
        began=str(record.get("start_time") or ""),
        ended=str(record.get("end_time") or ""),
        values=values,
        covariates={"client": "AIPerf"},
    )


def _milliseconds(metric: Record, key: str, name: str) -> float:
    unit = metric.get("unit")
    if unit not in _MILLISECONDS:
        raise ClientError(f"{name} is in {unit!r}, which is no unit of time")
    return check_number(metric[key], f"{name}.{key}") * _MILLISECONDS[unit]
