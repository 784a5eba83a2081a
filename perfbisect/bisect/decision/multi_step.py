"""Find every step: after one is confirmed, the parts left and right of it are searched in turn.

What was measured counts in each part where it lies; the ends of a part were measured already, by the search
and by the A/B. A part is exhausted when its launches contradict a further step by the rule of a whole range
(:mod:`perfbisect.bisect.decision.endpoints`); else it is searched, and its step has an A/B of its own.
"""

from __future__ import annotations

from perfbisect.bisect.decision import outcome
from perfbisect.bisect.decision.beliefs import Posterior
from perfbisect.bisect.decision.endpoints import MAX_ROUNDS, SEARCH_BELOW, shows_no_change
from perfbisect.bisect.decision.model import NextLaunch, Note, Reason, SearchOutcome, Wait
from perfbisect.bisect.decision.outcome import ConfirmedStep
from perfbisect.bisect.decision.search import (
    NAME_ABOVE,
    RangeResult,
    is_named,
    judge_pairs,
    judgement,
    search,
)
from perfbisect.bisect.decision.state import Pairs, SearchState, SlotContext, Span

MAX_FAILED_TRIALS = 2
"""A/B comparisons that may fail in a part before it is given up."""


def confirmed_steps(state: SearchState) -> tuple[ConfirmedStep, ...]:
    """The steps that are named, in the history's order.

    Each A/B is judged in the part of the history in which it was made, on what was known as soon as it could
    be named: later launches of other parts take no name back.
    """
    spans: dict[Span, int] = {(0, state.plan.n): 0}
    steps: list[ConfirmedStep] = []
    left: list[tuple[Pairs, Span | None]] = [(pairs, None) for pairs in state.trials]
    while left:
        again: list[tuple[Pairs, Span | None]] = []
        for pairs, judged_in in left:
            span = next((span for span in spans if pairs.is_inside(span)), None)
            if span is None or span == judged_in:
                continue
            step = _confirmed_step(state, pairs, span, spans[span])
            if step is None:
                again.append((pairs, span))
                continue
            del spans[span]
            spans[(span[0], pairs.parent)] = spans[(pairs.culprit, span[1])] = step.known
            steps.append(step)
        left = again
    return tuple(sorted(steps, key=lambda step: step.pairs.culprit))


def _confirmed_step(state: SearchState, pairs: Pairs, span: Span, since: int) -> ConfirmedStep | None:
    """The step of an A/B that passed, from the first launch on with which all launches agree with it."""
    if not judge_pairs(state, pairs, span):
        return None
    first = max(pairs.after, since)
    for known in range(first, len(state.data) + 1):
        if known > first and not span[0] <= state.data[known - 1].index <= span[1]:
            continue
        posterior = state.posterior(span, known)
        if posterior is not None:
            # As in the search of the part; the whole posterior of each prefix would cost much more.
            if float(posterior.p[pairs.parent + 1 : pairs.culprit + 1].sum()) < NAME_ABOVE:
                continue
            judged_by = judgement(state, posterior, span, pairs, known)
            if is_named(state, pairs, judged_by):
                return ConfirmedStep(pairs, judged_by.probability(pairs), posterior, known)
    return None


def open_ranges(state: SearchState, steps: tuple[ConfirmedStep, ...]) -> tuple[Span, ...]:
    """What lies between the ends and the named steps, where there is a candidate."""
    lows = [0, *(step.pairs.culprit for step in steps)]
    highs = [*(step.pairs.parent for step in steps), state.plan.n]
    return tuple((low, high) for low, high in zip(lows, highs, strict=True) if low < high)


def next_action(
    state: SearchState, posterior: Posterior, steps: tuple[ConfirmedStep, ...], context: SlotContext
) -> NextLaunch | Wait | SearchOutcome:
    """What the free slot does for the first part that has something to do, or the end."""
    waits: list[Wait] = []
    exhausted: list[tuple[Span, Note | Posterior]] = []
    for span in open_ranges(state, steps):
        answer = _next_in_part(state, span, context)
        if isinstance(answer, NextLaunch):
            return answer
        if isinstance(answer, Wait):
            waits.append(answer)
        else:
            exhausted.append((span, answer))
    if waits:
        return waits[0]
    notes = [x if isinstance(x, Note) else _improvement(state, x, span) for span, x in exhausted]
    return outcome.all_steps(state, posterior, steps, [note for note in notes if note is not None])


def _next_in_part(
    state: SearchState, span: Span, context: SlotContext
) -> NextLaunch | Wait | Note | Posterior:
    """What a part has to do; else why it was given up, or the posterior that shows no further step."""
    if set(span) & state.skips:
        return Note("part not measurable", positions=span)
    posterior = state.posterior(span)
    if posterior is None:
        return Note("part on unlike slots", positions=span)
    begun = [pairs for pairs in state.trials if pairs.is_inside(span) and not pairs.over]
    is_confirming = context.trial_in(span) is not None or any(
        judge_pairs(state, pairs, span) is None for pairs in begun
    )
    if posterior.none < SEARCH_BELOW or is_confirming:
        answer = search(state, posterior, span, context, MAX_FAILED_TRIALS)
        if not isinstance(answer, RangeResult):
            return answer
        return posterior if answer.verdict == "not reproduced" else Note("part not confirmed", positions=span)
    made = [len(state.at(end)) for end in span]
    if shows_no_change(posterior, min(made)):
        return posterior
    if min(made) >= MAX_ROUNDS:
        return Note("part below noise", positions=span)
    low, high = (
        count + sum(launch.index == end for launch in context.pending)
        for count, end in zip(made, span, strict=True)
    )
    if min(low, high) >= MAX_ROUNDS:
        return Wait(f"the last launches of positions {span[0]} and {span[1]} are under way")
    plan = state.plan
    runs = max(state.prices.best_runs(posterior.sigma, posterior.tau, plan.max_runs), min(2, plan.max_runs))
    return NextLaunch(span[high < low], "search", runs, Reason("another step", span=span))


def _improvement(state: SearchState, posterior: Posterior, span: Span) -> Note | None:
    """An improvement, shown by the part's ends alone."""
    change = outcome.compare_ends(state, posterior, span)
    worst = change.high if state.plan.sign > 0 else -change.low
    if worst >= 0 or abs(change.effect) < state.plan.min_effect:
        return None
    return Note("part improves", positions=span, effect=change.effect)
