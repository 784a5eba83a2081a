"""Results of vLLM's benchmarks without a server: ``vllm bench latency``, ``throughput`` and ``startup``.

They say neither time nor workload: the name of the file is the cell's.
"""

from __future__ import annotations

from statistics import median

from perfbisect.clients.base import check_number
from perfbisect.errors import ClientError
from perfbisect.series.points import ReportedResult, Workload
from perfbisect.series.sources.forms.base import Record

THROUGHPUT = {"requests_per_second": "request_throughput", "tokens_per_second": "total_token_throughput"}
STARTUP = {
    "avg_warm_startup_time": "ready_time",
    "avg_cold_startup_time": "ready_time_cold",
    "avg_cold_compilation_time": "compile_time",
}
"""Names of the benchmarks -> metrics."""


def takes(record: Record) -> bool:
    return (
        record.keys() >= {"avg_latency", "latencies"}
        or record.keys() >= {"elapsed_time", *THROUGHPUT}
        or bool(record.keys() & STARTUP.keys())
    )


def split(record: Record) -> list[Record]:
    return [record]


def read(record: Record) -> ReportedResult[object]:
    workload = Workload(test="")
    values: dict[str, object] = {}
    facts: dict[str, object] = {}
    if "latencies" in record:
        # It times whole batches, which is what e2el means; names without a unit are in seconds.
        values = {"median_e2el": _median(record, "latencies"), "mean_e2el": record["avg_latency"]}
        percentiles = record.get("percentiles") or {}
        values |= {f"p{name}_e2el": value for name, value in percentiles.items() if name != "50"}
        client = "vllm bench latency"
    elif "elapsed_time" in record:
        values = {ours: record[name] for name, ours in THROUGHPUT.items()}
        facts = {"duration": check_number(record["elapsed_time"], "elapsed_time")}
        facts["completed"] = record.get("num_requests")
        client = "vllm bench throughput"
    else:
        for name, ours in STARTUP.items():
            runs = name.removeprefix("avg_") + "s"
            if runs in record:
                values[ours] = _median(record, runs)
            elif name in record:
                values[ours] = record[name]
        client = "vllm bench startup"
    return ReportedResult(workload=workload, values=values, covariates={"client": client, **facts})


def _median(record: Record, name: str) -> float:
    runs = record[name]
    if not isinstance(runs, list) or not runs:
        raise ClientError(f"{name} has no number")
    return median(check_number(value, f"{name}[{i}]") for i, value in enumerate(runs))
