"""The folders of a nightly with its lock, and what a night's journal says."""

from __future__ import annotations

import contextlib
import json
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Literal, TypeVar

from pydantic import Field, ValidationError

from perfbisect.commands.experiments import experiment_of
from perfbisect.common.checked import first_problem
from perfbisect.errors import EXIT_OK, PerfbisectError, UsageError
from perfbisect.experiments.run import ChangeResult
from perfbisect.jobs.documents import Document, MeasuredDocument
from perfbisect.jobs.folders import (
    JOURNAL,
    Job,
    Jobs,
    JournalFolder,
    hold_folder,
    make_folder,
)
from perfbisect.jobs.journal import EventKind, JournalEvent, stamp
from perfbisect.jobs.plans import plan_data
from perfbisect.nightly.model import NightBisection, NightFindings, NightProfile, NightStep
from perfbisect.nightly.plan import NightPlan, setting_key
from perfbisect.report.template import render_sentences

_DocumentT = TypeVar("_DocumentT", bound=Document)

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

    def record(self) -> NightRecord:
        return NightRecord(self.events(), NightJobs(Jobs(self.path.parents[2])))


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
        next_step = "wait until it has ended; perfbisect status shows its jobs"
        with hold_folder(self.folder, f"nightly {self.name}", next_step, since=stamp(now)):
            yield


def reason_text(kind: str, **values: object) -> str:
    """Why something was not done, or an alert changed its state, in words."""
    (text,) = render_sentences("nightly/templates/why.jinja", {"kind": kind, "v": values})
    return text


class CellFailure(Document):
    """Why a cell failed."""

    cell: str
    reason: str
    log: str = ""
    next: str = ""
    exit_code: int = EXIT_OK

    @classmethod
    def of(cls, cell: str, error: PerfbisectError, reason: str = "") -> CellFailure:
        """The failure of a cell by an error; ``reason``: in place of its message."""
        return cls(
            cell=cell,
            reason=reason or error.message,
            log=error.where or "",
            next=error.next_step or "",
            exit_code=error.exit_code,
        )


class StepRecord(Document):
    """A completed step with its effect on later steps and the exit code."""

    step: NightStep
    files: dict[str, str] = Field(default_factory=dict)
    exit_code: int = EXIT_OK
    findings: NightFindings | None = None

    @classmethod
    def failed(cls, name: str, error: PerfbisectError) -> StepRecord:
        step = NightStep(
            name=name,
            state="failed",
            reported=error.message,
            where=error.where or "",
            next=error.next_step or "",
        )
        return cls(step=step, exit_code=error.exit_code)


class NightVerdict(Document):
    """The last line of a night's journal, which later nights read.

    ``setting``: what must be equal for its measurements to count there; ``measured``: launches by
    :attr:`CellPlan.history_key`; ``launch_minutes``: of a launch by digest of the cell.
    """

    verdict: Literal["over", "abandoned"]
    exit_code: int | None = None
    setting: str
    measured: dict[str, int]
    launch_minutes: dict[str, float]


JobOf = Literal["cell", "event", "profile_of"]
"""What a job of a night is of: launches of a cell, the bisection of an event, the profile of its culprit."""


@dataclass(frozen=True)
class NightJobs:
    """The jobs of a night and their results."""

    stored: Jobs
    _known: dict[str, tuple[int, MeasuredDocument | None]] = field(default_factory=dict, repr=False)

    def result(self, identity: str) -> MeasuredDocument | None:
        """What a job measured so far; None: it has no journal yet.

        Raises:
            UsageError: its journal cannot be read.
        """
        job = self.stored.named(identity)
        # A night asks after every launch, and only one job has grown since: the others are not read again.
        size = job.journal.stat().st_size if job.journal.exists() else 0
        if identity not in self._known or self._known[identity][0] != size:
            events = job.events()
            self._known[identity] = size, experiment_of(events).result(job, events) if events else None
        return self._known[identity][1]


@dataclass(frozen=True)
class NightRecord:
    """What a night's journal says, with the results of its jobs; each part is read when it is used."""

    events: tuple[JournalEvent, ...]
    results: NightJobs

    @cached_property
    def plan(self) -> NightPlan:
        """The plan; UsageError if it cannot be read."""
        try:
            return NightPlan.model_validate_json(json.dumps(plan_data(self.events)))
        except (UsageError, ValidationError) as error:
            raise UsageError(
                f"the night's plan cannot be read: {error}",
                next_step="move its folder away and begin again",
            ) from error

    def job_ids(self, kind: JobOf) -> dict[str, str]:
        """The job of each cell or event; it may have no launch yet."""
        return {str(event.data[kind]): self._job_of(event).id for event in self._events("job", kind)}

    @property
    def jobs(self) -> tuple[Job, ...]:
        """All jobs of the night."""
        return tuple(self._job_of(event) for event in self._events("job", "job"))

    @cached_property
    def bisections(self) -> Mapping[str, NightBisection]:
        """The result of each event, with the profile of its culprit once that is recorded."""
        found = {one.event: one for one in self._records("step", "event", NightBisection)}
        for profile in self._records("step", "profile_of", NightProfile):
            if profile.profile_of in found:
                bisection = found[profile.profile_of].model_copy(update={"profile": profile})
                found[profile.profile_of] = bisection
        return found

    @cached_property
    def failed(self) -> Mapping[str, CellFailure]:
        return {failure.cell: failure for failure in self._records("cell", "cell", CellFailure)}

    @cached_property
    def steps(self) -> Mapping[str, StepRecord]:
        return {record.step.name: record for record in self._records("step", "step", StepRecord)}

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

    @cached_property
    def verdict(self) -> NightVerdict | None:
        """None until the night is over."""
        return next(self._records("verdict", "verdict", NightVerdict), None)

    def conclude(self, verdict: Literal["over", "abandoned"], exit_code: int | None = None) -> NightVerdict:
        wanted, counts, minutes = self.plan.wanted, self.counts, self.launch_minutes
        return NightVerdict(
            verdict=verdict,
            exit_code=exit_code,
            setting=setting_key(self.plan.setting),
            measured={cell.history_key: counts[cell.name] for cell in wanted},
            launch_minutes={cell.digest: minutes[cell.name] for cell in wanted if cell.name in minutes},
        )

    @property
    def cells(self) -> Mapping[str, ChangeResult]:
        """What was measured of the wanted cells that have a job."""
        jobs = self.job_ids("cell")
        results = {name: self.results.result(job) for name, job in jobs.items()}
        wanted = {cell.name for cell in self.plan.wanted}
        return {
            name: result
            for name, result in results.items()
            if name in wanted and isinstance(result, ChangeResult)
        }

    @property
    def counts(self) -> dict[str, int]:
        """Measured launches of each wanted cell."""
        cells = self.cells
        return {
            cell.name: sum(launch.outcome == "measured" for launch in cells[cell.name].launches)
            if cell.name in cells
            else 0
            for cell in self.plan.wanted
        }

    @property
    def launch_minutes(self) -> dict[str, float]:
        """Mean minutes of a launch by cell that was measured."""
        launches = {
            name: [launch.minutes for launch in result.launches if launch.outcome == "measured"]
            for name, result in self.cells.items()
        }
        return {name: mean(minutes) for name, minutes in launches.items() if minutes}

    def spent_on(self, machine: str) -> float:
        """Minutes of the cells' launches on a machine, failed ones included."""
        on_machine = {cell.name for cell in self.plan.wanted_on(machine)}
        return sum(result.minutes.total for name, result in self.cells.items() if name in on_machine)

    @property
    def spent(self) -> float:
        """Minutes of all launches of the night, bisections and profiles included; of machines that measured
        at the same time those of the one that took longest."""
        later = (*self.job_ids("event").values(), *self.job_ids("profile_of").values())
        results = [result for job in later if (result := self.results.result(job)) is not None]
        cells = max((self.spent_on(machine) for machine in self.plan.machines), default=0.0)
        return cells + sum(result.minutes.total for result in results)

    def job(self, identity: str) -> Job:
        return self.results.stored.named(identity)

    def _job_of(self, event: JournalEvent) -> Job:
        try:
            return self.job(str(event.data.get("job")))
        except UsageError as error:
            raise event.error(error.message) from error

    def _events(self, kind: EventKind, key: str) -> Iterator[JournalEvent]:
        """The events of a kind whose data have a key."""
        return (event for event in self.events if event.kind == kind and key in event.data)

    def _records(self, kind: EventKind, key: str, model: type[_DocumentT]) -> Iterator[_DocumentT]:
        """What they record. :raises LocatedError: one cannot be read."""
        for event in self._events(kind, key):
            try:
                yield model.model_validate(event.data)
            except ValidationError as error:
                raise event.error(first_problem(error)) from error


def write_traceback(folder: Path, name: str) -> str:
    """Write the exception that is being handled to ``NAME.log`` of a night, as far as possible."""
    path = folder / f"{name}.log"
    # A disk that is full must not replace the error that is reported.
    with contextlib.suppress(OSError):
        path.write_text(traceback.format_exc(), encoding="utf-8")
    return str(path)
