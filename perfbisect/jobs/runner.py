"""What a job works with, and how one attempt enters its journal: before it begins, and when it has ended."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

from perfbisect.errors import Interrupted
from perfbisect.jobs.events import Launching, Sink, Told
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import Clock, Journal
from perfbisect.jobs.replay import Launch, launches
from perfbisect.machine.slots import Slot
from perfbisect.measure.attempt import read_attempt, to_dict
from perfbisect.measure.executor import AttemptRequest, Executor, Limits
from perfbisect.model.attempt import Attempt, Purpose
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from perfbisect.system import clock

BACKOFF = (10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
WHOLE = Slot("")
"""The whole machine, nothing pinned: the one slot of a job that measures one launch at a time."""


class StopLeftovers(Protocol):
    """Ends what a dead process left, known by token, pid and start time; returns whom it found.

    ``grace``: seconds that it may take to end by itself.
    """

    def __call__(
        self, token: str, pid: int, created: float, *, log: Path | None = None, grace: float = 15.0
    ) -> Sequence[object]: ...


class Ahead(Protocol):
    """Builds environments beside running attempts, where that disturbs nobody."""

    def wanted(self, change: Change) -> bool:
        """True if a build would take long enough to be worth it."""
        ...

    def build(self, change: Change, log: Path, timeout: float) -> float | None:
        """Builds in the calling thread; the seconds it took, None where it could not be built."""
        ...


Revert = Callable[[Change, Change], Change | str]
"""A commit and another one that is in it -> the one without the other, to be built; or why there is none."""


@dataclass(frozen=True)
class Tools:
    """What a job works with; everything that touches the world is handed in."""

    executor: Executor
    """Used by the threads of several slots at once."""
    clock: Clock
    wait: Callable[[float], None]
    """Waits so many seconds."""
    sink: Sink
    stop_leftovers: StopLeftovers
    limits: Limits = field(default_factory=Limits)
    backoff: tuple[float, ...] = BACKOFF
    """Seconds to wait after the first, second, ... failure of the machine in a row; one more ends the job."""
    slots: tuple[Slot, ...] = (WHOLE,)
    """The leased parts of the machine on which attempts run beside each other."""
    check: Callable[[], None] = lambda: None
    """Raises a MachineError where the lease is lost."""
    seconds: Callable[[], float] = time.monotonic
    """A clock that only goes forward."""
    ahead: Ahead | None = None
    """None: nothing is built beside a running attempt."""
    revert: Revert | None = None


@dataclass(frozen=True)
class Order:
    """What to launch and why."""

    position: int
    change: Change
    purpose: Purpose
    runs: int
    why: str


def launching(number: int, order: Order, last: int, slot: str) -> Launching:
    """An attempt that is about to begin."""
    change = order.change
    return Launching(
        number,
        change.short,
        order.position,
        last,
        order.purpose,
        order.runs,
        order.why,
        slot=slot,
        subject=change.subject,
    )


def check_stop(job: Job) -> None:
    """:raises Interrupted: somebody asked for a stop."""
    if job.stop_asked:
        raise Interrupted(f"job {job.id}: a stop was asked for", next_step=f"perfbisect resume {job.id}")


def enter(
    job: Job, journal: Journal, tools: Tools, cell: Cell, order: Order, slot: Slot, at: float
) -> AttemptRequest:
    """Tells the journal that an attempt begins on a slot, ``at`` minutes after the first; what to run.

    :raises MachineError: the journal could not be written: nothing begins.
    """
    number = sum(event.kind == "started" for event in journal.events) + 1
    identity, folder = f"{job.id}-{number:03d}", job.attempt(number)
    folder.mkdir(parents=True, exist_ok=True)
    token = secrets.token_hex(16)
    journal.append(
        "started",
        {
            "attempt": identity,
            "position": order.position,
            "change": order.change.id,
            "purpose": order.purpose,
            "runs": order.runs,
            "why": order.why,
            "folder": str(folder.relative_to(job.path)),
            "token": token,
            "slot": slot.name,
            "at": round(at, 4),
        },
    )
    return AttemptRequest(
        identity,
        cell,
        order.change,
        order.runs,
        order.purpose,
        folder,
        tools.limits,
        token=token,
        slot=slot if slot.name else None,
        measured_before=_measured(journal, cell, order.change),
    )


def _measured(journal: Journal, cell: Cell, change: Change) -> bool:
    """True if a launch of this change under this cell has measured."""
    ended = (event.data["attempt"] for event in journal.events if event.kind == "finished")
    return any(a["change_id"] == change.id and a["provenance"]["cell_digest"] == cell.digest for a in ended)


def leave(journal: Journal, attempt: Attempt) -> None:
    """Tells the journal that an attempt ended.

    :raises MachineError: the journal could not be written; the attempt's own file was, ``clear_up`` finds it.
    """
    journal.append("failed" if attempt.failure else "finished", {"attempt": to_dict(attempt)})


def abandon(journal: Journal, launch: Launch, folder: Path, reason: str) -> float:
    """Tells the journal that an attempt has no end of its own; returns the minutes that are lost."""
    minutes = _minutes(launch, folder)
    journal.append("abandoned", {"attempt": launch.attempt_id, "reason": reason, "minutes": minutes})
    return minutes


class Clearing(Protocol):
    """What clearing up needs of the tools."""

    @property
    def sink(self) -> Sink: ...
    @property
    def stop_leftovers(self) -> StopLeftovers: ...


def clear_up(job: Job, journal: Journal, tools: Clearing) -> None:
    """Ends what an earlier process of this job left: its servers, and the attempts it could not end itself.

    An attempt that had ended on disk counts; another is abandoned, its minutes lost.

    :raises ServerError: a process that was left cannot be ended.
    """
    if journal.torn:
        kept = journal.path.with_suffix(".torn").name
        tools.sink(Told(f"the journal's last line was torn and has been cut off (kept in {kept})"))
    for open_launch in launches(journal.events):
        if open_launch.end is not None:
            continue
        folder = job.path / open_launch.folder
        left = tools.stop_leftovers(open_launch.token, open_launch.pid, open_launch.created)
        if left:
            tools.sink(Told(f"ended {len(left)} process(es) that attempt {open_launch.number} had left"))
        attempt = read_attempt(folder)
        if attempt is not None and attempt.id == open_launch.attempt_id:
            leave(journal, attempt)
            tools.sink(Told(f"attempt {open_launch.number} had ended: taken from {open_launch.folder}"))
            continue
        minutes = abandon(journal, open_launch, folder, "perfbisect ended during it")
        tools.sink(
            Told(f"attempt {open_launch.number} was cut short after {minutes:.1f} min: measured again")
        )


def _minutes(open_launch: Launch, folder: Path) -> float:
    """How long it ran at least: from its start to the last thing it wrote."""
    began = datetime.fromisoformat(open_launch.started_at)
    wrote = [clock.moment(path.stat().st_mtime) for path in folder.rglob("*") if path.is_file()]
    return max(0.0, (max(wrote, default=began) - began).total_seconds()) / 60
