"""Search for one step within a range whose ends differ, and its confirming A/B."""

from __future__ import annotations

from dataclasses import dataclass

from perfbisect.bisect.decision import confirm
from perfbisect.bisect.decision.beliefs import Posterior, leading, parent_of
from perfbisect.bisect.decision.endpoints import rules_out_relevant_step
from perfbisect.bisect.decision.model import NextLaunch, Reason, SearchVerdict, Wait
from perfbisect.bisect.decision.probe import probe
from perfbisect.bisect.decision.state import WORKERS, Pairs, SearchState, SlotContext, Span

CONFIRM_ABOVE = 0.93
"""Probability of one distinguishable set at which it is put to the A/B. Not much earlier: the A/B errs once
in twenty, so the share of wrong candidates that reach it is what is left of its guarantee."""

NAME_ABOVE = 0.995
"""Probability, the A/B's launches counted, without which nothing is named whatever the A/B says."""

NOTHING_ABOVE = 0.90
"""Probability of no change above which a search finds nothing, where
:func:`rules_out_relevant_step` agrees. What is left is steps too small to matter, which no number of
launches rules out."""

MAX_FAILED_TRIALS = 3
"""A/B comparisons that may fail before the bisection gives up."""

MIN_SHARE = 0.2
"""Share of the best launch's information that another one must still bring beside those under way."""


@dataclass(frozen=True)
class RangeResult:
    """How the search of a part ended; ``pairs``: the A/B that a name rests on."""

    verdict: SearchVerdict
    pairs: Pairs | None = None


def judge_pairs(state: SearchState, pairs: Pairs, span: Span) -> bool | None:
    """Whether an A/B confirmed its step, by its own launches and what the search before it expected."""
    made = len(pairs.launches)
    before = state.posterior(span, pairs.before) if made > 1 else None
    ratio = 0.0 if before is None else confirm.log_ratio(*pairs.sides, confirm.expected(before))
    return confirm.is_confirmed(made, ratio)


def search(
    state: SearchState,
    posterior: Posterior,
    span: Span,
    context: SlotContext,
    attempts: int = MAX_FAILED_TRIALS,
) -> NextLaunch | Wait | RangeResult:
    """What the free slot launches next in a part of the history, or how its search ended.

    ``posterior``: of the part; ``attempts``: A/B comparisons that may fail before it is given up.
    """
    plan, skips = state.plan, state.skips
    first, last, mass = leading(posterior.p, skips)
    made = [pairs for pairs in state.trials if pairs.is_inside(span)]
    judged = [(pairs, judge_pairs(state, pairs, span)) for pairs in made]
    for pairs, passed in judged:
        goes_on = passed is None and pairs.alone and not pairs.positions & skips
        if goes_on and context.will_ask_again(pairs.slot):
            if pairs.slot != context.slot:
                return Wait(f"the A/B on slot {pairs.slot} is under way")
            return _turn(pairs, skips)
    if context.is_confirming(span):
        return Wait("an A/B is under way")
    held = [
        pairs for pairs, passed in judged if passed and (pairs.parent, pairs.culprit) == (first - 1, last)
    ]
    if held and mass >= NAME_ABOVE:
        return RangeResult("found", held[-1])
    if posterior.none > NOTHING_ABOVE and rules_out_relevant_step(posterior):
        return RangeResult("not reproduced")
    if sum(passed is False for _, passed in judged) >= attempts:
        return RangeResult("too small")
    just_judged = bool(made) and not any(span[0] <= i <= span[1] for i in made[-1].since)
    if mass >= CONFIRM_ABOVE and not just_judged and not held:
        return _begin(state, posterior, last, context)
    if len(context.pending) >= WORKERS:
        return Wait(f"{len(context.pending)} launches under way are as many as a search can use")
    prices = state.prices.with_builds(tuple(launch.index for launch in context.pending))
    choice = probe(posterior, prices, skips, plan.max_runs, context.under_way)
    if choice.share < MIN_SHARE:
        return Wait("the launches under way will tell nearly all that another could")
    why = Reason("most informative", bits=choice.bits, minutes=choice.minutes)
    return NextLaunch(choice.index, choice.runs, "search", why)


def _turn(pairs: Pairs, skips: frozenset[int]) -> NextLaunch:
    made = pairs.launches
    index = confirm.turn(parent_of(pairs.culprit, skips), pairs.culprit, len(made))
    why = Reason("pair", round=len(made) // 2 + 1)
    return NextLaunch(index, made[0].runs, "confirm", why)


def _begin(state: SearchState, posterior: Posterior, culprit: int, context: SlotContext) -> NextLaunch:
    """The first launch of an A/B. Where the last thing on this slot was an A/B with the same position in it,
    the parent is measured once before, so that the two can be distinguished."""
    runs = confirm.runs_for(posterior, state.prices, state.plan.max_runs)
    if any(x.alone and x.slot == context.slot and culprit in x.positions for x in state.trials):
        return NextLaunch(parent_of(culprit, state.skips), runs, "search", Reason("parent before pair"))
    return NextLaunch(culprit, runs, "confirm", Reason("pair", round=1))
