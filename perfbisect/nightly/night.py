"""What a night works on, its plan, and the night as a value, built from its journal."""

from __future__ import annotations

import hashlib
import secrets
import shlex
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Generic, Protocol

from perfbisect.bisect.result import BisectResult
from perfbisect.changes.git import Repository
from perfbisect.common.quantities import counted
from perfbisect.engine.experiment import ResultT
from perfbisect.errors import Interrupted, MachineError, PerfbisectError
from perfbisect.explain.profile_job import ProfileDocument
from perfbisect.jobs.documents import Document, metric_document
from perfbisect.jobs.estimates import EarlierAttempts
from perfbisect.jobs.events import EventListener, JobNote
from perfbisect.jobs.folders import Job, Jobs
from perfbisect.jobs.journal import Clock, EventKind, Journal
from perfbisect.jobs.plans import MeasurementConfig, cell_data, runs_per_launch
from perfbisect.jobs.runner import Reclaim, StopLeftovers
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from perfbisect.nightly.config import FoundCell, NightlyFile, launches_of
from perfbisect.nightly.journal import (
    CellFailure,
    JobOf,
    NightFolder,
    NightJobs,
    NightRecord,
    Nights,
    NightVerdict,
    reason_text,
)
from perfbisect.nightly.model import (
    CellState,
    Night,
    NightCell,
    NightFindings,
    new_regressions,
    night_exit_code,
)
from perfbisect.nightly.plan import (
    CellMachines,
    CellPlan,
    NightPlan,
    assign_machines,
    find_home,
    setting_key,
)
from perfbisect.report.template import render_sentences
from perfbisect.series.detection.fdr import FDR
from perfbisect.series.store import SeriesStore
from perfbisect.series.suspects.job import RankedAlert
from perfbisect.series.suspects.table import SuspectTable

_NIGHTS_BACK = 10
"""Nights from which launch times are learnt."""


@dataclass(frozen=True)
class StepResult:
    """What a step did: a summary, the files it wrote, and what the series show."""

    reported: str = ""
    files: Mapping[str, Path] = field(default_factory=dict)
    findings: NightFindings | None = None


NightTask = Callable[[Night], StepResult]
"""A step after measuring. If it raises, later steps still run."""


@dataclass(frozen=True)
class PreparedJob(Generic[ResultT]):
    """A planned bisection or profile: it takes at least ``minutes``, ``run`` continues its job to the end.

    ``problem``: why it cannot run here, empty if it can.
    """

    minutes: float
    run: Callable[[Job], ResultT]
    problem: str = ""


class NightMachine(Protocol):
    """Measures cells and bisects windows, on this machine or on a fleet's."""

    def machines(self, cell: Cell) -> CellMachines:
        """The machines of the fleet that can measure a cell, which are asked before anything runs on them.

        Raises:
            MachineError: the engine does not list them.
        """
        ...

    def check(self, night: NightPlan, cell: CellPlan, *, dry_run: bool) -> tuple[str, ...]:
        """Check a cell at the night's commit; returns notes on what is not checked.

        Raises:
            UsageError: the cell cannot run at the commit.
            MachineError: in a dry run, no machine can measure it.
        """
        ...

    def measure(
        self, night: NightPlan, cell: CellPlan, job: Job, launch: int
    ) -> Generator[float, None, None]:
        """Continue the job of a cell until it has ``launch`` launches; raises what a run raises.

        Yields the seconds for which it has nothing to do, where the machines of a fleet measure at the same
        time.
        """
        ...

    def end_bundles(self, job: Job) -> Reclaim | None:
        """End what an unfinished job has going on on a fleet; None: it ran on this machine.

        Raises:
            MachineError: a machine does not answer.
        """
        ...

    def prepare_bisection(
        self, night: NightPlan, cell: CellPlan, ranked: RankedAlert, weights: Path, minutes: float
    ) -> PreparedJob[BisectResult]:
        """Plan the bisection of an alert's window, of at most ``minutes``; raises what its plan raises.

        ``weights``: the file with the prior.
        """
        ...

    def prepare_profile(self, source: Job, minutes: float) -> PreparedJob[ProfileDocument]:
        """Plan a profile of a bisection's culprit and the change before it, of at most ``minutes``.

        Raises what its plan raises.
        """
        ...


@dataclass(frozen=True)
class NightlyContext:
    """A nightly with its repository and cells, and everything that touches the machine.

    ``earlier``: launches that jobs made before, by the digest of a cell. ``fetch``: the step that reports the
    fetch, if any. ``keep``: the step that keeps the night's wheel or image, if any. ``tasks``: delivery after
    the report, by name.
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
    earlier: Callable[[str], EarlierAttempts]
    tasks: Mapping[str, NightTask] = field(default_factory=dict)
    fetch: Callable[[], StepResult] | None = None
    keep: NightTask | None = None

    @property
    def nights(self) -> Nights:
        return Nights(self.state, self.file.nightly.name)

    @property
    def jobs(self) -> Jobs:
        return Jobs(self.state)

    def command(self, *words: str) -> str:
        """A perfbisect command, with the state folder if the configuration names one."""
        state = ("--state", str(self.state)) if self.file.options.state else ()
        return shlex.join(("perfbisect", *words, *state))


@dataclass
class OpenNight:
    """A night that this process works on, and its journal."""

    context: NightlyContext
    folder: NightFolder
    journal: Journal
    _record: NightRecord | None = field(default=None, init=False)

    @property
    def record(self) -> NightRecord:
        """What the journal says now."""
        events, known = self.journal.events, self._record
        if known is None or len(known.events) != len(events):
            results = known.results if known else NightJobs(self.context.jobs)
            self._record = known = NightRecord(events, results)
        return known

    def say(self, text: str) -> None:
        self.context.sink(JobNote(text))

    def append(self, kind: EventKind, document: Document) -> None:
        self.journal.append(kind, document.model_dump(mode="json"))

    def job(self, kind: JobOf, name: str, **more: str) -> Job:
        """The job of a cell or event; a new one is recorded, with ``more``, before it has a launch."""
        identity = self.record.job_ids(kind).get(name)
        if identity is None:
            identity = self.context.jobs.new(self.context.clock(), secrets.token_hex(2)).id
            # On disk before the first launch: a night that is killed finds its job again.
            self.journal.append("job", {kind: name, **more, "job": identity})
        return self.record.job(identity)


def build_plan(context: NightlyContext, earlier: Sequence[NightFolder], now: datetime) -> NightPlan:
    """Plan a night that begins now; raises UsageError if an earlier journal cannot be read."""
    rules, cells, key = context.file.nightly, context.cells, setting_key(context.setting)
    options = context.file.options
    verdicts = {night: verdict for night in earlier if (verdict := night.record().verdict) is not None}
    recent = [verdicts[night] for night in earlier[-_NIGHTS_BACK:] if night in verdicts]
    same = {
        night.id: verdict
        for night, verdict in verdicts.items()
        if night.measures(context.commit.id) and verdict.setting == key
    }
    planned = [_plan_cell(context, found, recent, same) for found in cells]
    is_pinned = options.exclude_newer or options.constraints or context.setting.constraints
    unusual: dict[str, object] = {"silent": (), "left_out": {}, "moved": ()}
    if context.setting.fleet:
        planned, of_fleet = _spread(context, planned, same)
        unusual |= of_fleet
    unusual["resolved"] = "" if is_pinned else context.setting.exclude_newer
    identity = (rules.name, context.commit.id, f"{now.astimezone(timezone.utc):%Y-%m-%d}")
    return NightPlan(
        name=rules.name,
        file=str(context.file.file),
        branch=rules.branch,
        commit=context.commit,
        setting=context.setting,
        # Of what identifies a night: one that is repeated draws the same order.
        seed=int(hashlib.sha256("\0".join(identity).encode()).hexdigest()[:8], 16),
        budget=rules.budget,
        cells=tuple(planned),
        notes=render_sentences("nightly/templates/plan_notes.jinja", unusual),
    )


def check_cells(
    context: NightlyContext, plan: NightPlan, *, dry_run: bool
) -> tuple[NightPlan, tuple[CellFailure, ...]]:
    """The plan without the cells that cannot be measured at its commit, which have failed.

    In a dry run it has notes on what is not checked.
    """
    failures = dict[str, CellFailure]()
    notes = dict[str, list[str]]()
    for cell in plan.wanted:
        try:
            for note in context.machine.check(plan, cell, dry_run=dry_run):
                notes.setdefault(note, []).append(cell.name)
        except Interrupted:
            raise
        except PerfbisectError as error:
            failures[cell.name] = CellFailure.of(cell.name, error)
    of_all = len(plan.wanted) - len(failures)
    texts = (f"{', '.join(names)}: {note}" if len(names) < of_all else note for note, names in notes.items())
    cells = (
        cell.model_copy(update={"skip": failures[cell.name].reason}) if cell.name in failures else cell
        for cell in plan.cells
    )
    notes_of_plan = (*plan.notes, *texts) if dry_run else plan.notes
    checked = plan.model_copy(update={"cells": tuple(cells), "notes": notes_of_plan})
    return checked, tuple(failures.values())


def _plan_cell(
    context: NightlyContext,
    found: FoundCell,
    recent: Sequence[NightVerdict],
    same: Mapping[str, NightVerdict],
) -> CellPlan:
    """``recent``: verdicts of earlier nights; ``same``: by night, those of this commit and setting."""
    file, cell = context.file, found.cell
    runs, launches = file.nightly.runs, launches_of(file, cell.name)
    if runs > 1 and runs_per_launch(cell) == 1:
        raise file.document.error(
            ("runs",), f"{cell.name}: its caches cannot be emptied between runs, so a launch has one run"
        )
    known = [verdict.launch_minutes for verdict in recent]
    minutes = [each[cell.digest] for each in known if cell.digest in each]
    if minutes:
        launch_minutes, basis = median(minutes), f"from {counted(len(minutes), 'earlier night')}"
    else:
        earlier = context.earlier(cell.digest)
        launch_minutes, basis = earlier.costs.launch + runs * earlier.costs.run, earlier.basis
    plan = CellPlan(
        name=cell.name,
        source=found.source,
        cell=cell_data(cell),
        digest=cell.digest,
        metric=cell.headline,
        launches=launches,
        runs=runs,
        launch_minutes=launch_minutes,
        forecast_basis=basis,
    )
    return _skipped_if_measured(plan, same)


def _skipped_if_measured(cell: CellPlan, same: Mapping[str, NightVerdict]) -> CellPlan:
    """The cell, skipped if an earlier night of this commit and setting measured it."""
    key = cell.history_key
    done = [night for night, verdict in same.items() if verdict.measured.get(key, 0) >= cell.launches]
    return cell.model_copy(update={"skip": reason_text("measured before", night=done[-1]) if done else ""})


def _spread(
    context: NightlyContext,
    cells: Sequence[CellPlan],
    same: Mapping[str, NightVerdict],
) -> tuple[list[CellPlan], Mapping[str, object]]:
    """The cells with the machines of the fleet that measure them, and what is unusual about these."""
    every = context.file.nightly.every_machine
    wanted = [cell for cell in cells if every or not cell.skip]
    machines, silent = {}, dict[str, None]()
    for cell in wanted:
        try:
            machines[cell.name] = context.machine.machines(cell.load())
        except MachineError as error:
            machines[cell.name] = CellMachines()
            silent[error.message] = None
    left_out = {name: why for each in machines.values() for name, why in each.left_out.items()}
    if every:
        spread: list[CellPlan] = []
        for cell in cells:
            slots = machines[cell.name].slots.items()
            placed = [cell.on(machine, slot, f"{cell.name} on {machine}") for machine, slot in slots]
            spread += [_skipped_if_measured(one, same) for one in placed or [cell]]
        return spread, {"silent": silent, "left_out": left_out}
    nights = _machines_of_nights(context.state, [cell.name for cell in wanted])
    assigned = assign_machines(wanted, machines, nights)
    homes = {cell.name: find_home(nights.get(cell.name, ())) for cell in wanted}
    moved = [
        (name, machine, homes[name])
        for name, machine in assigned.items()
        if homes[name] and machine != homes[name]
    ]
    placed = [
        cell.on(name, machines[cell.name].slots[name]) if (name := assigned.get(cell.name)) else cell
        for cell in cells
    ]
    return placed, {"silent": silent, "left_out": left_out, "moved": moved}


def _machines_of_nights(state: Path, cells: Sequence[str]) -> dict[str, list[str]]:
    """By cell: the machine of each night, oldest first, where it was one of a fleet."""
    nights: dict[str, dict[str, str]] = {}
    if not cells or not SeriesStore.exists(state):
        return {}
    with SeriesStore.of(state) as store:
        for point in store.points(cells):
            if point.machine:
                nights.setdefault(point.cell, {})[point.night] = point.machine
    return {cell: list(machines.values()) for cell, machines in nights.items()}


def build_night(
    context: NightlyContext, record: NightRecord, folder: Path, *, ended: str = "", dry_run: bool = False
) -> Night:
    """Build the night from its journal and those of its jobs; of a dry run the journal is its plan."""
    plan, findings = record.plan, record.findings or NightFindings()
    fitting = plan.fitting()
    first_round = [launch.cell for launch in plan.order if launch.launch == 1]
    versions = [result.versions for result in record.cells.values()]
    bisections = tuple(record.bisections.values())
    return Night(
        name=plan.name,
        night="" if dry_run else folder.name,
        dry_run=dry_run,
        began=record.events[0].time,
        ended=ended,
        commit=plan.commit,
        branch=plan.branch,
        repository=str(context.repository.path),
        environment=plan.setting.environment,
        client=plan.setting.instrument,
        machine=plan.setting.machine,
        hardware=", ".join(dict.fromkeys(kind for each in versions for kind in each["machine_class"])),
        engine_version=", ".join(dict.fromkeys(engine for each in versions for engine in each["engine"])),
        seed=plan.seed,
        budget_minutes=plan.budget,
        minutes=plan.minutes if dry_run else record.spent,
        order=tuple(name for name in first_round if name in fitting),
        cells=tuple(_cell(cell, record, findings, dry_run) for cell in plan.cells),
        alerts=findings.alerts,
        bisections=bisections,
        rows=findings.rows,
        steps=tuple(done.step for done in record.steps.values()),
        files={kind: path for done in record.steps.values() for kind, path in done.files.items()},
        notes=(*plan.notes, *findings.notes),
        exit_code=night_exit_code(findings.alerts, bisections, record.exit_codes),
        next=next(_next_commands(context, record, findings, dry_run), ""),
        folder=str(folder),
    )


def _cell(cell: CellPlan, record: NightRecord, findings: NightFindings, dry_run: bool) -> NightCell:
    result, failure = record.cells.get(cell.name), record.failed.get(cell.name)
    launches, reason = record.counts.get(cell.name, 0), ""
    state: CellState = "measured"
    if failure is not None:
        state, reason = "failed", failure.reason
    elif cell.skip:
        state, reason = "skipped", cell.skip
    elif dry_run and cell.name in record.plan.fitting():
        state = "planned"
    elif dry_run:
        state, reason = "not reached", reason_text("not fitting")
    elif not launches:
        state, reason = "not reached", "budget exhausted"
    elif launches < cell.launches:
        reason = reason_text("launches missing", launches=launches, wanted=cell.launches)
    metric = metric_document(cell.headline)
    return NightCell(
        name=cell.name,
        digest=cell.digest,
        state=state,
        machine=cell.machine,
        reason=reason,
        launches=launches,
        wanted=cell.launches,
        minutes=result.minutes.total if result else 0.0,
        expected=0.0 if cell.skip else cell.minutes,
        forecast_basis="" if cell.skip else cell.forecast_basis,
        metric=metric.name,
        unit=metric.unit,
        value=result.headline.median if result and result.headline else None,
        too_few_nights=findings.unjudged.get(cell.name),
        job=record.job_ids("cell").get(cell.name, ""),
        log=failure.log if failure else "",
        next=failure.next if failure else "",
    )


def _next_commands(
    context: NightlyContext, record: NightRecord, findings: NightFindings, dry_run: bool
) -> Iterator[str]:
    """The next commands, the most urgent first."""
    rules, repository = context.file.nightly, str(context.repository.path)
    if dry_run:
        yield from (failure.next for failure in record.failed.values() if failure.next)
        yield shlex.join(("perfbisect", "nightly", record.plan.file))
    for bisection in record.bisections.values():
        if (bisection.culprit is not None or bisection.candidates) and bisection.job:
            yield context.command("report", bisection.job)
    rate = ("--fdr", f"{rules.alerts.fdr:g}") if rules.alerts.fdr != FDR else ()
    for alert in new_regressions(findings.alerts):
        yield context.command("track", "suspects", alert.event, "--repo", repository, *rate)
    yield from (failure.next for failure in record.failed.values() if failure.next)
    yield from (done.step.next for done in record.steps.values() if done.step.next)
    if record.plan.cells and not record.plan.wanted and context.fetch is None:
        yield shlex.join(("git", "-C", repository, "fetch"))
