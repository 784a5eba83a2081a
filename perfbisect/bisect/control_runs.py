"""After a failure of the machine: is a slot what it was? A change of known level is measured again first.

The rule: a launch that the machine failed is waited out. The next launch on that slot that has a level to be
held against (one that the slot measured before the failure) must agree with it; until one has, no new
position is measured there, but an anchor: the end of the range with the most launches on that slot. One
that does not agree is void like the failed launch itself, and the slot is waited for again. While the ends
are settled, and within an A/B, nothing is inserted: their launches are anchors of each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from perfbisect.bisect.decision import decide
from perfbisect.bisect.decision.noise import launch_variance
from perfbisect.bisect.plan import BisectPlan
from perfbisect.bisect.projection import SEARCHING, project
from perfbisect.jobs.replay import LaunchRecord, ended_launches

_FAR = 5.0
"""Standard errors by which an anchor may differ from its level: launches have heavy tails."""


@dataclass(frozen=True)
class Standing:
    """What a slot's past says of it: ``known``, the launches that later ones can be held against."""

    doubted: bool
    known: tuple[LaunchRecord, ...]

    def of(self, position: int) -> tuple[LaunchRecord, ...]:
        """The known launches of a position."""
        return tuple(launch for launch in self.known if launch.position == position)

    def anchor(self, plan: BisectPlan) -> LaunchRecord | None:
        """The last launch of the end that the slot knows best; None if it knows neither."""
        best = max((self.of(position) for position in (0, plan.last)), key=len)
        return best[-1] if best else None


def standing(seen: Iterable[LaunchRecord], slot: str) -> Standing:
    """A slot is doubted once the machine failed on it, until a launch of a known position agreed."""
    doubt = False
    known: list[LaunchRecord] = []
    aside: list[LaunchRecord] = []
    for launch in ended_launches(seen):
        if launch.slot != slot or launch.purpose not in SEARCHING:
            continue
        if _failed_by_machine(launch):
            doubt = bool(known)
        elif launch.end == "finished":
            aside.append(launch)
            doubt = doubt and launch.position not in {x.position for x in known}
            if not doubt:
                known += aside
                aside = []
    return Standing(doubt, tuple(known))


def disagreement(ended: LaunchRecord, seen: Sequence[LaunchRecord], plan: BisectPlan) -> str:
    """Why a launch that has just finished is void; empty where it is not, or nothing can be said."""
    before = [launch for launch in ended_launches(seen) if launch.ended < ended.ended]
    slot = standing(before, ended.slot)
    earlier = [x.attempt.log_value(plan.ref) for x in slot.of(ended.position) if x.attempt]
    measured = {launch.position for launch in before if launch.end == "finished"}
    if ended.attempt is None or not slot.doubted or not earlier or not {0, plan.last} <= measured:
        return ""
    beliefs = decide.beliefs(plan.question, project(before, plan))
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


def _failed_by_machine(launch: LaunchRecord) -> bool:
    failure = launch.attempt.failure if launch.attempt else None
    return launch.discarded or (failure is not None and failure.fault == "machine")
