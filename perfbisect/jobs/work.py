"""One attempt inside a job: the journal is told before and after; a dead process's attempt is cleared up."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

from perfbisect.core.attempt import Attempt, Purpose
from perfbisect.core.cell import Cell
from perfbisect.core.change import Change
from perfbisect.errors import Interrupted
from perfbisect.executors import AttemptRequest, Executor, Limits
from perfbisect.jobs.fold import Launch, launches
from perfbisect.render.notices import PhaseBegan, Sink, Told
from perfbisect.store.attempts import read_attempt, to_dict
from perfbisect.store.events import Clock
from perfbisect.store.jobs import Job
from perfbisect.store.journal import Journal

BACKOFF = (30.0, 120.0)


class StopLeftovers(Protocol):
    """Ends what a dead process left, known by token, pid and start time; returns whom it found."""

    def __call__(
        self, token: str, pid: int, created: float, *, log: Path | None = None
    ) -> Sequence[object]: ...


@dataclass(frozen=True)
class Tools:
    """What a job works with; everything that touches the world is handed in."""

    executor: Executor
    clock: Clock
    wait: Callable[[float], None]
    """Waits so many seconds."""
    sink: Sink
    stop_leftovers: StopLeftovers
    limits: Limits = field(default_factory=Limits)
    backoff: tuple[float, ...] = BACKOFF
    """Seconds to wait after the first, second, ... failure of the machine in a row; one more ends the job."""


@dataclass(frozen=True)
class Order:
    """What to launch and why."""

    position: int
    change: Change
    purpose: Purpose
    runs: int
    why: str


def check_stop(job: Job) -> None:
    """:raises Interrupted: somebody asked for a stop."""
    if job.stop_asked:
        raise Interrupted(f"job {job.id}: a stop was asked for", next_step=f"perfbisect resume {job.id}")


def launch(job: Job, journal: Journal, tools: Tools, cell: Cell, order: Order) -> None:
    """One attempt: told to the journal before it begins and after it ended.

    :raises Interrupted: by Ctrl-C or a stop; the attempt stays open in the journal and ``clear_up`` ends it.
    :raises MachineError: the journal could not be written; the attempt's own file was, ``clear_up`` finds it.
    """
    check_stop(job)
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
        },
    )

    def started(*, token: str, pid: int, created: float, port: int) -> None:
        journal.append(
            "launched", {"attempt": identity, "token": token, "pid": pid, "created": created, "port": port}
        )

    request = AttemptRequest(
        identity, cell, order.change, order.runs, order.purpose, folder, tools.limits, token=token
    )
    attempt = tools.executor.run(
        request, started=started, sink=lambda phase, detail: tools.sink(PhaseBegan(phase, detail))
    )
    _end(journal, attempt)


def clear_up(job: Job, journal: Journal, tools: Tools) -> None:
    """Ends what an earlier process of this job left: its servers, and the attempt it could not end itself.

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
            _end(journal, attempt)
            tools.sink(Told(f"attempt {open_launch.number} had ended: taken from {open_launch.folder}"))
            continue
        minutes = _minutes(open_launch, folder)
        journal.append(
            "abandoned",
            {"attempt": open_launch.attempt_id, "reason": "perfbisect ended during it", "minutes": minutes},
        )
        tools.sink(
            Told(f"attempt {open_launch.number} was cut short after {minutes:.1f} min: measured again")
        )


def _end(journal: Journal, attempt: Attempt) -> None:
    journal.append("failed" if attempt.failure else "finished", {"attempt": to_dict(attempt)})


def _minutes(open_launch: Launch, folder: Path) -> float:
    """How long it ran at least: from its start to the last thing it wrote."""
    began = datetime.fromisoformat(open_launch.started_at).timestamp()
    wrote = [path.stat().st_mtime for path in folder.rglob("*") if path.is_file()]
    return max(0.0, max(wrote, default=began) - began) / 60
