"""Search for one step within a range whose ends differ, and its confirming A/B."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from perfbisect.bisect.decision import confirm
from perfbisect.bisect.decision.beliefs import Posterior, leading
from perfbisect.bisect.decision.model import (
    NextLaunch,
    Reason,
    ReasonKind,
    SearchVerdict,
    Trial,
    Wait,
)
from perfbisect.bisect.decision.probe import probe
from perfbisect.bisect.decision.state import WORKERS, Pairs, SearchState, SlotContext, Span

HOLDS = 0.97
"""Probability, where builds may differ, without which a step is not named ..."""

STEADY = 0.998
"""... or this one, of a sharp step, which may slow only a share of the launches, until both sides have
:data:`MAX_REPEATS` launches."""

CONFIRM_ABOVE = 0.93
"""Probability of one distinguishable set at which it is put to the A/B. Not much earlier: the A/B errs once
in twenty, so the share of wrong candidates that reach it is what is left of its guarantee."""

NAME_ABOVE = 0.995
"""Probability of a confirmed step where builds are alike, from which on the search reckons with builds that
differ. Before, it would spend its launches on what builds differ by far from the step."""

NOTHING_ABOVE = 0.90
"""Probability of no change above which a search finds nothing, where
:attr:`Posterior.rules_out_relevant_step` agrees. What is left is steps too small to matter, which no number
of launches rules out."""

MAX_FAILED_TRIALS = 3
"""A/B comparisons that may fail before the bisection gives up."""

MIN_SHARE = 0.2
"""Share of the best launch's information that another one must still bring beside those under way."""


NEIGHBOURS = 6
"""Positions on each side of a suspected step that are looked at with it where there are other steps."""

MAX_LAUNCHES = 40
"""Launches of the search after its first confirmed A/B, after which it ends."""

MAX_REPEATS = 8
"""Launches of a suspect and of its parent that tell a step that slows only a share of the launches."""


@dataclass(frozen=True)
class Judgement:
    """What all launches say of confirmed steps, where builds may differ and a step slow only some launches.

    ``other_steps``: whether other steps of the part are known, which are no rivals of this one; then
    ``posterior`` is of its neighbours alone.
    """

    posterior: Posterior
    other_steps: bool = False

    def probability(self, pairs: Pairs) -> float:
        """Of the step of an A/B."""
        own = self.posterior.inside(pairs.parent, pairs.culprit)
        return own / (own + 1 - float(self.posterior.gaps.sum())) if self.other_steps else own


@dataclass(frozen=True)
class RangeResult:
    """How the search of a part ended; ``pairs``: the A/B of the suspect, with what all launches say of it."""

    verdict: SearchVerdict
    pairs: Pairs | None = None
    judgement: Judgement | None = None


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
    sloping: Posterior | None = None,
) -> NextLaunch | Wait | RangeResult:
    """What the free slot launches next in a part of the history, or how its search ended.

    ``posterior``: of the part; ``attempts``: A/B comparisons that may fail before it is given up;
    ``sloping``: the posterior with a slope, where that is to be told from a step first.
    """
    made = [pairs for pairs in state.trials if pairs.is_inside(span)]
    judged = [(pairs, judge_pairs(state, pairs, span)) for pairs in made]
    trial = context.trial_in(span)
    begun = _unfinished(state, judged, trial)
    if begun is not None:
        return _next_of_trial(state, posterior, begun, context)
    if sloping is not None:
        return _probe(state, sloping, context)
    passed = [pairs for pairs, is_passed in judged if is_passed]
    first, last, mass = leading(posterior.p, state.skips)
    suspect = _of(passed, first, last)
    believed, judged_by = posterior, None
    if suspect is not None and mass >= NAME_ABOVE:
        # A confirmed step may be that of one build: the search goes on as if builds differed.
        judged_by = judgement(state, posterior, span, suspect)
        believed = judged_by.posterior
        if not judged_by.other_steps:
            first, last, mass = leading(believed.p, state.skips)
    held = _of(passed, first, last)
    if held is not None and judged_by is not None and is_named(state, held, judged_by):
        # In a fleet the last pairs run on another machine and may show that the step is not there.
        if context.running(held.trial) and len(set(state.machines.values())) > 1:
            return Wait("the A/B on other machines is under way")
        return RangeResult("found", held, judged_by)
    if trial is not None:
        return Wait("the last launches of an A/B are under way")
    nothing = believed.none > NOTHING_ABOVE and believed.rules_out_relevant_step
    if nothing and judged_by is None:
        return RangeResult("not reproduced")
    is_enough = judged_by is not None and _looked(state, span, passed[0]) >= MAX_LAUNCHES
    if nothing or is_enough or sum(is_passed is False for _, is_passed in judged) >= attempts:
        return RangeResult("too small", suspect, judged_by)
    just_judged = bool(made) and not any(span[0] <= i <= span[1] for i in made[-1].since)
    if mass >= CONFIRM_ABOVE and held is None and not just_judged:
        runs = confirm.runs_for(believed, state.prices, state.plan.max_runs)
        trial = Trial(len(state.trials), first - 1, last, runs)
        return NextLaunch(last, "confirm", runs, Reason("pair", round=1), trial.parent, trial)
    more = None if held is None or judged_by is None else _beside(state, span, held, judged_by, context)
    return more or _probe(state, believed, context)


def _unfinished(
    state: SearchState, judged: list[tuple[Pairs, bool | None]], trial: Trial | None
) -> Pairs | None:
    """The A/B that is to be continued: one that has decided nothing, or ``trial``, which has just begun."""
    undecided = (pairs for pairs, is_passed in judged if is_passed is None and not pairs.over)
    new = trial is not None and all(pairs.trial != trial for pairs, _ in judged)
    count = len(state.data)
    begun = [Pairs(trial, (), count, count)] if trial is not None and new else []
    return next((x for x in (*undecided, *begun) if not {x.parent, x.culprit} & state.skips), None)


def _beside(
    state: SearchState, span: Span, held: Pairs, judged_by: Judgement, context: SlotContext
) -> NextLaunch | Wait | RangeResult | None:
    """What a confirmed step still needs before it is named, beside the most informative launches."""
    index = next_repeat(state, held)
    why: ReasonKind = "slow at times"
    if index is None or not judged_by.posterior.is_sharp or judged_by.probability(held) >= STEADY:
        if not judged_by.other_steps:
            return None
        # No hypothesis here is of two steps: nearer builds, not likelier ones, where fewer were launched.
        measured = {launch.index for launch in state.usable}
        before = range(held.parent - 1, max(span[0] - 1, held.parent - NEIGHBOURS), -1)
        after = range(held.culprit + 1, min(span[1] + 1, held.culprit + NEIGHBOURS))
        sides = sorted((before, after), key=lambda side: len(measured & {*side}))
        index = next((x for side in sides for x in side if x not in measured | state.skips), None)
        why = "another build"
    if index is None:
        return _alone(context) or RangeResult("too small", held, judged_by)
    return _alone(context) or NextLaunch(index, "search", held.launches[0].runs, Reason(why, index=index))


def _alone(context: SlotContext) -> Wait | None:
    """To wait while anything is under way."""
    return Wait("the launches under way come before the name") if context.pending else None


def _probe(state: SearchState, posterior: Posterior, context: SlotContext) -> NextLaunch | Wait:
    """The launch that tells most about the place of the step."""
    if len(context.pending) >= WORKERS:
        return Wait(f"{len(context.pending)} launches under way are as many as a search can use")
    prices = replace(
        state.prices.with_builds(tuple(launch.index for launch in context.pending)),
        machine=state.machines.get(context.slot, ""),
    )
    choice = probe(posterior, prices, state.skips, state.plan.max_runs, context.pending)
    if choice.share < MIN_SHARE:
        return Wait("the launches under way will tell nearly all that another could")
    why = Reason("most informative", bits=choice.bits, minutes=choice.minutes)
    return NextLaunch(choice.index, "search", choice.runs, why)


def _looked(state: SearchState, span: Span, pairs: Pairs) -> int:
    """How many launches were made for the search of a part since an A/B, less repeats of its two sides."""
    since = [launch.index for launch in state.data[pairs.after :] if launch.purpose == "search"]
    sides = (pairs.parent, pairs.culprit)
    repeats = sum(min(since.count(side), MAX_REPEATS) for side in sides)
    return sum(span[0] <= index <= span[1] for index in since) - repeats


def _of(passed: list[Pairs], first: int, last: int) -> Pairs | None:
    """The last of these A/Bs that is of the set from ``first`` to ``last``."""
    return next((x for x in reversed(passed) if (x.parent, x.culprit) == (first - 1, last)), None)


def confirmed_suspect(state: SearchState, span: Span) -> Pairs | None:
    """The last A/B of a part that confirmed its step."""
    made = [pairs for pairs in state.trials if pairs.is_inside(span)]
    return next((pairs for pairs in reversed(made) if judge_pairs(state, pairs, span)), None)


def judgement(
    state: SearchState, posterior: Posterior, span: Span, pairs: Pairs, made: int | None = None
) -> Judgement:
    """What the first ``made`` launches say of a confirmed step.

    Where the step is clearly not the whole change of the part, there are several, and each is judged among
    its neighbours: another step is no rival of this one.
    """
    look, scale = confirm.expected(posterior), state.plan.scale
    step = confirm.compare(*pairs.sides, look, scale)
    whole = confirm.compare(state.at(span[0]), state.at(span[1]), look, scale)
    if whole.low <= step.high and step.low <= whole.high:
        explained = state.explain(posterior)
        if explained.several < 0.5:
            return Judgement(explained)
    near = [x for x in posterior.at if pairs.parent - NEIGHBOURS < x < pairs.culprit + NEIGHBOURS]
    local = state.posterior((near[0], near[-1]), made)
    assert local is not None
    return Judgement(state.explain(local), other_steps=True)


def is_named(state: SearchState, pairs: Pairs, judged_by: Judgement) -> bool:
    """Whether a confirmed step can be named, as far as launches can tell."""
    is_steady = not judged_by.posterior.is_sharp or next_repeat(state, pairs) is None
    return judged_by.probability(pairs) >= (HOLDS if is_steady else STEADY)


def next_repeat(state: SearchState, pairs: Pairs) -> int | None:
    """The suspect or its parent, whichever has fewer launches; None once both have enough."""
    index = min((pairs.parent, pairs.culprit), key=lambda index: len(state.at(index)))
    return index if len(state.at(index)) < MAX_REPEATS else None


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
