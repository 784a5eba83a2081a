"""The journal of a night, folded: its whole state, so that starting it again goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import mean, median
from typing import Any

from pydantic import TypeAdapter

from perfbisect.errors import EXIT_OK
from perfbisect.jobs.documents import reported_value
from perfbisect.jobs.folders import Job, Jobs
from perfbisect.jobs.journal import Event, read
from perfbisect.jobs.replay import Launch, launches
from perfbisect.nightly.model import NightBisection, NightFindings, NightStep
from perfbisect.nightly.plan import CellPlan, NightPlan


@dataclass(frozen=True, kw_only=True)
class CellFailure:
    """Why a cell failed."""

    cell: str
    reason: str
    log: str = ""
    next: str = ""
    exit_code: int = EXIT_OK

    def to_json(self) -> dict[str, Any]:
        """The data of its event."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class StepRecord(NightStep):
    """A step that ended, with what later steps and the exit code need of it."""

    files: Mapping[str, str] = field(default_factory=dict)
    exit_code: int = EXIT_OK
    findings: NightFindings | None = None

    def to_json(self) -> dict[str, Any]:
        """The data of its event."""
        data: dict[str, Any] = _STEP.dump_python(self, mode="json")
        return data


_FAILURE = TypeAdapter(CellFailure)
_STEP = TypeAdapter(StepRecord)
_BISECTION = TypeAdapter(NightBisection)


def bisection_to_json(bisection: NightBisection) -> dict[str, Any]:
    """The data of the event of a bisection."""
    return {"name": "bisect", "bisection": _BISECTION.dump_python(bisection, mode="json")}


@dataclass(frozen=True)
class NightState:
    """What a night's journal says. ``jobs``: the job of each cell; ``searches``: that of each event that is
    bisected; ``failed``: the cells that failed; ``steps``: what came of each step that ended, by its name;
    of the step ``bisect`` by its event in ``bisections``."""

    jobs: Mapping[str, str] = field(default_factory=dict)
    searches: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, CellFailure] = field(default_factory=dict)
    steps: Mapping[str, StepRecord] = field(default_factory=dict)
    bisections: Mapping[str, NightBisection] = field(default_factory=dict)
    over: bool = False

    @property
    def findings(self) -> NightFindings | None:
        """What the series show; None while they were not judged, or could not be."""
        detected = self.steps.get("detect")
        return None if detected is None else detected.findings

    @property
    def exit_codes(self) -> tuple[int, ...]:
        """Those of the cells and steps that failed."""
        codes = [failure.exit_code for failure in self.failed.values()]
        codes += [step.exit_code for step in self.steps.values()]
        return tuple(code for code in codes if code != EXIT_OK)


def state_of(events: Sequence[Event]) -> NightState:
    """The fold of a night's events."""
    jobs: dict[str, str] = {}
    searches: dict[str, str] = {}
    failed: dict[str, CellFailure] = {}
    steps: dict[str, StepRecord] = {}
    bisections: dict[str, NightBisection] = {}
    over = False
    for event in events:
        data = event.data
        if event.kind == "job" and "cell" in data:
            jobs[str(data["cell"])] = str(data["job"])
        elif event.kind == "job":
            searches[str(data["event"])] = str(data["job"])
        elif event.kind == "cell":
            failure = _FAILURE.validate_python(data)
            failed[failure.cell] = failure
        elif event.kind == "step" and data["name"] == "bisect":
            bisection = _BISECTION.validate_python(data["bisection"])
            bisections[bisection.event] = bisection
        elif event.kind == "step":
            step = _STEP.validate_python(data)
            steps[step.name] = step
        over = over or event.kind == "verdict"
    return NightState(jobs, searches, failed, steps, bisections, over)


@dataclass(frozen=True)
class Tally:
    """What the job of a cell holds. ``minutes``: of all its launches, those that were lost with them."""

    launches: tuple[Launch, ...] = ()

    @property
    def measured(self) -> tuple[Launch, ...]:
        return tuple(x for x in self.launches if x.end == "finished" and x.attempt is not None)

    @property
    def minutes(self) -> float:
        return sum(launch.minutes for launch in self.launches)

    @property
    def each(self) -> float | None:
        """Minutes of a launch that measured; None while there is none."""
        found = [launch.minutes for launch in self.measured]
        return mean(found) if found else None

    def value(self, cell: CellPlan) -> float | None:
        """The median over the launches of the cell's headline; None where none reports it."""
        found = [reported_value(x.attempt, cell.ref) for x in self.measured if x.attempt is not None]
        values = [value for value in found if value is not None]
        return median(values) if values else None

    def versions(self) -> tuple[str, str]:
        """The version of the engine and the class of the machine, of the last launch that measured."""
        last = self.measured[-1].attempt if self.measured else None
        return ("", "") if last is None else (last.provenance.engine_version, last.provenance.machine_class)


def tally(jobs: Jobs, identity: str | None) -> Tally:
    """The launches of a job; none where it has not begun. :raises LocatedError: its journal was changed."""
    if identity is None:
        return Tally()
    job = Job(jobs.folder / identity)
    return Tally(launches(read(job.journal).events) if job.journal.exists() else ())


def tallies(plan: NightPlan, state: NightState, jobs: Jobs) -> dict[str, Tally]:
    """Of each cell that is measured."""
    return {one.name: tally(jobs, state.jobs.get(one.name)) for one in plan.wanted}


def spent(plan: NightPlan, state: NightState, jobs: Jobs) -> float:
    """Minutes of the night's launches, those of its bisections with them."""
    cells = sum(one.minutes for one in tallies(plan, state, jobs).values())
    return cells + sum(tally(jobs, identity).minutes for identity in state.searches.values())
