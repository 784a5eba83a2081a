"""``vllm bench serve``: its command line, and which of the metric table it reports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from perfbisect.clients import bench_serve, reading
from perfbisect.clients import vllm_bench_result as result_document
from perfbisect.core.attempt import RunResult
from perfbisect.core.cell import Cell
from perfbisect.core.metric import MetricRef
from perfbisect.families import Endpoint

REPORTED = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2el"}
"""The client's percentile metrics that are rows of the metric table."""

_IMPORTED = (
    *(f"vllm.entrypoints.cli.benchmark.{name}" for name in ("main", "serve", "latency", "throughput")),
    *(f"vllm.entrypoints.cli.benchmark.{name}" for name in ("startup", "sweep", "mm_processor")),
    *(f"vllm.entrypoints.cli.{name}" for name in ("openai", "serve", "launch", "run_batch", "collect_env")),
    *(f"vllm.entrypoints.cli.{name}" for name in ("download_kernels", "preload", "snapshot")),
    *("vllm.benchmarks.serve", "vllm.utils.argparse_utils", "vllm.entrypoints.serve.utils.api_utils"),
)
"""A version of vLLM has most of these; one that it lacks is left out."""


class VllmBench:
    """See :class:`perfbisect.clients.Client`."""

    name = "vllm_bench"
    package = "vllm"
    sources: tuple[str, ...] = ("benchmarks", "entrypoints/cli/benchmark")

    def command(
        self, cell: Cell, endpoint: Endpoint, *, seed: int, result: PurePath, metadata: Mapping[str, str]
    ) -> tuple[str, ...]:
        """Arguments after the interpreter. Seed and digest are stamped on the result as metadata.

        :raises UsageError: a client or dataset argument that is not the cell's to set.
        """
        differing = {
            "extra-body": dict(cell.extra_body) or None,
            "ready-check-timeout-sec": 30,
            **bench_serve.listed(cell.percentile_metrics, cell.metric_percentiles),
        }
        return bench_serve.command(
            self.package, cell, endpoint, seed=seed, result=result, metadata=metadata, differing=differing
        )

    def env(self, cell: Cell) -> dict[str, str]:
        """See :func:`perfbisect.clients.bench_serve.environment`."""
        return bench_serve.environment(cell, bench_serve.NO_USAGE)

    def preload(self, env: Mapping[str, str]) -> tuple[str, ...]:
        """What ``vllm bench serve`` imports before it reads arguments; none where it is a Rust program."""
        return () if env.get("VLLM_USE_RUST_BENCH", "0") not in ("", "0") else _IMPORTED

    def metrics(self, cell: Cell) -> tuple[str, ...]:
        """Keys that a result of this cell reports: each statistic of its percentile metrics, the rest."""
        statistics = [
            "median",
            "mean",
            "std",
            *(f"p{percentile:g}" for percentile in cell.metric_percentiles),
        ]
        keys = [
            f"{name}:{part}" for name in cell.percentile_metrics if name in REPORTED for part in statistics
        ]
        keys += ["request_throughput", "output_throughput", "total_token_throughput"]
        keys += ["request_goodput"] if "goodput" in cell.client.args else []
        keys += ["failed", "output_tokens", "input_tokens"]
        keys += ["e2el_per_token"] if "e2el" in cell.percentile_metrics else []
        if speculates(cell):
            keys += ["spec_decode_acceptance_rate", "spec_decode_acceptance_length"]
        return tuple(keys)

    def check_metric(self, cell: Cell, metric: MetricRef) -> None:
        """:raises UsageError: a result of this cell will not report the metric; names those that it will."""
        reading.check_reported(self.name, cell, metric, self.metrics(cell))

    def parse(
        self,
        cell: Cell,
        document: Mapping[str, Any],
        *,
        index: int,
        seed: int,
        expected: Mapping[str, object] | None = None,
    ) -> RunResult:
        """A result document -> a run; see :mod:`perfbisect.clients.vllm_bench_result`."""
        return result_document.parse(
            cell, document, keys=self.metrics(cell), index=index, seed=seed, expected=expected or {}
        )


def speculates(cell: Cell) -> bool:
    """True if the server, in some variant, decodes speculatively: then the client reports acceptance."""
    options = [cell.serve_args, *(variant.serve_args for variant in cell.variants.values())]
    return any(name.startswith(("speculative-config", "spec-")) for names in options for name in names)


CLIENT = VllmBench()
