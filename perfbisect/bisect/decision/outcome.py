"""How a bisection ended: outcomes, beliefs, the notes of what else a reader must know."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfbisect.bisect.decision import confirm
from perfbisect.bisect.decision.beliefs import NO_CHANGE, Posterior, prior_weights
from perfbisect.bisect.decision.candidates import leading
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
"""No probability of a culprit is told above this: the model is not that sure of itself."""


def relative(delta: float, sign: int) -> float:
    """A step of the signed log as a share of the value before it, positive where it is worse."""
    return math.expm1(delta) if sign > 0 else -math.expm1(-delta)


def beliefs(plan: Plan, state: SearchState, posterior: Posterior | None) -> Beliefs:
    """What is shown of a posterior; without one (an end is unmeasured) the prior, with no step and no
    noise."""
    if posterior is None:
        p = prior_weights(plan.n, plan.prior) * (1 - NO_CHANGE)
        first, last, mass = leading(p, state.skips)
        return Beliefs(
            p=tuple(float(v) for v in p),
            none=NO_CHANGE,
            sigma=0.0,
            tau=0.0,
            step=0.0,
            step_low=0.0,
            step_high=0.0,
            leading=tuple(range(first, last + 1)),
            leading_p=min(MAX_PROBABILITY, mass),
        )
    first, last, mass = leading(posterior.p, state.skips)
    low, high = quantiles(posterior.step, posterior.step_weight, (0.025, 0.975))
    mean = float(posterior.step @ posterior.step_weight / posterior.step_weight.sum())
    return Beliefs(
        p=tuple(float(v) for v in posterior.p),
        none=posterior.none,
        sigma=posterior.sigma,
        tau=posterior.tau,
        step=relative(mean, plan.sign),
        step_low=relative(low, plan.sign),
        step_high=relative(high, plan.sign),
        leading=tuple(range(first, last + 1)),
        leading_p=min(MAX_PROBABILITY, mass),
    )


@dataclass(frozen=True)
class ConfirmedStep:
    """A step that its A/B confirmed: the culprit is one of the candidates after ``parent`` up to
    ``culprit``."""

    parent: int
    culprit: int
    mass: float
    posterior: Posterior
    trial: tuple[LaunchEstimate, ...]
    known: int
    """How many launches the bisection had when it was named."""

    def told(self, sign: int) -> NamedStep:
        step = confirm.compare(*confirm.split(self.trial), confirm.expected(self.posterior), sign)
        return NamedStep(
            tuple(range(self.parent + 1, self.culprit + 1)), min(MAX_PROBABILITY, self.mass), step
        )


def whole(plan: Plan, state: SearchState, posterior: Posterior) -> Comparison:
    """The change between the two ends, from every launch of theirs."""
    good = [x for x in state.usable if x.index == 0]
    bad = [x for x in state.usable if x.index == plan.n]
    return confirm.compare(good, bad, confirm.expected(posterior), plan.sign)


def found(
    plan: Plan, state: SearchState, posterior: Posterior, trial: tuple[LaunchEstimate, ...]
) -> SearchOutcome:
    """The leading set, confirmed by an A/B of these launches."""
    first, last, mass = leading(posterior.p, state.skips)
    parent, culprit = confirm.split(trial)
    step = confirm.compare(parent, culprit, confirm.expected(posterior), plan.sign)
    ends = whole(plan, state, posterior)
    share = math.log1p(step.effect) / math.log1p(ends.effect) if ends.effect else None
    return SearchOutcome(
        verdict="found",
        culprits=tuple(range(first, last + 1)),
        probability=min(MAX_PROBABILITY, mass),
        beliefs=beliefs(plan, state, posterior),
        confirmed=step,
        whole=ends,
        share=share,
        notes=(*_more_steps(state, posterior, step, ends), *_one_build(plan, step), *_flaps(state)),
    )


def all_steps(
    plan: Plan,
    state: SearchState,
    posterior: Posterior,
    steps: Sequence[ConfirmedStep],
    notes: Sequence[Note],
) -> SearchOutcome:
    """Every step that was named; the largest is told as the one of a bisection that asks for one."""
    told = tuple(step.told(plan.sign) for step in steps)
    largest = max(told, key=lambda step: abs(math.log1p(step.confirmed.effect)))
    ends = whole(plan, state, posterior)
    change = math.log1p(ends.effect)
    return SearchOutcome(
        verdict="found",
        culprits=largest.culprits,
        probability=largest.probability,
        beliefs=beliefs(plan, state, posterior),
        confirmed=largest.confirmed,
        whole=ends,
        share=math.log1p(largest.confirmed.effect) / change if change else None,
        notes=(
            *notes,
            *(note for step in told for note in _one_build(plan, step.confirmed)),
            *_flaps(state),
        ),
        steps=told,
    )


def without_culprit(
    plan: Plan, state: SearchState, posterior: Posterior, verdict: SearchVerdict, needed: int = 0
) -> SearchOutcome:
    """Not reproduced, or too small: what the ends showed, and no culprit."""
    ends = whole(plan, state, posterior)
    better: tuple[Note, ...] = ()
    if plan.sign * ends.effect < 0 and ends.low * ends.high > 0:
        better = (Note("ends swapped", effect=ends.effect),)
    return SearchOutcome(
        verdict=verdict,
        culprits=(),
        probability=min(MAX_PROBABILITY, posterior.none) if verdict == "not reproduced" else 0.0,
        beliefs=beliefs(plan, state, posterior),
        whole=ends,
        notes=(*better, *_flaps(state)),
        launches_needed=needed,
    )


def unconfirmed(plan: Plan, state: SearchState, posterior: Posterior) -> SearchOutcome:
    """The A/B has failed so often that no single change carries the step: too small at any one place."""
    _, last, mass = leading(posterior.p, state.skips)
    runs = max(launch.runs for launch in state.data)
    needed = launches_needed(posterior, runs, plan.min_effect, confirm.PAIRS)
    note = Note("not confirmed", positions=(last,), probability=min(mass, MAX_PROBABILITY))
    ends = without_culprit(plan, state, posterior, "too small", needed)
    return SearchOutcome(
        verdict="too small",
        culprits=(),
        probability=0.0,
        beliefs=ends.beliefs,
        whole=ends.whole,
        notes=(note, *ends.notes),
        launches_needed=needed,
    )


def out_of_budget(plan: Plan, state: SearchState, posterior: Posterior | None) -> SearchOutcome:
    """The minutes are spent: the leading set, which is no verdict."""
    told = beliefs(plan, state, posterior)
    return SearchOutcome(
        verdict="out of budget",
        culprits=told.leading,
        probability=told.leading_p,
        beliefs=told,
        whole=whole(plan, state, posterior) if posterior is not None else None,
        notes=_flaps(state),
    )


def _more_steps(
    state: SearchState, posterior: Posterior, step: Comparison, ends: Comparison
) -> tuple[Note, ...]:
    """More than one step: the culprit's is not the whole change, or a position lies between (or beyond) the
    levels."""
    odd = outliers(state, posterior, step.culprit)
    if step.high < ends.low or step.low > ends.high:
        return (Note("more steps", positions=odd, effect=step.effect, whole=ends.effect),)
    return (Note("more steps", positions=odd),) if odd else ()


def outliers(state: SearchState, posterior: Posterior, culprit: int) -> tuple[int, ...]:
    """Positions of at least two launches whose level is clearly neither that before nor that after the
    culprit."""
    k = int(np.searchsorted(np.array(posterior.at), culprit)) - 1
    low, high = float(posterior.low[0][k]), float(posterior.high[0][k])
    out = []
    for index in posterior.at:
        here = [x for x in state.usable if x.index == index]
        if len(here) < 2:
            continue
        error = _error(here, posterior)
        middle = robust_location(np.array([x.center for x in here]))
        margin = max(3.5 * error, 0.25 * (high - low))
        if abs(middle - low) > margin and abs(middle - high) > margin:
            out.append(index)
    return tuple(out)


def _error(here: list[LaunchEstimate], posterior: Posterior) -> float:
    runs = float(np.mean([x.runs for x in here]))
    return 1.25 * math.sqrt(launch_variance(posterior.sigma, posterior.tau, runs) / len(here))


def _one_build(plan: Plan, step: Comparison) -> tuple[Note, ...]:
    """A small step that only an end itself shows: what one build does could pass for it."""
    if abs(step.effect) >= ONE_BUILD or (step.parent > 0 and step.culprit < plan.n):
        return ()
    return (Note("one build", positions=(plan.n if step.culprit == plan.n else 0,)),)


def _flaps(state: SearchState) -> tuple[Note, ...]:
    return (Note("unstable ends", positions=state.flapping),) if state.flapping else ()
