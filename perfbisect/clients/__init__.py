"""Load generators: a cell -> the client's command; its result -> measurements."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Protocol

from perfbisect.model.attempt import RunResult
from perfbisect.model.cell import Cell
from perfbisect.model.metric import MetricRef
from perfbisect.serving.families import Endpoint


class Client(Protocol):
    """A load generator; a new one is a module that satisfies this and a line in ``CLIENTS``."""

    name: str
    package: str
    """Import name of the package whose benchmark sources are digested, and ...
    """
    sources: tuple[str, ...]
    """... the folders or files in it that are: ``("benchmarks", "entrypoints/cli/benchmark")``."""

    def command(
        self, cell: Cell, endpoint: Endpoint, *, seed: int, result: PurePath, metadata: Mapping[str, str]
    ) -> tuple[str, ...]:
        """Arguments after the interpreter; the result is written to ``result``."""
        ...

    def env(self, cell: Cell) -> dict[str, str]:
        """Environment variables of the client's process."""
        ...

    def preload(self, env: Mapping[str, str]) -> tuple[str, ...]:
        """Modules to import while the server starts; empty if a run needs another interpreter.

        ``env`` is the client's whole process environment.
        """
        ...

    def metrics(self, cell: Cell) -> tuple[str, ...]:
        """Metric keys that results of this cell report: ``tpot:median``, ``output_throughput``."""
        ...

    def check_metric(self, cell: Cell, metric: MetricRef) -> None:
        """:raises UsageError: results of this cell do not report the metric."""
        ...

    def parse(
        self,
        cell: Cell,
        document: Mapping[str, Any],
        *,
        index: int,
        seed: int,
        expected: Mapping[str, object] | None = None,
    ) -> RunResult:
        """Convert a result; ``expected``: top-level values that it must hold (``model_id``, metadata).

        Raises:
            ClientError: no measurement: nothing completed, NaN, zeros, missing keys, errors in the stream or
                the result of another run.
        """
        ...


def _clients() -> dict[str, Client]:
    from perfbisect.clients import diffusion_bench, omni_bench, vllm_bench

    return {
        "vllm_bench": vllm_bench.CLIENT,
        "omni_bench": omni_bench.CLIENT,
        "diffusion_bench": diffusion_bench.CLIENT,
    }


CLIENTS: dict[str, Client] = _clients()
