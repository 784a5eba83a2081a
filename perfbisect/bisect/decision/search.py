"""The search for one step within a range whose ends differ, and its A/B: what a free slot does next."""

from __future__ import annotations

import math
from dataclasses import dataclass

from perfbisect.bisect.decision import confirm
from perfbisect.bisect.decision.beliefs import Posterior, prior_weights
from perfbisect.bisect.decision.candidates import leading, parent_of
from perfbisect.bisect.decision.endpoints import excludes
from perfbisect.bisect.decision.model import Measure, Plan, Reason, Wait, Word
from perfbisect.bisect.decision.noise import Launch
from perfbisect.bisect.decision.posterior import posterior
from perfbisect.bisect.decision.probe import probe
from perfbisect.bisect.decision.state import WORKERS, Crew, Pairs, Story

TRIAL_AT = 0.93
"""Probability of one distinguishable set at which it is put to the A/B. Not much earlier: the A/B errs once
in twenty, so the share of wrong candidates that reach it is what is left of its guarantee."""

NAME_AT = 0.995
"""Probability, the A/B's launches counted, without which nothing is named whatever the A/B says."""

NOTHING = 0.90
"""Probability of no change above which a search finds nothing, where :func:`ends.excludes` agrees. The rest
is steps too small to matter: no number of launches rules them out."""

ATTEMPTS = 3
"""A/B comparisons that may fail before the bisection gives up."""

WORTH = 0.2
"""Share of the best launch's information that another one must still bring beside those under way."""


@dataclass(frozen=True)
class Ended:
    """How the search of a range ended; ``trial``: the launches of the A/B that a name rests on."""

    word: Word
    state: Posterior
    trial: tuple[Launch, ...] = ()


def state_of(plan: Plan, data: tuple[Launch, ...], span: tuple[int, int] | None = None) -> Posterior | None:
    """The posterior of a range (all of it, if no span is given); None before both its ends were measured on
    slots that can be compared."""
    low, high = span or (0, plan.n)
    usable = tuple(launch for launch in data if math.isfinite(launch.doubt))
    if not {low, high} <= {launch.index for launch in usable}:
        return None
    return posterior(usable, prior_weights(plan.n, plan.prior), plan.min_effect, (low, high))


def judged(plan: Plan, story: Story, pairs: Pairs, span: tuple[int, int]) -> confirm.Trial:
    """One A/B, judged on its own launches with the eyes of the search before it."""
    made = pairs.launches
    before = state_of(plan, story.data[: pairs.before], span) if len(made) > 1 else None
    if before is None:
        return confirm.Trial(made, 0.0)
    return confirm.Trial(made, confirm.log_ratio(*confirm.split(made), confirm.expected(before)))


def inside(pairs: Pairs, span: tuple[int, int]) -> bool:
    """Whether an A/B was made within a range."""
    return all(span[0] <= launch.index <= span[1] for launch in pairs.launches)


def search(
    plan: Plan,
    story: Story,
    state: Posterior,
    span: tuple[int, int],
    crew: Crew,
    attempts: int = ATTEMPTS,
) -> Measure | Wait | Ended:
    """What the free slot launches next in a range of which ``state`` is the posterior; ``attempts``: A/B
    comparisons that may fail before it is given up."""
    first, last, mass = leading(state.p, story.skips)
    made = [pairs for pairs in story.trials if inside(pairs, span)]
    trials = [judged(plan, story, pairs, span) for pairs in made]
    for pairs, trial in zip(made, trials, strict=True):
        if trial.passed is None and _goes_on(pairs, story.skips) and crew.lives(pairs.slot):
            if pairs.slot != crew.slot:
                return Wait(f"the A/B on slot {pairs.slot} is under way")
            return _turn(pairs, story.skips)
    if any(launch.purpose == "confirm" for launch in crew.within(*span)):
        return Wait("an A/B is under way")
    held = [trial for trial in trials if trial.passed and confirm.sides(trial.launches) == (first - 1, last)]
    if held and mass >= NAME_AT:
        return Ended("found", state, held[-1].launches)
    if state.none > NOTHING and excludes(state, plan.min_effect):
        return Ended("not reproduced", state)
    if sum(trial.passed is False for trial in trials) >= attempts:
        return Ended("too small", state)
    just_judged = bool(made) and not any(span[0] <= i <= span[1] for i in made[-1].since)
    if mass >= TRIAL_AT and not just_judged and not held:
        return _begin(plan, story, state, last, crew)
    if len(crew.pending) >= WORKERS:
        return Wait(f"{len(crew.pending)} launches under way are as many as a search can use")
    prices = story.prices.with_builds(tuple(launch.index for launch in crew.pending))
    found = probe(state, prices, story.skips, plan.max_runs, crew.under_way)
    if found.share < WORTH:
        return Wait("the launches under way will tell nearly all that another could")
    why = Reason("most informative", bits=found.bits, minutes=found.minutes)
    return Measure(found.index, found.runs, "search", why)


def _goes_on(pairs: Pairs, skips: frozenset[int]) -> bool:
    """Whether an A/B can go on: its slot has done nothing else, and its positions can be measured still."""
    return pairs.alone and not {launch.index for launch in pairs.launches} & skips


def _turn(pairs: Pairs, skips: frozenset[int]) -> Measure:
    made = pairs.launches
    index = confirm.turn(parent_of(pairs.culprit, skips), pairs.culprit, len(made))
    why = Reason("pair", round=len(made) // 2 + 1)
    return Measure(index, made[0].runs, "confirm", why)


def _begin(plan: Plan, story: Story, state: Posterior, culprit: int, crew: Crew) -> Measure:
    """The first launch of an A/B. Where the last thing on this slot was an A/B with the same position in it,
    the parent is measured once before, so that the two can be told apart."""
    runs = confirm.runs_for(state, story.prices, plan.max_runs)
    if any(
        x.alone and x.slot == crew.slot and culprit in {y.index for y in x.launches} for x in story.trials
    ):
        return Measure(parent_of(culprit, story.skips), runs, "search", Reason("parent before pair"))
    return Measure(culprit, runs, "confirm", Reason("pair", round=1))
