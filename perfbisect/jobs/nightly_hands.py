"""What a night works with: everything that touches the machine, the repository or a service is handed in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from perfbisect.config.nightly import NightlyFile
from perfbisect.config.nightly_cells import FoundCell
from perfbisect.core.cell import Cell
from perfbisect.core.change import Change
from perfbisect.core.night_values import BisectionOutcome, Night, NightFindings
from perfbisect.core.suspect_table import Table
from perfbisect.errors import (
    EXIT_INCONCLUSIVE,
    EXIT_OK,
    EXIT_REGRESSION,
    Interrupted,
    PerfbisectError,
)
from perfbisect.jobs.nightly_plan import CellPlan, NightPlan, Together
from perfbisect.jobs.setting import Setting
from perfbisect.jobs.work import StopLeftovers
from perfbisect.render.documents import ReportDocument
from perfbisect.render.notices import Sink
from perfbisect.store.events import Clock
from perfbisect.store.jobs import Job, Jobs
from perfbisect.store.nights import Nights
from perfbisect.system.git import Repository

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
        sentences=report.sentences,
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
