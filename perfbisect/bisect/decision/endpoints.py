"""Measure the two ends first: do they differ beyond the noise?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from perfbisect.bisect.decision.beliefs import Posterior, odds_of_sizes, prior_weights
from perfbisect.bisect.decision.model import NextLaunch, Plan, Reason, SearchVerdict, Wait
from perfbisect.bisect.decision.noise import LaunchEstimate, launch_variance
from perfbisect.bisect.decision.posterior import compute_posterior
from perfbisect.bisect.decision.state import Prices, SearchState, SlotContext
from perfbisect.stats.robust import quantiles

SEARCH_BELOW = 0.15
"""Probability of no change below which the search begins."""

NO_CHANGE_ABOVE = 0.95
"""... and above which there is nothing to find, from round :data:`MIN_ROUNDS` on, where
:func:`rules_out_relevant_step` agrees."""

MIN_ROUNDS = 3

MAX_ROUNDS = 10
"""Rounds after which the ends alone will not settle it: a part of the range may still be worse than both (a
step that was half undone later), so the search looks there ..."""

MAX_LAUNCHES_NEEDED = 40
"""... unless settling the step that is believed would take more launches a side than this: then it is too
small for this noise, here and in a search of as many launches that leaves open whether anything changed."""

MIN_ODDS_AGAINST = 60.0
"""Least likelihood ratio against a step of any size before it is called absent ..."""

_RELEVANT = 2.0
"""... from this many times the smallest effect on."""

_PAIRED = 3
"""Rounds whose launches have two runs at least: the noise within a launch is seen only where there are
two."""


@dataclass(frozen=True)
class EndsResult:
    """The ends are settled; without a ``verdict`` the search may begin."""

    verdict: SearchVerdict | None
    posterior: Posterior
    needed: int = 0


def next_end(
    plan: Plan, data: tuple[LaunchEstimate, ...], prices: Prices, context: SlotContext
) -> NextLaunch | Wait | EndsResult:
    """The next launch of an end on the free slot, or the result of the ends.

    Rounds of good and bad, bad and good on each slot: a drift of the machine falls on both, and each slot
    sees both ends. Every second slot begins with the bad end. Both launches of a round have the same number
    of runs.
    """
    made = [launch for launch in data if launch.slot == context.slot]
    count = len(made)
    turn = count // 2
    begin = made[0].index if made else (0, plan.n)[context.rank(data) % 2]
    order = (begin, plan.n - begin) if turn % 2 == 0 else (plan.n - begin, begin)
    if count % 2:
        why = Reason("end round", index=order[1], round=turn + 1)
        return NextLaunch(order[1], made[-1].runs, "end", why)
    if not count:
        why = Reason("end round", index=order[0], round=1)
        return NextLaunch(order[0], min(2, plan.max_runs), "end", why)
    usable = tuple(launch for launch in data if math.isfinite(launch.offset_se))
    posterior = compute_posterior(usable, prior_weights(plan.n, plan.prior), plan.min_effect)
    good = sum(launch.index == 0 for launch in usable)
    rounds = min(good, len(usable) - good)
    if posterior.none < SEARCH_BELOW:
        return EndsResult(None, posterior)
    if shows_no_change(posterior, rounds, plan.min_effect):
        return EndsResult("not reproduced", posterior)
    runs = prices.best_runs(posterior.sigma, posterior.tau, plan.max_runs)
    if rounds < _PAIRED:
        runs = max(runs, min(2, plan.max_runs))
    if rounds + len(context.pending) / 2 >= MAX_ROUNDS and context.pending:
        return Wait("the last rounds of the ends are under way")
    if rounds >= MAX_ROUNDS:
        needed = launches_needed(posterior, runs, plan.min_effect, rounds)
        if posterior.none < NO_CHANGE_ABOVE and needed <= MAX_LAUNCHES_NEEDED:
            return EndsResult(None, posterior)
        return EndsResult("too small", posterior, needed)
    why = Reason("end round", index=order[0], round=turn + 1, none=posterior.none)
    return NextLaunch(order[0], runs, "end", why)


def is_futile(plan: Plan, state: SearchState, posterior: Posterior) -> bool:
    """Whether a search leaves open if anything changed, and settling that is not worth its minutes."""
    if posterior.none < SEARCH_BELOW or len(state.usable) < MAX_LAUNCHES_NEEDED:
        return False
    return launches_to_settle(plan, state.prices, posterior) > MAX_LAUNCHES_NEEDED


def launches_to_settle(plan: Plan, prices: Prices, posterior: Posterior) -> int:
    """Launches a side that would settle whether the ends differ."""
    runs = prices.best_runs(posterior.sigma, posterior.tau, plan.max_runs)
    return launches_needed(posterior, runs, plan.min_effect, MAX_ROUNDS)


def shows_no_change(posterior: Posterior, rounds: int, min_effect: float) -> bool:
    """Whether so many rounds of two ends settle that these do not differ."""
    return (
        posterior.none > NO_CHANGE_ABOVE
        and rounds >= MIN_ROUNDS
        and rules_out_relevant_step(posterior, min_effect)
    )


def rules_out_relevant_step(posterior: Posterior, min_effect: float) -> bool:
    """Whether the data contradict every step from :data:`_RELEVANT` times the smallest effect on.

    P(no change) alone is not enough: where the prior spreads over many sizes, it grows on data that say
    little about a step of a certain size. A likelihood ratio that is looked at after every round crosses R
    at most once in R worlds in which that step is real (Ville 1939).
    """
    edges = math.log1p(min_effect) * _RELEVANT * np.power(1.35, np.arange(9.0))
    return bool(np.max(odds_of_sizes(posterior, edges, min_effect)) < 1 / MIN_ODDS_AGAINST)


def launches_needed(posterior: Posterior, runs: int, min_effect: float, made: int) -> int:
    """Launches a side that would settle a step of the size now believed (at least the smallest worth
    telling).

    With n launches a side the expected log likelihood ratio is n delta^2 / (4 s^2); about 4 is needed to
    overcome the prior of no change and of all the sizes that the step could have had.
    """
    size = max(quantiles(posterior.step, posterior.step_weight, (0.5,))[0], math.log1p(min_effect))
    variance = launch_variance(posterior.sigma, posterior.tau, runs)
    return max(made + 1, math.ceil(16 * variance / size**2))
