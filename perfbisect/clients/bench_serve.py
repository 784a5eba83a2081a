"""``bench serve``: the command and the gates that the clients of vLLM and vLLM-Omni share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from perfbisect.clients import result_fields
from perfbisect.clients.result_fields import count, first_error, number
from perfbisect.common.arguments import option_tokens
from perfbisect.errors import ClientError, UsageError
from perfbisect.model.cell import Cell
from perfbisect.model.metric import STAGE, MetricRef
from perfbisect.serving.families import OFFLINE, Endpoint

_RESERVED = (
    *("backend", "base-url", "host", "port", "endpoint", "model", "served-model-name", "tokenizer"),
    *("dataset-name", "dataset-path", "num-prompts", "num-warmups", "max-concurrency", "request-rate"),
    *("burstiness", "seed", "ignore-eos", "extra-body", "temperature", "top-p", "top-k", "min-p"),
    *("frequency-penalty", "presence-penalty", "repetition-penalty", "percentile-metrics"),
    *("metric-percentiles", "save-result", "save-detailed", "append-result", "result-dir"),
    *("result-filename", "metadata", "disable-tqdm"),
)
"""Options set by the attempt or by a key of the cell."""

NO_USAGE = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
"""Turns off usage reporting."""

STAGE_STATISTICS = {"mean": "mean", "median": "p50", "p99": "p99"}
"""Statistic of a stage -> the client's name for it."""


@dataclass(frozen=True)
class Totals:
    """Requests and duration of a run that passed the common gates."""

    completed: int
    failed: int
    duration: float
    errors: Sequence[str]

    def facts(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Covariates that both clients report."""
        return {
            "completed": self.completed,
            "failed": self.failed,
            "input_tokens": count(document, "total_input_tokens"),
            "output_tokens": count(document, "total_output_tokens"),
            "max_concurrent_requests": document.get("max_concurrent_requests"),
            "date": document.get("date"),
            "errors": self.errors[:3],
        }


def read_totals(cell: Cell, document: Mapping[str, Any], seed: int, expected: Mapping[str, object]) -> Totals:
    """Check that the result is of this run and completed requests.

    Raises:
        ClientError: another run's result, no completed request, errors in the stream or no duration.
    """
    stamps = {result_fields.SEED: str(seed), result_fields.CELL: cell.digest}
    result_fields.check_identity(cell, document, stamps, expected)
    completed, failed = count(document, "completed"), count(document, "failed")
    errors = [str(error) for error in document.get("errors") or () if error]
    error = first_error(errors)
    if completed == 0:
        raise ClientError(
            f"0 of {cell.num_prompts} requests completed ({failed} failed): {error}", output=error
        )
    if len(errors) > failed:
        raise ClientError(
            f"{len(errors)} requests have an error in the stream, but {failed} count as failed: {error}",
            output=error,
        )
    duration = number(document, "duration")
    if duration <= 0:
        raise ClientError(f"duration is {document['duration']} s")
    return Totals(completed, failed, duration, errors)


def check_reserved_options(cell: Cell, reserved: Iterable[str] = _RESERVED) -> None:
    """:raises UsageError: the cell sets a client or dataset option that belongs to the attempt."""
    extra = {**cell.dataset_args, **cell.client.args}
    found = [name for name in reserved if name in extra]
    if found:
        raise UsageError(
            f"cell {cell.name}: client.args and dataset_args cannot set {', '.join(found)}; "
            "use the cell's own key, or leave it to the attempt",
            field="client" if found[0] in cell.client.args else "dataset_args",
        )


class BenchClient:
    """What the clients share; see :class:`perfbisect.clients.Client`."""

    name: str
    package: str
    sources: tuple[str, ...]
    usage: Mapping[str, str] = NO_USAGE
    reports_stages = False

    def command(
        self, cell: Cell, endpoint: Endpoint, *, seed: int, result: PurePath, metadata: Mapping[str, str]
    ) -> tuple[str, ...]:
        """Arguments after the interpreter; seed and digest are stamped on the result as metadata.

        Raises:
            UsageError: a reserved option, or a combination that the client does not support.
        """
        check_reserved_options(cell)
        own: dict[str, object] = {
            "backend": cell.backend,
            "base-url": endpoint.base_url,
            "endpoint": cell.endpoint,
            "model": endpoint.model_name,
            "tokenizer": cell.tokenizer or cell.model,
            "dataset-name": cell.dataset_name,
            "dataset-path": cell.dataset_path,
            "num-prompts": cell.num_prompts,
            "num-warmups": cell.num_warmups,
            "max-concurrency": cell.max_concurrency,
            "request-rate": f"{cell.request_rate:.12g}",
            "burstiness": None if cell.burstiness == 1 else cell.burstiness,
            "ignore-eos": cell.ignore_eos,
            "seed": seed,
            "disable-tqdm": True,
            "save-result": True,
            "save-detailed": True,
            "result-dir": str(result.parent),
            "result-filename": result.name,
        }
        sampling = {name.replace("_", "-"): value for name, value in cell.sampling.model_dump().items()}
        stamped = {**metadata, result_fields.SEED: str(seed), result_fields.CELL: cell.digest}
        options = {**own, **self.options(cell), **sampling, **cell.dataset_args, **cell.client.args}
        return (
            *("-m", f"{self.package}.entrypoints.cli.main", "bench", "serve"),
            *option_tokens(options, negatable=False),
            *("--metadata", *(f"{name}={value}" for name, value in stamped.items())),
        )

    def options(self, cell: Cell) -> dict[str, object]:
        """Options that differ between the clients."""
        raise NotImplementedError

    def env(self, cell: Cell) -> dict[str, str]:
        """No proxy for the loopback, offline if nothing is needed from a hub, then the cell's own."""
        env = {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost", **self.usage}
        return {**env, **(OFFLINE if cell.needs_no_hub else {}), **cell.client.env}

    def preload(self, env: Mapping[str, str]) -> tuple[str, ...]:  # noqa: ARG002
        """Modules to import while the server starts."""
        return ()

    def metrics(self, cell: Cell) -> tuple[str, ...]:
        """Metric keys that every result of this cell reports."""
        raise NotImplementedError

    def may_report(self, cell: Cell) -> tuple[str, ...]:  # noqa: ARG002
        """Metric keys that a result has only with a server or client that is new enough."""
        return ()

    def check_metric(self, cell: Cell, metric: MetricRef) -> None:
        """:raises UsageError: results of this cell do not report the metric."""
        if self.reports_stages and metric.name.startswith(STAGE) and metric.statistic in STAGE_STATISTICS:
            return
        reported = (*self.metrics(cell), *self.may_report(cell))
        result_fields.check_metric_reported(self.name, cell, metric, reported)


def reporting_options(percentile_metrics: Sequence[str], percentiles: Sequence[float]) -> dict[str, object]:
    """Options that choose the reported metrics and percentiles."""
    return {
        "percentile-metrics": ",".join(percentile_metrics),
        "metric-percentiles": ",".join(f"{percentile:g}" for percentile in percentiles),
    }
