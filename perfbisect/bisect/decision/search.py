"""Search for one step within a range whose ends differ, and its confirming A/B."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from perfbisect.bisect.decision import confirm
from perfbisect.bisect.decision.beliefs import Posterior, leading, parent_of
from perfbisect.bisect.decision.model import NextLaunch, Reason, SearchVerdict, Trial, Wait
from perfbisect.bisect.decision.probe import probe
from perfbisect.bisect.decision.rivals import (
    HOLDS,
    HOLDS_AT_AN_END,
    HOLDS_AT_LAST,
    STEADY,
    STEADY_AT_LAST,
    Rivals,
)
from perfbisect.bisect.decision.state import WORKERS, Pairs, SearchState, SlotContext, Span

CONFIRM_ABOVE = 0.93
"""Probability of one distinguishable set at which it is put to the A/B. Not much earlier: the A/B errs once
in twenty, so the share of wrong candidates that reach it is what is left of its guarantee."""

NAME_ABOVE = 0.995
"""Probability, the A/B's launches counted, without which nothing is named whatever the A/B says."""

NOTHING_ABOVE = 0.90
"""Probability of no change above which a search finds nothing, where
:attr:`Posterior.rules_out_relevant_step` agrees. What is left is steps too small to matter, which no number
of launches rules out."""

MAX_FAILED_TRIALS = 3
"""A/B comparisons that may fail before the bisection gives up."""

MIN_SHARE = 0.2
"""Share of the best launch's information that another one must still bring beside those under way."""


NEIGHBOURS = 6
"""Positions on each side of a suspected step whose builds are measured before the name is given up."""

NEAREST = 2
"""Of these, the positions on each side that are launched again where builds may differ ..."""

NEAREST_LAUNCHES = 4
"""... up to so many times."""

MAX_REPEATS = 8
"""Launches of a suspect and of its parent that tell a step that slows only a share of the launches."""


@dataclass(frozen=True)
class RangeResult:
    """How the search of a part ended; ``pairs``: the A/B of the suspect, with what else explains it."""

    verdict: SearchVerdict
    pairs: Pairs | None = None
    rivals: Rivals | None = None


def judge_pairs(state: SearchState, pairs: Pairs, span: Span) -> bool | None:
    """Whether an A/B confirmed its step, by its own launches and what the search before it expected."""
    made = len(pairs.paired)
    before = state.posterior(span, pairs.before) if made else None
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
        if passed is None and not pairs.over and not {pairs.parent, pairs.culprit} & skips:
            return _next_of_trial(state, posterior, pairs, context)
    trial = context.trial_in(span)
    is_new = trial is not None and all(pairs.trial != trial for pairs in made)
    if trial is not None and is_new and not {trial.parent, trial.culprit} & skips:
        count = len(state.data)
        return _next_of_trial(state, posterior, Pairs(trial, (), count, count), context)
    held = [pairs for pairs, passed in judged if passed and _is_of(pairs, first, last)]
    if held and mass >= NAME_ABOVE:
        return _name(state, posterior, span, held[-1], context)
    if trial is not None:
        return Wait("the last launches of an A/B are under way")
    if posterior.none > NOTHING_ABOVE and posterior.rules_out_relevant_step:
        return RangeResult("not reproduced")
    if sum(passed is False for _, passed in judged) >= attempts:
        return RangeResult("too small")
    just_judged = bool(made) and not any(span[0] <= i <= span[1] for i in made[-1].since)
    if mass >= CONFIRM_ABOVE and not just_judged and not held:
        return _begin(state, posterior, last)
    if len(context.pending) >= WORKERS:
        return Wait(f"{len(context.pending)} launches under way are as many as a search can use")
    prices = replace(
        state.prices.with_builds(tuple(launch.index for launch in context.pending)),
        machine=state.machines.get(context.slot, ""),
    )
    choice = probe(posterior, prices, skips, plan.max_runs, context.pending)
    if choice.share < MIN_SHARE:
        return Wait("the launches under way will tell nearly all that another could")
    why = Reason("most informative", bits=choice.bits, minutes=choice.minutes)
    return NextLaunch(choice.index, "search", choice.runs, why)


def _is_of(pairs: Pairs, first: int, last: int) -> bool:
    return (pairs.parent, pairs.culprit) == (first - 1, last)


def confirmed_suspect(state: SearchState, posterior: Posterior, span: Span) -> Pairs | None:
    """The A/B that confirmed the step of the leading set; None while that is not to be named."""
    first, last, mass = leading(posterior.p, state.skips)
    if mass < NAME_ABOVE:
        return None
    made = [pairs for pairs in state.trials if pairs.is_inside(span) and _is_of(pairs, first, last)]
    return next((pairs for pairs in reversed(made) if judge_pairs(state, pairs, span)), None)


def _name(
    state: SearchState, posterior: Posterior, span: Span, pairs: Pairs, context: SlotContext
) -> NextLaunch | Wait | RangeResult:
    """The name, or the launch that tells it from another explanation.

    The suspect and its parent again where launches may be slow at times only, and a neighbour's build where
    builds may differ by themselves.
    """
    rivals = rivals_of(state, posterior, span, pairs)
    if is_named(state, span, pairs, rivals):
        # In a fleet the last pairs run on another machine and may show that the step is not there.
        if context.running(pairs.trial) and len(set(state.machines.values())) > 1:
            return Wait("the A/B on other machines is under way")
        return RangeResult("found", pairs, rivals)
    if context.pending:
        return Wait("the launches under way come before the name")
    runs, again = pairs.launches[0].runs, next_repeat(state, pairs)
    beside = next_neighbour(state, span, pairs)
    if again is not None and rivals.with_intermittence(pairs.parent, pairs.culprit) < STEADY:
        return NextLaunch(again, "search", runs, Reason("slow at times", index=again))
    if beside is not None and rivals.with_builds(pairs.parent, pairs.culprit) < HOLDS:
        return NextLaunch(beside, "search", runs, Reason("another build", index=beside))
    return RangeResult("too small", pairs, rivals)


def rivals_of(
    state: SearchState, posterior: Posterior, span: Span, pairs: Pairs, made: int | None = None
) -> Rivals:
    """What else explains the suspected step after the first ``made`` launches.

    Where the step is clearly not the whole change of the part, there are several, and each is judged among
    its neighbours: another step is no rival of this one.
    """
    look, scale = confirm.expected(posterior), state.plan.scale
    step = confirm.compare(*pairs.sides, look, scale)
    whole = confirm.compare(state.at(span[0]), state.at(span[1]), look, scale)
    if whole.low <= step.high and step.low <= whole.high:
        return Rivals(posterior, compiles_each=state.plan.compiles_each)
    near = [x for x in posterior.at if pairs.parent - NEIGHBOURS < x < pairs.culprit + NEIGHBOURS]
    part = (near[0], near[-1])
    local = state.posterior(part, made)
    assert local is not None
    return Rivals(local, other_steps=True, compiles_each=state.plan.compiles_each)


def is_named(state: SearchState, span: Span, pairs: Pairs, rivals: Rivals) -> bool:
    """Whether a confirmed step holds against the other explanations, as far as launches can tell."""
    steady = STEADY_AT_LAST if next_repeat(state, pairs) is None else STEADY
    holds = HOLDS
    if not state.plan.compiles_each and next_neighbour(state, span, pairs) is None:
        at_an_end = pairs.parent == 0 or pairs.culprit == state.plan.n
        holds = HOLDS_AT_AN_END if at_an_end else HOLDS_AT_LAST
    return (
        rivals.with_intermittence(pairs.parent, pairs.culprit) >= steady
        and rivals.with_builds(pairs.parent, pairs.culprit) >= holds
    )


def next_repeat(state: SearchState, pairs: Pairs) -> int | None:
    """The suspect or its parent, whichever has fewer launches; None once both have enough."""
    index = min((pairs.parent, pairs.culprit), key=lambda index: len(state.at(index)))
    return index if len(state.at(index)) < MAX_REPEATS else None


def next_neighbour(state: SearchState, span: Span, pairs: Pairs) -> int | None:
    """The nearest position whose build was not measured, on the side of the suspect with fewer builds.

    Where each has compiled files of its own, then the nearest ones again: all must show one level a side.
    """
    measured = {launch.index for launch in state.usable}
    before = range(pairs.parent, max(span[0], pairs.parent - NEIGHBOURS + 1) - 1, -1)
    after = range(pairs.culprit, min(span[1], pairs.culprit + NEIGHBOURS - 1) + 1)
    for side in sorted((before, after), key=lambda side: len(measured & {*side})):
        left = [index for index in side if index not in measured | state.skips]
        if left:
            return left[0]
    if not state.plan.compiles_each:
        return None
    near = [i for i in (*before[1 : NEAREST + 1], *after[1 : NEAREST + 1]) if i not in state.skips]
    index = min(near, key=lambda i: len(state.at(i)), default=None)
    return index if index is not None and len(state.at(index)) < NEAREST_LAUNCHES else None


def _next_of_trial(
    state: SearchState, posterior: Posterior, pairs: Pairs, context: SlotContext
) -> NextLaunch | Wait:
    """What the free slot does for an undecided A/B.

    As many pairs as it is likely to need are made at once, each on one slot; then one after the other.
    """
    own, running = len(pairs.on(context.slot)), context.running(pairs.trial)
    made = Counter([launch.slot for launch in pairs.launches]) + Counter(running)
    begun = {slot: (count + 1) // 2 for slot, count in made.items()}
    half = [slot for slot, count in made.items() if count % 2 and context.will_ask_again(slot)]
    wanted = min(confirm.PAIRS, confirm.expected_pairs(posterior, pairs.trial.runs))
    if not own % 2 and (running or half) and not _is_wanted(state, begun, wanted, context.slot):
        return Wait("an A/B is under way")
    number = sum(begun.values()) + 1 - own % 2
    return _turn(pairs, context.slot, number, len(made.keys() - {context.slot}) % 2 == 1)


def _is_wanted(state: SearchState, begun: dict[str, int], wanted: float, slot: str) -> bool:
    """Whether another pair of an A/B should begin on a slot; ``begun``: those that have, by slot.

    On a fleet as many are wanted beside those of the machine that has most: the step should be seen on more
    than one machine.
    """
    if sum(begun.values()) < wanted:
        return True
    machines, count = state.machines, Counter[str]()
    for name, pairs in begun.items():
        count[machines[name]] += pairs
    most = max(count.values())
    is_fleet = len(set(machines.values())) > 1
    return is_fleet and count.total() - most < wanted and count[machines[slot]] < most


def _turn(pairs: Pairs, slot: str, number: int, parent_first: bool) -> NextLaunch:
    """The next launch of an A/B on a slot. Culprit and parent go first in turn, also from slot to slot."""
    trial, made = pairs.trial, pairs.on(slot)
    if made:
        parent_first = made[0].index == trial.parent
    turn = len(made) + 2 * parent_first
    index, other = (confirm.turn(trial.parent, trial.culprit, turn + k) for k in (0, 1))
    mate = None if len(made) % 2 else other
    return NextLaunch(index, "confirm", trial.runs, Reason("pair", round=number), mate, trial)


def _begin(state: SearchState, posterior: Posterior, culprit: int) -> NextLaunch:
    """The first launch of an A/B."""
    runs = confirm.runs_for(posterior, state.prices, state.plan.max_runs)
    trial = Trial(len(state.trials), parent_of(culprit, state.skips), culprit, runs)
    return NextLaunch(culprit, "confirm", runs, Reason("pair", round=1), trial.parent, trial)
