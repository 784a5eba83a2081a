"""A job's dependencies, and the journal records of its attempts: start, end and recovery."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from perfbisect.common.quantities import counted
from perfbisect.environments.base import Builder
from perfbisect.errors import BuildError, MachineError
from perfbisect.jobs.events import EventListener, JobNote
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import Clock, Journal
from perfbisect.jobs.replay import Launch, LaunchRequest, launches
from perfbisect.machine.slots import Slot
from perfbisect.measure.attempt import read_attempt, to_dict
from perfbisect.measure.executor import AttemptRequest, Executor, PhaseLimits
from perfbisect.model.attempt import Attempt
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from perfbisect.system import clock
from perfbisect.system.processes import may_have_token

BACKOFF = (10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
WHOLE_MACHINE = Slot("")
"""The whole machine, nothing pinned: the slot of a job without concurrency."""

LEAST_CORES = 2
"""Minimum number of processors to build ahead."""

_NICE = 15
_SHORT_BUILD_MIN = 0.05
"""Builds that take less are not built ahead."""


@dataclass(frozen=True)
class SpareCores:
    """Builds environments in the calling thread, niced, on processors outside all slots.

    ``leasing`` reserves the processors during a build; ``at_once``: builds that may run at the same time.
    """

    builder: Builder
    cores: frozenset[int]
    leasing: Callable[[], AbstractContextManager[object]]
    at_once: int = 1

    def wanted(self, change: Change) -> bool:
        """True if the build takes long enough to be worth a thread."""
        if self.builder.cached(change):
            return False
        minutes = self.builder.minutes(change)
        return minutes is None or minutes > _SHORT_BUILD_MIN

    def build(self, change: Change, log: Path, timeout: float) -> float | None:
        """Build and return the seconds; None if it failed, which the launch will report."""
        began = time.monotonic()
        try:
            with self.leasing():
                # On Linux both apply to the thread and its children.
                os.sched_setaffinity(0, self.cores)
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
                log.parent.mkdir(parents=True, exist_ok=True)
                self.builder.ensure(change, log=log, timeout=timeout)
        except (BuildError, MachineError, OSError):
            return None
        return time.monotonic() - began


StopLeftovers = Callable[..., Sequence[object]]
"""Ends the processes of a dead job and returns them: :func:`perfbisect.system.processes.stop_leftovers`."""

Reclaim = Callable[[Launch, Path], Attempt | None]
"""Takes the attempt of an open launch from the machine that made it; the folder is that of the attempt."""


Revert = Callable[[Change, Change], Change | str]
"""Maps a commit and an ancestor to the commit with the ancestor reverted, or to why there is none."""

RevertHunks = Callable[[Change, Sequence[tuple[str, int]]], Change | str]
"""Maps a commit and hunks of it (path, index) to the commit without them, or to why there is none."""


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
    ahead: SpareCores | None = None
    """None: nothing is built ahead."""
    reclaim: Reclaim | None = None
    """Returns an open launch's attempt from the machine where it goes on, once it has ended; None: here."""
    revert: Revert | None = None
    revert_hunks: RevertHunks | None = None


def record_start(
    job: Job, journal: Journal, tools: JobContext, cell: Cell, order: LaunchRequest, slot: Slot, at: float
) -> AttemptRequest:
    """Record the start of an attempt, ``at`` minutes after the job's first, and return its request."""
    number = sum(event.kind == "started" for event in journal.events) + 1
    identity, folder = f"{job.id}-{number:03d}", job.attempt(number)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MachineError(
            f"no folder for launch {number}: {error.strerror or error}",
            where=folder,
            next_step=f"make room on the disk (df -h, df -i); then: perfbisect resume {job.id}",
        ) from error
    # In the journal before the server starts: a resume can find its processes, however early the kill was.
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
            **({"machine": slot.machine} if slot.machine else {}),
            **({"trial": order.trial} if order.trial else {}),
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
        order.time_limits or tools.limits,
        token=token,
        slot=slot if slot.name else None,
        measured_before=_measured(journal, cell, order.change),
        mate=order.mate,
        client=order.client,
    )


def _measured(journal: Journal, cell: Cell, change: Change) -> bool:
    """True if a launch of this change and cell has finished."""
    ended = (event.data["attempt"] for event in journal.events if event.kind == "finished")
    return any(a["change_id"] == change.id and a["provenance"]["cell_digest"] == cell.digest for a in ended)


def record_end(journal: Journal, attempt: Attempt) -> None:
    """Record the end of an attempt; if that fails, recovery reads the attempt's own file."""
    journal.append("failed" if attempt.failure else "finished", {"attempt": to_dict(attempt)})


def record_abandoned(journal: Journal, launch: Launch, folder: Path, reason: str) -> float:
    """Record an attempt without a result; return the minutes lost, until its last write."""
    began = datetime.fromisoformat(launch.started_at)
    written = [clock.local_moment(path.stat().st_mtime) for path in folder.rglob("*") if path.is_file()]
    minutes = max(0.0, (max(written, default=began) - began).total_seconds()) / 60
    journal.append("abandoned", {"attempt": launch.id, "reason": reason, "minutes": minutes})
    return minutes


def recover_interrupted(
    job: Job,
    journal: Journal,
    sink: EventListener,
    stop_leftovers: StopLeftovers,
    reclaim: Reclaim | None = None,
) -> None:
    """Recover from an earlier process of this job: end its servers and close its open attempts.

    An attempt with a result counts, on disk or where ``reclaim`` finds it; any other is abandoned.
    """
    if journal.torn:
        kept = journal.path.with_suffix(".torn").name
        sink(JobNote(f"the journal's last line was torn and has been cut off (kept in {kept})"))
    for launch in launches(journal.events):
        if launch.outcome != "running":
            continue
        folder = job.path / launch.folder
        pid = launch.pid if may_have_token(launch.pid, launch.created, launch.token) else 0
        # First: a server that is left running would disturb every later launch.
        leftovers = stop_leftovers(launch.token, pid, launch.created)
        if leftovers:
            sink(JobNote(f"ended {counted(len(leftovers), 'process')} that attempt {launch.number} had left"))
        # The attempt's own file is written before the journal's line: between the two a result is not lost.
        attempt = read_attempt(folder)
        if reclaim is not None and (attempt is None or attempt.id != launch.id):
            attempt = reclaim(launch, folder)
        if attempt is not None and attempt.id == launch.id:
            record_end(journal, attempt)
            sink(JobNote(f"attempt {launch.number} had ended: taken from {launch.folder}"))
            continue
        minutes = record_abandoned(journal, launch, folder, "perfbisect ended during it")
        sink(JobNote(f"attempt {launch.number} was cut short after {minutes:.1f} min: measured again"))
