"""The folders of a nightly with its lock, and what a night's journal says."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import mean, median

from pydantic import Field, ValidationError

from perfbisect.errors import EXIT_OK, MachineError, UsageError
from perfbisect.jobs.documents import Document, reported_value
from perfbisect.jobs.folders import (
    JOURNAL,
    Job,
    Jobs,
    JournalFolder,
    LockHolder,
    hold_folder,
    holder_path,
    make_folder,
)
from perfbisect.jobs.journal import JournalEvent, stamp
from perfbisect.jobs.plans import plan_data
from perfbisect.jobs.replay import LaunchRecord, launches
from perfbisect.model.attempt import Attempt
from perfbisect.model.metric import MetricRef
from perfbisect.nightly.model import NightBisection, NightFindings, NightStep
from perfbisect.nightly.plan import NightPlan

_DIGITS = 10


@dataclass(frozen=True)
class NightFolder(JournalFolder):
    """``STATE/nightly/NAME/NIGHT/``."""

    def measures(self, commit: str) -> bool:
        """Whether the folder's name contains the commit."""
        return self.id.endswith(f"-{commit[:_DIGITS]}")

    @property
    def document(self) -> Path:
        return self.path / "night.json"


class Nights:
    """The nights of one nightly."""

    def __init__(self, state: Path, name: str) -> None:
        self.name = name
        self.folder = state / "nightly" / name

    def new(self, moment: datetime, commit: str) -> NightFolder:
        """Create a folder whose name sorts by time and ends in the abbreviated commit."""
        return NightFolder(make_folder(self.folder, moment, commit[:_DIGITS], "the night"))

    def all(self) -> tuple[NightFolder, ...]:
        """The nights that began, oldest first."""
        return tuple(NightFolder(path.parent) for path in sorted(self.folder.glob(f"*/{JOURNAL}")))

    @contextlib.contextmanager
    def held(self, now: datetime) -> Iterator[None]:
        """Hold the lock of the nightly; a killed process releases it."""
        what = f"nightly {self.name}"

        def refuse(holder: LockHolder | None) -> MachineError:
            owner = "an unrecorded process"
            if holder is not None:
                owner = f"process {holder.pid}, since {holder.since[:19]}Z"
            return MachineError(
                f"{what} is already running: {owner}",
                where=holder_path(self.folder),
                next_step="wait until it has ended; perfbisect status shows its jobs",
            )

        with hold_folder(self.folder, what, refuse, since=stamp(now)):
            yield


class CellFailure(Document):
    """Why a cell failed."""

    cell: str
    reason: str
    log: str = ""
    next: str = ""
    exit_code: int = EXIT_OK


class StepRecord(Document):
    """A completed step with its effect on later steps and the exit code."""

    step: NightStep
    files: dict[str, str] = Field(default_factory=dict)
    exit_code: int = EXIT_OK
    findings: NightFindings | None = None


@dataclass(frozen=True)
class NightState:
    """The content of a night's journal.

    ``jobs``: by cell; ``bisection_jobs`` and ``bisections``: by event; ``failed``: by cell; ``steps``: by
    name. ``is_over``: the night has its verdict.
    """

    jobs: Mapping[str, str] = field(default_factory=dict)
    bisection_jobs: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, CellFailure] = field(default_factory=dict)
    steps: Mapping[str, StepRecord] = field(default_factory=dict)
    bisections: Mapping[str, NightBisection] = field(default_factory=dict)
    is_over: bool = False

    @classmethod
    def from_events(cls, events: Sequence[JournalEvent]) -> NightState:
        jobs = [event.data for event in events if event.kind == "job"]
        steps = [event.data for event in events if event.kind == "step"]
        failures = [CellFailure.model_validate(event.data) for event in events if event.kind == "cell"]
        done = [StepRecord.model_validate(data) for data in steps if "step" in data]
        bisections = [NightBisection.model_validate(data) for data in steps if "step" not in data]
        return cls(
            jobs={data["cell"]: data["job"] for data in jobs if "cell" in data},
            bisection_jobs={data["event"]: data["job"] for data in jobs if "event" in data},
            failed={failure.cell: failure for failure in failures},
            steps={record.step.name: record for record in done},
            bisections={bisection.event: bisection for bisection in bisections},
            is_over=any(event.kind == "verdict" for event in events),
        )

    @property
    def findings(self) -> NightFindings | None:
        """What the series show; None until they are judged."""
        detected = self.steps.get("detect")
        return None if detected is None else detected.findings

    @property
    def exit_codes(self) -> tuple[int, ...]:
        """The codes of failed cells and steps."""
        codes = [failure.exit_code for failure in self.failed.values()]
        codes += [record.exit_code for record in self.steps.values()]
        return tuple(code for code in codes if code != EXIT_OK)


@dataclass(frozen=True)
class CellLaunches:
    """The launches in a job of the night."""

    launches: tuple[LaunchRecord, ...] = ()

    @classmethod
    def read(cls, jobs: Jobs, identity: str | None) -> CellLaunches:
        """Read the launches of a job that may not exist yet."""
        return cls() if identity is None else cls(launches(Job(jobs.folder / identity).events()))

    @property
    def measured(self) -> tuple[Attempt, ...]:
        ended = [launch.attempt for launch in self.launches if launch.end == "finished"]
        return tuple(attempt for attempt in ended if attempt is not None)

    @property
    def minutes(self) -> float:
        """Minutes of all launches, failed ones included."""
        return sum(launch.minutes for launch in self.launches)

    @property
    def launch_minutes(self) -> float | None:
        """Mean minutes of a measured launch."""
        minutes = [launch.minutes for launch in self.launches if launch.end == "finished" and launch.attempt]
        return mean(minutes) if minutes else None

    def value(self, metric: MetricRef) -> float | None:
        """Median of a metric over the launches."""
        reported = [reported_value(attempt, metric) for attempt in self.measured]
        values = [value for value in reported if value is not None]
        return median(values) if values else None


@dataclass(frozen=True)
class NightProgress:
    """A night's plan, its journal and the launches of its wanted cells."""

    plan: NightPlan
    state: NightState
    cells: Mapping[str, CellLaunches]
    bisection_minutes: float

    @classmethod
    def read(cls, events: Sequence[JournalEvent], jobs: Jobs) -> NightProgress:
        """Read the journal's jobs."""
        plan, state = read_plan(events), NightState.from_events(events)
        cells = {cell.name: CellLaunches.read(jobs, state.jobs.get(cell.name)) for cell in plan.wanted}
        bisections = (CellLaunches.read(jobs, job) for job in state.bisection_jobs.values())
        return cls(plan, state, cells, sum(bisection.minutes for bisection in bisections))

    @property
    def counts(self) -> dict[str, int]:
        """Measured launches by cell."""
        return {name: len(cell.measured) for name, cell in self.cells.items()}

    @property
    def launch_minutes(self) -> dict[str, float]:
        """Mean minutes of a launch by cell that was measured."""
        minutes = {name: cell.launch_minutes for name, cell in self.cells.items()}
        return {name: value for name, value in minutes.items() if value is not None}

    @property
    def spent(self) -> float:
        """Minutes of all launches of the night, bisections included."""
        return self.bisection_minutes + sum(cell.minutes for cell in self.cells.values())

    def history_data(self) -> dict[str, object]:
        """What later nights read from the verdict event."""
        minutes = self.launch_minutes
        wanted = self.plan.wanted
        return {
            "setting": self.plan.setting_key,
            "measured": {cell.digest: self.counts[cell.name] for cell in wanted},
            "launch_minutes": {cell.digest: minutes[cell.name] for cell in wanted if cell.name in minutes},
        }


def read_plan(events: Sequence[JournalEvent]) -> NightPlan:
    """Read the plan from a night's journal."""
    try:
        return NightPlan.model_validate_json(json.dumps(plan_data(events)))
    except (UsageError, ValidationError) as error:
        raise UsageError(
            f"the night's plan cannot be read: {error}", next_step="move its folder away and begin again"
        ) from error
