"""Runs a night: measure, detect, bisect, deliver.

The journal holds the plan, the job of each cell, failures and completed steps; launches are in the jobs' own
journals. A night that was killed at any point continues from there.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

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
from perfbisect.nightly.night import CellJob, NightlyContext, NightTask, StepResult, build_night, build_plan
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
                journal.append("plan", build_plan(context, earlier, now).model_dump(mode="json"))
            return _NightRun(context, tonight, earlier, journal).run()


def forecast_night(context: NightlyContext) -> Night:
    """Build the night that would run now; starts and writes nothing."""
    earlier, now = context.nights.all(), context.clock()
    interrupted = _interrupted_night(earlier, now)
    plan = interrupted.record().plan if interrupted is not None else build_plan(context, earlier, now)
    if interrupted is not None:
        note = f"night {interrupted.id} was interrupted: it resumes with its own commit and remaining budget"
        plan = plan.model_copy(update={"notes": (*plan.notes, note)})
    begun = JournalEvent(0, stamp(now), "plan", plan.model_dump(mode="json"))
    return build_night(context, NightRecord((begun,), context.jobs), context.nights.folder, dry_run=True)


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
        bisections = (*record.bisection_jobs.values(), *record.profile_jobs.values())
        for identity in (*record.jobs.values(), *bisections):
            job = record.job(identity)
            if job.journal.exists() and not job.finished:
                with job.held():
                    _recover(context, job)
        journal.append("verdict", {"verdict": "abandoned", **record.history()})


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

    def __init__(
        self, context: NightlyContext, folder: NightFolder, earlier: Sequence[NightFolder], journal: Journal
    ) -> None:
        self.context, self.folder, self.earlier, self.journal = context, folder, earlier, journal
        self.plan = self.record.plan
        self.rules = context.file.nightly.alerts
        self.analysis: SeriesAnalysis | None = None

    @property
    def record(self) -> NightRecord:
        """What the journal says now."""
        return NightRecord(self.journal.events, self.context.jobs)

    def run(self) -> Night:
        context = self.context
        if context.fetch is not None:
            self._run_step("fetch", context.fetch)
        self._measure()
        with SeriesStore.of(context.state) as store:
            self._run_step("ingest", lambda: self._ingest(store))
            if store.cells():
                self._analyse(store)
            if self.analysis is not None:
                self._run_tasks(report_tasks(context, store, self.analysis, self.folder))
        self._run_tasks(context.tasks)
        night = self._night(ended=stamp(context.clock()))
        write_atomic(self.folder.document, night.text() + "\n")
        verdict = {"verdict": "over", "exit_code": night.exit_code, **self.record.history()}
        self.journal.append("verdict", verdict)
        return night

    def _night(self, ended: str = "") -> Night:
        return build_night(self.context, self.record, self.folder.path, ended=ended)

    def _run_tasks(self, tasks: Iterable[NightTask]) -> None:
        for task in tasks:
            self._run_step(task.name, partial(self._run_task, task))

    def _run_task(self, task: NightTask) -> StepResult:
        return task.run(self._night())

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
                failures = self._record_failures(errors)
                on_machine = any(isinstance(error, MachineError) for error in failures)
                machine_failures[machine] = machine_failures[machine] + 1 if on_machine else 0
                busy = {name for other in lanes.busy.values() for name in other.cells}
                if failures and isinstance(failures[0], BuildError):
                    self._fail_remaining(failures[0], orders, busy)
                elif machine_failures[machine] >= _MAX_MACHINE_FAILURES:
                    self._fail_remaining(failures[0], (machine,), busy)

    def _next_launch(self, machine: str, order: Sequence[ScheduledLaunch]) -> ScheduledLaunch | None:
        record, plan = self.record, self.plan
        groups, spent = plan.groups_on(machine, record.launch_minutes), record.spent_on(machine)
        return next_launch(order, groups, record.counts, record.failed, spent, plan.budget)

    def _launch(self, scheduled: ScheduledLaunch) -> LaunchSteps:
        """Measure the cells of a launch."""
        record, cells = self.record, ", ".join(scheduled.cells)
        wanted = [cell for cell in self.plan.wanted if cell.name not in record.failed]
        left = sum(cell.launches - record.counts[cell.name] for cell in wanted)
        self._say(f"{cells}: launch {scheduled.launch}; {left} launches left tonight")
        jobs = [CellJob(self.plan.cell(name), self._job(name)) for name in scheduled.cells]
        failures = yield from self.context.machine.measure(self.plan, jobs, scheduled.launch)
        after = self.record.counts
        if not failures and all(after[name] == record.counts[name] for name in scheduled.cells):
            raise PerfbisectError(f"a launch of {cells} neither measured nor failed")
        return failures

    def _record_failures(self, errors: Mapping[str, PerfbisectError]) -> list[PerfbisectError]:
        for name, error in errors.items():
            self._record_failure(name, error)
        return list(errors.values())

    def _say(self, text: str) -> None:
        self.context.sink(JobNote(text))

    def _job(self, name: str) -> Job:
        """The cell's job; a new one is recorded before it exists."""
        identity = self.record.jobs.get(name)
        if identity is None:
            identity = self.context.machine.new_job().id
            self.journal.append("job", {"cell": name, "job": identity})
        return self.record.job(identity)

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

    def _fail_remaining(
        self, error: PerfbisectError, machines: Collection[str], busy: Collection[str]
    ) -> None:
        """Fail the incomplete cells of machines: the commit cannot be built, or the machine is broken.

        ``busy``: those that are measured now.
        """
        record = self.record
        for cell in self.plan.wanted:
            if cell.machine not in machines or cell.name in busy or cell.name in record.failed:
                continue
            if record.counts[cell.name] < cell.launches:
                reason = f"not tried: another cell failed with: {error.message}"
                self._record_failure(cell.name, error, reason)

    def _ingest(self, store: SeriesStore) -> StepResult:
        # The previous night too: it may have been abandoned, and its jobs resumed by hand.
        records = [*(night.record() for night in self.earlier[-1:]), self.record]
        jobs = [record.job(identity) for record in records for identity in record.jobs.values()]
        return StepResult(ingest_jobs(store, jobs))

    def _analyse(self, store: SeriesStore) -> None:
        self._run_step("detect", lambda: self._detect(store))
        findings = self.record.findings
        if findings is None:
            return
        analysis = self.analysis or analyze_series(store, self.context.table, self.rules.fdr)
        self.analysis, now = analysis, stamp(self.context.clock())
        alerts = findings.alerts
        self._run_step("alerts", lambda: StepResult(store_alerts(store, analysis, alerts, self.rules, now)))
        examiner = EventExaminer(self.context, self.journal, store, analysis, self.folder.path)
        self._run_step("search", lambda: examiner.examine(alerts, self.earlier))

    def _detect(self, store: SeriesStore) -> StepResult:
        cells, since = {cell.series: cell.name for cell in self.plan.wanted}, self.journal.events[0].time[:10]
        self.analysis, findings = judge_series(store, self.context.table, self.rules, cells, since)
        return StepResult(summarize_changes(findings.alerts), findings=findings)

    def _run_step(self, name: str, work: Callable[[], StepResult]) -> None:
        """Run a step unless it is done; a failure is recorded, and later steps still run."""
        previous = self.record.steps.get(name)
        if previous is not None and previous.step.state == "done":
            return
        try:
            result = work()
        except Interrupted:
            raise
        except PerfbisectError as error:
            record = StepRecord.failed(name, error)
        except Exception as error:
            where = write_traceback(self.folder.path, name)
            failure = PerfbisectError(
                f"internal error: {error!r}", where=where, next_step="report it, with that file"
            )
            record = StepRecord.failed(name, failure)
        else:
            files = {kind: str(path) for kind, path in result.files.items()}
            step = NightStep(name=name, state="done", reported=result.reported)
            record = StepRecord(step=step, files=files, findings=result.findings)
        self.journal.append("step", record.model_dump(mode="json"))
        if record.step.state == "failed":
            self._say(f"{name} failed: {record.step.reported}")
