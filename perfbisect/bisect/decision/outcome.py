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
from perfbisect.bisect.decision.model import Beliefs, Comparison, Note, Outcome, Plan, Step, Word
from perfbisect.bisect.decision.noise import Launch, launch_variance
from perfbisect.bisect.decision.state import Story
from perfbisect.stats.robust import center, quantiles

ONE_BUILD = 0.05
"""Step below which what one build of an environment does (the winners of an autotuning, say) could pass for
it, where a single position stands on one side: scripts/calibrate.py, environment 1 %."""

SHOWN = 0.99
"""No probability of a culprit is told above this: the model is not that sure of itself."""


def relative(delta: float, sign: int) -> float:
    """A step of the signed log as a share of the value before it, positive where it is worse."""
    return math.expm1(delta) if sign > 0 else -math.expm1(-delta)


def beliefs(plan: Plan, story: Story, state: Posterior | None) -> Beliefs:
    """What is shown of a posterior; without one (an end is unmeasured) the prior, with no step and no
    noise."""
    if state is None:
        p = prior_weights(plan.n, plan.prior) * (1 - NO_CHANGE)
        first, last, mass = leading(p, story.skips)
        return Beliefs(
            p=tuple(float(v) for v in p),
            none=NO_CHANGE,
            sigma=0.0,
            tau=0.0,
            step=0.0,
            step_low=0.0,
            step_high=0.0,
            leading=tuple(range(first, last + 1)),
            leading_p=min(SHOWN, mass),
        )
    first, last, mass = leading(state.p, story.skips)
    low, high = quantiles(state.step, state.step_weight, (0.025, 0.975))
    mean = float(state.step @ state.step_weight / state.step_weight.sum())
    return Beliefs(
        p=tuple(float(v) for v in state.p),
        none=state.none,
        sigma=state.sigma,
        tau=state.tau,
        step=relative(mean, plan.sign),
        step_low=relative(low, plan.sign),
        step_high=relative(high, plan.sign),
        leading=tuple(range(first, last + 1)),
        leading_p=min(SHOWN, mass),
    )


@dataclass(frozen=True)
class Named:
    """A step that its A/B confirmed: the culprit is one of the candidates after ``parent`` up to
    ``culprit``."""

    parent: int
    culprit: int
    mass: float
    state: Posterior
    trial: tuple[Launch, ...]
    known: int
    """How many launches the bisection had when it was named."""

    def told(self, sign: int) -> Step:
        step = confirm.compare(*confirm.split(self.trial), confirm.expected(self.state), sign)
        return Step(tuple(range(self.parent + 1, self.culprit + 1)), min(SHOWN, self.mass), step)


def whole(plan: Plan, story: Story, state: Posterior) -> Comparison:
    """The change between the two ends, from every launch of theirs."""
    good = [x for x in story.usable if x.index == 0]
    bad = [x for x in story.usable if x.index == plan.n]
    return confirm.compare(good, bad, confirm.expected(state), plan.sign)


def found(plan: Plan, story: Story, state: Posterior, trial: tuple[Launch, ...]) -> Outcome:
    """The leading set, confirmed by an A/B of these launches."""
    first, last, mass = leading(state.p, story.skips)
    parent, culprit = confirm.split(trial)
    step = confirm.compare(parent, culprit, confirm.expected(state), plan.sign)
    ends = whole(plan, story, state)
    share = math.log1p(step.effect) / math.log1p(ends.effect) if ends.effect else None
    return Outcome(
        word="found",
        culprits=tuple(range(first, last + 1)),
        probability=min(SHOWN, mass),
        beliefs=beliefs(plan, story, state),
        confirmed=step,
        whole=ends,
        share=share,
        notes=(*_more_steps(story, state, step, ends), *_one_build(plan, step), *_flaps(story)),
    )


def every(
    plan: Plan, story: Story, state: Posterior, steps: Sequence[Named], notes: Sequence[Note]
) -> Outcome:
    """Every step that was named; the largest is told as the one of a bisection that asks for one."""
    told = tuple(step.told(plan.sign) for step in steps)
    largest = max(told, key=lambda step: abs(math.log1p(step.confirmed.effect)))
    ends = whole(plan, story, state)
    change = math.log1p(ends.effect)
    return Outcome(
        word="found",
        culprits=largest.culprits,
        probability=largest.probability,
        beliefs=beliefs(plan, story, state),
        confirmed=largest.confirmed,
        whole=ends,
        share=math.log1p(largest.confirmed.effect) / change if change else None,
        notes=(
            *notes,
            *(note for step in told for note in _one_build(plan, step.confirmed)),
            *_flaps(story),
        ),
        steps=told,
    )


def without_culprit(plan: Plan, story: Story, state: Posterior, word: Word, needed: int = 0) -> Outcome:
    """Not reproduced, or too small: what the ends showed, and no culprit."""
    ends = whole(plan, story, state)
    better: tuple[Note, ...] = ()
    if plan.sign * ends.effect < 0 and ends.low * ends.high > 0:
        better = (Note("ends swapped", effect=ends.effect),)
    return Outcome(
        word=word,
        culprits=(),
        probability=min(SHOWN, state.none) if word == "not reproduced" else 0.0,
        beliefs=beliefs(plan, story, state),
        whole=ends,
        notes=(*better, *_flaps(story)),
        launches_needed=needed,
    )


def unconfirmed(plan: Plan, story: Story, state: Posterior) -> Outcome:
    """The A/B has failed so often that no single change carries the step: too small at any one place."""
    _, last, mass = leading(state.p, story.skips)
    runs = max(launch.runs for launch in story.data)
    needed = launches_needed(state, runs, plan.min_effect, confirm.PAIRS)
    note = Note("not confirmed", positions=(last,), probability=min(mass, SHOWN))
    ends = without_culprit(plan, story, state, "too small", needed)
    return Outcome(
        word="too small",
        culprits=(),
        probability=0.0,
        beliefs=ends.beliefs,
        whole=ends.whole,
        notes=(note, *ends.notes),
        launches_needed=needed,
    )


def out_of_budget(plan: Plan, story: Story, state: Posterior | None) -> Outcome:
    """The minutes are spent: the leading set, which is no verdict."""
    told = beliefs(plan, story, state)
    return Outcome(
        word="out of budget",
        culprits=told.leading,
        probability=told.leading_p,
        beliefs=told,
        whole=whole(plan, story, state) if state is not None else None,
        notes=_flaps(story),
    )


def _more_steps(story: Story, state: Posterior, step: Comparison, ends: Comparison) -> tuple[Note, ...]:
    """More than one step: the culprit's is not the whole change, or a position lies between (or beyond) the
    levels."""
    odd = outliers(story, state, step.culprit)
    if step.high < ends.low or step.low > ends.high:
        return (Note("more steps", positions=odd, effect=step.effect, whole=ends.effect),)
    return (Note("more steps", positions=odd),) if odd else ()


def outliers(story: Story, state: Posterior, culprit: int) -> tuple[int, ...]:
    """Positions of at least two launches whose level is clearly neither that before nor that after the
    culprit."""
    k = int(np.searchsorted(np.array(state.at), culprit)) - 1
    low, high = float(state.low[0][k]), float(state.high[0][k])
    out = []
    for index in state.at:
        here = [x for x in story.usable if x.index == index]
        if len(here) < 2:
            continue
        error = _error(here, state)
        middle = center(np.array([x.center for x in here]))
        margin = max(3.5 * error, 0.25 * (high - low))
        if abs(middle - low) > margin and abs(middle - high) > margin:
            out.append(index)
    return tuple(out)


def _error(here: list[Launch], state: Posterior) -> float:
    runs = float(np.mean([x.runs for x in here]))
    return 1.25 * math.sqrt(launch_variance(state.sigma, state.tau, runs) / len(here))


def _one_build(plan: Plan, step: Comparison) -> tuple[Note, ...]:
    """A small step that only an end itself shows: what one build does could pass for it."""
    if abs(step.effect) >= ONE_BUILD or (step.parent > 0 and step.culprit < plan.n):
        return ()
    return (Note("one build", positions=(plan.n if step.culprit == plan.n else 0,)),)


def _flaps(story: Story) -> tuple[Note, ...]:
    return (Note("unstable ends", positions=story.flapping),) if story.flapping else ()
