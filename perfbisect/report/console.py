"""Lines that a job prints while it works: notes, launches, machine failures; and errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perfbisect.common.quantities import counted, minutes, percent, spent_text, with_unit
from perfbisect.common.text import line, lines
from perfbisect.jobs.events import (
    JobEvent,
    JobNote,
    LaunchEnded,
    LaunchStarted,
    MachineBackoff,
    PhaseStarted,
)
from perfbisect.jobs.replay import Launch


@dataclass(frozen=True)
class CandidatesUpdated(JobEvent):
    """The posterior: a probability for each candidate, ``none`` for no change.

    ``candidates``: name and subject of each, the first is the good end; ``untestable``: indices of those that
    are not measured.
    """

    candidates: tuple[tuple[str, str], ...]
    probabilities: tuple[float, ...]
    none: float
    untestable: frozenset[int] = frozenset()


_PHASES = {
    "build": "building",
    "launch": "starting",
    "first_request": "first request",
    "warm": "discarded run",
}


class Console:
    """Writes notices as lines of text; ``verbose``: the phases of each launch too."""

    def __init__(self, write: Callable[[str], None], *, verbose: bool = False) -> None:
        self._write = write
        self._verbose = verbose

    def __call__(self, notice: JobEvent) -> None:
        for text in notice_lines(notice, verbose=self._verbose):
            self._write(text)


def notice_lines(notice: JobEvent, *, verbose: bool = False) -> Sequence[str]:
    """The lines of a notice; phases only if ``verbose``."""
    if isinstance(notice, JobNote):
        return [f"note: {line(notice.text)}"]
    if isinstance(notice, LaunchStarted):
        request = notice.request
        of = f" position {request.position}/{notice.last}" if notice.last else ""
        runs = counted(request.runs, "run")
        where = f" on {line(notice.slot)}" if notice.slot else ""
        return [f"#{notice.number} {request.change.short}{of}{where}, {runs}: {line(request.why)}"]
    if isinstance(notice, PhaseStarted):
        if notice.phase == "warning":
            return [f"   warning: {line(str(notice.detail.get('text', '')))}"]
        seconds = notice.detail.get("seconds")
        took = f" {seconds:.1f} s" if isinstance(seconds, float) else ""
        return [f"   {_PHASES.get(notice.phase, line(notice.phase))}{took}"] if verbose else []
    if isinstance(notice, LaunchEnded):
        launch, detail = notice.launch, [notice.detail] if notice.detail else []
        value = f"{f'#{launch.number} ' if launch.slot else ''}{_value(launch, notice.unit)}"
        spent = spent_text(notice.used, notice.budget, notice.lost)
        return ["   " + "  |  ".join([value, *detail, spent])]
    if isinstance(notice, MachineBackoff):
        return [f"   the machine failed ({line(notice.reason)}): trying again in {notice.seconds:.0f} s"]
    return []


def error_lines(message: str, where: str | None, next_step: str | None) -> list[str]:
    out = [f"error: {lines(message)}"]
    if where:
        out.append(f"  where: {line(where, 1000)}")
    if next_step:
        out.append(f"  next:  {line(next_step, 1000)}")
    return out


def _value(launch: Launch, unit: str) -> str:
    if launch.outcome == "running":
        return "under way"
    if launch.value is None:
        return f"{launch.outcome} after {minutes(launch.minutes)}: {line(launch.reason)}"
    spread = f", requests {percent(launch.spread, False)}" if launch.spread is not None else ""
    runs = counted(len(launch.values), "run")
    warned = f", {line('; '.join(launch.warnings))}" if launch.warnings else ""
    return f"{with_unit(launch.value, unit)} ({runs}{spread}{warned})"
