"""One attempt, or many: the one place that builds, serves, measures and stops."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from perfbisect.machine.slots import Slot
from perfbisect.model.attempt import Attempt, Purpose
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change


@dataclass(frozen=True)
class Limits:
    """Seconds that each phase may take. ``ready`` None: the cell's ``ready_timeout``."""

    build: float = 3600.0
    fetch: float = 7200.0
    ready: float | None = None
    first_request: float = 300.0
    bench: float = 3600.0
    stop: float = 15.0
    memory: float = 120.0
    """To wait before the launch for memory of devices that somebody still holds."""


@dataclass(frozen=True)
class AttemptRequest:
    """What to measure: a fresh server of ``change`` under ``cell``, a discarded run, then ``runs`` runs.

    Run k uses seed ``cell.seed + k``; the discarded one another seed.
    """

    id: str
    cell: Cell
    change: Change
    runs: int
    purpose: Purpose
    folder: Path
    limits: Limits
    token: str = ""
    """Marks every process of the attempt; in the journal before any exists, so that none can be lost.

    Empty: the executor makes one.
    """
    slot: Slot | None = None
    """The part of the machine it runs on, leased by whoever asks; None: the whole of it."""
    measured_before: bool = False
    """Another launch of this change measured under this cell: it fits into the memory of a free device."""
    suite: str = ""
    """Digest of the server, where cells share its launches (``serving/shared.py``)."""


Turn = Callable[[], AttemptRequest]
"""Asked for an attempt when its turn on a shared server has come."""

Shared = Generator[tuple[Attempt, bool], None, None]


class Started(Protocol):
    """Told once the server's process exists, before anything waits for it: what a clean-up must know."""

    def __call__(self, *, token: str, pid: int, created: float, port: int) -> None: ...


class Sink(Protocol):
    """Told what happens inside an attempt, for whoever watches; never decides anything."""

    def __call__(self, phase: str, detail: Mapping[str, object]) -> None: ...


class Executor(Protocol):
    """Runs attempts. A failure comes back as an Attempt with it; only Interrupted and ours are raised."""

    def run(self, request: AttemptRequest, *, started: Started, sink: Sink) -> Attempt: ...

    def share(self, turns: Sequence[Turn], *, started: Started, sink: Sink) -> Shared:
        """Attempts of several cells on one server, one after the other; close it to end the server.

        The requests are of one change, token and slot, of cells of one server. Each attempt comes once it
        has ended, with whether another turn follows: only then is the next request asked for. Caches are
        emptied between the turns; where the engine turns out not to do that, those that are left get no
        turn. What fails in one turn is that turn's, but with the server all fail that were to come.
        """
        ...
