"""Runs, checks and comparisons as jobs: launches as the plan says, until its verdict stands."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial
from typing import Final

from perfbisect.common.quantities import percent, with_unit
from perfbisect.compare.baseline import RecordedLevel, record_level, require_enough
from perfbisect.compare.documents import (
    CheckDocument,
    CompareDocument,
    MetricCheckDocument,
    RunDocument,
    VerifyDocument,
    check_document,
    check_of_comparison,
    compare_document,
    run_document,
)
from perfbisect.compare.plan import (
    CheckPlan,
    ComparePlan,
    MeasurementPlan,
    RunPlan,
    attempts_of,
    combine_words,
    measured_launches,
    served_cells,
)
from perfbisect.compare.report import check_report, compare_report, run_report
from perfbisect.compare.result import has_open_guard
from perfbisect.errors import EXIT_INCONCLUSIVE, EXIT_OK, EXIT_REGRESSION, UsageError
from perfbisect.jobs.folders import Job, finished
from perfbisect.jobs.journal import Journal, JournalEvent, read, replaying
from perfbisect.jobs.loop import Done, JobState, LaunchPolicy, drain, fits_budget, launch_in_steps
from perfbisect.jobs.plans import find_plan, plan_data, require_plan
from perfbisect.jobs.replay import LaunchRecord, launches
from perfbisect.jobs.runner import JobContext, LaunchRequest, recover_interrupted
from perfbisect.jobs.sequence import sequential
from perfbisect.jobs.workers import WorkerPool
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from perfbisect.report.kind import JobKind, JobStatus
from perfbisect.stats import ab_test


def launch_policy(plan: MeasurementPlan, cells: Sequence[Cell], until: int = 0) -> LaunchPolicy:
    """The launches of a plan. ``until``: stop after so many, before its verdict; 0: do not."""
    return sequential(
        partial(_next_launch, plan, cells, until),
        plan.ref,
        admit=plan.require_admissible,
        budget=plan.budget or 0.0,
        advice=plan.advice,
        block=ab_test.BLOCK_SIZE if isinstance(plan, ComparePlan) else 0,
    )


def _next_launch(
    plan: MeasurementPlan, cells: Sequence[Cell], until: int, state: JobState
) -> LaunchRequest | Done:
    records = state.launches
    measured = measured_launches(records)
    count, for_guards = len(measured), False
    if count >= (until or plan.max_launches):
        return Done()
    if count and count % plan.launches_per_look == 0:
        claims = set(map(plan.claim, plan.judge_all(measured)))
        is_last = count + plan.launches_per_look > plan.max_launches
        for_guards = claims == {"holds"} and not is_last and has_open_guard(plan, measured, cells[0])
        if is_last or ("inconclusive" not in claims and not for_guards):
            return Done()
    if plan.budget is not None and not fits_budget(records, plan.budget):
        return Done()
    side = plan.position(count)
    why = plan.reason(count) + (", for the guards" if for_guards else "")
    change, name = plan.sides[side].change, plan.side_name(side)
    mate: Change | None = None
    if isinstance(plan, ComparePlan) and count % 2 == 0 and cells[0] == cells[1]:
        mate = plan.sides[1 - side].change
    return LaunchRequest(side, change, plan.purpose, plan.runs, why, cells[side], name, mate)


def measure_in_steps(
    job: Job,
    tools: JobContext,
    plan_type: type[MeasurementPlan],
    until: int = 0,
    poll: float | None = None,
) -> Generator[float, None, tuple[JournalEvent, ...]]:
    """Continue a job, new or resumed, until its verdict; return the journal's events.

    Yields the seconds for which there is nothing to do; ``poll``: the longest time to wait for a launch
    before other jobs of this thread have their turn, in seconds; None: until it has ended. The caller holds
    the job. A job that has its verdict is left as it is.

    Raises:
        BuildError, ServerError: a change cannot be built or served.
        ClientError, MachineError: they failed too often; the job can be resumed.
        UsageError: the journal is of another kind, or a launch cannot be compared.
        Interrupted: Ctrl-C or a stop.
    """
    with Journal(job.journal, clock=tools.clock) as journal:
        plan = require_plan(job, journal.events, plan_type)
        if not finished(journal.events):
            recover_interrupted(job, journal, tools.sink, tools.stop_leftovers, tools.reclaim)
            cells = served_cells(plan)
            policy = launch_policy(plan, cells, until)
            with WorkerPool(job, journal, tools, cells[0]) as pool:
                yield from launch_in_steps(job, journal, tools, pool, policy, poll=poll)
            if not until or until >= plan.max_launches:
                journal.append("verdict", _conclusion(plan, launches(journal.events)))
        return journal.events


def _conclusion(plan: MeasurementPlan, records: Sequence[LaunchRecord]) -> dict[str, object]:
    if isinstance(plan, RunPlan):
        return {"verdict": "measured"}
    verdicts = plan.judge_all(measured_launches(records))
    word = combine_words(verdict.word for verdict in verdicts)
    return {"verdict": word, "launches": verdicts[0].launches}


def run(job: Job, tools: JobContext, *, until: int = 0) -> RunDocument:
    """Continue a run; ``until``: stop, unfinished, as soon as so many launches are measured."""
    return drain(run_in_steps(job, tools, until=until, poll=None))


def run_in_steps(
    job: Job, tools: JobContext, *, until: int, poll: float | None
) -> Generator[float, None, RunDocument]:
    """:func:`run` beside other jobs of this thread, see :func:`measure_in_steps`."""
    return run_document(job, (yield from measure_in_steps(job, tools, RunPlan, until, poll)))


def check(job: Job, tools: JobContext) -> CheckDocument:
    """Continue a check against a level."""
    return check_document(job, drain(measure_in_steps(job, tools, CheckPlan)))


def compare(job: Job, tools: JobContext) -> CompareDocument:
    """Continue a comparison."""
    return compare_document(job, drain(measure_in_steps(job, tools, ComparePlan)))


def level_of_job(job: Job) -> RecordedLevel:
    """The level that a ``run`` or a ``check`` measured; a UsageError says why there is none."""
    events = read(job.journal).events
    plan = find_plan(events, RunPlan) or find_plan(events, CheckPlan)
    if plan is None:
        verb = plan_data(events).get("verb")
        raise UsageError(
            f"job {job.id} is a {verb}: it measured several changes, and a baseline is of one",
            next_step="name a job of perfbisect run or check, or a file of --save-baseline",
        )
    with replaying(job.journal):
        (level,) = _record_levels(job, plan, events)
    return require_enough(level, f"job {job.id}")


def levels_of_comparison(job: Job) -> tuple[RecordedLevel, ...]:
    """Both sides of a comparison, with as many launches each."""
    events = read(job.journal).events
    return _record_levels(job, require_plan(job, events, ComparePlan), events)


def _record_levels(
    job: Job, plan: MeasurementPlan, events: Sequence[JournalEvent]
) -> tuple[RecordedLevel, ...]:
    measured = measured_launches(launches(events))
    attempts = [attempts_of(measured, position) for position in range(len(plan.sides))]
    count = min(map(len, attempts))
    return tuple(
        record_level(job.id, plan, side.change, cell, launched[:count])
        for side, cell, launched in zip(plan.sides, served_cells(plan), attempts, strict=True)
    )


_EXIT_CODES = {
    "regression": EXIT_REGRESSION,
    "refuted": EXIT_REGRESSION,
    "failed": EXIT_REGRESSION,
    "inconclusive": EXIT_INCONCLUSIVE,
}


def exit_code(document: CompareDocument | CheckDocument | VerifyDocument) -> int:
    """3 regression, refuted or failed; 4 inconclusive; 0 otherwise."""
    claim = document.claim if isinstance(document, CompareDocument) else None
    return _EXIT_CODES.get(claim or document.verdict, EXIT_OK)


def _status(document: RunDocument | CheckDocument | CompareDocument) -> JobStatus:
    """A job's progress: what a run measured, or the verdict with its effect."""
    if isinstance(document, RunDocument):
        metric, outcome, next_command = document.headline, "measured", ""
        values = [row for row in document.metrics if row.display == metric.display]
        verdict = f"{metric.name} {with_unit(values[0].median, metric.unit)}" if values else ""
    else:
        metric, outcome, next_command = document.metric, document.verdict, document.next
        rows = [row for row in document.metrics if isinstance(row, MetricCheckDocument) or row.judged]
        effects = ((row.name, row.effect) for row in rows if row.effect is not None)
        verdict = ", ".join(f"{name} {percent(effect)}" for name, effect in effects)
    if isinstance(document, CompareDocument):
        outcome = document.claim or outcome
        if document.limit is not None:
            outcome = check_of_comparison(document).verdict
        if document.by_guard:
            verdict = f"by a guard, {verdict}"
    return JobStatus(
        outcome=outcome if document.finished else "unfinished",
        verdict=verdict,
        metric=metric,
        next=next_command,
    )


RUN: Final[JobKind[RunPlan, RunDocument]] = JobKind(
    plan=RunPlan,
    run=run,
    document=run_document,
    exit_code=lambda _: EXIT_OK,
    status=_status,
    report=run_report,
    client_change=lambda plan: plan.change,
)
CHECK: Final[JobKind[CheckPlan, CheckDocument]] = JobKind(
    plan=CheckPlan,
    run=check,
    document=check_document,
    exit_code=exit_code,
    status=_status,
    report=check_report,
    client_change=lambda plan: plan.change,
)
COMPARE: Final[JobKind[ComparePlan, CompareDocument]] = JobKind(
    plan=ComparePlan,
    run=compare,
    document=compare_document,
    exit_code=exit_code,
    status=_status,
    report=compare_report,
    client_change=lambda plan: plan.b.change,
)
