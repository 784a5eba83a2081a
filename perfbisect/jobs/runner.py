"""A job's dependencies, and the journal records of its attempts: start, end and recovery."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

from perfbisect.errors import Interrupted
from perfbisect.jobs.events import EventListener, JobNote, LaunchStarted
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import Clock, Journal
from perfbisect.jobs.replay import LaunchRecord, launches
from perfbisect.machine.slots import Slot
from perfbisect.measure.attempt import read_attempt, to_dict
from perfbisect.measure.executor import AttemptRequest, Executor, PhaseLimits
from perfbisect.model.attempt import Attempt, Purpose
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from perfbisect.system import clock

BACKOFF = (10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
WHOLE_MACHINE = Slot("")
"""The whole machine, nothing pinned: the slot of a job without concurrency."""


class StopLeftovers(Protocol):
    """Ends the processes of a dead job, identified by token, pid and start time; returns those it found.

    ``grace``: seconds before they are killed.
    """

    def __call__(
        self, token: str, pid: int, created: float, *, log: Path | None = None, grace: float = 15.0
    ) -> Sequence[object]: ...


class Prebuilder(Protocol):
    """Builds environments beside running attempts, on spare processors."""

    def wanted(self, change: Change) -> bool:
        """True if the build takes long enough to be worth a thread."""
        ...

    def build(self, change: Change, log: Path, timeout: float) -> float | None:
        """Build in the calling thread; return the seconds, None if the build failed."""
        ...


Revert = Callable[[Change, Change], Change | str]
"""Maps a commit and an ancestor to the commit with the ancestor reverted, or to the reason there is none."""


@dataclass(frozen=True)
class JobContext:
    """A job's dependencies: everything that performs I/O is passed in."""

    executor: Executor
    """Thread-safe: shared by all slots."""
    clock: Clock
    wait: Callable[[float], None]
    """Sleeps for a number of seconds; ends early on a stop request."""
    sink: EventListener
    stop_leftovers: StopLeftovers
    limits: PhaseLimits = field(default_factory=PhaseLimits)
    backoff: tuple[float, ...] = BACKOFF
    """Seconds to wait after each consecutive machine failure; one more failure ends the job."""
    slots: tuple[Slot, ...] = (WHOLE_MACHINE,)
    """The leased parts of the machine, one concurrent attempt each."""
    check: Callable[[], None] = lambda: None
    """Raises MachineError if the lease is lost."""
    seconds: Callable[[], float] = time.monotonic
    """A monotonic clock."""
    ahead: Prebuilder | None = None
    """None: nothing is built ahead."""
    revert: Revert | None = None


@dataclass(frozen=True)
class LaunchRequest:
    """A launch to start, and why."""

    position: int
    change: Change
    purpose: Purpose
    runs: int
    why: str


def launch_started(number: int, order: LaunchRequest, last: int, slot: str) -> LaunchStarted:
    """The event for a launch that is about to start."""
    change = order.change
    return LaunchStarted(
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
    """Raise Interrupted if a stop was requested."""
    if job.stop_asked:
        raise Interrupted(f"job {job.id}: a stop was requested", next_step=f"perfbisect resume {job.id}")


def record_start(
    job: Job, journal: Journal, tools: JobContext, cell: Cell, order: LaunchRequest, slot: Slot, at: float
) -> AttemptRequest:
    """Record the start of an attempt, ``at`` minutes after the job's first, and return its request.

    Raises:
        MachineError: the journal cannot be written.
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
    """True if a launch of this change and cell has finished."""
    ended = (event.data["attempt"] for event in journal.events if event.kind == "finished")
    return any(a["change_id"] == change.id and a["provenance"]["cell_digest"] == cell.digest for a in ended)


def record_end(journal: Journal, attempt: Attempt) -> None:
    """Record the end of an attempt.

    Raises:
        MachineError: the journal cannot be written; recovery reads the attempt's own file.
    """
    journal.append("failed" if attempt.failure else "finished", {"attempt": to_dict(attempt)})


def record_abandoned(journal: Journal, launch: LaunchRecord, folder: Path, reason: str) -> float:
    """Record an attempt without a result; return the minutes lost."""
    minutes = _minutes(launch, folder)
    journal.append("abandoned", {"attempt": launch.attempt_id, "reason": reason, "minutes": minutes})
    return minutes


class Clearing(Protocol):
    """The dependencies of recovery."""

    @property
    def sink(self) -> EventListener: ...
    @property
    def stop_leftovers(self) -> StopLeftovers: ...


def recover_interrupted(job: Job, journal: Journal, tools: Clearing) -> None:
    """Recover from an earlier process of this job: end its servers and close its open attempts.

    An attempt with a result on disk counts; any other is abandoned.

    Raises:
        ServerError: a leftover process cannot be ended.
    """
    if journal.torn:
        kept = journal.path.with_suffix(".torn").name
        tools.sink(JobNote(f"the journal's last line was torn and has been cut off (kept in {kept})"))
    for open_launch in launches(journal.events):
        if open_launch.end is not None:
            continue
        folder = job.path / open_launch.folder
        left = tools.stop_leftovers(open_launch.token, open_launch.pid, open_launch.created)
        if left:
            tools.sink(JobNote(f"ended {len(left)} process(es) that attempt {open_launch.number} had left"))
        attempt = read_attempt(folder)
        if attempt is not None and attempt.id == open_launch.attempt_id:
            record_end(journal, attempt)
            tools.sink(JobNote(f"attempt {open_launch.number} had ended: taken from {open_launch.folder}"))
            continue
        minutes = record_abandoned(journal, open_launch, folder, "perfbisect ended during it")
        tools.sink(
            JobNote(f"attempt {open_launch.number} was cut short after {minutes:.1f} min: measured again")
        )


def _minutes(open_launch: LaunchRecord, folder: Path) -> float:
    """Minutes from its start to its last write."""
    began = datetime.fromisoformat(open_launch.started_at)
    wrote = [clock.local_moment(path.stat().st_mtime) for path in folder.rglob("*") if path.is_file()]
    return max(0.0, (max(wrote, default=began) - began).total_seconds()) / 60
