"""A bisection as its journal has it, finished or under way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pydantic import TypeAdapter

from perfbisect.bisect.decision import decide
from perfbisect.bisect.decision.model import Beliefs, SearchOutcome
from perfbisect.bisect.plan import BisectPlan
from perfbisect.bisect.replicate import Replication, replication
from perfbisect.bisect.revert import RevertCheck, revert_check
from perfbisect.bisect.search_events import SEARCHING, beliefs_after, search_launches, to_search_events
from perfbisect.common.text import hint
from perfbisect.errors import UsageError
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import JournalEvent
from perfbisect.jobs.plans import read_verdict, require_plan
from perfbisect.jobs.replay import Launch, launches
from perfbisect.model.attempt import key
from perfbisect.model.metric import MetricRef

OUTCOME = TypeAdapter(SearchOutcome)
"""Reads and writes how a search ended."""

_BITS_PER_LAUNCH = 0.7
"""Information that a launch of a search usually gives."""

_AB_LAUNCHES = _END_LAUNCHES = 4


@dataclass(frozen=True)
class Bisection:
    """A bisection as its journal has it; ``outcome``: None while there is none.

    ``is_recast``: it is judged by another metric than it was measured for.
    """

    job: Job
    plan: BisectPlan
    events: Sequence[JournalEvent]
    records: Sequence[Launch]
    outcome: SearchOutcome | None
    is_recast: bool = False

    @cached_property
    def revert(self) -> RevertCheck:
        """Without a verdict before the first whole block."""
        check = revert_check(self.events, self.plan, self.records)
        if check.verdict is None or not math.isnan(check.verdict.effect):
            return check
        return replace(check, verdict=None)

    @cached_property
    def replication(self) -> Replication:
        return replication(self.events, self.plan, self.records, self.outcome)

    @property
    def machines(self) -> tuple[str, ...]:
        """The machines of a fleet that made launches."""
        return tuple(dict.fromkeys(launch.machine for launch in self.records if launch.machine))

    @cached_property
    def beliefs(self) -> Beliefs | None:
        return self.outcome.beliefs if self.outcome else beliefs_after(self.plan, self.records)

    @property
    def found(self) -> bool:
        return self.outcome is not None and self.outcome.verdict == "found"

    @property
    def is_on_branch(self) -> bool:
        """Whether the step is in the own commits of a good end that is no ancestor of bad."""
        return self.found and self.outcome is not None and self.plan.merge_base in self.outcome.culprits

    @property
    def likeliest(self) -> list[int]:
        """The culprits, the likeliest first."""
        p = self.beliefs.p if self.beliefs else ()
        return sorted(self.outcome.culprits, key=lambda index: -p[index]) if self.outcome else []

    @property
    def measured(self) -> list[Launch]:
        return [launch for launch in self.records if launch.outcome == "measured"]

    @property
    def minutes_per_launch(self) -> float:
        measured = self.measured
        return sum(launch.minutes for launch in measured) / len(measured) if measured else 0.0

    @property
    def compared(self) -> tuple[int, int]:
        """The positions of parent and culprit, or without an A/B of the two ends."""
        confirmed = self.outcome.confirmed if self.outcome else None
        return (confirmed.parent, confirmed.culprit) if confirmed else (0, self.plan.last)

    @property
    def sides(self) -> tuple[list[Launch], list[Launch]]:
        """The launches at both."""
        left, right = self.compared
        return search_launches(self.records, left), search_launches(self.records, right)

    @property
    def launches_left(self) -> int:
        """At least so many launches: what the posterior leaves open, then an A/B."""
        beliefs, last = self.beliefs, self.plan.last
        p = [v for v in (beliefs.p if beliefs else [1 / last] * last) if v > 0]
        bits = -sum(v / sum(p) * math.log2(v / sum(p)) for v in p)
        # While the step itself is in doubt, the ends are measured first.
        ends = 0 if beliefs is not None and beliefs.none < 0.1 else _END_LAUNCHES
        return math.ceil(bits / _BITS_PER_LAUNCH) + _AB_LAUNCHES + ends


def read_bisection(job: Job, events: Sequence[JournalEvent]) -> Bisection:
    """The result; UsageError if the journal holds no readable bisection."""
    plan = require_plan(job, events, BisectPlan, next_step=f"perfbisect status {job.id}")
    return Bisection(job, plan, events, launches(events), outcome_of(events))


def outcome_of(events: Sequence[JournalEvent]) -> SearchOutcome | None:
    """The verdict in a journal; None while there is none.

    Raises:
        UsageError: it cannot be read.
    """
    return read_verdict(events, OUTCOME)


def recast_bisection(job: Job, events: Sequence[JournalEvent], metric: MetricRef) -> Bisection:
    """The result as if another metric had been asked for; nothing is launched.

    Raises:
        UsageError: the job is no bisection, or its client did not report the metric.
    """
    plan, records = require_plan(job, events, BisectPlan), launches(events)
    require_reported(records, metric)
    # The smallest effect was typed for the other metric.
    plan = plan.model_copy(update={"metric": str(metric), "min_effect": None})
    seen = to_search_events(records, plan)
    slots = tuple(dict.fromkeys(x.slot for x in records if x.outcome == "measured")) or ("",)
    # The budget bounded what was launched, not what the launches say of another metric.
    search = replace(plan.search, budget=math.inf)
    try:
        actions = (decide.next_action(search, seen, (), slot, slots) for slot in slots)
        # Without an outcome the search would measure more.
        outcome = next((action for action in actions if isinstance(action, SearchOutcome)), None)
    except ValueError as error:
        raise UsageError(f"this range cannot be judged: {error}") from error
    return Bisection(job, plan, events, records, outcome, is_recast=True)


def require_reported(records: Sequence[Launch], metric: MetricRef) -> None:
    """Require that all launches of the search report a metric."""
    searching = (x for x in records if x.outcome == "measured" and x.purpose in SEARCHING)
    attempts = [launch.measurement for launch in searching]
    if not attempts:
        raise UsageError(
            "nothing has been measured yet: there is nothing to ask another metric of",
            next_step="perfbisect resume measures",
        )
    common = set.intersection(*(set(attempt.reported) for attempt in attempts))
    if key(metric) not in common:
        near = hint(metric.name, {name.partition(":")[0] for name in common})
        raise UsageError(
            f"the launches do not report {key(metric)}{near}; all report: {', '.join(sorted(common))}",
            where=attempts[0].folder,
            next_step="--metric with one of these",
        )
