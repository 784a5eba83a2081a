"""A bisection judged by another metric of the same launches; nothing is launched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from perfbisect.bisect.decision import decide
from perfbisect.bisect.decision.model import SearchEnd, SearchOutcome
from perfbisect.bisect.documents import ReportDocument
from perfbisect.bisect.plan import BisectPlan
from perfbisect.bisect.result import build_document
from perfbisect.bisect.search_events import SEARCHING, beliefs_after, to_search_events
from perfbisect.common.text import hint
from perfbisect.errors import UsageError
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import JournalEvent
from perfbisect.jobs.plans import require_plan
from perfbisect.jobs.replay import LaunchRecord, launches
from perfbisect.model.attempt import key
from perfbisect.model.metric import MetricRef

_BITS_PER_LAUNCH = 0.7
"""Information that a launch of a search usually gives."""

_AB_LAUNCHES = _END_LAUNCHES = 4


def document_for_metric(job: Job, events: Sequence[JournalEvent], metric: MetricRef) -> ReportDocument:
    """The report as if another metric had been asked for.

    If the launches do not settle that, the outcome is ``inconclusive`` with the price of the rest.

    Raises:
        UsageError: the job is no bisection, or its client did not report the metric.
    """
    plan, records = require_plan(job, events, BisectPlan), launches(events)
    require_reported(records, metric)
    plan = plan.model_copy(update={"metric": str(metric)})
    outcome = _outcome(plan, records)
    if outcome is not None:
        return build_document(job, plan, records, outcome, events)
    low = _launches_left(plan, records)
    each = median([launch.minutes for launch in records if launch.end == "finished"])
    summary = (
        f"What was measured does not settle {metric.metric.display}: it was chosen for another metric. "
        f"The rest would take about {low} to {3 * low} launches, {low * each:.0f} to {3 * low * each:.0f} "
        "minutes."
    )
    document = build_document(job, plan, records, None, events)
    return document.model_copy(
        update={
            "outcome": "inconclusive",
            "summary": (summary, *document.summary[1:]),
            "next": f"perfbisect resume {job.id} --metric {metric}",
        }
    )


def require_reported(records: Sequence[LaunchRecord], metric: MetricRef) -> None:
    """Require that all launches of the search report a metric."""
    attempts = [x.attempt for x in records if x.end == "finished" and x.attempt and x.purpose in SEARCHING]
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


def _launches_left(plan: BisectPlan, records: Sequence[LaunchRecord]) -> int:
    """At least so many launches: what the posterior leaves open, then an A/B."""
    beliefs = beliefs_after(plan, records)
    p = [v for v in (beliefs.p if beliefs else [1 / plan.last] * plan.last) if v > 0]
    bits = -sum(v / sum(p) * math.log2(v / sum(p)) for v in p)
    ends = 0 if beliefs is not None and beliefs.none < 0.1 else _END_LAUNCHES
    return math.ceil(bits / _BITS_PER_LAUNCH) + _AB_LAUNCHES + ends


def _outcome(plan: BisectPlan, records: Sequence[LaunchRecord]) -> SearchOutcome | None:
    """The outcome that the launches support; None if the search would measure more."""
    events = to_search_events(records, plan)
    slots = tuple(dict.fromkeys(x.slot for x in records if x.end == "finished")) or ("",)
    search = replace(plan.search, budget=math.inf)
    for slot in slots:
        try:
            action = decide.next_action(search, events, (), slot, slots)
        except ValueError as error:
            raise UsageError(f"this range cannot be judged: {error}") from error
        if isinstance(action, SearchEnd):
            return action.outcome
    return None
