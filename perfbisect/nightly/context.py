"""What a night works with: everything that touches the machine, the repository or a service is handed in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

from perfbisect.changes.git import Repository
from perfbisect.errors import EXIT_INCONCLUSIVE, EXIT_OK, EXIT_REGRESSION, Interrupted, PerfbisectError
from perfbisect.jobs.capabilities import runs_per_launch
from perfbisect.jobs.documents import ReportDocument
from perfbisect.jobs.events import Sink
from perfbisect.jobs.folders import Job, Jobs
from perfbisect.jobs.journal import Clock
from perfbisect.jobs.plans import cell_data
from perfbisect.jobs.runner import StopLeftovers
from perfbisect.jobs.settings import Setting
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from perfbisect.nightly import schedule
from perfbisect.nightly.config import FoundCell, NightlyFile, launches_of
from perfbisect.nightly.folders import NightFolder, Nights
from perfbisect.nightly.model import BisectionOutcome, Night, NightFindings
from perfbisect.nightly.plan import CellPlan, NightPlan, Past, Together, setting_name
from perfbisect.series.suspects.table import Table

_CODES = {"found": EXIT_REGRESSION, "not reproduced": EXIT_OK}


@dataclass(frozen=True)
class CellJob:
    """A cell of the night, and the job that keeps its launches."""

    plan: CellPlan
    job: Job


class Measure(Protocol):
    """One launch of some cells: it goes on with their jobs, new or cut short, until each has ``launch`` of
    them."""

    def __call__(
        self, night: NightPlan, cells: Sequence[CellJob], launch: int
    ) -> Mapping[str, PerfbisectError]:
        """The cells that failed, with why. :raises Interrupted: Ctrl-C or a stop."""
        ...


def one_after_another(
    cells: Sequence[CellJob], launch: Callable[[CellJob], None]
) -> dict[str, PerfbisectError]:
    """A launch of each cell, whatever became of those before it; the cells that failed, with why.

    :raises Interrupted: Ctrl-C or a stop.
    """
    failed: dict[str, PerfbisectError] = {}
    for one in cells:
        try:
            launch(one)
        except Interrupted:
            raise
        except PerfbisectError as error:
            failed[one.plan.name] = error
    return failed


@dataclass(frozen=True)
class Window:
    """A bisection that is worth it: of which cell and metric, between which commits, with which prior."""

    cell: CellPlan
    metric: str
    good: str
    bad: str
    weights: Path


@dataclass(frozen=True)
class SearchResult:
    """How a bisection ended, as far as a night decides on it. ``minutes``: measured, of ``budget``."""

    outcome: BisectionOutcome
    culprit: Change | None
    probability: float
    sentences: tuple[str, ...]
    minutes: float
    budget: float

    @property
    def exit_code(self) -> int:
        return _CODES.get(self.outcome, EXIT_INCONCLUSIVE)


def search_result(report: ReportDocument) -> SearchResult:
    """What a night keeps of a bisection's report."""
    named = report.culprit
    return SearchResult(
        outcome=report.outcome,
        culprit=None
        if named is None
        else Change(named.id, subject=named.subject, date=named.date, author=named.author),
        probability=report.probability,
        sentences=report.summary,
        minutes=report.minutes.total,
        budget=report.minutes.budget,
    )


class Search(Protocol):
    """A bisection that can begin."""

    @property
    def least(self) -> float:
        """Minutes that it takes at least."""
        ...

    def __call__(self, job: Job) -> SearchResult:
        """Goes on with the job, new or cut short, until its verdict. Raises what a bisection raises."""
        ...


Prepare = Callable[[NightPlan, Window, float], Search]
"""(night, window, minutes) -> the search. Raises what the plan of a bisection raises."""


@dataclass(frozen=True)
class Done:
    """What a step did: in words, the files that it wrote, by kind, and what it found in the series."""

    told: str = ""
    files: Mapping[str, Path] = field(default_factory=dict)
    findings: NightFindings | None = None


@dataclass(frozen=True)
class Step:
    """A step of the night after it was judged. ``run`` may raise: the steps behind it still run."""

    name: str
    run: Callable[[Night], Done]


@dataclass(frozen=True)
class Hands:
    """See above. ``guess``: minutes of a launch of a cell that was never measured."""

    clock: Clock
    sink: Sink
    new_job: Callable[[], Job]
    measure: Measure
    prepare: Prepare
    stop_leftovers: StopLeftovers
    steps: Sequence[Step]
    together: Together
    guess: Callable[[Cell], float]


@dataclass(frozen=True)
class Scene:
    """Where a night takes place, and what it is about. ``fetched``: what came of asking the remote, told as
    a step; None where nobody was to ask it."""

    file: NightlyFile
    state: Path
    repository: Repository
    commit: Change
    cells: tuple[FoundCell, ...]
    setting: Setting
    table: Table
    fetched: Callable[[], Done] | None = None

    @property
    def nights(self) -> Nights:
        return Nights(self.state, self.file.nightly.name)

    @property
    def jobs(self) -> Jobs:
        return Jobs(self.state)


def prepare(scene: Scene, before: Sequence[NightFolder], now: datetime, hands: Hands) -> NightPlan:
    """What a night that begins now measures, and what it leaves out. ``before``: the nights before it.

    :raises LocatedError: several runs a launch, of an engine whose caches cannot be emptied between them.
    """
    rules, file = scene.file.nightly, scene.file
    past = Past(before, [one for one in before if one.of(scene.commit.id)])
    where = setting_name(scene.setting)
    cells = []
    for found in scene.cells:
        cell = found.cell
        if rules.runs > 1 and runs_per_launch(cell) == 1:
            raise file.wrong(
                ("runs",), f"{cell.name}: its caches cannot be emptied between runs, so a launch has one run"
            )
        known, guess = past.each(cell.digest), hands.guess(cell)
        launches = launches_of(file, cell.name)
        night = past.measured(cell.digest, where, launches)
        cells.append(
            CellPlan(
                name=cell.name,
                source=found.source,
                cell=cell_data(cell),
                digest=cell.digest,
                metric=cell.headline,
                launches=launches,
                runs=rules.runs,
                each=known[0] if known else guess,
                foreseen=known[1] if known else "a guess: it was never measured",
                skip=f"measured at this commit in night {night}" if night else "",
            )
        )
    together = hands.together if rules.suite else alone
    return NightPlan(
        name=rules.name,
        file=str(file.file),
        branch=rules.branch,
        commit=scene.commit,
        setting=scene.setting,
        seed=schedule.seed_of(rules.name, scene.commit.id, f"{now.astimezone(timezone.utc):%Y-%m-%d}"),
        budget=rules.minutes,
        cells=tuple(cells),
        groups=tuple(together([found.cell for found in scene.cells])),
        ordered=rules.suite == "as_nightly",
        told=_told(scene),
    )


def alone(cells: Sequence[Cell]) -> tuple[tuple[str, ...], ...]:
    """Every cell has launches of its own."""
    return tuple((cell.name,) for cell in cells)


def _told(scene: Scene) -> tuple[str, ...]:
    """What a reader must know of the setting."""
    rules = scene.file.nightly
    if rules.exclude_newer or rules.constraints or scene.setting.constraints:
        return ()
    return (
        f"dependencies are of {scene.setting.exclude_newer}: what changes between two nights may be theirs, "
        "unless exclude_newer or constraints fixes them",
    )
