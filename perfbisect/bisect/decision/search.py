"""Search for one step within a range whose ends differ, and its confirming A/B."""

from __future__ import annotations

import math
from dataclasses import dataclass

from perfbisect.bisect.decision import confirm
from perfbisect.bisect.decision.beliefs import Posterior, leading, parent_of, prior_weights
from perfbisect.bisect.decision.endpoints import rules_out_relevant_step
from perfbisect.bisect.decision.model import NextLaunch, Plan, Reason, SearchVerdict, Wait
from perfbisect.bisect.decision.noise import LaunchEstimate
from perfbisect.bisect.decision.posterior import compute_posterior
from perfbisect.bisect.decision.probe import probe
from perfbisect.bisect.decision.state import WORKERS, Pairs, SearchState, SlotContext

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
    """How the search of a range ended; ``trial``: the launches of the A/B that a name rests on."""

    verdict: SearchVerdict
    posterior: Posterior
    trial: tuple[LaunchEstimate, ...] = ()


def range_posterior(
    plan: Plan, data: tuple[LaunchEstimate, ...], span: tuple[int, int] | None = None
) -> Posterior | None:
    """The posterior of a range (all of it, if no span is given); None before both its ends were measured on
    slots that can be compared."""
    low, high = span or (0, plan.n)
    usable = tuple(launch for launch in data if math.isfinite(launch.offset_se))
    if not {low, high} <= {launch.index for launch in usable}:
        return None
    return compute_posterior(usable, prior_weights(plan.n, plan.prior), plan.min_effect, (low, high))


def judge_pairs(plan: Plan, state: SearchState, pairs: Pairs, span: tuple[int, int]) -> confirm.Trial:
    """Judge an A/B on its own launches, with the effect prior of the search before it."""
    made = pairs.launches
    before = range_posterior(plan, state.data[: pairs.before], span) if len(made) > 1 else None
    if before is None:
        return confirm.Trial(made, 0.0)
    return confirm.Trial(made, confirm.log_ratio(*confirm.split(made), confirm.expected(before)))


def is_inside(pairs: Pairs, span: tuple[int, int]) -> bool:
    """Whether an A/B was made within a range."""
    return all(span[0] <= launch.index <= span[1] for launch in pairs.launches)


def search(
    plan: Plan,
    state: SearchState,
    posterior: Posterior,
    span: tuple[int, int],
    context: SlotContext,
    attempts: int = MAX_FAILED_TRIALS,
) -> NextLaunch | Wait | RangeResult:
    """What the free slot launches next in a range of which ``posterior`` is the posterior; ``attempts``: A/B
    comparisons that may fail before it is given up."""
    first, last, mass = leading(posterior.p, state.skips)
    made = [pairs for pairs in state.trials if is_inside(pairs, span)]
    trials = [judge_pairs(plan, state, pairs, span) for pairs in made]
    for pairs, trial in zip(made, trials, strict=True):
        if trial.passed is None and _goes_on(pairs, state.skips) and context.will_ask_again(pairs.slot):
            if pairs.slot != context.slot:
                return Wait(f"the A/B on slot {pairs.slot} is under way")
            return _turn(pairs, state.skips)
    if any(launch.purpose == "confirm" for launch in context.within(*span)):
        return Wait("an A/B is under way")
    held = [trial for trial in trials if trial.passed and confirm.sides(trial.launches) == (first - 1, last)]
    if held and mass >= NAME_ABOVE:
        return RangeResult("found", posterior, held[-1].launches)
    if posterior.none > NOTHING_ABOVE and rules_out_relevant_step(posterior, plan.min_effect):
        return RangeResult("not reproduced", posterior)
    if sum(trial.passed is False for trial in trials) >= attempts:
        return RangeResult("too small", posterior)
    just_judged = bool(made) and not any(span[0] <= i <= span[1] for i in made[-1].since)
    if mass >= CONFIRM_ABOVE and not just_judged and not held:
        return _begin(plan, state, posterior, last, context)
    if len(context.pending) >= WORKERS:
        return Wait(f"{len(context.pending)} launches under way are as many as a search can use")
    prices = state.prices.with_builds(tuple(launch.index for launch in context.pending))
    found = probe(posterior, prices, state.skips, plan.max_runs, context.under_way)
    if found.share < MIN_SHARE:
        return Wait("the launches under way will tell nearly all that another could")
    why = Reason("most informative", bits=found.bits, minutes=found.minutes)
    return NextLaunch(found.index, found.runs, "search", why)


def _goes_on(pairs: Pairs, skips: frozenset[int]) -> bool:
    """Whether an A/B can go on: its slot has done nothing else, and its positions can be measured still."""
    return pairs.alone and not {launch.index for launch in pairs.launches} & skips


def _turn(pairs: Pairs, skips: frozenset[int]) -> NextLaunch:
    made = pairs.launches
    index = confirm.turn(parent_of(pairs.culprit, skips), pairs.culprit, len(made))
    why = Reason("pair", round=len(made) // 2 + 1)
    return NextLaunch(index, made[0].runs, "confirm", why)


def _begin(
    plan: Plan, state: SearchState, posterior: Posterior, culprit: int, context: SlotContext
) -> NextLaunch:
    """The first launch of an A/B. Where the last thing on this slot was an A/B with the same position in it,
    the parent is measured once before, so that the two can be distinguished."""
    runs = confirm.runs_for(posterior, state.prices, plan.max_runs)
    if any(
        x.alone and x.slot == context.slot and culprit in {y.index for y in x.launches} for x in state.trials
    ):
        return NextLaunch(parent_of(culprit, state.skips), runs, "search", Reason("parent before pair"))
    return NextLaunch(culprit, runs, "confirm", Reason("pair", round=1))
