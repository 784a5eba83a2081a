"""The bisection as an experiment."""

from __future__ import annotations

from typing import Final

from perfbisect.bisect.bisection import outcome_of, read_bisection, require_reported
from perfbisect.bisect.plan import BisectPlan
from perfbisect.bisect.policy import bisect_policy
from perfbisect.bisect.report import build_report
from perfbisect.bisect.result import BisectResult, build_result, result_for_metric
from perfbisect.common.quantities import percent, probability
from perfbisect.engine.experiment import Amendment, Candidate, Experiment, JobStatus
from perfbisect.errors import EXIT_INCONCLUSIVE, EXIT_OK, EXIT_REGRESSION
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import Journal
from perfbisect.jobs.plans import require_more_budget, require_plan
from perfbisect.jobs.replay import launches
from perfbisect.jobs.runner import JobContext

_EXIT_CODES = {"found": EXIT_REGRESSION, "not reproduced": EXIT_OK}
"""3 a culprit is named, 0 not reproduced, 4 otherwise."""

_CANDIDATES = 5
_NAMED = 3
"""Changes of a verdict that are named in one line."""
_LEAST_PROBABILITY = 0.005
"""A change less likely than this is no candidate."""


def amend(job: Job, tools: JobContext, amendment: Amendment) -> None:
    """Extend a bisection: more minutes, another metric, or the later end without its culprit.

    What was measured stays; the search continues where the new plan needs it.

    Raises:
        UsageError: the job is no bisection, or nothing would change.
    """
    with Journal(job.journal, clock=tools.clock) as journal:
        plan = require_plan(job, journal.events, BisectPlan)
        budget, metric = amendment.budget, amendment.metric
        changed: dict[str, object] = {}
        if metric is not None and str(metric) != plan.metric:
            require_reported(launches(journal.events), metric)
            changed["metric"] = str(metric)
        if amendment.confirm_revert and not plan.confirm_revert:
            changed["confirm_revert"] = True
        outcome = outcome_of(journal.events)
        if budget is not None:
            # More minutes alone can change no other verdict than that of an ended budget.
            is_settled = outcome is not None and outcome.verdict != "out of budget" and not changed
            require_more_budget(job, plan, budget, outcome.verdict if outcome and is_settled else "")
            changed["budget"] = budget
        if changed:
            journal.append("plan", plan.model_copy(update=changed).model_dump(mode="json"))


def _status(result: BisectResult) -> JobStatus:
    p = result.beliefs.p if result.beliefs else ()
    best = sorted(range(len(p)), key=lambda index: -p[index])[:_CANDIDATES]
    changes = {position.index: position.changes[0] for position in result.history}
    return JobStatus(
        outcome=result.outcome,
        exit_code=_EXIT_CODES.get(result.outcome, EXIT_INCONCLUSIVE),
        verdict=_verdict(result),
        next=result.next,
        candidates=tuple(
            Candidate(index, changes[index].short, changes[index].subject, p[index])
            for index in best
            if index in changes and p[index] >= _LEAST_PROBABILITY
        ),
    )


def _verdict(result: BisectResult) -> str:
    """The culprits, and the effect of their step; of a narrowed range each with its probability."""
    step = result.confirmed or result.whole
    size = f"{result.metric.name} {percent(step.effect)}" if step else ""
    if result.candidates:
        names = [f"{x.position.changes[0].short} {probability(x.probability)}" for x in result.candidates]
        more = len(names) - _NAMED
        named = [*names[:_NAMED], *([f"{more} more"] if more > 0 else [])]
        who = f"one of {len(names)}: {', '.join(named)}" if len(names) > 1 else f"likely {named[0]}"
        return ", ".join(part for part in (who, size) if part)
    culprits = [position.changes[0] for position in result.culprits[:_NAMED]]
    names = [change.short for change in culprits]
    if len(culprits) == 1:
        names = [f"{culprits[0].short} {culprits[0].subject}"]
    more = len(result.culprits) - len(culprits)
    who = " or ".join([*names, *([f"{more} more"] if more else [])])
    return ", ".join(part for part in (who, size) if part)


BISECT: Final = Experiment(
    plan=BisectPlan,
    policy=lambda job, plan, tools: bisect_policy(job, plan, tools.revert),
    result=lambda job, events: build_result(read_bisection(job, events)),
    status=_status,
    report=build_report,
    client_change=lambda plan: plan.positions[-1].change,
    workers=lambda plan: plan.workers,
    amend=amend,
    result_for_metric=result_for_metric,
)
