"""Runs a night: measure, detect, bisect, deliver.

The journal holds the plan, the job of each cell, failures and completed steps; launches are in the jobs' own
journals. A night that was killed at any point continues from there.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial

from perfbisect.errors import BuildError, Interrupted, MachineError, PerfbisectError
from perfbisect.jobs.events import JobNote
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import Journal, stamp
from perfbisect.jobs.runner import recover_interrupted
from perfbisect.nightly.alerts import (
    count_too_few_nights,
    ingest_jobs,
    judge_series,
    machine_notes,
    store_alerts,
)
from perfbisect.nightly.bisect import EventExaminer, read_earlier_bisections, select_cases
from perfbisect.nightly.context import CellJob, NightlyContext, NightTask, StepResult
from perfbisect.nightly.delivery import report_tasks
from perfbisect.nightly.journal import (
    CellFailure,
    NightFolder,
    NightProgress,
    NightState,
    StepRecord,
    read_plan,
)
from perfbisect.nightly.model import Night, NightAlert, NightFindings, NightStep
from perfbisect.nightly.night import build_night, build_plan, planned_night
from perfbisect.nightly.plan import next_launch
from perfbisect.series.detect import SeriesAnalysis, analyze_series
from perfbisect.series.nightly_report import build_nightly_report
from perfbisect.series.store import SeriesStore
from perfbisect.system.files import write_atomic

RESUME_WITHIN = timedelta(hours=12)
"""An interrupted night resumes for this long after it began; later it is abandoned."""

_MAX_MACHINE_FAILURES = 2
"""Consecutive machine failures after which no further cell is tried."""


def run_night(context: NightlyContext) -> Night:
    """Run a new or interrupted night to its end."""
    nights, now = context.nights, context.clock()
    with nights.held(now):
        earlier = nights.all()
        tonight = _interrupted_night(earlier, now)
        if tonight is not None:
            earlier = earlier[:-1]
        else:
            if earlier:
                _abandon(context, earlier[-1])
            tonight = nights.new(now, context.commit.id)
        with Journal(tonight.journal, clock=context.clock) as journal:
            if not journal.events:
                journal.append("plan", build_plan(context, earlier, now).model_dump(mode="json"))
            return _NightRun(context, tonight, earlier, journal).run()


def forecast_night(context: NightlyContext) -> Night:
    """Build the night that would run now; starts and writes nothing."""
    earlier, now = context.nights.all(), context.clock()
    interrupted = _interrupted_night(earlier, now)
    if interrupted is None:
        return planned_night(context, build_plan(context, earlier, now), stamp(now))
    note = f"night {interrupted.id} was interrupted: it resumes with its own commit and remaining budget"
    return planned_night(context, read_plan(interrupted.events()), stamp(now), note)


def _interrupted_night(nights: Sequence[NightFolder], now: datetime) -> NightFolder | None:
    """The last night if it was interrupted recently."""
    events = nights[-1].events() if nights else ()
    if not events or NightState.from_events(events).is_over:
        return None
    return nights[-1] if now - datetime.fromisoformat(events[0].time) < RESUME_WITHIN else None


def _abandon(context: NightlyContext, night: NightFolder) -> None:
    """End what an interrupted night left running; keep its measurements."""
    with Journal(night.journal, clock=context.clock) as journal:
        state = NightState.from_events(journal.events)
        if state.is_over or not journal.events:
            return
        for identity in (*state.jobs.values(), *state.bisection_jobs.values()):
            job = Job(context.jobs.folder / identity)
            if job.journal.exists() and not job.finished:
                with job.held(), Journal(job.journal, clock=context.clock) as launches:
                    recover_interrupted(job, launches, context)
        progress = NightProgress.read(journal.events, context.jobs)
        journal.append("verdict", {"verdict": "abandoned", **progress.history_data()})


class _NightRun:
    """The loop of a night."""

    def __init__(
        self, context: NightlyContext, folder: NightFolder, earlier: Sequence[NightFolder], journal: Journal
    ) -> None:
        self.context, self.folder, self.earlier, self.journal = context, folder, earlier, journal
        self.plan = read_plan(journal.events)
        self.rules = context.file.nightly.alerts
        self.analysis: SeriesAnalysis | None = None

    @property
    def state(self) -> NightState:
        return NightState.from_events(self.journal.events)

    @property
    def progress(self) -> NightProgress:
        return NightProgress.read(self.journal.events, self.context.jobs)

    def run(self) -> Night:
        context = self.context
        if context.fetch is not None:
            self._run_step("fetch", context.fetch)
        self._measure()
        with SeriesStore.of(context.state) as store:
            self._run_step("ingest", partial(self._ingest, store))
            if store.cells():
                self._analyse(store)
            if self.analysis is not None:
                self._run_tasks(report_tasks(context, store, self.analysis, self.folder))
        self._run_tasks(context.tasks)
        night = self._night(ended=stamp(context.clock()))
        write_atomic(self.folder.document, night.text() + "\n")
        verdict = {"verdict": "over", "exit_code": night.exit_code, **self.progress.history_data()}
        self.journal.append("verdict", verdict)
        return night

    def _night(self, ended: str = "") -> Night:
        return build_night(self.context, self.journal.events, self.folder, ended=ended)

    def _run_tasks(self, tasks: Iterable[NightTask]) -> None:
        for task in tasks:
            self._run_step(task.name, partial(self._run_task, task))

    def _run_task(self, task: NightTask) -> StepResult:
        return task.run(self._night())

    def _measure(self) -> None:
        plan, machine_failures = self.plan, 0
        order = plan.order
        while True:
            progress = self.progress
            counts, failed = progress.counts, progress.state.failed
            groups = plan.launch_groups(progress.launch_minutes)
            scheduled = next_launch(order, groups, counts, failed, progress.spent, plan.budget)
            if scheduled is None:
                return
            left = sum(cell.launches - counts[cell.name] for cell in plan.wanted if cell.name not in failed)
            cells = ", ".join(scheduled.cells)
            self._say(f"{cells}: launch {scheduled.launch}; {left} launches left tonight")
            jobs = [CellJob(plan.cell(name), self._job(name)) for name in scheduled.cells]
            failures = self.context.machine.measure(plan, jobs, scheduled.launch)
            for name, error in failures.items():
                self._record_failure(name, error)
            after = self.progress.counts
            if not failures and all(after[name] == counts[name] for name in scheduled.cells):
                raise PerfbisectError(f"a launch of {cells} neither measured nor failed")
            on_machine = any(isinstance(error, MachineError) for error in failures.values())
            machine_failures = machine_failures + 1 if on_machine else 0
            first = next(iter(failures.values()), None)
            if first is not None and (
                isinstance(first, BuildError) or machine_failures >= _MAX_MACHINE_FAILURES
            ):
                self._fail_remaining(first, after)

    def _say(self, text: str) -> None:
        self.context.sink(JobNote(text))

    def _job(self, name: str) -> Job:
        """The cell's job; a new one is recorded before it exists."""
        identity = self.state.jobs.get(name)
        if identity is None:
            identity = self.context.machine.new_job().id
            self.journal.append("job", {"cell": name, "job": identity})
        return Job(self.context.jobs.folder / identity)

    def _record_failure(self, name: str, error: PerfbisectError, reason: str = "") -> None:
        failure = CellFailure(
            cell=name,
            reason=reason or error.message,
            log=error.where or "",
            next=error.next_step or "",
            exit_code=error.exit_code,
        )
        self.journal.append("cell", failure.model_dump(mode="json"))
        self._say(f"{name}: failed: {failure.reason}")

    def _fail_remaining(self, error: PerfbisectError, measured: Mapping[str, int]) -> None:
        """Fail all incomplete cells: the commit cannot be built, or the machine is broken."""
        failed = self.state.failed
        for cell in self.plan.wanted:
            if cell.name not in failed and measured[cell.name] < cell.launches:
                reason = f"not tried: another cell failed with: {error.message}"
                self._record_failure(cell.name, error, reason)

    def _ingest(self, store: SeriesStore) -> StepResult:
        # The previous night too: it may have been abandoned, and its jobs resumed by hand.
        states = [NightState.from_events(night.events()) for night in self.earlier[-1:]] + [self.state]
        jobs = [Job(self.context.jobs.folder / name) for state in states for name in state.jobs.values()]
        return StepResult(ingest_jobs(store, jobs))

    def _analyse(self, store: SeriesStore) -> None:
        """Detect changes, store alerts, examine events."""
        self._run_step("detect", partial(self._detect, store))
        findings = self.state.findings
        if findings is None:
            return
        analysis = self.analysis or analyze_series(store, self.context.table, self.rules.fdr)
        self.analysis, now = analysis, stamp(self.context.clock())
        alerts = findings.alerts
        self._run_step("alerts", lambda: StepResult(store_alerts(store, analysis, alerts, self.rules, now)))
        self._run_step("search", lambda: self._examine_events(store, analysis, alerts))

    def _detect(self, store: SeriesStore) -> StepResult:
        analysis, alerts = judge_series(store, self.context.table, self.rules)
        cells, since = {cell.name for cell in self.plan.wanted}, self.journal.events[0].time[:10]
        findings = NightFindings(
            alerts=alerts,
            rows=build_nightly_report(analysis, fdr=self.rules.fdr).rows,
            notes=tuple(machine_notes(analysis, cells, since)),
            unjudged=count_too_few_nights(analysis, cells),
        )
        self.analysis = analysis
        counts = Counter(alert.change for alert in alerts)
        summary = ", ".join(f"{count} {change}" for change, count in counts.items())
        return StepResult(summary or "no alerts", findings=findings)

    def _examine_events(
        self, store: SeriesStore, analysis: SeriesAnalysis, alerts: Sequence[NightAlert]
    ) -> StepResult:
        earlier = read_earlier_bisections(self.earlier)
        states = {record.alert.id: record.alert.state for record in store.alerts.all()}
        rules = self.context.file.nightly.bisect
        cases = tuple(select_cases(analysis, alerts, earlier, states, self.plan, rules))
        EventExaminer(self.context, self.journal, store, analysis, self.folder.path).examine(cases)
        return StepResult(f"{len(self.state.bisections)} events examined")

    def _run_step(self, name: str, work: Callable[[], StepResult]) -> None:
        """Run a step unless it is done; a failure is recorded, and later steps still run."""
        previous = self.state.steps.get(name)
        if previous is not None and previous.step.state == "done":
            return
        try:
            result = work()
        except Interrupted:
            raise
        except PerfbisectError as error:
            self._record_failed_step(name, error)
        except Exception as error:
            failure = PerfbisectError(
                f"internal error: {error!r}",
                where=self._write_traceback(name),
                next_step="report it, with that file",
            )
            self._record_failed_step(name, failure)
        else:
            files = {kind: str(path) for kind, path in result.files.items()}
            step = NightStep(name=name, state="done", reported=result.reported)
            self._record_step(StepRecord(step=step, files=files, findings=result.findings))

    def _record_failed_step(self, name: str, error: PerfbisectError) -> None:
        step = NightStep(
            name=name,
            state="failed",
            reported=error.message,
            where=error.where or "",
            next=error.next_step or "",
        )
        self._record_step(StepRecord(step=step, exit_code=error.exit_code))
        self._say(f"{name} failed: {error.message}")

    def _record_step(self, record: StepRecord) -> None:
        self.journal.append("step", record.model_dump(mode="json"))

    def _write_traceback(self, name: str) -> str:
        path = self.folder.path / f"{name}.log"
        with suppress(OSError):
            path.write_text(traceback.format_exc(), encoding="utf-8")
        return str(path)
