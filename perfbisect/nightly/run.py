"""Runs a night: measure, detect, bisect, deliver.

The journal holds the plan, the job of each cell, failures and completed steps; launches are in the jobs' own
journals. A night that was killed at any point continues from there.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from functools import partial

from perfbisect.errors import EXIT_OURS, BuildError, Interrupted, MachineError, PerfbisectError
from perfbisect.jobs.events import JobNote
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import Journal, stamp
from perfbisect.jobs.runner import recover_interrupted
from perfbisect.nightly import schedule
from perfbisect.nightly.alerts import (
    count_too_few_nights,
    ingest_jobs,
    judge_series,
    machine_notes,
    store_alerts,
)
from perfbisect.nightly.bisect import EventExaminer, read_earlier_bisections, select_cases
from perfbisect.nightly.context import CellJob, Dependencies, NightlyContext, NightTask, StepResult
from perfbisect.nightly.delivery import report_tasks
from perfbisect.nightly.folders import NightFolder
from perfbisect.nightly.model import Night, NightAlert, NightFindings
from perfbisect.nightly.plan import (
    NightHistory,
    NightPlan,
    build_plan,
    one_cell_per_server,
    read_plan,
    setting_key,
)
from perfbisect.nightly.replay import (
    CellFailure,
    CellLaunches,
    NightState,
    StepRecord,
    planned_night,
    read_cell_launches,
    replay_night,
    spent_minutes,
)
from perfbisect.nightly.report import night_document
from perfbisect.series.detect import SeriesAnalysis, analyze_series
from perfbisect.series.nightly_report import build_nightly_report
from perfbisect.series.store import SeriesStore
from perfbisect.system.files import write_atomic

RESUME_WITHIN = timedelta(hours=12)
"""An interrupted night resumes for this long after it began; later it is abandoned."""

_MAX_MACHINE_FAILURES = 2
"""Consecutive machine failures after which no further cell is tried."""


def run_night(context: NightlyContext, dependencies: Dependencies) -> Night:
    """Run a new or interrupted night to its end.

    Raises:
        MachineError: another process runs this nightly, or the disk failed.
        Interrupted: Ctrl-C or a stop; the next call resumes.
    """
    nights, now = context.nights, dependencies.clock()
    with nights.held(now):
        earlier = nights.all()
        tonight = _interrupted_night(earlier, now)
        if tonight is not None:
            earlier = earlier[:-1]
        elif earlier:
            _abandon(context, dependencies, earlier[-1])
        tonight = tonight or nights.new(now, context.commit.id)
        with Journal(tonight.journal, clock=dependencies.clock) as journal:
            if not journal.events:
                plan = _plan_night(context, dependencies, earlier, now)
                journal.append("plan", plan.model_dump(mode="json"))
            return _NightRun(context, dependencies, tonight, earlier, journal).run()


def forecast_night(context: NightlyContext, dependencies: Dependencies) -> Night:
    """Build the night that would run now; starts and writes nothing."""
    earlier, now = context.nights.all(), dependencies.clock()
    interrupted = _interrupted_night(earlier, now)
    if interrupted is None:
        return planned_night(context, _plan_night(context, dependencies, earlier, now), stamp(now))
    note = f"night {interrupted.id} was interrupted: it resumes with its own commit and remaining budget"
    return planned_night(context, read_plan(interrupted.events()), stamp(now), note)


def _plan_night(
    context: NightlyContext, dependencies: Dependencies, earlier: Sequence[NightFolder], now: datetime
) -> NightPlan:
    return build_plan(
        context.file,
        context.cells,
        context.commit,
        context.setting,
        NightHistory(earlier, context.commit.id),
        date=f"{now.astimezone(timezone.utc):%Y-%m-%d}",
        group_cells=dependencies.group_cells if context.file.nightly.suite else one_cell_per_server,
        estimate_minutes=dependencies.estimate_minutes,
    )


def _interrupted_night(nights: Sequence[NightFolder], now: datetime) -> NightFolder | None:
    """The last night if it was interrupted recently."""
    events = nights[-1].events() if nights else ()
    if not events:
        return None
    is_recent = now - datetime.fromisoformat(events[0].time) < RESUME_WITHIN
    return nights[-1] if is_recent and not NightState.from_events(events).is_over else None


def _abandon(context: NightlyContext, dependencies: Dependencies, night: NightFolder) -> None:
    """End what an interrupted night left running; keep its measurements."""
    with Journal(night.journal, clock=dependencies.clock) as journal:
        state = NightState.from_events(journal.events)
        if state.is_over or not journal.events:
            return
        for identity in (*state.jobs.values(), *state.bisection_jobs.values()):
            _clear_job(Job(context.jobs.folder / identity), dependencies)
        plan = read_plan(journal.events)
        measured = read_cell_launches(plan, state, context.jobs)
        journal.append("verdict", {"verdict": "abandoned", **_history_data(plan, measured)})


def _clear_job(job: Job, dependencies: Dependencies) -> None:
    """End the processes that a killed job left; it stays resumable."""
    if job.journal.exists() and not job.finished:
        with job.held(), Journal(job.journal, clock=dependencies.clock) as journal:
            recover_interrupted(job, journal, dependencies)


def _history_data(plan: NightPlan, measured: Mapping[str, CellLaunches]) -> dict[str, object]:
    """What later nights read from the verdict event."""
    minutes = {cell.digest: measured[cell.name].launch_minutes for cell in plan.wanted}
    return {
        "setting": setting_key(plan.setting),
        "measured": {cell.digest: len(measured[cell.name].measured) for cell in plan.wanted},
        "launch_minutes": {digest: value for digest, value in minutes.items() if value is not None},
    }


class _NightRun:
    """The loop of a night."""

    def __init__(
        self,
        context: NightlyContext,
        dependencies: Dependencies,
        folder: NightFolder,
        earlier: Sequence[NightFolder],
        journal: Journal,
    ) -> None:
        self.context, self.dependencies = context, dependencies
        self.folder, self.earlier, self.journal = folder, earlier, journal
        self.plan = read_plan(journal.events)
        self.rules = context.file.nightly

    @property
    def state(self) -> NightState:
        return NightState.from_events(self.journal.events)

    def run(self) -> Night:
        if self.context.fetch is not None:
            self._run_step("fetch", self.context.fetch)
        self._measure()
        with SeriesStore.of(self.context.state) as store:
            self._run_step("ingest", partial(self._ingest, store))
            analysis = self._analyse(store)
            if analysis is not None:
                tasks = report_tasks(self.context, store, analysis, self.folder, self.dependencies.clock)
                self._run_tasks(tuple(tasks))
        self._run_tasks(self.dependencies.tasks)
        night = self._night(ended=stamp(self.dependencies.clock()))
        write_atomic(self.folder.document, night_document(night).text() + "\n")
        measured = read_cell_launches(self.plan, self.state, self.context.jobs)
        self.journal.append(
            "verdict",
            {"verdict": "over", "exit_code": night.exit_code, **_history_data(self.plan, measured)},
        )
        return night

    def _night(self, ended: str = "") -> Night:
        return replay_night(self.context, self.plan, self.journal.events, self.folder, ended=ended)

    def _run_tasks(self, tasks: Sequence[NightTask]) -> None:
        for task in tasks:
            self._run_step(task.name, partial(self._run_task, task))

    def _run_task(self, task: NightTask) -> StepResult:
        return task.run(self._night())

    def _measure(self) -> None:
        plan, order, machine_failures = self.plan, self.plan.order, 0
        while True:
            state = self.state
            before = read_cell_launches(plan, state, self.context.jobs)
            counts = {name: len(cell.measured) for name, cell in before.items()}
            minutes = {
                name: cell.launch_minutes for name, cell in before.items() if cell.launch_minutes is not None
            }
            spent = spent_minutes(plan, state, self.context.jobs)
            scheduled = schedule.next_launch(
                order, plan.launch_groups(minutes), counts, state.failed, spent, plan.budget
            )
            if scheduled is None:
                return
            left = sum(
                cell.launches - counts[cell.name] for cell in plan.wanted if cell.name not in state.failed
            )
            cells = ", ".join(scheduled.cells)
            self.dependencies.sink(
                JobNote(f"{cells}: launch {scheduled.launch}; {left} launches left tonight")
            )
            jobs = [CellJob(plan.cell(name), self._job(name)) for name in scheduled.cells]
            failures = self.dependencies.measure(plan, jobs, scheduled.launch)
            for name, error in failures.items():
                self._record_failure(name, error)
            after = read_cell_launches(plan, self.state, self.context.jobs)
            if not failures and all(len(after[name].measured) == counts[name] for name in scheduled.cells):
                raise PerfbisectError(f"a launch of {cells} neither measured nor failed")
            on_machine = any(isinstance(error, MachineError) for error in failures.values())
            machine_failures = machine_failures + 1 if on_machine else 0
            first = next(iter(failures.values()), None)
            if first is not None and (
                isinstance(first, BuildError) or machine_failures >= _MAX_MACHINE_FAILURES
            ):
                self._fail_remaining(first, after)

    def _job(self, name: str) -> Job:
        """The cell's job; a new one is recorded before it exists."""
        identity = self.state.jobs.get(name)
        if identity is None:
            identity = self.dependencies.new_job().id
            self.journal.append("job", {"cell": name, "job": identity})
        return Job(self.context.jobs.folder / identity)

    def _record_failure(self, name: str, error: PerfbisectError, reason: str = "") -> None:
        failure = CellFailure(
            cell=name,
            reason=reason or error.message,
            log=str(error.where or ""),
            next=error.next_step or "",
            exit_code=error.exit_code,
        )
        self.journal.append("cell", failure.to_json())
        self.dependencies.sink(JobNote(f"{name}: failed: {failure.reason}"))

    def _fail_remaining(self, error: PerfbisectError, measured: Mapping[str, CellLaunches]) -> None:
        """Fail all incomplete cells: the commit cannot be built, or the machine is broken."""
        for cell in self.plan.wanted:
            if cell.name not in self.state.failed and len(measured[cell.name].measured) < cell.launches:
                reason = f"not tried: another cell failed with: {error.message}"
                self._record_failure(cell.name, error, reason)

    def _ingest(self, store: SeriesStore) -> StepResult:
        # The previous night too: it may have been abandoned, and its jobs resumed by hand.
        states = [NightState.from_events(night.events()) for night in self.earlier[-1:]] + [self.state]
        jobs = [Job(self.context.jobs.folder / name) for state in states for name in state.jobs.values()]
        return StepResult(ingest_jobs(store, jobs))

    def _analyse(self, store: SeriesStore) -> SeriesAnalysis | None:
        """Detect changes, store alerts, examine events; None if the series cannot be judged."""
        if not store.cells():
            return None
        analyses: list[SeriesAnalysis] = []
        self._run_step("detect", lambda: self._detect(store, analyses))
        findings = self.state.findings
        if findings is None:
            return None
        rules = self.rules.alerts
        analysis = analyses[0] if analyses else analyze_series(store, self.context.table, rules.fdr)
        now = stamp(self.dependencies.clock())
        self._run_step(
            "alerts", lambda: StepResult(store_alerts(store, analysis, findings.alerts, rules, now))
        )
        self._run_step("search", lambda: self._examine_events(store, analysis, findings.alerts))
        return analysis

    def _detect(self, store: SeriesStore, analyses: list[SeriesAnalysis]) -> StepResult:
        rules = self.rules.alerts
        analysis, alerts = judge_series(store, self.context.table, rules)
        analyses.append(analysis)
        cells, since = {cell.name for cell in self.plan.wanted}, self.journal.events[0].time[:10]
        findings = NightFindings(
            alerts=alerts,
            rows=build_nightly_report(analysis, fdr=rules.fdr).rows,
            notes=tuple(machine_notes(analysis, cells, since)),
            unjudged=count_too_few_nights(analysis, cells),
        )
        counts = Counter(change.change for change in alerts)
        summary = ", ".join(f"{count} {change}" for change, count in counts.items())
        return StepResult(summary or "no alerts", findings=findings)

    def _examine_events(
        self, store: SeriesStore, analysis: SeriesAnalysis, alerts: Sequence[NightAlert]
    ) -> StepResult:
        cases = select_cases(
            analysis,
            alerts,
            read_earlier_bisections(self.earlier),
            {record.alert.id: record.alert.state for record in store.alerts.all()},
            self.plan,
            self.rules.bisect,
        )
        examiner = EventExaminer(
            self.context, self.dependencies, self.plan, self.journal, store, analysis, self.folder.path
        )
        examiner.examine(tuple(cases))
        return StepResult(f"{len(self.state.bisections)} events examined")

    def _run_step(self, name: str, work: Callable[[], StepResult]) -> None:
        """Run a step unless it is done; a failure is recorded, and later steps still run.

        Raises:
            Interrupted: Ctrl-C or a stop.
        """
        previous = self.state.steps.get(name)
        if previous is not None and previous.state == "done":
            return
        try:
            result = work()
        except Interrupted:
            raise
        except PerfbisectError as error:
            record = StepRecord(
                name=name,
                state="failed",
                reported=error.message,
                where=str(error.where or ""),
                next=error.next_step or "",
                exit_code=error.exit_code,
            )
        except Exception as error:
            record = StepRecord(
                name=name,
                state="failed",
                reported=f"internal error: {error!r}",
                where=self._write_traceback(name),
                next="report it, with that file",
                exit_code=EXIT_OURS,
            )
        else:
            files = {kind: str(path) for kind, path in result.files.items()}
            record = StepRecord(
                name=name, state="done", reported=result.reported, files=files, findings=result.findings
            )
        self.journal.append("step", record.to_json())
        if record.state == "failed":
            self.dependencies.sink(JobNote(f"{name} failed: {record.reported}"))

    def _write_traceback(self, name: str) -> str:
        path = self.folder.path / f"{name}.log"
        with suppress(OSError):
            path.write_text(traceback.format_exc(), encoding="utf-8")
        return str(path)
