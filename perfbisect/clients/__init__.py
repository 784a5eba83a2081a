"""Load generators: a cell -> the client's command; its output -> measurements. Each is an instrument."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Protocol

from perfbisect.model.attempt import RunResult
from perfbisect.model.cell import Cell
from perfbisect.model.metric import MetricRef
from perfbisect.serving.families import Endpoint


class Client(Protocol):
    """One load generator. A module that satisfies this and a line in ``CLIENTS`` are a new client."""

    name: str
    package: str
    """Import name of the package whose benchmark sources are digested, and ...
    """
    sources: tuple[str, ...]
    """... the folders or files in it that are: ``("benchmarks", "entrypoints/cli/benchmark")``."""

    def command(
        self, cell: Cell, endpoint: Endpoint, *, seed: int, result: PurePath, metadata: Mapping[str, str]
    ) -> tuple[str, ...]:
        """Arguments after the interpreter of the client's environment; it is written to ``result``."""
        ...

    def env(self, cell: Cell) -> dict[str, str]:
        """Environment variables of the client's process."""
        ...

    def preload(self, env: Mapping[str, str]) -> tuple[str, ...]:
        """Modules that hold most of what a run imports, so that it can be done before the server is ready.

        ``env`` is the client's whole process environment. Empty: a run is not of this interpreter alone.
        """
        ...

    def metrics(self, cell: Cell) -> tuple[str, ...]:
        """Keys (``tpot:median``, ``output_throughput``) that a result of this cell reports."""
        ...

    def check_metric(self, cell: Cell, metric: MetricRef) -> None:
        """:raises UsageError: a result of this cell will not report the metric; names those that it will."""
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
        """A result document -> a run. ``expected``: top-level values it must hold (``model_id``, metadata).

        :raises ClientError: a gate of DESIGN rule 6 (nothing completed, NaN, zeros, missing keys, errors in
            the stream, a document of another run): no measurement.
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
