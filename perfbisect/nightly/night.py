"""What a night works on, its plan, and the night as a value, built from its journal."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from perfbisect.bisect.documents import ReportDocument
from perfbisect.changes.git import Repository
from perfbisect.errors import PerfbisectError
from perfbisect.jobs.documents import change_document, metric_document
from perfbisect.jobs.events import EventListener
from perfbisect.jobs.folders import Job, Jobs
from perfbisect.jobs.journal import Clock
from perfbisect.jobs.plans import MeasurementConfig, cell_data, runs_per_launch
from perfbisect.jobs.runner import StopLeftovers
from perfbisect.model.change import Change
from perfbisect.nightly.config import FoundCell, NightlyFile, launches_of
from perfbisect.nightly.journal import CellLaunches, NightFolder, NightRecord, Nights
from perfbisect.nightly.model import (
    CellState,
    Night,
    NightCell,
    NightFindings,
    new_regressions,
    night_exit_code,
)
from perfbisect.nightly.plan import CellPlan, NightPlan, derive_seed, setting_key
from perfbisect.series.detection.fdr import FDR
from perfbisect.series.detection.model import FEWEST
from perfbisect.series.suspects.table import SuspectTable
from perfbisect.serving.families import suites

_NIGHTS_BACK = 10
"""Nights from which launch times are learnt."""


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


def build_plan(context: NightlyContext, earlier: Sequence[NightFolder], now: datetime) -> NightPlan:
    """Plan a night that begins now; raises UsageError if an earlier journal cannot be read."""
    rules, cells = context.file.nightly, context.cells
    verdicts = [(night, night.record().verdict or {}) for night in earlier]
    recent = [verdict for _, verdict in verdicts[-_NIGHTS_BACK:]]
    key = setting_key(context.setting)
    same = {
        night.id: verdict
        for night, verdict in verdicts
        if night.measures(context.commit.id) and verdict.get("setting") == key
    }
    groups = suites([found.cell for found in cells]) if rules.suite else [(found.cell,) for found in cells]
    return NightPlan(
        name=rules.name,
        file=str(context.file.file),
        branch=rules.branch,
        commit=context.commit,
        setting=context.setting,
        seed=derive_seed(rules.name, context.commit.id, f"{now.astimezone(timezone.utc):%Y-%m-%d}"),
        budget=rules.budget,
        cells=tuple(_plan_cell(context, found, recent, same) for found in cells),
        groups=tuple(tuple(cell.name for cell in group) for group in groups),
        ordered=rules.suite == "as_nightly",
        notes=_dependency_notes(context),
    )


def _plan_cell(
    context: NightlyContext,
    found: FoundCell,
    recent: Sequence[Mapping[str, Any]],
    same: Mapping[str, Mapping[str, Any]],
) -> CellPlan:
    """``recent``: verdicts of earlier nights; ``same``: by night, those of this commit and setting."""
    file, cell = context.file, found.cell
    runs, launches = file.nightly.runs, launches_of(file, cell.name)
    if runs > 1 and runs_per_launch(cell) == 1:
        raise file.wrong(
            ("runs",), f"{cell.name}: its caches cannot be emptied between runs, so a launch has one run"
        )
    known = [verdict.get("launch_minutes", {}).get(cell.digest) for verdict in recent]
    minutes = [float(each) for each in known if each is not None]
    done = [night for night, verdict in same.items() if verdict["measured"].get(cell.digest, 0) >= launches]
    return CellPlan(
        name=cell.name,
        source=found.source,
        cell=cell_data(cell),
        digest=cell.digest,
        metric=cell.headline,
        launches=launches,
        runs=runs,
        launch_minutes=median(minutes) if minutes else context.launch_minutes,
        forecast_basis=f"from {len(minutes)} earlier nights" if minutes else "an estimate: never measured",
        skip=f"measured at this commit in night {done[-1]}" if done else "",
    )


def _dependency_notes(context: NightlyContext) -> tuple[str, ...]:
    rules, setting = context.file.nightly, context.setting
    if rules.exclude_newer or rules.constraints or setting.constraints:
        return ()
    return (
        f"dependencies are resolved as of {setting.exclude_newer}: a change between two nights may be "
        "theirs; exclude_newer or constraints pins them",
    )


def build_night(
    context: NightlyContext, record: NightRecord, folder: Path, *, ended: str = "", dry_run: bool = False
) -> Night:
    """Build the night from its journal and those of its jobs; of a dry run the journal is its plan."""
    plan, findings = record.plan, record.findings or NightFindings()
    fitting = plan.fitting()
    first_round = [name for launch in plan.order if launch.launch == 1 for name in launch.cells]
    measured = [cell.measured[-1].provenance for cell in record.cells.values() if cell.measured]
    bisections = tuple(record.bisections.values())
    cells = tuple(_cell(cell, record, findings, dry_run) for cell in plan.cells)
    planned_minutes = sum(cell.expected for cell in cells if cell.state == "planned")
    return Night(
        name=plan.name,
        night="" if dry_run else folder.name,
        dry_run=dry_run,
        began=record.events[0].time,
        ended=ended,
        commit=change_document(plan.commit),
        branch=plan.branch,
        repository=str(context.repository.path),
        environment=plan.setting.environment,
        client=plan.setting.instrument,
        machine=plan.setting.machine,
        hardware=", ".join(dict.fromkeys(provenance.machine_class for provenance in measured)),
        engine_version=", ".join(dict.fromkeys(provenance.engine_version for provenance in measured)),
        seed=plan.seed,
        budget_minutes=plan.budget,
        minutes=planned_minutes if dry_run else record.spent,
        order=tuple(name for name in first_round if name in fitting),
        cells=cells,
        alerts=findings.alerts,
        bisections=bisections,
        rows=findings.rows,
        steps=tuple(done.step for done in record.steps.values()),
        files={kind: path for done in record.steps.values() for kind, path in done.files.items()},
        notes=(*plan.notes, *findings.notes, *_coverage_notes(findings)),
        exit_code=night_exit_code(findings.alerts, bisections, record.exit_codes),
        next=_nightly_command(plan) if dry_run else next(_next_commands(context, record, findings), ""),
        folder=str(folder),
    )


def _cell(cell: CellPlan, record: NightRecord, findings: NightFindings, dry_run: bool) -> NightCell:
    measured, failure = record.cells.get(cell.name, CellLaunches()), record.failed.get(cell.name)
    state, reason = _cell_state(cell, record, dry_run)
    metric = metric_document(cell.headline)
    return NightCell(
        name=cell.name,
        digest=cell.digest,
        state=state,
        reason=reason,
        launches=len(measured.measured),
        wanted=cell.launches,
        minutes=measured.minutes,
        expected=0.0 if cell.skip else cell.launches * cell.launch_minutes,
        forecast_basis="" if cell.skip else cell.forecast_basis,
        metric=metric.name,
        unit=metric.unit,
        value=measured.value(cell.headline),
        too_few_nights=findings.unjudged.get(cell.name),
        job=record.jobs.get(cell.name, ""),
        log=failure.log if failure else "",
        next=failure.next if failure else "",
    )


def _cell_state(cell: CellPlan, record: NightRecord, dry_run: bool) -> tuple[CellState, str]:
    if cell.skip:
        return "skipped", cell.skip
    if dry_run:
        if cell.name in record.plan.fitting():
            return "planned", ""
        return "not reached", "does not fit the budget beside the shorter cells"
    if cell.name in record.failed:
        return "failed", record.failed[cell.name].reason
    launches = record.counts[cell.name]
    if not launches:
        return "not reached", "budget exhausted"
    if launches < cell.launches:
        return "measured", f"{launches} of {cell.launches} launches: budget exhausted"
    return "measured", ""


def _coverage_notes(findings: NightFindings) -> Iterator[str]:
    """The series that are too short to judge."""
    nights = findings.unjudged
    if nights:
        low, high = min(nights.values()), max(nights.values())
        yield (
            f"not judged yet: {next(iter(nights)) if len(nights) == 1 else f'{len(nights)} cells'}, with "
            f"{low if low == high else f'{low} to {high}'} of the {FEWEST} nights that detection needs; "
            "runs of one day count as one night"
        )


def _nightly_command(plan: NightPlan) -> str:
    return shlex.join(("perfbisect", "nightly", plan.file))


def _next_commands(context: NightlyContext, record: NightRecord, findings: NightFindings) -> Iterator[str]:
    """The next commands, the most urgent first."""
    rules, repository = context.file.nightly, str(context.repository.path)
    state_folder = ("--state", str(context.state)) if rules.state else ()
    rate = ("--fdr", f"{rules.alerts.fdr:g}") if rules.alerts.fdr != FDR else ()
    for bisection in record.bisections.values():
        if bisection.culprit is not None and bisection.job:
            yield shlex.join(("perfbisect", "report", bisection.job, *state_folder))
    for alert in new_regressions(findings.alerts):
        words = ("perfbisect", "track", "suspects", alert.event, "--repo", repository, *rate)
        yield shlex.join((*words, *state_folder))
    yield from (failure.next for failure in record.failed.values() if failure.next)
    yield from (done.step.next for done in record.steps.values() if done.step.next)
    if record.plan.cells and not record.plan.wanted and context.fetch is None:
        yield shlex.join(("git", "-C", repository, "fetch"))
