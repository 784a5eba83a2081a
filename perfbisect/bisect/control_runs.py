"""Control runs: after a failure of the machine a slot measures a known level before anything new counts.

The next launch with a known level on that slot must agree with it. Until one does, the search launches no new
position there but the end that the slot knows best. A launch that does not agree is discarded like the failed
one, and the slot backs off again. While the ends are settled, and within an A/B, nothing is inserted: their
launches are control runs of each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from perfbisect.bisect.decision import decide
from perfbisect.bisect.decision.noise import launch_variance
from perfbisect.bisect.plan import BisectPlan
from perfbisect.bisect.search_events import SEARCHING, to_search_events
from perfbisect.jobs.replay import LaunchRecord, ended_launches

_FAR = 5.0
"""Standard errors by which a control run may differ from its level: launches have heavy tails."""


@dataclass(frozen=True)
class SlotRecord:
    """``known``: launches of the slot that later ones must agree with; ``doubted``: one must agree first."""

    doubted: bool
    known: tuple[LaunchRecord, ...]

    def of(self, position: int) -> tuple[LaunchRecord, ...]:
        return tuple(launch for launch in self.known if launch.position == position)

    def control(self, plan: BisectPlan) -> LaunchRecord | None:
        """The last launch of the end that the slot knows best."""
        best = max((self.of(position) for position in (0, plan.last)), key=len)
        return best[-1] if best else None


def slot_record(records: Iterable[LaunchRecord], slot: str) -> SlotRecord:
    """A slot is doubted from a machine failure on, until a launch of a known position agreed."""
    doubted = False
    known: list[LaunchRecord] = []
    unchecked: list[LaunchRecord] = []
    for launch in ended_launches(records):
        if launch.slot != slot or launch.purpose not in SEARCHING:
            continue
        failure = launch.attempt.failure if launch.attempt else None
        if launch.discarded or (failure is not None and failure.fault == "machine"):
            doubted = bool(known)
        elif launch.end == "finished":
            unchecked.append(launch)
            doubted = doubted and launch.position not in {x.position for x in known}
            if not doubted:
                known += unchecked
                unchecked = []
    return SlotRecord(doubted, tuple(known))


def disagreement(ended: LaunchRecord, records: Sequence[LaunchRecord], plan: BisectPlan) -> str:
    """Why a launch that has just finished is discarded; empty if it counts."""
    before = [launch for launch in ended_launches(records) if launch.ended < ended.ended]
    record = slot_record(before, ended.slot)
    earlier = [x.attempt.log_value(plan.ref) for x in record.of(ended.position) if x.attempt]
    measured = {launch.position for launch in before if launch.end == "finished"}
    if ended.attempt is None or not record.doubted or not earlier or not {0, plan.last} <= measured:
        return ""
    beliefs = decide.beliefs(plan.search, to_search_events(before, plan))
    level, value = fmean(earlier), ended.attempt.log_value(plan.ref)
    error = math.sqrt(launch_variance(beliefs.sigma, beliefs.tau, len(ended.attempt.runs)))
    allowed = _FAR * error * math.sqrt(1 + 1 / len(earlier))
    if abs(value - level) <= max(allowed, math.log1p(plan.ref.metric.smallest_effect)):
        return ""
    change, unit = plan.positions[ended.position].change.short, plan.ref.metric.unit
    return (
        f"{change} measured {math.exp(level):.4g} {unit} before the machine failed and {math.exp(value):.4g} "
        f"{unit} since: the machine is not what it was"
    )
