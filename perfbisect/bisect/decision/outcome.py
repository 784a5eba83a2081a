"""How a bisection ended: outcomes, beliefs, and the notes on them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfbisect.bisect.decision import confirm
from perfbisect.bisect.decision.beliefs import NO_CHANGE, Posterior, leading, prior_weights
from perfbisect.bisect.decision.endpoints import launches_needed
from perfbisect.bisect.decision.model import (
    Beliefs,
    Comparison,
    NamedStep,
    Note,
    Plan,
    SearchOutcome,
    SearchVerdict,
)
from perfbisect.bisect.decision.noise import LaunchEstimate, launch_variance
from perfbisect.bisect.decision.state import SearchState
from perfbisect.stats.robust import quantiles, robust_location

ONE_BUILD = 0.05
"""Step below which what one build of an environment does (the winners of an autotuning, say) could pass for
it, where a single position stands on one side: scripts/calibrate.py, environment 1 %."""

MAX_PROBABILITY = 0.99
"""No probability of a culprit is reported above this: the model is not that sure of itself."""


@dataclass(frozen=True)
class ConfirmedStep:
    """A step that its A/B confirmed: the culprit is one of those after ``parent`` up to ``culprit``."""

    parent: int
    culprit: int
    mass: float
    posterior: Posterior
    trial: tuple[LaunchEstimate, ...]
    known: int
    """How many launches the bisection had when it was named."""


def beliefs(plan: Plan, state: SearchState, posterior: Posterior | None) -> Beliefs:
    """The posterior; while an end is unmeasured the prior, with no step and no noise."""
    p = prior_weights(plan.n, plan.prior) * (1 - NO_CHANGE) if posterior is None else posterior.p
    first, last, mass = leading(p, state.skips)
    steps, noise, none = (0.0, 0.0, 0.0), (0.0, 0.0), NO_CHANGE
    if posterior is not None:
        low, high = quantiles(posterior.step, posterior.step_weight, (0.025, 0.975))
        mean = float(posterior.step @ posterior.step_weight / posterior.step_weight.sum())
        steps = (_relative(mean, plan.sign), _relative(low, plan.sign), _relative(high, plan.sign))
        noise, none = (posterior.sigma, posterior.tau), posterior.none
    return Beliefs(
        p=tuple(float(v) for v in p),
        none=none,
        sigma=noise[0],
        tau=noise[1],
        step=steps[0],
        step_low=steps[1],
        step_high=steps[2],
        leading=tuple(range(first, last + 1)),
        leading_p=min(MAX_PROBABILITY, mass),
    )


def _relative(delta: float, sign: int) -> float:
    """A step of the signed log as a share of the value before it, positive where it is worse."""
    return math.expm1(delta) if sign > 0 else -math.expm1(-delta)


def found(
    plan: Plan, state: SearchState, posterior: Posterior, trial: tuple[LaunchEstimate, ...]
) -> SearchOutcome:
    """The leading set, confirmed by an A/B of these launches."""
    first, last, mass = leading(posterior.p, state.skips)
    step = NamedStep(
        tuple(range(first, last + 1)), min(MAX_PROBABILITY, mass), _compare(plan, posterior, trial)
    )
    outcome = _named(plan, state, posterior, step, ())
    assert outcome.whole is not None
    notes = (*_more_steps(state, posterior, step.confirmed, outcome.whole), *outcome.notes)
    return replace(outcome, notes=notes)


def all_steps(
    plan: Plan,
    state: SearchState,
    posterior: Posterior,
    steps: Sequence[ConfirmedStep],
    notes: Sequence[Note],
) -> SearchOutcome:
    """Every named step; the largest stands for the one of a bisection that asks for one."""
    named = tuple(
        NamedStep(
            tuple(range(step.parent + 1, step.culprit + 1)),
            min(MAX_PROBABILITY, step.mass),
            _compare(plan, step.posterior, step.trial),
        )
        for step in steps
    )
    largest = max(named, key=lambda step: abs(math.log1p(step.confirmed.effect)))
    outcome = _named(plan, state, posterior, largest, named)
    return replace(outcome, notes=(*notes, *outcome.notes))


def _compare(plan: Plan, posterior: Posterior, trial: tuple[LaunchEstimate, ...]) -> Comparison:
    return confirm.compare(*confirm.split(trial), confirm.expected(posterior), plan.sign)


def _named(
    plan: Plan, state: SearchState, posterior: Posterior, step: NamedStep, steps: tuple[NamedStep, ...]
) -> SearchOutcome:
    whole = _whole(plan, state, posterior)
    change = math.log1p(whole.effect)
    builds = [note for x in steps or (step,) for note in _one_build(plan, x.confirmed)]
    return SearchOutcome(
        verdict="found",
        culprits=step.culprits,
        probability=step.probability,
        beliefs=beliefs(plan, state, posterior),
        confirmed=step.confirmed,
        whole=whole,
        share=math.log1p(step.confirmed.effect) / change if change else None,
        notes=(*builds, *_unstable_ends(state)),
        steps=steps,
    )


def _whole(plan: Plan, state: SearchState, posterior: Posterior) -> Comparison:
    """The change between the two ends, from all their launches."""
    good, bad = ([x for x in state.usable if x.index == end] for end in (0, plan.n))
    return confirm.compare(good, bad, confirm.expected(posterior), plan.sign)


def without_culprit(
    plan: Plan, state: SearchState, posterior: Posterior, verdict: SearchVerdict, needed: int = 0
) -> SearchOutcome:
    """Not reproduced, or too small: what the ends showed, and no culprit."""
    whole = _whole(plan, state, posterior)
    swapped = plan.sign * whole.effect < 0 and whole.low * whole.high > 0
    notes = (Note("ends swapped", effect=whole.effect),) if swapped else ()
    return SearchOutcome(
        verdict=verdict,
        culprits=(),
        probability=min(MAX_PROBABILITY, posterior.none) if verdict == "not reproduced" else 0.0,
        beliefs=beliefs(plan, state, posterior),
        whole=whole,
        notes=(*notes, *_unstable_ends(state)),
        launches_needed=needed,
    )


def unconfirmed(plan: Plan, state: SearchState, posterior: Posterior) -> SearchOutcome:
    """The A/B has failed so often that no single change carries the step: too small at any one place."""
    _, last, mass = leading(posterior.p, state.skips)
    runs = max(launch.runs for launch in state.data)
    needed = launches_needed(posterior, runs, plan.min_effect, confirm.PAIRS)
    outcome = without_culprit(plan, state, posterior, "too small", needed)
    note = Note("not confirmed", positions=(last,), probability=min(mass, MAX_PROBABILITY))
    return replace(outcome, notes=(note, *outcome.notes))


def out_of_budget(plan: Plan, state: SearchState, posterior: Posterior | None) -> SearchOutcome:
    """The minutes are spent: the leading set, which is no verdict."""
    reached = beliefs(plan, state, posterior)
    return SearchOutcome(
        verdict="out of budget",
        culprits=reached.leading,
        probability=reached.leading_p,
        beliefs=reached,
        whole=_whole(plan, state, posterior) if posterior is not None else None,
        notes=tuple(_unstable_ends(state)),
    )


def _more_steps(
    state: SearchState, posterior: Posterior, step: Comparison, whole: Comparison
) -> Iterator[Note]:
    """The culprit's step is not the whole change, or a position lies at neither level."""
    odd = _outliers(state, posterior, step.culprit)
    if step.high < whole.low or step.low > whole.high:
        yield Note("more steps", positions=odd, effect=step.effect, whole=whole.effect)
    elif odd:
        yield Note("more steps", positions=odd)


def _outliers(state: SearchState, posterior: Posterior, culprit: int) -> tuple[int, ...]:
    """Positions of at least two launches whose level is clearly neither that before nor that after it."""
    k = int(np.searchsorted(np.array(posterior.at), culprit)) - 1
    low, high = float(posterior.low[0][k]), float(posterior.high[0][k])
    out = []
    for index in posterior.at:
        launches = [x for x in state.usable if x.index == index]
        if len(launches) < 2:
            continue
        runs = float(np.mean([x.runs for x in launches]))
        error = 1.25 * math.sqrt(launch_variance(posterior.sigma, posterior.tau, runs) / len(launches))
        middle = robust_location(np.array([x.center for x in launches]))
        margin = max(3.5 * error, 0.25 * (high - low))
        if abs(middle - low) > margin and abs(middle - high) > margin:
            out.append(index)
    return tuple(out)


def _one_build(plan: Plan, step: Comparison) -> Iterator[Note]:
    """A small step that only an end itself shows: what one build does could pass for it."""
    at_end = step.parent <= 0 or step.culprit >= plan.n
    if abs(step.effect) < ONE_BUILD and at_end:
        yield Note("one build", positions=(plan.n if step.culprit == plan.n else 0,))


def _unstable_ends(state: SearchState) -> Iterator[Note]:
    if state.flapping:
        yield Note("unstable ends", positions=state.flapping)
