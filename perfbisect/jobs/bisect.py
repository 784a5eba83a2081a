"""The bisection: ask the core, launch, write it down, ask again. Resuming is starting the same loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from perfbisect.core import bisect as core
from perfbisect.core.attempt import Attempt, comparable, key
from perfbisect.core.cell import Cell
from perfbisect.errors import MachineError, ServerError, UsageError
from perfbisect.jobs.fold import Launch, Ledger, owed, project
from perfbisect.jobs.plan import BisectPlan, JobPlan, cell_of, plan_of
from perfbisect.jobs.policy import Failures
from perfbisect.jobs.report import outcome_of, report
from perfbisect.jobs.views import launch_document
from perfbisect.jobs.work import Order, Tools, clear_up, launch
from perfbisect.render.documents import ReportDocument
from perfbisect.render.notices import Ended, Launched, Launching
from perfbisect.store.jobs import Job, finished
from perfbisect.store.journal import Journal

_LEADING = 3


def begin(job: Job, plan: JobPlan, tools: Tools) -> None:
    """Writes the plan into the job's journal: from here on the job can be resumed."""
    with Journal(job.journal, clock=tools.clock) as journal:
        journal.append("plan", plan.model_dump(mode="json"))


def extend(job: Job, budget: float, tools: Tools) -> None:
    """Gives a bisection more minutes: one that ran out of them goes on.

    :raises UsageError: no bisection, or not more than it had.
    """
    with Journal(job.journal, clock=tools.clock) as journal:
        plan = plan_of(journal.events)
        if not isinstance(plan, BisectPlan):
            raise UsageError(f"job {job.id} is no bisection: it has no budget")
        outcome = outcome_of(journal.events)
        if outcome is not None and outcome.word != "out of budget":
            raise UsageError(
                f"job {job.id} has its verdict, {outcome.word!r}: more minutes would change nothing"
            )
        if budget <= plan.budget:
            raise UsageError(
                f"the budget was {plan.budget:.0f} minutes already, and {budget:.0f} are no more"
            )
        journal.append("plan", plan.model_copy(update={"budget": budget}).model_dump(mode="json"))


def bisect(job: Job, tools: Tools) -> ReportDocument:
    """Goes on with a job, new or resumed, until its verdict, which is in the journal when this returns.

    Hold the job (``job.held()``) meanwhile.

    :raises BuildError, ServerError: an end of the range cannot be built or served.
    :raises ClientError, MachineError: they failed too often; the job can be resumed.
    :raises UsageError: the client does not report the metric.
    :raises Interrupted: Ctrl-C or a stop.
    """
    with Journal(job.journal, clock=tools.clock) as journal:
        plan = plan_of(journal.events)
        if not isinstance(plan, BisectPlan):
            raise UsageError(f"job {job.id} is no bisection")
        if not finished(journal.events):
            clear_up(job, journal, tools)
            outcome = _search(job, journal, plan, cell_of(plan), tools)
            journal.append("verdict", asdict(outcome))
        document = report(job, journal.events)
    tools.sink(Ended(document))
    return document


def _search(job: Job, journal: Journal, plan: BisectPlan, cell: Cell, tools: Tools) -> core.Outcome:
    failures, ledger = Failures(job, tools), Ledger()
    while True:
        seen = ledger.read(journal.events)
        events = project(seen, plan)
        again = owed(seen)
        if again is not None:
            order = _order(
                plan, again.position, again.purpose, again.runs, f"once more: it failed ({again.reason})"
            )
        else:
            try:
                action = core.next_action(plan.question, events)
            except ValueError as error:
                raise ServerError(
                    f"this range cannot be bisected: {error}", where=job.path, next_step="choose other ends"
                ) from error
            if isinstance(action, core.Done):
                return action.outcome
            order = _order(plan, action.index, action.purpose, action.runs, action.why)
        tools.sink(
            Launching(
                len(seen) + 1,
                order.change.short,
                order.position,
                plan.last,
                order.purpose,
                order.runs,
                order.why,
            )
        )
        launch(job, journal, tools, cell, order)
        seen = ledger.read(journal.events)
        ended = seen[-1]
        if ended.attempt is not None and ended.attempt.failure is None:
            _check(ended.attempt, seen, plan)
        tools.sink(_launched(ended, seen, plan))
        _check_end(ended, seen, plan, failures)
        failures.after(ended)


def _order(plan: BisectPlan, index: int, purpose: core.Purpose | str, runs: int, why: str) -> Order:
    kind: core.Purpose = "end" if purpose == "end" else "confirm" if purpose == "confirm" else "search"
    return Order(index, plan.positions[index].change, kind, runs, why)


def _check(attempt: Attempt, seen: Sequence[Launch], plan: BisectPlan) -> None:
    """Is it a measurement of this bisection?

    :raises UsageError: the metric is not there.
    :raises MachineError: it is not comparable with what was measured before.
    """
    try:
        attempt.values(plan.ref)
    except KeyError:
        reported = sorted({name for run in attempt.runs for name in run.values})
        raise UsageError(
            f"the client did not report {key(plan.ref)}; it reported: {', '.join(reported)}",
            where=attempt.folder,
            next_step="name one of these with --metric",
        ) from None
    first = next((x.attempt for x in seen if x.end == "finished" and x.attempt is not None), attempt)
    for field, left, right in comparable(first.provenance, attempt.provenance):
        raise MachineError(
            f"attempt {attempt.id} cannot be compared with {first.id}: {field} was {left!r} and is {right!r}",
            where=attempt.folder,
            next_step="measure all of a bisection on one machine, with one client (--client), of one cell",
        )


def _check_end(ended: Launch, seen: Sequence[Launch], plan: BisectPlan, failures: Failures) -> None:
    """:raises BuildError, ServerError: an end that never gave a value failed again: the range is wrong."""
    if ended.position not in (0, plan.last) or not ended.refused:
        return
    same = [x for x in seen if x.position == ended.position]
    if any(x.end == "finished" for x in same):
        return
    if ended.built and sum(x.refused for x in same) < 2:
        return
    end = "good" if ended.position == 0 else "bad"
    change = plan.positions[ended.position].change
    advice = f"choose another --{end}; `git log {change.short}` shows its neighbours"
    raise failures.broken(ended, f"the {end} end {change.short}", advice)


def _launched(ended: Launch, seen: Sequence[Launch], plan: BisectPlan) -> Launched:
    events = project(seen, plan)
    try:
        beliefs = core.beliefs(plan.question, events)
    except ValueError:
        beliefs = None
    early = beliefs is None or not {0, plan.last} <= {x.position for x in seen if x.end == "finished"}
    leading: tuple[tuple[str, float], ...] = ()
    if beliefs is not None and not early:
        best = sorted(range(1, plan.last + 1), key=lambda i: -beliefs.p[i])[:_LEADING]
        leading = tuple((plan.positions[i].change.short, min(0.99, beliefs.p[i])) for i in best)
    return Launched(
        launch=launch_document(ended, plan.positions[ended.position].change, plan.ref),
        unit=plan.ref.metric.unit,
        leading=leading,
        none=None if beliefs is None or early else beliefs.none,
        used=sum(x.minutes for x in seen),
        budget=plan.budget,
    )
