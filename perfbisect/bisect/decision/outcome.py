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
    parent_of,
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
from perfbisect.bisect.decision.rivals import Rivals
from perfbisect.bisect.decision.search import confirmed_suspect, rivals_of
from perfbisect.bisect.decision.state import Pairs, SearchState
from perfbisect.stats.robust import robust_location
from perfbisect.stats.two_sample import Scale

INTERMITTENT_BELOW = 0.9
"""Share of slow launches below which a step is called intermittent."""

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
    """The least that an explanation gives it."""
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

    ``believed``: of another explanation of the launches than a plain step, where that decides.
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


def found(state: SearchState, posterior: Posterior, pairs: Pairs, rivals: Rivals) -> SearchOutcome:
    """The leading set, confirmed by an A/B."""
    probability = rivals.probability(pairs.parent, pairs.culprit)
    # The effect is that of the A/B alone: the search chose this position by its own launches, which biases
    # them.
    step = ConfirmedStep(pairs, probability, posterior, len(state.data)).named(state.plan.scale)
    outcome = _named(state, posterior, step, ())
    assert outcome.whole is not None
    more = _more_steps(state, posterior, step.confirmed, outcome.whole)
    believed = confirmed_beliefs(state, pairs, rivals)
    notes = (*_intermittent(rivals, pairs), *more, *outcome.notes)
    return replace(outcome, beliefs=believed, notes=notes)


def deciding_beliefs(state: SearchState) -> Beliefs:
    """The posterior; once an A/B confirmed the step of the leading set, by the explanation that decides."""
    posterior, span = state.whole, (0, state.plan.n)
    pairs = None if posterior is None else confirmed_suspect(state, span)
    if posterior is None or pairs is None:
        return beliefs(state)
    return confirmed_beliefs(state, pairs, rivals_of(state, posterior, span, pairs))


def confirmed_beliefs(state: SearchState, pairs: Pairs, rivals: Rivals) -> Beliefs:
    """The posterior by the explanation that gives a confirmed step the least probability."""
    # Beside other steps that explanation knows a part of the range alone.
    decides = None if rivals.other_steps else rivals.deciding(pairs.parent, pairs.culprit)
    return beliefs(state, decides)


def narrowed(state: SearchState, posterior: Posterior, pairs: Pairs, rivals: Rivals) -> SearchOutcome:
    """An A/B confirmed a step, and launches cannot tell which change made it.

    The changes that could have, by the explanation that decides; too small where that leaves open whether a
    single change did.
    """
    decides = rivals.deciding(pairs.parent, pairs.culprit)
    notes = list(_intermittent(rivals, pairs))
    if not notes:
        support = min(rivals.with_builds(pairs.parent, pairs.culprit), MAX_PROBABILITY)
        notes = [Note("builds differ", (pairs.culprit,), rivals.builds.shown_sd, probability=support)]
    confirmed = confirm.compare(*pairs.sides, confirm.expected(posterior), state.plan.scale)
    outcome = without_culprit(state, posterior, "too small", believed=decides)
    outcome = replace(outcome, confirmed=confirmed, notes=(*notes, *outcome.notes))
    if 1 - decides.p.sum() >= NO_STEP:
        return outcome
    held = credible_set(decides.p, HELD)
    probability = min(float(decides.p[list(held)].sum()), MAX_PROBABILITY)
    return replace(outcome, verdict="narrowed", culprits=held, probability=probability)


def _intermittent(rivals: Rivals, pairs: Pairs) -> Iterator[Note]:
    """That only a share of the launches from the suspect on is slow."""
    slow, made = rivals.slow_launches(pairs.culprit)
    if rivals.intermittent.share < INTERMITTENT_BELOW and slow < made:
        yield Note("intermittent", (pairs.culprit,), slow=(slow, made))


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
    decides = _deciding(state, posterior)
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
    reached = beliefs(state, _deciding(state, posterior))
    return SearchOutcome(
        verdict="out of budget",
        culprits=reached.leading,
        probability=reached.leading_p,
        beliefs=reached,
        whole=compare_ends(state, posterior, (0, state.plan.n)),
        notes=notes,
    )


def _deciding(state: SearchState, posterior: Posterior) -> Posterior:
    """The posterior by the explanation that gives the leading set the least probability."""
    first, last, _ = leading(posterior.p, state.skips)
    rivals = Rivals(posterior, compiles_each=state.plan.compiles_each)
    return rivals.deciding(parent_of(first, state.skips), last)


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
    low, high = float(posterior.low[0][k]), float(posterior.high[0][k])
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
