"""Nights over a stand-in for the machine: a repository of which two commits come every day, and its cells."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import cache
from pathlib import Path
from typing import Any

from perfbisect.bisect.job import BISECT
from perfbisect.bisect.plan import BisectPlan, make_plan
from perfbisect.bisect.result import BisectResult
from perfbisect.changes.git import Repository
from perfbisect.changes.history import commit_history
from perfbisect.engine.experiment import run_experiment, run_in_steps
from perfbisect.errors import MachineError, PerfbisectError
from perfbisect.experiments.run import RUN
from perfbisect.experiments.setup import MeasurementSetup, build_run_plan
from perfbisect.explain.plans import measured_sides
from perfbisect.explain.profile_job import PROFILE, ProfileDocument, ProfilePlan
from perfbisect.jobs.estimates import EarlierAttempts
from perfbisect.jobs.folders import Job, Jobs
from perfbisect.jobs.journal import read
from perfbisect.jobs.plans import MeasurementConfig, resolve_metric, write_plan
from perfbisect.jobs.runner import Reclaim
from perfbisect.machine.slots import Slot
from perfbisect.measure.attempt import write_attempt
from perfbisect.measure.executor import AttemptRequest, Sink, Started
from perfbisect.model.attempt import Attempt
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from perfbisect.nightly.config import FoundCell, NightlyFile, load_nightly
from perfbisect.nightly.model import Night, NightBisection
from perfbisect.nightly.night import (
    NightlyContext,
    NightTask,
    PreparedJob,
)
from perfbisect.nightly.plan import CellMachines, CellPlan, NightPlan
from perfbisect.nightly.report import night_report
from perfbisect.nightly.run import run_night
from perfbisect.report.document import Report
from perfbisect.series.suspects.job import RankedAlert
from perfbisect.series.suspects.table import SuspectTable, load_suspect_table
from tests.fakes.gitwriter import HistoryWriter
from tests.jobs.world import Clock, FakeBuilder, Watch, World, cell

DAYS = 18
EACH = 2
"""Commits of a day."""

SLOW = 8
"""The first night that is slow: of so large a step the first that shows it."""

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
    """Launches of a day, at its time; ``of``: a factor by cell and position; ``machines``: by machine."""

    moment: datetime = datetime(2026, 1, 1, tzinfo=timezone.utc)
    of: Callable[[str, int], float] = lambda *_: 1.0
    machines: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pace = self._pace

    def _pace(self, request: AttemptRequest) -> float:
        position = next(i for i, c in enumerate(self.changes) if c.id == request.change.id)
        machine = request.slot.machine if request.slot else ""
        return self.of(request.cell.name, position) * self.machines.get(machine, 1.0)

    def run(self, request: AttemptRequest, *, started: Started, sink: Sink) -> Attempt:
        attempt = super().run(request, started=started, sink=sink)
        attempt = replace(attempt, started_at=self.moment.isoformat())
        if request.slot is not None and request.slot.machine:
            facts = {"machine": {"host": "one", "name": request.slot.machine}}
            attempt = replace(attempt, provenance=replace(attempt.provenance, facts=facts))
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
    tasks: Mapping[str, NightTask] = field(default_factory=dict)
    searched: list[Path] = field(default_factory=list)
    """The prior of each bisection that was planned."""
    least: float = 5.0
    refusal: PerfbisectError | None = None
    """What a bisection of this place ends with before it begins."""
    profiled: list[str] = field(default_factory=list)
    """Bisections whose culprit was to be profiled."""
    profile_minutes: float = 1.0
    profile_problem: str = ""
    profile_refusal: Exception | None = None
    """What a profile of this place ends with before it begins."""
    refused: dict[str, PerfbisectError] = field(default_factory=dict)
    """By cell: why it cannot run at the commit."""
    too_large: set[str] = field(default_factory=set)
    """Cells that this machine has too few devices for."""
    checked: tuple[str, ...] = ()
    """What is not checked of a cell."""
    last: Night | None = None
    """The night that ran last."""

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
            table=_table(),
            machine=self,
            clock=Clock(self.world.moment),
            sink=self.watch.notices.append,
            stop_leftovers=self.watch.stop_leftovers,
            earlier=lambda _: EarlierAttempts(),
            tasks=self.tasks,
        )

    def night(self, day: int, *, date: int | None = None, head: int | None = None) -> Night:
        """The night of a day: its head is measured, on that date or another; or another commit is."""
        days = day if date is None else date
        self.world.moment = datetime(2026, 1, 1, 2, tzinfo=timezone.utc) + timedelta(days=days)
        self.last = run_night(self.context(day, head))
        return self.last

    def machines(self, cell: Cell) -> CellMachines:
        raise AssertionError(f"{cell.name}: there is no fleet")

    def end_bundles(self, job: Job) -> Reclaim | None:
        del job
        return None

    def check(self, night: NightPlan, cell: CellPlan, *, dry_run: bool) -> tuple[str, ...]:
        del night
        if cell.name in self.refused:
            raise self.refused[cell.name]
        if dry_run and cell.name in self.too_large:
            raise MachineError(f"{cell.name} needs 8 devices", next_step="perfbisect doctor")
        return self.checked

    def measure(
        self, night: NightPlan, cell: CellPlan, job: Job, launch: int
    ) -> Generator[float, None, None]:
        yield from ()
        self._write_plan(cell, job, night)
        with job.held():
            tools = self.watch.tools(self.world, clock=Clock(self.world.moment))
            run_experiment(RUN, job, tools, until=launch)

    def _write_plan(self, cell: CellPlan, job: Job, night: NightPlan) -> None:
        if not job.journal.exists():
            served = cell.load()
            setup = MeasurementSetup(served, (resolve_metric(served, None),), night.setting, FakeBuilder())
            plan = build_run_plan(setup, change=night.commit, launches=cell.launches, runs=cell.runs)
            write_plan(job, plan, Clock(self.world.moment))

    def prepare_bisection(
        self, night: NightPlan, cell: CellPlan, ranked: RankedAlert, weights: Path, minutes: float
    ) -> PreparedJob[BisectResult]:
        self.searched.append(weights)
        if self.refusal is not None:
            raise self.refusal
        return PreparedJob(self.least, lambda job: self._bisect(job, night, cell, ranked, minutes))

    def _bisect(
        self, job: Job, night: NightPlan, planned: CellPlan, ranked: RankedAlert, minutes: float
    ) -> BisectResult:
        served, tools = planned.load(), self.watch.tools(self.world, clock=Clock(self.world.moment))
        if not job.journal.exists():
            line, _ = commit_history(self.repository, ranked.good, ranked.bad)
            plan = make_plan(
                BisectPlan, cell=served, history=line, builder=FakeBuilder(), budget=minutes,
                metric=resolve_metric(served, ranked.alert.metric), setting=night.setting,
            )  # fmt: skip
            write_plan(job, plan, tools.clock)
        with job.held():
            report = run_experiment(BISECT, job, tools)
        job.document.write_text(report.text())
        return report

    def prepare_profile(self, source: Job, minutes: float) -> PreparedJob[ProfileDocument]:
        self.profiled.append(source.id)
        if self.profile_refusal is not None:
            raise self.profile_refusal
        return PreparedJob(
            self.profile_minutes, lambda job: self._profile(job, source, minutes), self.profile_problem
        )

    def _profile(self, job: Job, source: Job, minutes: float) -> ProfileDocument:
        tools = self.watch.tools(self.world, clock=Clock(self.world.moment))
        if not job.journal.exists():
            sides = measured_sides(source, read(source.journal).events)
            measured = sides.plan
            plan = ProfilePlan(
                cell=measured.cell, digest=measured.digest, setting=measured.setting, metric=measured.metric,
                source=source.id, a=sides.a, b=sides.b, is_slower=sides.is_slower, budget=minutes,
            )  # fmt: skip
            write_plan(job, plan, tools.clock)
        with job.held():
            return run_experiment(PROFILE, job, tools)

    def launches(self) -> list[tuple[str, str, str]]:
        """What every launch that measured was of: cell, change, purpose."""
        found = []
        for job in self.jobs.all():
            events = read(job.journal).events
            name = events[0].data["cell"]["name"]
            ended = [event.data["attempt"] for event in events if event.kind == "finished"]
            found += [(name, attempt["change_id"], attempt["purpose"]) for attempt in ended]
        return found


@dataclass
class FleetPlace(Place):
    """The same on the machines of a fleet, all of one class; ``down``: those that do not answer."""

    names: tuple[str, ...] = ("box1", "box2")
    down: set[str] = field(default_factory=set)
    ended: list[str] = field(default_factory=list)
    """Jobs whose bundles were ended."""
    left: dict[str, Attempt] = field(default_factory=dict)
    """By job: the attempt that its machine has of an open launch."""

    def context(self, day: int, head: int | None = None) -> NightlyContext:
        context = super().context(day, head)
        return replace(context, setting=context.setting.model_copy(update={"fleet": "pretend"}))

    def machines(self, cell: Cell) -> CellMachines:
        del cell
        slots = {name: Slot(name, machine=name) for name in self.names if name not in self.down}
        return CellMachines(slots, tuple(slots), dict.fromkeys(sorted(self.down), "no route to host"))

    def measure(
        self, night: NightPlan, cell: CellPlan, job: Job, launch: int
    ) -> Generator[float, None, None]:
        if cell.slot is None:
            raise MachineError("no machine of the fleet can be used")
        self._write_plan(cell, job, night)
        tools = self.watch.tools(self.world, clock=Clock(self.world.moment), slots=(cell.slot,), backoff=())
        with job.held():
            yield from run_in_steps(RUN, job, tools, until=launch, poll=0.01)

    def end_bundles(self, job: Job) -> Reclaim | None:
        self.ended.append(job.id)
        return lambda launch, _: replace(self.left[job.id], id=launch.id)


@cache
def _table() -> SuspectTable:
    return load_suspect_table()


@cache
def _changes(repository: Path, commits: tuple[str, ...]) -> tuple[Change, ...]:
    opened = Repository.open(repository)
    return tuple(opened.resolve(sha) for sha in commits)


def make_place(
    folder: Path, commits: tuple[str, ...], repository: Path, kind: type[Place] = Place, **changed: Any
) -> Place:
    """A place without noise to speak of; ``cell_names``: its cells, of one to so many requests at once."""
    names = changed.pop("cell_names", ("a", "b", "c"))
    cells = tuple(cell(name=name, max_concurrency=i) for i, name in enumerate(names, 1))
    world = Nightworld(_changes(repository, commits), None, sigma=0.004, tau=0.004)
    return kind(folder, commits, Repository.open(repository), world, cells, **changed)


def slow(place: Place, factor: float = 1.4, until: int = 99) -> None:
    """Cell a is slower from the first commit of the night on that is :data:`SLOW`, until another night."""

    def of(name: str, position: int) -> float:
        return factor if name == "a" and SLOW * EACH <= position < until * EACH else 1.0

    place.world.of = of


def only_bisection(night: Night, state: str = "measured") -> NightBisection:
    """The one that ended in this state."""
    (found,) = [bisection for bisection in night.bisections if bisection.state == state]
    return found


def is_slow_commit(place: Place, bisection: NightBisection) -> bool:
    """True if the first slow commit is the culprit."""
    return bisection.culprit is not None and bisection.culprit.id == place.commits[SLOW * EACH]
