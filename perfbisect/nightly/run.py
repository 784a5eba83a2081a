"""Runs a night: measure, detect, bisect, deliver.

A cell is an experiment, the ``run`` of a commit: launches, retries and recovery are the engine's. The night
decides whose launch comes next. Its journal holds the plan, the job of each cell, failures and completed
steps. A night that was killed at any point continues from there.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial

from perfbisect.common.quantities import counted
from perfbisect.errors import BuildError, Interrupted, MachineError, PerfbisectError
from perfbisect.jobs.events import JobNote
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import Journal, JournalEvent, stamp
from perfbisect.jobs.runner import recover_interrupted
from perfbisect.nightly.alerts import judge_series, store_alerts
from perfbisect.nightly.bisect import EventExaminer
from perfbisect.nightly.delivery import report_tasks
from perfbisect.nightly.journal import (
    CellFailure,
    NightFolder,
    NightJobs,
    NightRecord,
    StepRecord,
    reason_text,
    write_traceback,
)
from perfbisect.nightly.model import KEEP, Night, NightStep
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
from perfbisect.series.ingest import ingest
from perfbisect.series.sources import IngestOptions
from perfbisect.series.store import SeriesStore
from perfbisect.system.files import write_atomic

RESUME_WITHIN = timedelta(hours=12)
"""An interrupted night resumes for this long after it began; later it is abandoned."""

_MAX_MACHINE_FAILURES = 2
"""Consecutive failures of a machine after which no further cell is tried on it."""

_LONGEST_SLEEP_S = 5.0


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
    record = NightRecord((begun, *failed), NightJobs(context.jobs))
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
        record = NightRecord(journal.events, NightJobs(context.jobs))
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


def take_turns(lanes: Iterable[Generator[float, None, None]]) -> None:
    """Run generators beside each other in this thread; each yields seconds for which it has nothing to do.

    Raises:
        BaseException: what one of them raised; the others are interrupted.
    """
    resume_at = dict.fromkeys(lanes, 0.0)
    try:
        while resume_at:
            for lane, moment in list(resume_at.items()):
                if moment > time.monotonic():
                    continue
                try:
                    resume_at[lane] = time.monotonic() + next(lane)
                except StopIteration:
                    del resume_at[lane]
                except BaseException:
                    # It has ended itself: the others alone are interrupted below.
                    del resume_at[lane]
                    raise
            if resume_at:
                rest = min(resume_at.values()) - time.monotonic()
                time.sleep(min(max(0.0, rest), _LONGEST_SLEEP_S))
    finally:
        for lane in resume_at:
            with suppress(Interrupted, StopIteration):
                lane.throw(Interrupted("the night ends"))


class _NightRun:
    """The loop of a night."""

    def __init__(self, night: OpenNight, earlier: Sequence[NightFolder]) -> None:
        self.night, self.context, self.earlier = night, night.context, earlier
        self.plan = night.record.plan
        self.rules = night.context.file.nightly.alerts
        self.analysis: SeriesAnalysis | None = None
        self._busy: dict[str, str] = {}
        """The cell that each machine measures now."""

    def run(self) -> Night:
        context = self.context
        if context.fetch is not None:
            self._run_step("fetch", context.fetch)
        take_turns(self._measure_on(machine) for machine in self.plan.machines)
        with SeriesStore.of(context.state) as store:
            self._run_step("ingest", partial(self._ingest, store))
            # Where nothing was ever measured there is no series to judge.
            if store.cells():
                self._analyse(store)
            if context.keep is not None:
                self._run_tasks({KEEP: context.keep})
            if self.analysis is not None:
                self._run_tasks(dict(report_tasks(self.night, store, self.analysis)))
        self._run_tasks(context.tasks)
        night = self._document(ended=stamp(context.clock()))
        # Before the verdict: a night that is killed between the two writes it again.
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

    def _measure_on(self, machine: str) -> Generator[float, None, None]:
        """Launch by launch until the budget of a machine is spent or its cells are complete or failed."""
        order, in_a_row = self.plan.order_on(machine), 0
        while (scheduled := self._next_launch(machine, order)) is not None:
            self._busy[machine] = scheduled.cell
            error = yield from self._launch(scheduled)
            del self._busy[machine]
            if error is not None:
                self._record_failure(scheduled.cell, error)
            in_a_row = in_a_row + 1 if isinstance(error, MachineError) else 0
            if isinstance(error, BuildError):
                self._fail_remaining(error, self.plan.machines)
            elif error is not None and in_a_row >= _MAX_MACHINE_FAILURES:
                self._fail_remaining(error, (machine,))

    def _next_launch(self, machine: str, order: Sequence[ScheduledLaunch]) -> ScheduledLaunch | None:
        """Choose by the minutes that launches took tonight, before those that were expected."""
        record, took = self.night.record, self.night.record.launch_minutes
        cells = [
            cell.model_copy(update={"launch_minutes": took.get(cell.name, cell.launch_minutes)})
            for cell in self.plan.wanted_on(machine)
        ]
        spent = record.spent_on(machine)
        return next_launch(order, cells, record.counts, record.failed, spent, self.plan.budget)

    def _launch(self, scheduled: ScheduledLaunch) -> Generator[float, None, PerfbisectError | None]:
        """Make the launch of a cell, or return why the cell fails."""
        name, before, failed = scheduled.cell, self.night.record.counts, self.night.record.failed
        wanted = [cell for cell in self.plan.wanted if cell.name not in failed]
        left = sum(cell.launches - before[cell.name] for cell in wanted)
        self.night.say(f"{name}: launch {scheduled.launch}; {counted(left, 'launch')} left tonight")
        job = self.night.job("cell", name)
        try:
            yield from self.context.machine.measure(self.plan, self.plan.cell(name), job, scheduled.launch)
        except Interrupted:
            raise
        except PerfbisectError as error:
            return error
        if self.night.record.counts[name] == before[name]:
            raise PerfbisectError(f"a launch of {name} neither measured nor failed")
        return None

    def _record_failure(self, name: str, error: PerfbisectError, reason: str = "") -> None:
        failure = CellFailure.of(name, error, reason)
        self.night.append("cell", failure)
        self.night.say(f"{name}: failed: {failure.reason}")

    def _fail_remaining(self, error: PerfbisectError, machines: Collection[str]) -> None:
        """Fail the incomplete cells of machines: the commit cannot be built, or the machine is broken."""
        record = self.night.record
        for cell in self.plan.wanted:
            is_open = cell.name not in record.failed and record.counts[cell.name] < cell.launches
            # A cell that another machine measures now says itself what becomes of it.
            if cell.machine in machines and is_open and cell.name not in self._busy.values():
                reason = reason_text("not tried", message=error.message)
                self._record_failure(cell.name, error, reason)

    def _ingest(self, store: SeriesStore) -> StepResult:
        # The previous night too: it may have been abandoned, and its jobs resumed by hand.
        records = [*(night.record() for night in self.earlier[-1:]), self.night.record]
        jobs = [record.job(job) for record in records for job in record.job_ids("cell").values()]
        paths = [str(job.path) for job in jobs if job.journal.exists()]
        if not paths:
            return StepResult("nothing was measured")
        ingested = ingest(store, paths, IngestOptions(), source="journals")
        rejected = sum(group.count for group in ingested.rejected)
        skipped = f", {counted(rejected, 'launch')} without a measurement" if rejected else ""
        return StepResult(counted(ingested.points, "point") + skipped)

    def _analyse(self, store: SeriesStore) -> None:
        self._run_step("detect", partial(self._detect, store))
        findings = self.night.record.findings
        if findings is None:
            return
        # A resumed night has the findings in its journal, and no analysis in memory.
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
        counts = Counter(alert.change for alert in findings.alerts)
        summary = ", ".join(f"{count} {change}" for change, count in counts.items())
        return StepResult(summary or "no alerts", findings=findings)

    def _run_step(self, name: str, work: Callable[[], StepResult]) -> None:
        """Run a step unless it is done; a failure is recorded, and later steps still run."""
        previous = self.night.record.steps.get(name)
        # One that failed is tried again when the night is resumed.
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
