"""What a night works on, and its dependencies: machine, jobs, bisections and delivery."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from perfbisect.bisect.documents import ReportDocument
from perfbisect.changes.git import Repository
from perfbisect.errors import EXIT_INCONCLUSIVE, EXIT_OK, EXIT_REGRESSION, Interrupted, PerfbisectError
from perfbisect.jobs.events import EventListener
from perfbisect.jobs.folders import Job, Jobs
from perfbisect.jobs.journal import Clock
from perfbisect.jobs.measurement import MeasurementConfig
from perfbisect.jobs.runner import StopLeftovers
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from perfbisect.nightly.config import FoundCell, NightlyFile
from perfbisect.nightly.folders import Nights
from perfbisect.nightly.model import BisectionOutcome, Night, NightFindings
from perfbisect.nightly.plan import CellPlan, GroupCells, NightPlan
from perfbisect.series.suspects.table import SuspectTable

_EXIT_CODES = {"found": EXIT_REGRESSION, "not reproduced": EXIT_OK}


@dataclass(frozen=True)
class StepResult:
    """What a step did: a summary, the files it wrote, and what the series show."""

    reported: str = ""
    files: Mapping[str, Path] = field(default_factory=dict)
    findings: NightFindings | None = None


@dataclass(frozen=True)
class NightTask:
    """A step after measuring. If ``run`` raises, later steps still run."""

    name: str
    run: Callable[[Night], StepResult]


@dataclass(frozen=True)
class CellJob:
    """A cell of the night and the job with its launches."""

    plan: CellPlan
    job: Job


class MeasureCells(Protocol):
    """Launches cells: continues their jobs until each has ``launch`` launches."""

    def __call__(
        self, night: NightPlan, cells: Sequence[CellJob], launch: int
    ) -> Mapping[str, PerfbisectError]:
        """Return the cells that failed, with the error.

        Raises:
            Interrupted: Ctrl-C or a stop.
        """
        ...


def measure_each(cells: Sequence[CellJob], launch: Callable[[CellJob], None]) -> dict[str, PerfbisectError]:
    """Launch each cell, whatever happened to those before; return the errors by cell.

    Raises:
        Interrupted: Ctrl-C or a stop.
    """
    failed: dict[str, PerfbisectError] = {}
    for cell in cells:
        try:
            launch(cell)
        except Interrupted:
            raise
        except PerfbisectError as error:
            failed[cell.plan.name] = error
    return failed


@dataclass(frozen=True)
class BisectionWindow:
    """What to bisect: a cell's metric between two commits, with the prior in ``weights``."""

    cell: CellPlan
    metric: str
    good: str
    bad: str
    weights: Path


@dataclass(frozen=True)
class BisectionResult:
    """What a night keeps of a bisection. ``minutes``: measured, of ``budget``."""

    outcome: BisectionOutcome
    culprit: Change | None
    probability: float
    summary: tuple[str, ...]
    minutes: float
    budget: float

    @property
    def exit_code(self) -> int:
        return _EXIT_CODES.get(self.outcome, EXIT_INCONCLUSIVE)


def bisection_result(report: ReportDocument) -> BisectionResult:
    """Extract the result from a bisection's report."""
    named = report.culprit
    culprit = None
    if named is not None:
        culprit = Change(named.id, subject=named.subject, date=named.date, author=named.author)
    return BisectionResult(
        outcome=report.outcome,
        culprit=culprit,
        probability=report.probability,
        summary=report.summary,
        minutes=report.minutes.total,
        budget=report.minutes.budget,
    )


class PreparedBisection(Protocol):
    """A bisection that is ready to begin."""

    @property
    def min_minutes(self) -> float:
        """Minutes it takes at least."""
        ...

    def __call__(self, job: Job) -> BisectionResult:
        """Run the job, new or interrupted, to its verdict; raises what a bisection raises."""
        ...


PrepareBisection = Callable[[NightPlan, BisectionWindow, float], PreparedBisection]
"""(night, window, minutes) -> a bisection. Raises what its plan raises."""


@dataclass(frozen=True)
class Dependencies:
    """Everything that touches the machine or a service.

    ``estimate_minutes``: a launch of a cell that was never measured.
    """

    clock: Clock
    sink: EventListener
    new_job: Callable[[], Job]
    measure: MeasureCells
    prepare_bisection: PrepareBisection
    stop_leftovers: StopLeftovers
    tasks: Sequence[NightTask]
    group_cells: GroupCells
    estimate_minutes: Callable[[Cell], float]


@dataclass(frozen=True)
class NightlyContext:
    """The nightly, its repository and its cells. ``fetch``: the step that reports the fetch, if any."""

    file: NightlyFile
    state: Path
    repository: Repository
    commit: Change
    cells: tuple[FoundCell, ...]
    setting: MeasurementConfig
    table: SuspectTable
    fetch: Callable[[], StepResult] | None = None

    @property
    def nights(self) -> Nights:
        return Nights(self.state, self.file.nightly.name)

    @property
    def jobs(self) -> Jobs:
        return Jobs(self.state)
