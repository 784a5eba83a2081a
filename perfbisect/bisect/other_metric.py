"""Another metric asked of a journal: what was measured supports an answer, or it says what the rest costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from perfbisect.bisect.decision import decide
from perfbisect.bisect.documents import ReportDocument
from perfbisect.bisect.plan import BisectPlan
from perfbisect.bisect.projection import SEARCHING, project
from perfbisect.bisect.result import build_document
from perfbisect.common.suggest import hint
from perfbisect.errors import UsageError
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import JournalEvent
from perfbisect.jobs.plans import require_plan
from perfbisect.jobs.replay import LaunchRecord, launches
from perfbisect.model.attempt import key
from perfbisect.model.metric import MetricRef

_BITS = 0.7
"""Bits that a launch of a search tells, usually."""

_AB, _ENDS = 4, 4
"""Launches of an A/B, and of the ends where they are not settled."""


@dataclass(frozen=True)
class RemainingCost:
    """What an answer would still take."""

    launches_low: int
    launches_high: int
    minutes_low: float
    minutes_high: float


def with_metric(job: Job, events: Sequence[JournalEvent], metric: MetricRef) -> ReportDocument:
    """The report of a bisection as if another metric had been asked for; nothing is launched.

    Where its launches do not settle that, the outcome is ``inconclusive`` with the price of the rest.

    :raises UsageError: no bisection, or its client did not report the metric.
    """
    plan = require_plan(job, events, BisectPlan)
    seen = launches(events)
    check_reported(seen, metric)
    asked = plan.model_copy(update={"metric": str(metric)})
    outcome = _outcome(asked, seen)
    if outcome is not None:
        return build_document(job, asked, seen, outcome, events)
    rest = rest_of(asked, seen)
    said = (
        f"What was measured does not settle {metric.metric.display}: it was chosen for another metric. "
        f"The rest would take about {rest.launches_low} to {rest.launches_high} launches, "
        f"{rest.minutes_low:.0f} to {rest.minutes_high:.0f} minutes."
    )
    document = build_document(job, asked, seen, None, events, open_question=said)
    return document.model_copy(
        update={
            "outcome": "inconclusive",
            "next": f"perfbisect resume {job.id} --metric {metric}",
        }
    )


def check_reported(seen: Sequence[LaunchRecord], metric: MetricRef) -> None:
    """:raises UsageError: nothing was measured, or some launch lacks the metric; those that all have are
    named."""
    attempts = [x.attempt for x in seen if x.end == "finished" and x.attempt and x.purpose in SEARCHING]
    if not attempts:
        raise UsageError(
            "nothing has been measured yet: there is nothing to ask another metric of",
            next_step="perfbisect resume measures",
        )
    common = set.intersection(*({name for run in a.runs for name in run.values} for a in attempts))
    if key(metric) not in common:
        near = hint(metric.name, {name.partition(":")[0] for name in common})
        raise UsageError(
            f"the launches do not report {key(metric)}{near}; all report: {', '.join(sorted(common))}",
            where=attempts[0].folder,
            next_step="--metric with one of these",
        )


def rest_of(plan: BisectPlan, seen: Sequence[LaunchRecord]) -> RemainingCost:
    """What an answer would still take: what the posterior leaves open, then an A/B."""
    try:
        beliefs = decide.beliefs(plan.question, project(seen, plan))
    except ValueError:
        beliefs = None
    p = [v for v in (beliefs.p if beliefs else [1 / plan.last] * plan.last) if v > 0]
    total = sum(p)
    bits = -sum(v / total * math.log2(v / total) for v in p)
    settled = beliefs is not None and beliefs.none < 0.1
    low = math.ceil(bits / _BITS) + _AB + (0 if settled else _ENDS)
    each = median([launch.minutes for launch in seen if launch.end == "finished"])
    return RemainingCost(low, 3 * low, low * each, 3 * low * each)


def _outcome(plan: BisectPlan, seen: Sequence[LaunchRecord]) -> decide.SearchOutcome | None:
    """The answer that the launches support; None if the core would measure more."""
    events = project(seen, plan)
    slots = tuple(dict.fromkeys(x.slot for x in seen if x.end == "finished")) or ("",)
    question = replace(plan.question, budget=math.inf)
    for slot in slots:
        try:
            action = decide.next_action(question, events, (), slot, slots)
        except ValueError as error:
            raise UsageError(f"this range cannot be judged: {error}") from error
        if isinstance(action, decide.SearchEnd):
            return action.outcome
    return None
