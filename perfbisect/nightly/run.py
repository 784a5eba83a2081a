"""Runs a night: measure, detect, bisect, deliver.

The journal holds the plan, the job of each cell, failures and completed steps; launches are in the jobs' own
journals. A night that was killed at any point continues from there.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from perfbisect.common.quantities import counted
from perfbisect.errors import BuildError, Interrupted, MachineError, PerfbisectError
from perfbisect.jobs.events import JobNote
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import Journal, JournalEvent, stamp
from perfbisect.jobs.runner import recover_interrupted
from perfbisect.nightly.alerts import ingest_jobs, judge_series, store_alerts, summarize_changes
from perfbisect.nightly.bisect import EventExaminer
from perfbisect.nightly.delivery import report_tasks
from perfbisect.nightly.journal import CellFailure, NightFolder, NightRecord, StepRecord, write_traceback
from perfbisect.nightly.model import Night, NightStep
from perfbisect.nightly.night import (
    NightlyContext,
    NightTask,
    OpenNight,
    StepResult,
    build_night,
    build_plan,
    check_cells,
)
from perfbisect.nightly.plan import ScheduledLaunch, next_launch
from perfbisect.series.detect import SeriesAnalysis, analyze_series
from perfbisect.series.store import SeriesStore
from perfbisect.system.files import write_atomic

RESUME_WITHIN = timedelta(hours=12)
"""An interrupted night resumes for this long after it began; later it is abandoned."""

_MAX_MACHINE_FAILURES = 2
"""Consecutive failures of a machine after which no further cell is tried on it."""

_LONGEST_SLEEP_S = 5.0

LaunchSteps = Generator[float, None, Mapping[str, PerfbisectError]]
"""A launch of the night, as :meth:`perfbisect.nightly.night.NightMachine.measure` makes it."""


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
                plan, failures = check_cells(context, build_plan(context, earlier, now), dry_run=False)
                journal.append("plan", plan.model_dump(mode="json"))
                for failure in failures:
                    journal.append("cell", failure.model_dump(mode="json"))
            return _NightRun(OpenNight(context, tonight, journal), earlier).run()


def forecast_night(context: NightlyContext) -> Night:
    """Build the night that would run now; starts and writes nothing."""
    earlier, now = context.nights.all(), context.clock()
    interrupted = _interrupted_night(earlier, now)
    plan = interrupted.record().plan if interrupted is not None else build_plan(context, earlier, now)
    plan, failures = check_cells(context, plan, dry_run=True)
    if interrupted is not None:
        note = f"night {interrupted.id} was interrupted: it resumes with its own commit and remaining budget"
        plan = plan.model_copy(update={"notes": (*plan.notes, note)})
    begun = JournalEvent(0, stamp(now), "plan", plan.model_dump(mode="json"))
    failed = (
        JournalEvent(number, stamp(now), "cell", failure.model_dump(mode="json"))
        for number, failure in enumerate(failures, 1)
    )
    record = NightRecord((begun, *failed), context.jobs)
    return build_night(context, record, context.nights.folder, dry_run=True)


def _interrupted_night(nights: Sequence[NightFolder], now: datetime) -> NightFolder | None:
    """The last night if it was interrupted recently."""
    record = nights[-1].record() if nights else None
    if record is None or not record.events or record.verdict is not None:
        return None
    return nights[-1] if now - datetime.fromisoformat(record.events[0].time) < RESUME_WITHIN else None


def _abandon(context: NightlyContext, night: NightFolder) -> None:
    """End what an interrupted night left running; keep its measurements."""
    with Journal(night.journal, clock=context.clock) as journal:
        record = NightRecord(journal.events, context.jobs)
        if record.verdict is not None or not journal.events:
            return
        for job in record.jobs:
            if job.journal.exists() and not job.finished:
                with job.held():
                    _recover(context, job)
        verdict = record.conclude("abandoned")
        journal.append("verdict", verdict.model_dump(mode="json", exclude_none=True))


def _recover(context: NightlyContext, job: Job) -> None:
    """End what runs for a job of which no process works on, here and on a fleet; keep its measurements."""
    reclaim = None
    try:
        reclaim = context.machine.end_bundles(job)
    except PerfbisectError as error:
        context.sink(JobNote(f"job {job.id}: its launches on other machines may go on: {error.message}"))
    with Journal(job.journal, clock=context.clock) as launches:
        recover_interrupted(job, launches, context.sink, context.stop_leftovers, reclaim)


class _Lanes:
    """The machines' launches, which run at the same time while this thread takes turns with them."""

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane] = {}

    def __enter__(self) -> _Lanes:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        for lane in self._lanes.values():
            with suppress(Interrupted, StopIteration):
                lane.steps.throw(Interrupted("the night ends"))

    def begin(self, machine: str, scheduled: ScheduledLaunch, steps: LaunchSteps) -> None:
        self._lanes[machine] = _Lane(scheduled, steps)

    @property
    def busy(self) -> Mapping[str, ScheduledLaunch]:
        """What each machine measures now."""
        return {machine: lane.scheduled for machine, lane in self._lanes.items()}

    def await_end(self) -> tuple[str, Mapping[str, PerfbisectError]]:
        """Go on with all of them until one ends: its machine, and the cells that failed."""
        while True:
            for machine, lane in self._lanes.items():
                if lane.resume_at > time.monotonic():
                    continue
                try:
                    lane.resume_at = time.monotonic() + next(lane.steps)
                except StopIteration as end:
                    del self._lanes[machine]
                    return machine, end.value
                except BaseException:
                    del self._lanes[machine]
                    raise
            first = min(lane.resume_at for lane in self._lanes.values())
            time.sleep(min(max(0.0, first - time.monotonic()), _LONGEST_SLEEP_S))


@dataclass
class _Lane:
    """``resume_at``: on the monotonic clock; until then it has nothing to do."""

    scheduled: ScheduledLaunch
    steps: LaunchSteps
    resume_at: float = 0.0


class _NightRun:
    """The loop of a night."""

    def __init__(self, night: OpenNight, earlier: Sequence[NightFolder]) -> None:
        self.night, self.context, self.earlier = night, night.context, earlier
        self.plan = night.record.plan
        self.rules = night.context.file.nightly.alerts
        self.analysis: SeriesAnalysis | None = None

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
                self._run_tasks(dict(report_tasks(self.night, store, self.analysis)))
        self._run_tasks(context.tasks)
        night = self._document(ended=stamp(context.clock()))
        write_atomic(self.night.folder.document, night.text() + "\n")
        self.night.append("verdict", self.night.record.conclude("over", night.exit_code))
        return night

    def _document(self, ended: str = "") -> Night:
        return build_night(self.context, self.night.record, self.night.folder.path, ended=ended)

    def _run_tasks(self, tasks: Mapping[str, NightTask]) -> None:
        for name, task in tasks.items():
            self._run_step(name, partial(self._run_task, task))

    def _run_task(self, task: NightTask) -> StepResult:
        return task(self._document())

    def _measure(self) -> None:
        """Launch by launch on each machine until its budget is spent or its cells are complete or failed."""
        orders = {machine: self.plan.order_on(machine) for machine in self.plan.machines}
        machine_failures = Counter[str]()
        with _Lanes() as lanes:
            while True:
                for machine, order in orders.items():
                    scheduled = None if machine in lanes.busy else self._next_launch(machine, order)
                    if scheduled is not None:
                        lanes.begin(machine, scheduled, self._launch(scheduled))
                if not lanes.busy:
                    return
                machine, errors = lanes.await_end()
                for name, error in errors.items():
                    self._record_failure(name, error)
                failures = list(errors.values())
                on_machine = any(isinstance(error, MachineError) for error in failures)
                machine_failures[machine] = machine_failures[machine] + 1 if on_machine else 0
                busy = {name for other in lanes.busy.values() for name in other.cells}
                if failures and isinstance(failures[0], BuildError):
                    self._fail_remaining(failures[0], orders, busy)
                elif machine_failures[machine] >= _MAX_MACHINE_FAILURES:
                    self._fail_remaining(failures[0], (machine,), busy)

    def _next_launch(self, machine: str, order: Sequence[ScheduledLaunch]) -> ScheduledLaunch | None:
        record, plan = self.night.record, self.plan
        groups, spent = plan.groups_on(machine, record.launch_minutes), record.spent_on(machine)
        return next_launch(order, groups, record.counts, record.failed, spent, plan.budget)

    def _launch(self, scheduled: ScheduledLaunch) -> LaunchSteps:
        """Measure the cells of a launch."""
        record, cells = self.night.record, ", ".join(scheduled.cells)
        wanted = [cell for cell in self.plan.wanted if cell.name not in record.failed]
        left = sum(cell.launches - record.counts[cell.name] for cell in wanted)
        self.night.say(f"{cells}: launch {scheduled.launch}; {counted(left, 'launch')} left tonight")
        jobs = {name: self.night.job("cell", name) for name in scheduled.cells}
        failures = yield from self.context.machine.measure(self.plan, jobs, scheduled.launch)
        after = self.night.record.counts
        if not failures and all(after[name] == record.counts[name] for name in scheduled.cells):
            raise PerfbisectError(f"a launch of {cells} neither measured nor failed")
        return failures

    def _record_failure(self, name: str, error: PerfbisectError, reason: str = "") -> None:
        failure = CellFailure.of(name, error, reason)
        self.night.append("cell", failure)
        self.night.say(f"{name}: failed: {failure.reason}")

    def _fail_remaining(
        self, error: PerfbisectError, machines: Collection[str], busy: Collection[str]
    ) -> None:
        """Fail the incomplete cells of machines: the commit cannot be built, or the machine is broken.

        ``busy``: those that are measured now.
        """
        record = self.night.record
        for cell in self.plan.wanted:
            if cell.machine not in machines or cell.name in busy or cell.name in record.failed:
                continue
            if record.counts[cell.name] < cell.launches:
                reason = f"not tried: another cell failed with: {error.message}"
                self._record_failure(cell.name, error, reason)

    def _ingest(self, store: SeriesStore) -> StepResult:
        # The previous night too: it may have been abandoned, and its jobs resumed by hand.
        records = [*(night.record() for night in self.earlier[-1:]), self.night.record]
        jobs = [record.job(job) for record in records for job in record.job_ids("cell").values()]
        return StepResult(ingest_jobs(store, jobs))

    def _analyse(self, store: SeriesStore) -> None:
        self._run_step("detect", partial(self._detect, store))
        findings = self.night.record.findings
        if findings is None:
            return
        analysis = self.analysis or analyze_series(store, self.context.table, self.rules.fdr)
        self.analysis, now = analysis, stamp(self.context.clock())
        alerts = findings.alerts
        self._run_step("alerts", lambda: StepResult(store_alerts(store, analysis, alerts, self.rules, now)))
        examiner = EventExaminer(self.night, store, analysis)
        self._run_step("search", lambda: examiner.examine(alerts, self.earlier))

    def _detect(self, store: SeriesStore) -> StepResult:
        cells = {cell.series: cell.name for cell in self.plan.wanted}
        since = self.night.journal.events[0].time[:10]
        self.analysis, findings = judge_series(
            store, self.context.table, self.rules, cells, since, self.context.jobs.all()
        )
        return StepResult(summarize_changes(findings.alerts), findings=findings)

    def _run_step(self, name: str, work: Callable[[], StepResult]) -> None:
        """Run a step unless it is done; a failure is recorded, and later steps still run."""
        previous = self.night.record.steps.get(name)
        if previous is not None and previous.step.state == "done":
            return
        try:
            result = work()
        except Interrupted:
            raise
        except PerfbisectError as error:
            record = StepRecord.failed(name, error)
        except Exception as error:
            where = write_traceback(self.night.folder.path, name)
            failure = PerfbisectError(
                f"internal error: {error!r}", where=where, next_step="report it, with that file"
            )
            record = StepRecord.failed(name, failure)
        else:
            files = {kind: str(path) for kind, path in result.files.items()}
            step = NightStep(name=name, state="done", reported=result.reported)
            record = StepRecord(step=step, files=files, findings=result.findings)
        self.night.append("step", record)
        if record.step.state == "failed":
            self.night.say(f"{name} failed: {record.step.reported}")
