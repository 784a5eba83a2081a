"""What a person sees while a job works: the cell, the plan, a line for every launch, the outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from perfbisect.common.quantities import minutes, percent, with_unit
from perfbisect.common.text import line, lines
from perfbisect.jobs.documents import CellDocument, LaunchDocument
from perfbisect.jobs.events import (
    JobEvent,
    JobNote,
    LaunchEnded,
    LaunchStarted,
    MachineBackoff,
    PhaseStarted,
)

_KEPT = 3

_AFTER: Final[Mapping[str, str]] = {
    "fetch": "building",
    "build": "starting",
    "launch": "starting",
    "ready": "discarded run",
    "stop": "stopped",
}
"""A finished phase -> what the attempt does next."""


@dataclass(frozen=True)
class CandidatesUpdated(JobEvent):
    """How probable each candidate is by now, the first of which cannot be it; ``none``: that of none.

    ``candidates``: name and subject of each; ``untestable``: indices of those that are not measured.
    """

    candidates: tuple[tuple[str, str], ...]
    probabilities: tuple[float, ...]
    none: float
    untestable: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Running:
    """An attempt under way on a slot; ``phase`` in words, since ``since``; ``run``: the number of the run
    under way, 0 in another phase."""

    number: int
    change: str
    subject: str
    position: int
    of: int
    purpose: str
    runs: int
    why: str
    began: float
    phase: str
    since: float
    run: int = 0


@dataclass(frozen=True)
class View:
    """Everything that is shown; ``seen``: position -> ``measured`` or ``failed``."""

    candidates: tuple[tuple[str, str], ...] = ()
    seen: Mapping[int, str] = field(default_factory=dict)
    probabilities: tuple[float, ...] = ()
    none: float = 0.0
    running: Mapping[str, Running] = field(default_factory=dict)
    waiting: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    """Slot -> why it waits, and until when."""
    last: tuple[LaunchDocument, ...] = ()
    """The last launches, the newest first."""
    unit: str = ""
    used: float = 0.0
    """Minutes of the launches that have ended."""
    budget: float = 0.0
    """Minutes; 0: none was set."""
    began: float | None = None


def after(view: View, notice: JobEvent, now: float) -> View:
    """The view after a notice that came at ``now``."""
    if view.began is None:
        view = replace(view, began=now)
    if isinstance(notice, CandidatesUpdated):
        return replace(
            view,
            candidates=notice.candidates,
            seen=dict.fromkeys(notice.untestable, "failed") | dict(view.seen),
            probabilities=notice.probabilities,
            none=notice.none,
        )
    if isinstance(notice, LaunchStarted):
        attempt = Running(
            notice.number, notice.change, notice.subject, notice.position, notice.of, notice.purpose,
            notice.runs, notice.why, now, "building", now,
        )  # fmt: skip
        waiting = {slot: why for slot, why in view.waiting.items() if slot != notice.slot}
        return replace(view, running={**view.running, notice.slot: attempt}, waiting=waiting)
    if isinstance(notice, PhaseStarted):
        attempt_there = view.running.get(notice.slot)
        started = _phase(notice) if attempt_there else None
        if attempt_there is None or started is None:
            return view
        changed = replace(attempt_there, phase=started[0], run=started[1], since=now)
        return replace(view, running={**view.running, notice.slot: changed})
    if isinstance(notice, LaunchEnded):
        launch = notice.launch
        outcome = "measured" if launch.value is not None else "failed"
        seen = view.seen
        if launch.fault in ("", "change") and seen.get(launch.position) != "measured":
            seen = {**seen, launch.position: outcome}
        return replace(
            view,
            seen=seen,
            running={slot: x for slot, x in view.running.items() if slot != launch.slot},
            last=(launch, *view.last)[:_KEPT],
            unit=notice.unit,
            used=notice.used,
            budget=notice.budget,
        )
    if isinstance(notice, MachineBackoff):
        until = (notice.reason, now + notice.seconds)
        return replace(view, waiting={**view.waiting, notice.slot: until})
    return view


def used(view: View, now: float) -> float:
    """Minutes spent, those of the attempts under way included."""
    return view.used + sum(now - x.began for x in view.running.values()) / 60


def _phase(notice: PhaseStarted) -> tuple[str, int] | None:
    """What the attempt does now, and the number of its run; None where the notice does not say."""
    detail = notice.detail
    if notice.phase in ("warm", "bench"):
        done = detail.get("run", 0) if notice.phase == "bench" else 0
        of = detail.get("of")
        if isinstance(done, int) and isinstance(of, int) and done >= of:
            return "stopping", 0
        return (f"run {done + 1}", done + 1) if isinstance(done, int) else None
    phase = _AFTER.get(notice.phase)
    return None if phase is None else (phase, 0)


Write = Callable[[str], None]

_PHASES = {
    "build": "building",
    "launch": "starting",
    "first_request": "first request",
    "warm": "discarded run",
}


class Console:
    """Writes notices as lines of text. ``write`` takes one; ``verbose``: the phases of each launch too."""

    def __init__(self, write: Write, *, verbose: bool = False) -> None:
        self._write = write
        self._verbose = verbose

    def __call__(self, notice: JobEvent) -> None:
        for text in notice_lines(notice, verbose=self._verbose):
            self._write(text)


def notice_lines(notice: JobEvent, *, verbose: bool = False) -> Sequence[str]:
    """The lines of one notice; none for phases, unless wanted, and none for the end: that is the result."""
    if isinstance(notice, JobNote):
        return [f"note: {line(notice.text)}"]
    if isinstance(notice, LaunchStarted):
        of = f" position {notice.position}/{notice.of}" if notice.of else ""
        runs = f"{notice.runs} run{'' if notice.runs == 1 else 's'}"
        where = f" on {line(notice.slot)}" if notice.slot else ""
        return [f"#{notice.number} {notice.change}{of}{where}, {runs}: {line(notice.why)}"]
    if isinstance(notice, PhaseStarted):
        return [_phase_line(notice)] if verbose or notice.phase == "warning" else []
    if isinstance(notice, LaunchEnded):
        return [launched_line(notice)]
    if isinstance(notice, MachineBackoff):
        return [f"   the machine failed ({line(notice.reason)}): trying again in {notice.seconds:.0f} s"]
    return []


def cell_lines(cell: CellDocument) -> list[str]:
    """The block that is shown before anything is measured."""
    width = max(len(label) for label, _ in cell.rows)
    return [f"  {label:<{width}}  {line(value)}" for label, value in cell.rows]


def launched_line(notice: LaunchEnded) -> str:
    """``   14.20 ms (2 runs, +-0.4 %)   leading 0a1b2c 0.62, ...   12.3 of 180.0 min``."""
    launch = notice.launch
    # Of several at once it is said which one this was.
    whose = f"#{launch.number} " if launch.slot else ""
    parts = [whose + _value(launch, notice.unit), *([notice.detail] if notice.detail else [])]
    spent = minutes(notice.used) + (f" of {minutes(notice.budget)}" if notice.budget else "")
    return "   " + "  |  ".join([*parts, spent])


def error_lines(message: str, where: str | None, next_step: str | None) -> list[str]:
    """An error: what was tried and came back, where to look, what comes next."""
    out = [f"error: {lines(message)}"]
    if where:
        out.append(f"  where: {line(where, 1000)}")
    if next_step:
        out.append(f"  next:  {line(next_step, 1000)}")
    return out


def _value(launch: LaunchDocument, unit: str) -> str:
    if launch.outcome == "running":
        return "under way"
    if launch.value is None:
        return f"{launch.outcome} after {minutes(launch.minutes)}: {line(launch.reason)}"
    spread = f", requests {percent(launch.spread, False)}" if launch.spread is not None else ""
    runs = f"{len(launch.values)} run{'' if len(launch.values) == 1 else 's'}"
    warned = f", {line('; '.join(launch.warnings))}" if launch.warnings else ""
    return f"{with_unit(launch.value, unit)} ({runs}{spread}{warned})"


def _phase_line(notice: PhaseStarted) -> str:
    if notice.phase == "warning":
        return f"   warning: {line(str(notice.detail.get('text', '')))}"
    seconds = notice.detail.get("seconds")
    took = f" {seconds:.1f} s" if isinstance(seconds, float) else ""
    return f"   {_PHASES.get(notice.phase, line(notice.phase))}{took}"
