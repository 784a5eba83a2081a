"""Interface of the executor, which builds, serves, measures and stops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from perfbisect.machine.slots import Slot
from perfbisect.model.attempt import Attempt, Purpose
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change


@dataclass(frozen=True)
class PhaseLimits:
    """Time limit of each phase in seconds. ``ready`` None: the cell's ``ready_timeout``."""

    build: float = 3600.0
    fetch: float = 7200.0
    ready: float | None = None
    first_request: float = 300.0
    bench: float = 3600.0
    stop: float = 15.0
    memory: float = 120.0
    """Wait for device memory before the launch."""


@dataclass(frozen=True)
class AttemptRequest:
    """Measure ``change`` under ``cell``: a fresh server, a discarded run, then ``runs`` runs.

    Run k uses seed ``cell.seed + k``, the discarded run another seed.
    """

    id: str
    cell: Cell
    change: Change
    runs: int
    purpose: Purpose
    folder: Path
    limits: PhaseLimits
    token: str = ""
    """Marks every process of the attempt; journaled before the first exists. Empty: drawn by the executor."""
    slot: Slot | None = None
    """The caller's leased slot; None for the whole machine."""
    measured_before: bool = False
    """Another launch of this change and cell succeeded, so it fits into a free device's memory."""
    mate: Change | None = None
    """The change of the next launch, if both are a pair: of the same purpose and runs, nothing between."""
    client: str = ""
    """The specification of the client of its side; empty: the job's client."""


class Started(Protocol):
    """Called as soon as the server's process exists, with what a clean-up needs."""

    def __call__(self, *, token: str, pid: int, created: float, port: int) -> None: ...


Sink = Callable[[str, Mapping[str, object]], None]
"""Receives progress events of an attempt, phase and details; never decides anything."""


class Executor(Protocol):
    """Runs attempts; failures are part of the Attempt, only Interrupted and our own errors are raised."""

    def run(self, request: AttemptRequest, *, started: Started, sink: Sink) -> Attempt: ...
