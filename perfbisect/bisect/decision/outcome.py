"""How a bisection ended: outcomes, beliefs, and the notes on them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfbisect.bisect.decision import confirm
from perfbisect.bisect.decision.beliefs import (
    NO_CHANGE,
    Posterior,
    credible_set,
    leading,
    prior_weights,
)
from perfbisect.bisect.decision.machines import ends_by_machine
from perfbisect.bisect.decision.model import (
    Beliefs,
    Comparison,
    NamedStep,
    Note,
    SearchOutcome,
    SearchVerdict,
)
from perfbisect.bisect.decision.search import Judgement, confirmed_suspect, judgement
from perfbisect.bisect.decision.state import Pairs, SearchState
from perfbisect.stats.robust import robust_location
from perfbisect.stats.two_sample import Scale

INTERMITTENT_BELOW = 0.9
"""Share of slow launches below which a step is called intermittent."""

SHOWN = 3.0
"""Least likelihood ratio of builds with offsets against builds without from which launches show them."""

HELD = 0.95
"""Share of the probability of a step that the commits of a narrowed range hold ..."""

NO_STEP = 0.15
"""... and the probability that no single change made the difference from which on there is no such set."""

MAX_PROBABILITY = 0.99
"""No probability of a culprit is reported above this: the model is not that sure of itself."""


@dataclass(frozen=True)
class ConfirmedStep:
    """A step that its A/B confirmed: the culprit is one of those after its parent up to its culprit."""

    pairs: Pairs
    probability: float
    posterior: Posterior
    known: int
    """How many launches the bisection had when it was named."""

    def named(self, scale: Scale) -> NamedStep:
        """The culprits, and the effect as the A/B measured it."""
        effect = confirm.compare(*self.pairs.sides, confirm.expected(self.posterior), scale)
        culprits = tuple(range(self.pairs.parent + 1, self.pairs.culprit + 1))
        return NamedStep(culprits, min(MAX_PROBABILITY, self.probability), effect)


def beliefs(state: SearchState, believed: Posterior | None = None) -> Beliefs:
    """The posterior; while an end is unmeasured the prior, with no step and no noise.

    ``believed``: that where builds may differ, where it decides.
    """
    plan, posterior = state.plan, believed or state.whole
    p = prior_weights(plan.n, plan.prior) * (1 - NO_CHANGE) if posterior is None else posterior.p
    first, last, mass = leading(p, state.skips)
    steps, noise, none = (0.0, 0.0, 0.0), (0.0, 0.0), NO_CHANGE
    if posterior is not None:
        low, high = posterior.step_quantiles(0.025, 0.975)
        mean = float(posterior.step @ posterior.step_weight / posterior.step_weight.sum())
        steps = (plan.scale.worse(mean), plan.scale.worse(low), plan.scale.worse(high))
        noise, none = (posterior.sigma, posterior.tau), posterior.none
    leading_set = tuple(range(first, last + 1))
    return Beliefs(tuple(map(float, p)), none, *noise, *steps, leading_set, min(MAX_PROBABILITY, mass))


def found(state: SearchState, posterior: Posterior, pairs: Pairs, judged_by: Judgement) -> SearchOutcome:
    """The leading set, confirmed by an A/B."""
    probability = judged_by.probability(pairs)
    # The effect is that of the A/B alone: the search chose this position by its own launches, which biases
    # them.
    step = ConfirmedStep(pairs, probability, posterior, len(state.data)).named(state.plan.scale)
    outcome = _named(state, posterior, step, ())
    assert outcome.whole is not None
    more = _more_steps(state, posterior, step.confirmed, outcome.whole)
    believed = confirmed_beliefs(state, judged_by)
    notes = (*_intermittent(judged_by, pairs), *more, *outcome.notes)
    return replace(outcome, beliefs=believed, notes=notes)


def deciding_beliefs(state: SearchState) -> Beliefs:
    """The posterior; once an A/B confirmed a step, that where builds may differ."""
    posterior, span = state.whole, (0, state.plan.n)
    pairs = None if posterior is None else confirmed_suspect(state, span)
    if posterior is None or pairs is None:
        return beliefs(state)
    return confirmed_beliefs(state, judgement(state, posterior, span, pairs))


def confirmed_beliefs(state: SearchState, judged_by: Judgement) -> Beliefs:
    """What all launches say where a step is confirmed."""
    # Beside other steps that knows a part of the range alone.
    return beliefs(state, None if judged_by.other_steps else judged_by.posterior)


def narrowed(state: SearchState, posterior: Posterior, pairs: Pairs, judged_by: Judgement) -> SearchOutcome:
    """An A/B confirmed a step, and launches cannot tell which change made it.

    The changes that could have; too small where it is open whether a single change did.
    """
    decides = judged_by.posterior
    notes = list(_intermittent(judged_by, pairs))
    if not notes:
        support = min(judged_by.probability(pairs), MAX_PROBABILITY)
        shown = decides.build_sd if decides.build_ratio >= SHOWN else None
        notes = [Note("builds differ", (pairs.culprit,), shown, probability=support)]
    confirmed = confirm.compare(*pairs.sides, confirm.expected(posterior), state.plan.scale)
    outcome = without_culprit(state, posterior, "too small", believed=decides)
    outcome = replace(outcome, confirmed=confirmed, notes=(*notes, *outcome.notes))
    if 1 - decides.p.sum() >= NO_STEP:
        return outcome
    held = credible_set(decides.p, HELD)
    probability = min(float(decides.p[list(held)].sum()), MAX_PROBABILITY)
    return replace(outcome, verdict="narrowed", culprits=held, probability=probability)


def _intermittent(judged_by: Judgement, pairs: Pairs) -> Iterator[Note]:
    """That only a share of the launches from the suspect on is slow."""
    seen = judged_by.posterior
    slow = [p > 0.5 for p, x in zip(seen.slow, seen.data, strict=True) if x.index >= pairs.culprit]
    if seen.slow_share < INTERMITTENT_BELOW and not all(slow):
        yield Note("intermittent", (pairs.culprit,), slow=(sum(map(bool, slow)), len(slow)))


def all_steps(
    state: SearchState, posterior: Posterior, steps: Sequence[ConfirmedStep], notes: Sequence[Note]
) -> SearchOutcome:
    """Every named step; the largest stands for the one of a bisection that asks for one."""
    named = tuple(step.named(state.plan.scale) for step in steps)
    scale = state.plan.scale
    largest = max(named, key=lambda step: abs(scale.difference(step.confirmed.effect)))
    outcome = _named(state, posterior, largest, named)
    return replace(outcome, beliefs=deciding_beliefs(state), notes=(*notes, *outcome.notes))


def _named(
    state: SearchState, posterior: Posterior, step: NamedStep, steps: tuple[NamedStep, ...]
) -> SearchOutcome:
    whole = compare_ends(state, posterior, (0, state.plan.n))
    change = state.plan.scale.difference(whole.effect)
    builds = [note for x in steps or (step,) for note in _one_build(state, x.confirmed)]
    return SearchOutcome(
        verdict="found",
        culprits=step.culprits,
        probability=step.probability,
        beliefs=beliefs(state),
        confirmed=step.confirmed,
        whole=whole,
        share=state.plan.scale.difference(step.confirmed.effect) / change if change else None,
        notes=(*builds, *_unstable_ends(state)),
        steps=steps,
    )


def compare_ends(state: SearchState, posterior: Posterior, span: tuple[int, int]) -> Comparison:
    """The change between the ends of a part of the history, from all their launches."""
    low, high = map(state.at, span)
    return confirm.compare(low, high, confirm.expected(posterior), state.plan.scale)


def without_culprit(
    state: SearchState,
    posterior: Posterior,
    verdict: SearchVerdict,
    needed: int = 0,
    believed: Posterior | None = None,
) -> SearchOutcome:
    """What the ends showed, and no culprit; ``believed``: as of :func:`beliefs`."""
    told = {"not reproduced": posterior.none, "gradual": believed.slope if believed else 0.0}
    whole = compare_ends(state, posterior, (0, state.plan.n))
    swapped = state.plan.sign * whole.effect < 0 and whole.low * whole.high > 0
    notes = (Note("ends swapped", effect=whole.effect),) if swapped else ()
    return SearchOutcome(
        verdict=verdict,
        culprits=(),
        probability=min(MAX_PROBABILITY, told.get(verdict, 0.0)),
        beliefs=beliefs(state, believed),
        whole=whole,
        notes=(*notes, *_one_machine(state), *_unstable_ends(state)),
        launches_needed=needed,
    )


def no_step(state: SearchState, posterior: Posterior) -> SearchOutcome:
    """Not reproduced where the whole change is below the smallest effect on every machine, else too small."""
    outcome = without_culprit(state, posterior, "not reproduced")
    assert outcome.whole is not None
    worst = outcome.whole.high if state.plan.sign > 0 else -outcome.whole.low
    somewhere = any(note.kind == "ends differ on one machine" for note in outcome.notes)
    # The end of the interval, not the estimate: a range that may still hold a relevant step is not cleared.
    if worst < state.plan.min_effect and not somewhere:
        return outcome
    needed = posterior.launches_needed(max(launch.runs for launch in state.data), outcome.whole.launches)
    return replace(outcome, verdict="too small", probability=0.0, launches_needed=needed)


def unconfirmed(state: SearchState, posterior: Posterior) -> SearchOutcome:
    """The A/B has failed so often that no single change carries the step: too small at any one place."""
    decides = state.explain(posterior)
    _, last, mass = leading(decides.p, state.skips)
    needed = posterior.launches_needed(max(launch.runs for launch in state.data), confirm.PAIRS)
    outcome = without_culprit(state, posterior, "too small", needed, decides)
    note = Note("not confirmed", positions=(last,), probability=min(mass, MAX_PROBABILITY))
    return replace(outcome, notes=(note, *outcome.notes))


def out_of_budget(state: SearchState) -> SearchOutcome:
    """The minutes are spent: the leading set, which is no verdict; none before both ends were measured."""
    posterior, notes = state.whole, (*_one_machine(state), *_unstable_ends(state))
    if posterior is None:
        return SearchOutcome("out of budget", (), 0.0, None, notes=notes)
    reached = beliefs(state, state.explain(posterior))
    return SearchOutcome(
        verdict="out of budget",
        culprits=reached.leading,
        probability=reached.leading_p,
        beliefs=reached,
        whole=compare_ends(state, posterior, (0, state.plan.n)),
        notes=notes,
    )


def _one_machine(state: SearchState) -> Iterator[Note]:
    """That the ends differ on one machine of a fleet alone."""
    scale = state.plan.scale
    for ends in ends_by_machine(state.usable, state.plan.n, state.plan.relative_effect):
        if ends.is_told:
            there, elsewhere = (scale.effect(math.log1p(x.effect)) for x in (ends.there, ends.elsewhere))
            machines = (ends.machine, *ends.others)
            positions = (0, state.plan.n)
            yield Note(
                "ends differ on one machine", positions, effect=there, whole=elsewhere, machines=machines
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
    levels = posterior.levels_of(np.array([culprit]))[0][0]
    low, high = float(levels[k]), float(levels[k + len(posterior.gaps)])
    out = []
    for index in posterior.at:
        launches = state.at(index)
        if len(launches) < 2:
            continue
        runs = float(np.mean([x.runs for x in launches]))
        # The standard error of a median is sqrt(pi / 2) = 1.2533 times that of a mean.
        error = 1.25 * math.sqrt(posterior.launch_variance(runs) / len(launches))
        middle = robust_location(np.array([x.center for x in launches]))
        # Among many positions some lie 3 errors off by chance; and a value near a level is not a third level.
        margin = max(3.5 * error, 0.25 * (high - low))
        if abs(middle - low) > margin and abs(middle - high) > margin:
            out.append(index)
    return tuple(out)


def _one_build(state: SearchState, step: Comparison) -> Iterator[Note]:
    """That one side of a step was seen in one build only, whose own offset could pass for it."""
    builds = {launch.index for launch in state.usable}
    for side in (
        {index for index in builds if index <= step.parent},
        {index for index in builds if index >= step.culprit},
    ):
        if len(side) == 1:
            yield Note("one build", positions=tuple(side))


def _unstable_ends(state: SearchState) -> Iterator[Note]:
    if state.flapping:
        yield Note("unstable ends", positions=state.flapping)
