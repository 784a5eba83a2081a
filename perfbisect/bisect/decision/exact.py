"""The search of a metric without noise: one launch tells a position's level, and one pair confirms the step.

It holds while launches of one position agree. Where two differ the metric is not exact here, and the general
search goes on with the launches that were made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from perfbisect.bisect.decision.beliefs import leading, nearest, prior_weights
from perfbisect.bisect.decision.channels import exact_levels
from perfbisect.bisect.decision.model import (
    Beliefs,
    Comparison,
    NextLaunch,
    Note,
    Reason,
    SearchOutcome,
    SearchVerdict,
    Trial,
    Wait,
)
from perfbisect.bisect.decision.state import SearchState, SlotContext

_CERTAIN = 0.99
"""The probability of what one pair confirmed: no probability is reported above it."""


@dataclass(frozen=True)
class _Step:
    """The neighbours among the measured positions whose levels differ most."""

    parent: int
    culprit: int
    size: float
    """Larger is worse, on the scale of levels."""
    is_last: bool
    """No position between them can be tested."""


def next_action(state: SearchState, context: SlotContext) -> NextLaunch | Wait | SearchOutcome | None:
    """What the free slot launches next, or how the search ended; None: the metric is not exact here.

    One slot makes all launches: where another has a little more memory, that is no step.
    """
    plan, levels = state.plan, _levels(state)
    if levels is None:
        return None
    slots = [*(x.slot for x in state.data), *(x.slot for x in context.pending), context.slot]
    if slots[0] != context.slot and slots[0] in context.slots:
        return Wait("one slot makes the launches of an exact metric")
    for end in (0, plan.n):
        if end not in levels:
            return NextLaunch(end, "end", 1, Reason("end round", index=end, round=1))
    step = _step(state, levels)
    if step is None:
        for end in (0, plan.n):
            if sum(launch.index == end for launch in state.data) < 2:
                return NextLaunch(end, "end", 1, Reason("end round", index=end, round=2))
        return _outcome(state, "not reproduced", None)
    if step.size < plan.scale.room(plan.min_effect):
        return _outcome(state, "gradual", None)
    if not step.is_last:
        # The middle by the prior's weights, as far as it can be tested.
        ahead = np.cumsum(prior_weights(plan.n, plan.prior))
        aim = int(np.searchsorted(ahead, 0.5 * (ahead[step.parent] + ahead[step.culprit]) - 1e-9))
        inside = min(max(aim, step.parent + 1), step.culprit - 1)
        index = nearest(inside, step.parent, step.culprit, state.skips)
        assert index is not None
        return NextLaunch(index, "search", 1, Reason("halves", span=(step.parent, step.culprit)))
    made = {launch.index for launch in state.data if launch.purpose == "confirm"}
    if {step.parent, step.culprit} <= made:
        return _outcome(state, "found", step)
    own = (x.trial for x in state.trials if (x.parent, x.culprit) == (step.parent, step.culprit))
    trial = next(own, Trial(len(state.trials), step.parent, step.culprit, 1))
    index, mate = (step.parent, None) if step.culprit in made else (step.culprit, step.parent)
    return NextLaunch(index, "confirm", 1, Reason("pair", round=1), mate, trial)


def out_of_budget(state: SearchState) -> SearchOutcome | None:
    """What is known where the minutes are spent; None where the metric is not exact."""
    levels = _levels(state)
    if levels is None or not {0, state.plan.n} <= set(levels):
        return None
    return _outcome(state, "out of budget", _step(state, levels))


def beliefs(state: SearchState) -> Beliefs | None:
    """Where the step may be; None where the metric is not exact, or an end is not measured."""
    levels = _levels(state)
    if levels is None or not {0, state.plan.n} <= set(levels):
        return None
    return _beliefs(state, _step(state, levels))


def _levels(state: SearchState) -> Mapping[int, float] | None:
    """The level of each measured position; None where launches of one differ."""
    return exact_levels(state.data, state.plan.scale.room(state.plan.min_effect))


def _step(state: SearchState, levels: Mapping[int, float]) -> _Step | None:
    """The largest step; None where the ends differ by less than is relevant."""
    n = state.plan.n
    if levels[n] - levels[0] < state.plan.scale.room(state.plan.min_effect):
        return None
    # A position that was measured and then failed cannot be of a pair.
    at = sorted(levels.keys() - (state.skips - {0, n}))
    parent, culprit = max(pairwise(at), key=lambda step: levels[step[1]] - levels[step[0]])
    is_last = nearest(parent + 1, parent, culprit, state.skips) is None
    return _Step(parent, culprit, levels[culprit] - levels[parent], is_last)


def _outcome(state: SearchState, verdict: SearchVerdict, step: _Step | None) -> SearchOutcome:
    plan = state.plan
    whole = _compare(state, 0, plan.n)
    notes = (Note("unstable ends", positions=state.flapping),) if state.flapping else ()
    if verdict == "out of budget":
        known = _beliefs(state, step)
        return SearchOutcome(verdict, known.leading, known.leading_p, known, whole=whole, notes=notes)
    if verdict != "found" or step is None:
        swapped = -plan.sign * whole.effect >= plan.min_effect
        notes = (*((Note("ends swapped", effect=whole.effect),) if swapped else ()), *notes)
        nothing = _beliefs(state, None)
        if verdict == "gradual":
            nothing = replace(nothing, none=0.0)
        return SearchOutcome(verdict, (), _CERTAIN, nothing, whole=whole, notes=notes)
    confirmed = _compare(state, step.parent, step.culprit)
    levels = _levels(state) or {}
    size = levels[plan.n] - levels[0]
    if abs(size - step.size) > plan.scale.room(plan.min_effect):
        notes = (Note("more steps", effect=confirmed.effect, whole=whole.effect), *notes)
    culprits = tuple(range(step.parent + 1, step.culprit + 1))
    share = step.size / size
    return SearchOutcome("found", culprits, _CERTAIN, _beliefs(state, step), confirmed, whole, share, notes)


def _compare(state: SearchState, parent: int, culprit: int) -> Comparison:
    """The effect between two positions; its interval is what their launches span."""
    sides = [[x.center for x in state.data if x.index == index] for index in (parent, culprit)]
    apart = (min(sides[1]) - max(sides[0]), max(sides[1]) - min(sides[0]))
    scale = state.plan.scale
    low, high = sorted(map(scale.effect, apart))
    effect = scale.effect(float(np.mean(sides[1]) - np.mean(sides[0])))
    return Comparison(parent, culprit, effect, low, high, min(map(len, sides)))


def _beliefs(state: SearchState, step: _Step | None) -> Beliefs:
    """Equal shares, or those of the prior, between the neighbours of the step."""
    weights = prior_weights(state.plan.n, state.plan.prior)
    if step is None:
        p, size = weights * (1 - _CERTAIN), 0.0
        return Beliefs(tuple(map(float, p)), _CERTAIN, 0.0, 0.0, size, size, size, (), 0.0)
    p = np.zeros_like(weights)
    p[step.parent + 1 : step.culprit + 1] = weights[step.parent + 1 : step.culprit + 1]
    p /= p.sum()
    effect = state.plan.scale.worse(step.size)
    first, last, mass = leading(p, state.skips)
    leads = tuple(range(first, last + 1))
    return Beliefs(tuple(map(float, p)), 0.0, 0.0, 0.0, effect, effect, effect, leads, min(_CERTAIN, mass))
