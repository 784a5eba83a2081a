"""Results of vLLM's benchmarks without a server, which are their own client.

``vllm bench latency`` has a time for each iteration: consecutive iterations are a run of the launch.
``throughput`` and ``startup`` have one run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import PurePath
from statistics import fmean, median

from perfbisect.clients.base import (
    NO_VALUES,
    Client,
    Document,
    check_number,
    check_reserved_options,
    count,
    number,
)
from perfbisect.errors import ClientError, UsageError
from perfbisect.model.attempt import RunResult, relative_spread
from perfbisect.model.attempt import key as metric_key
from perfbisect.model.cell import Cell
from perfbisect.model.metric import MetricRef, per_unit
from perfbisect.serving.families import FAMILIES, Endpoint

_FIELDS: Mapping[str, str] = {
    "request_throughput": "requests_per_second",
    "total_token_throughput": "tokens_per_second",
    "ready_time": "warm_startup_times",
    "ready_time_cold": "cold_startup_times",
    "compile_time": "cold_compilation_times",
}
_METRICS: Mapping[str, tuple[str, ...]] = {
    "latency": ("e2el:median", "e2el:mean", "e2el_per_token", "output_tokens"),
    "throughput": ("request_throughput", "total_token_throughput"),
    "startup": ("ready_time", "ready_time_cold"),
}
_OUTPUT_LEN = 128
"""Output tokens of ``vllm bench latency`` where none are said."""


class OfflineBench(Client):
    """The result of a process of family ``offline``; there is no command beside it."""

    name = "offline_bench"
    package = "vllm"
    sources: tuple[str, ...] = (
        "benchmarks/latency.py", "benchmarks/throughput.py", "benchmarks/startup.py"
    )  # fmt: skip

    def command(
        self,
        cell: Cell,
        endpoint: Endpoint,  # noqa: ARG002
        *,
        seed: int,  # noqa: ARG002
        result: PurePath,  # noqa: ARG002
        metadata: Mapping[str, str],  # noqa: ARG002
    ) -> tuple[str, ...]:
        """None. :raises UsageError: an option of the benchmark that is a key of the cell."""
        check_reserved_options(cell, FAMILIES["offline"].reserved)
        return ()

    def metrics(self, cell: Cell) -> tuple[str, ...]:
        return _METRICS.get(cell.task, ())

    def may_report(self, cell: Cell) -> tuple[str, ...]:
        return ("compile_time",) if cell.task == "startup" else ()

    def check_metric(self, cell: Cell, metric: MetricRef) -> None:
        """See :class:`Client`. :raises UsageError: also if a server is needed to see it."""
        own = (*self.metrics(cell), *self.may_report(cell))
        if metric.metric.source in ("launch", "engine counters") and metric_key(metric) not in own:
            raise UsageError(
                f"{metric} is seen at a server, and vllm bench {cell.task} has none; "
                f"it reports: {', '.join(own)}",
                next_step="choose one of these, or a cell of another family",
            )
        super().check_metric(cell, metric)

    def field(self, key: str) -> str:
        return _FIELDS.get(key, "latencies")

    def parts(self, document: Document, runs: int) -> Sequence[Document]:
        """Consecutive iterations for each run, in equal numbers if possible."""
        latencies = document.get("latencies")
        if not isinstance(latencies, list) or not latencies:
            return (document,)
        whole = len(latencies)
        runs = min(runs, whole)
        bounds = [whole * index // runs for index in range(runs + 1)]
        return [{**document, "latencies": latencies[begin:end]} for begin, end in pairwise(bounds)]

    def parse(
        self, cell: Cell, document: Document, *, index: int, seed: int, expected: Document = NO_VALUES
    ) -> RunResult:
        del expected
        spread: dict[str, float] = {}
        if cell.task == "latency":
            times = _positive(document, "latencies")
            values = {"e2el:median": median(times) * 1000, "e2el:mean": fmean(times) * 1000}
            values["output_tokens"] = check_number(
                cell.dataset_args.get("output-len", _OUTPUT_LEN), "output-len"
            )
            values["e2el_per_token"] = per_unit(values)["e2el_per_token"]
            spread, seconds = {"e2el:median": relative_spread(times)}, sum(times)
        elif cell.task == "throughput":
            if (asked := count(document, "num_requests")) != cell.num_prompts:
                raise ClientError(f"the result has {asked} requests, not {cell.num_prompts}")
            values = {key: number(document, self.field(key)) for key in self.metrics(cell)}
            seconds = number(document, "elapsed_time")
        else:
            found = {key: _positive(document, self.field(key)) for key in self.metrics(cell)}
            values = {key: median(times) for key, times in found.items()}
            compiled = document.get(self.field("compile_time")) or [0]
            # Without compilation its time is 0.
            if all(check_number(time, "compile_time") > 0 for time in compiled):
                values["compile_time"] = median(compiled)
            seconds = sum(map(sum, found.values()))
        if wrong := next((key for key, value in values.items() if value <= 0), None):
            raise ClientError(f"{self.field(wrong)} is {values[wrong]:g}: no measurement")
        return RunResult(index=index, seed=seed, values=values, spread=spread, seconds=seconds)


def _positive(document: Document, name: str) -> list[float]:
    """The times of a list. :raises ClientError: none, or one that is no time."""
    times = document.get(name)
    if not isinstance(times, list) or not times:
        raise ClientError(f"the result has no {name}")
    found = [check_number(time, f"{name}[{index}]") for index, time in enumerate(times)]
    if min(found) <= 0:
        raise ClientError(f"{name} has {min(found):g}: no measurement")
    return found


CLIENT = OfflineBench()
