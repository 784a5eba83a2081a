"""The two ends first: do they differ at all, beyond the noise?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from perfbisect.bisect.decision.beliefs import Posterior, odds_of_sizes, prior_weights
from perfbisect.bisect.decision.model import Measure, Plan, Reason, Wait, Word
from perfbisect.bisect.decision.noise import Launch, launch_variance
from perfbisect.bisect.decision.posterior import posterior
from perfbisect.bisect.decision.prices import Prices
from perfbisect.bisect.decision.state import ALONE, Crew
from perfbisect.stats.robust import quantiles

GO_ON = 0.15
"""Probability of no change below which the search begins."""

NOT_REPRODUCED = 0.95
"""... and above which there is nothing to find, from round :data:`PATIENCE` on, where :func:`excludes`
agrees."""

PATIENCE = 3

ROUNDS = 10
"""Rounds after which the ends alone will not settle it: a part of the range may still be worse than both (a
step that was half undone later), so the search looks there ..."""

WORTHWHILE = 40
"""... unless settling the step that is believed would take more launches a side than this: then it is too
small for this noise, here and in a search of as many launches that leaves open whether anything changed."""

AGAINST = 60.0
"""How far the data must speak against a step of any size before it is called absent ..."""

_RELEVANT = 2.0
"""... from this many times the smallest effect on."""

_PAIRED = 3
"""Rounds whose launches have two runs at least: the noise within a launch is seen only where there are
two."""


@dataclass(frozen=True)
class Settled:
    """The ends are done: ``word`` is empty where the search may begin."""

    word: Word | None
    state: Posterior
    needed: int = 0


def next_end(
    plan: Plan, data: tuple[Launch, ...], prices: Prices, crew: Crew = ALONE
) -> Measure | Wait | Settled:
    """The next launch of an end on the slot that asks, or what the ends told.

    Rounds of good and bad, bad and good on each slot: a drift of the machine falls on both, and each slot
    sees both ends. Every second slot begins with the bad end. Both launches of a round have the same number
    of runs.
    """
    made = [launch for launch in data if launch.slot == crew.slot]
    count = len(made)
    turn = count // 2
    begin = made[0].index if made else (0, plan.n)[crew.rank(data) % 2]
    order = (begin, plan.n - begin) if turn % 2 == 0 else (plan.n - begin, begin)
    if count % 2:
        why = Reason("end round", index=order[1], round=turn + 1)
        return Measure(order[1], made[-1].runs, "end", why)
    if not count:
        why = Reason("end round", index=order[0], round=1)
        return Measure(order[0], min(2, plan.max_runs), "end", why)
    usable = tuple(launch for launch in data if math.isfinite(launch.doubt))
    state = posterior(usable, prior_weights(plan.n, plan.prior), plan.min_effect)
    good = sum(launch.index == 0 for launch in usable)
    rounds = min(good, len(usable) - good)
    if state.none < GO_ON:
        return Settled(None, state)
    if state.none > NOT_REPRODUCED and rounds >= PATIENCE and excludes(state, plan.min_effect):
        return Settled("not reproduced", state)
    runs = prices.best_runs(state.sigma, state.tau, plan.max_runs)
    if rounds < _PAIRED:
        runs = max(runs, min(2, plan.max_runs))
    if rounds + len(crew.pending) / 2 >= ROUNDS and crew.pending:
        return Wait("the last rounds of the ends are under way")
    if rounds >= ROUNDS:
        needed = launches_needed(state, runs, plan.min_effect, rounds)
        if state.none < NOT_REPRODUCED and needed <= WORTHWHILE:
            return Settled(None, state)
        return Settled("too small", state, needed)
    why = Reason("end round", index=order[0], round=turn + 1, none=state.none)
    return Measure(order[0], runs, "end", why)


def hopeless(plan: Plan, data: tuple[Launch, ...], prices: Prices, state: Posterior) -> int:
    """Launches a side that would settle it, where a search leaves open whether anything changed and that many
    are not worth their minutes; else 0. ``state``: the posterior of ``data``."""
    if state.none < GO_ON or len(data) < WORTHWHILE:
        return 0
    runs = prices.best_runs(state.sigma, state.tau, plan.max_runs)
    needed = launches_needed(state, runs, plan.min_effect, ROUNDS)
    return needed if needed > WORTHWHILE else 0


def excludes(state: Posterior, min_effect: float) -> bool:
    """Whether the data speak against every step from :data:`_RELEVANT` times the smallest effect on.

    P(no change) alone is not enough: where the prior spreads over many sizes, it grows on data that say
    little about a step of a certain size. A likelihood ratio that is looked at after every round crosses R
    at most once in R worlds in which that step is real (Ville 1939).
    """
    edges = math.log1p(min_effect) * _RELEVANT * np.power(1.35, np.arange(9.0))
    return bool(np.max(odds_of_sizes(state, edges, min_effect)) < 1 / AGAINST)


def launches_needed(state: Posterior, runs: int, min_effect: float, made: int) -> int:
    """Launches a side that would settle a step of the size now believed (at least the smallest worth
    telling).

    With n launches a side the expected log likelihood ratio is n delta^2 / (4 s^2); about 4 is needed to
    overcome the prior of no change and of all the sizes that the step could have had.
    """
    size = max(quantiles(state.step, state.step_weight, (0.5,))[0], math.log1p(min_effect))
    variance = launch_variance(state.sigma, state.tau, runs)
    return max(made + 1, math.ceil(16 * variance / size**2))
