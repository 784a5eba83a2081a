"""What a night works on, and what it needs of the machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from perfbisect.bisect.documents import ReportDocument
from perfbisect.changes.git import Repository
from perfbisect.errors import PerfbisectError
from perfbisect.jobs.events import EventListener
from perfbisect.jobs.folders import Job, Jobs
from perfbisect.jobs.journal import Clock
from perfbisect.jobs.measurement import MeasurementConfig
from perfbisect.jobs.runner import StopLeftovers
from perfbisect.model.change import Change
from perfbisect.nightly.config import FoundCell, NightlyFile
from perfbisect.nightly.journal import Nights
from perfbisect.nightly.model import Night, NightFindings
from perfbisect.nightly.plan import CellPlan, NightPlan
from perfbisect.series.suspects.table import SuspectTable


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


@dataclass(frozen=True)
class BisectionWindow:
    """What to bisect: a cell's metric between two commits, with the prior in ``weights``."""

    cell: CellPlan
    metric: str
    good: str
    bad: str
    weights: Path


@dataclass(frozen=True)
class PreparedBisection:
    """A bisection that takes at least ``min_minutes``. ``run`` continues its job to the verdict."""

    min_minutes: float
    run: Callable[[Job], ReportDocument]


class NightMachine(Protocol):
    """Measures cells and bisects windows."""

    def new_job(self) -> Job: ...

    def measure(
        self, night: NightPlan, cells: Sequence[CellJob], launch: int
    ) -> Mapping[str, PerfbisectError]:
        """Continue the jobs of cells of one group until each has ``launch`` launches.

        Returns the cells that failed, with the error; raises Interrupted after Ctrl-C or a stop.
        """
        ...

    def prepare_bisection(
        self, night: NightPlan, window: BisectionWindow, minutes: float
    ) -> PreparedBisection:
        """Plan a bisection of at most ``minutes``; raises what its plan raises."""
        ...


@dataclass(frozen=True)
class NightlyContext:
    """A nightly with its repository and cells, and everything that touches the machine.

    ``launch_minutes``: estimate for a cell that was never measured. ``fetch``: the step that reports the
    fetch, if any. ``tasks``: delivery after the report.
    """

    file: NightlyFile
    state: Path
    repository: Repository
    commit: Change
    cells: tuple[FoundCell, ...]
    setting: MeasurementConfig
    table: SuspectTable
    machine: NightMachine
    clock: Clock
    sink: EventListener
    stop_leftovers: StopLeftovers
    launch_minutes: float
    tasks: Sequence[NightTask] = ()
    fetch: Callable[[], StepResult] | None = None

    @property
    def nights(self) -> Nights:
        return Nights(self.state, self.file.nightly.name)

    @property
    def jobs(self) -> Jobs:
        return Jobs(self.state)
