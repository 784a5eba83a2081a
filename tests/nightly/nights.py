"""Nights over a stand-in for the machine: a repository of which two commits come every day, and its cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import cache
from pathlib import Path
from typing import Any

from perfbisect.bisect.documents import ReportDocument
from perfbisect.bisect.job import bisect
from perfbisect.bisect.plan import make_plan
from perfbisect.changes.git import Repository
from perfbisect.changes.history import commit_history
from perfbisect.compare.job import run
from perfbisect.compare.plan import MeasurementSetup, build_run_plan
from perfbisect.errors import Interrupted, PerfbisectError
from perfbisect.jobs.folders import Job, Jobs
from perfbisect.jobs.journal import read
from perfbisect.jobs.plans import MeasurementConfig, resolve_metric, write_plan
from perfbisect.measure.attempt import write_attempt
from perfbisect.measure.executor import AttemptRequest, Sink, Started
from perfbisect.model.attempt import Attempt
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from perfbisect.nightly.config import FoundCell, NightlyFile, load_nightly
from perfbisect.nightly.model import Night
from perfbisect.nightly.night import (
    BisectionWindow,
    CellJob,
    NightlyContext,
    NightTask,
    PreparedBisection,
)
from perfbisect.nightly.plan import NightPlan
from perfbisect.nightly.report import night_report
from perfbisect.nightly.run import run_night
from perfbisect.report.document import Report
from perfbisect.series.suspects.table import load_suspect_table
from tests.fakes.gitwriter import HistoryWriter
from tests.jobs.world import Clock, FakeBuilder, Watch, World, cell

DAYS = 18
EACH = 2
"""Commits of a day."""

SETTING = MeasurementConfig(environment="fake:it", exclude_newer="2026-01-01")
CONFIG = """\
name: n
cells: [a]
budget: {budget}
exclude_newer: "2026-01-01"
"""


def make_repository(path: Path) -> tuple[str, ...]:
    """A history of which commit ``day * EACH + EACH - 1`` is the head of a day; returns its commits."""
    writer = HistoryWriter(path)
    for number in range(DAYS * EACH):
        writer.commit(f"Change {number}", {f"vllm/file{number % 5}.py": b"x\n" * (number + 1)})
    return writer.finish(checkout=False)


@dataclass
class Nightworld(World):
    """Launches of a day, at its time; ``of``: a factor by cell and position."""

    moment: datetime = datetime(2026, 1, 1, tzinfo=timezone.utc)
    of: Callable[[str, int], float] = lambda *_: 1.0

    def run(self, request: AttemptRequest, *, started: Started, sink: Sink) -> Attempt:
        position = next(i for i, c in enumerate(self.changes) if c.id == request.change.id)
        self.pace = lambda _: self.of(request.cell.name, position)
        attempt = super().run(request, started=started, sink=sink)
        attempt = replace(attempt, started_at=self.moment.isoformat())
        write_attempt(request.folder, attempt)
        return attempt


@dataclass
class Place:
    """A state folder, a repository and a machine on which night after night is run."""

    folder: Path
    commits: tuple[str, ...]
    repository: Repository
    world: Nightworld
    cells: tuple[Cell, ...]
    text: str = CONFIG.format(budget="10h")
    watch: Watch = field(default_factory=Watch)
    tasks: Sequence[NightTask] = ()
    searched: list[BisectionWindow] = field(default_factory=list)
    least: float = 5.0
    refusal: PerfbisectError | None = None
    """What a bisection of this place ends with before it begins."""
    last: Night | None = None
    """The night that ran last."""
    _jobs: int = 0

    @property
    def last_report(self) -> Report:
        assert self.last is not None
        return night_report(self.last)

    @property
    def jobs(self) -> Jobs:
        return Jobs(self.folder / "state")

    @property
    def file(self) -> NightlyFile:
        path = self.folder / "nightly.yaml"
        path.write_text(self.text)
        return load_nightly(path)

    def context(self, day: int, head: int | None = None) -> NightlyContext:
        """``head``: the place of the commit that is measured, where it is not the day's last."""
        place = day * EACH + EACH - 1 if head is None else head
        return NightlyContext(
            file=self.file,
            state=self.folder / "state",
            repository=self.repository,
            commit=self.repository.resolve(self.commits[place]),
            cells=tuple(FoundCell(cell, cell.name) for cell in self.cells),
            setting=SETTING,
            table=load_suspect_table(),
            machine=self,
            clock=Clock(self.world.moment),
            sink=self.watch.notices.append,
            stop_leftovers=self.watch.stop_leftovers,
            launch_minutes=5.0,
            tasks=self.tasks,
        )

    def night(self, day: int, *, date: int | None = None, head: int | None = None) -> Night:
        """The night of a day: its head is measured, on that date or another; or another commit is."""
        days = day if date is None else date
        self.world.moment = datetime(2026, 1, 1, 2, tzinfo=timezone.utc) + timedelta(days=days)
        self.last = run_night(self.context(day, head))
        return self.last

    def new_job(self) -> Job:
        self._jobs += 1
        return self.jobs.new(self.world.moment, f"{self._jobs:04d}")

    def measure(
        self, night: NightPlan, cells: Sequence[CellJob], launch: int
    ) -> Mapping[str, PerfbisectError]:
        (cell,) = cells
        try:
            self._launch(night, cell, launch)
        except Interrupted:
            raise
        except PerfbisectError as error:
            return {cell.plan.name: error}
        return {}

    def _launch(self, night: NightPlan, one: CellJob, launch: int) -> None:
        served, tools = one.plan.load(), self.watch.tools(self.world, clock=Clock(self.world.moment))
        if not one.job.journal.exists():
            setup = MeasurementSetup(served, resolve_metric(served, None), night.setting, FakeBuilder())
            plan = build_run_plan(setup, change=night.commit, launches=one.plan.launches, runs=one.plan.runs)
            write_plan(one.job, plan, tools.clock)
        with one.job.held():
            run(one.job, tools, until=launch)

    def prepare_bisection(
        self, night: NightPlan, window: BisectionWindow, minutes: float
    ) -> PreparedBisection:
        self.searched.append(window)
        if self.refusal is not None:
            raise self.refusal
        return PreparedBisection(self.least, lambda job: self._bisect(job, night, window, minutes))

    def _bisect(self, job: Job, night: NightPlan, window: BisectionWindow, minutes: float) -> ReportDocument:
        served, tools = window.cell.load(), self.watch.tools(self.world, clock=Clock(self.world.moment))
        if not job.journal.exists():
            line, _ = commit_history(self.repository, window.good, window.bad)
            plan = make_plan(
                cell=served, history=line, builder=FakeBuilder(), budget=minutes,
                metric=resolve_metric(served, window.metric), setting=night.setting,
            )  # fmt: skip
            write_plan(job, plan, tools.clock)
        with job.held():
            return bisect(job, tools)

    def launches(self) -> list[tuple[str, str, str]]:
        """What every launch that measured was of: cell, change, purpose."""
        found = []
        for job in self.jobs.all():
            events = read(job.journal).events
            name = events[0].data["cell"]["name"]
            ended = [event.data["attempt"] for event in events if event.kind == "finished"]
            found += [(name, attempt["change_id"], attempt["purpose"]) for attempt in ended]
        return found


@cache
def _changes(repository: Path, commits: tuple[str, ...]) -> tuple[Change, ...]:
    opened = Repository.open(repository)
    return tuple(opened.resolve(sha) for sha in commits)


def make_place(folder: Path, commits: tuple[str, ...], repository: Path, **changed: Any) -> Place:
    """A place without noise to speak of; ``names``: its cells, of one to so many requests at once."""
    names = changed.pop("names", ("a", "b", "c"))
    cells = tuple(cell(name=name, max_concurrency=i) for i, name in enumerate(names, 1))
    world = Nightworld(_changes(repository, commits), None, sigma=0.004, tau=0.004)
    return Place(folder, commits, Repository.open(repository), world, cells, **changed)
