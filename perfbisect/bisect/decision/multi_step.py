"""Find every step: after one is confirmed, the parts left and right of it are searched in turn.

What was measured counts in each part where it lies; the ends of a part were measured already, by the search
and by the A/B. A part is exhausted when its launches contradict a further step by the rule of a whole range
(:mod:`perfbisect.bisect.decision.endpoints`); else it is searched, and its step has an A/B of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfbisect.bisect.decision import confirm, outcome
from perfbisect.bisect.decision.beliefs import Posterior
from perfbisect.bisect.decision.endpoints import MAX_ROUNDS, SEARCH_BELOW, shows_no_change
from perfbisect.bisect.decision.model import NextLaunch, Note, Plan, Reason, SearchEnd, Wait
from perfbisect.bisect.decision.outcome import ConfirmedStep
from perfbisect.bisect.decision.search import (
    NAME_ABOVE,
    RangeResult,
    is_inside,
    judge_pairs,
    range_posterior,
    search,
)
from perfbisect.bisect.decision.state import Pairs, SearchState, SlotContext

MAX_FAILED_TRIALS = 2
"""A/B comparisons that may fail in a part before it is given up."""

Span = tuple[int, int]


@dataclass(frozen=True)
class ExhaustedRange:
    """A part without a further step: ``note`` says why it was given up, else ``posterior`` shows none."""

    note: Note | None = None
    posterior: Posterior | None = None


def confirmed_steps(plan: Plan, state: SearchState) -> tuple[ConfirmedStep, ...]:
    """The steps that are named, in the history's order.

    Each A/B is judged in the part of the history in which it was made, on what was known as soon as it could
    be named: later launches of other parts take no name back.
    """
    spans: dict[Span, int] = {(0, plan.n): 0}
    steps: list[ConfirmedStep] = []
    left: list[tuple[Pairs, Span | None]] = [(pairs, None) for pairs in state.trials]
    while left:
        again: list[tuple[Pairs, Span | None]] = []
        for pairs, judged_in in left:
            span = next((span for span in spans if is_inside(pairs, span)), None)
            if span is None or span == judged_in:
                continue
            step = _name(plan, state, pairs, span, spans[span])
            if step is None:
                again.append((pairs, span))
                continue
            del spans[span]
            spans[(span[0], step.parent)] = spans[(step.culprit, span[1])] = step.known
            steps.append(step)
        left = again
    return tuple(sorted(steps, key=lambda step: step.culprit))


def _name(plan: Plan, state: SearchState, pairs: Pairs, span: Span, since: int) -> ConfirmedStep | None:
    """The step of an A/B that passed, from the first launch on with which all launches agree with it."""
    trial = judge_pairs(plan, state, pairs, span)
    if not trial.passed:
        return None
    parent, culprit = confirm.sides(trial.launches)
    first = max(pairs.after, since)
    for known in range(first, len(state.data) + 1):
        if known > first and not span[0] <= state.data[known - 1].index <= span[1]:
            continue
        posterior = range_posterior(plan, state.data[:known], span)
        mass = 0.0 if posterior is None else float(posterior.p[parent + 1 : culprit + 1].sum())
        if posterior is not None and mass >= NAME_ABOVE:
            return ConfirmedStep(parent, culprit, mass, posterior, trial.launches, known)
    return None


def open_ranges(n: int, steps: tuple[ConfirmedStep, ...]) -> tuple[Span, ...]:
    """What lies between the ends and the named steps, where there is a candidate."""
    lows = [0, *(step.culprit for step in steps)]
    highs = [*(step.parent for step in steps), n]
    return tuple((low, high) for low, high in zip(lows, highs, strict=True) if low < high)


def next_action(
    plan: Plan,
    state: SearchState,
    posterior: Posterior,
    steps: tuple[ConfirmedStep, ...],
    context: SlotContext,
) -> NextLaunch | Wait | SearchEnd:
    """What the free slot does for the first part that has something to do, or the end."""
    wait: Wait | None = None
    exhausted: list[tuple[Span, ExhaustedRange]] = []
    for span in open_ranges(plan.n, steps):
        answer = _part(plan, state, span, context)
        if isinstance(answer, NextLaunch):
            return answer
        if isinstance(answer, Wait):
            wait = wait or answer
        else:
            exhausted.append((span, answer))
    if wait is not None:
        return wait
    notes = [
        answer.note if answer.posterior is None else _better(plan, state, answer.posterior, span)
        for span, answer in exhausted
    ]
    return SearchEnd(
        outcome.all_steps(plan, state, posterior, steps, [note for note in notes if note is not None])
    )


def _part(
    plan: Plan, state: SearchState, span: Span, context: SlotContext
) -> NextLaunch | Wait | ExhaustedRange:
    if set(span) & state.skips:
        return ExhaustedRange(Note("part not measurable", positions=span))
    posterior = range_posterior(plan, state.data, span)
    if posterior is None:
        return ExhaustedRange(Note("part on unlike slots", positions=span))
    if posterior.none < SEARCH_BELOW or _confirming(plan, state, span, context):
        return _searched(plan, state, posterior, span, context)
    made = [sum(launch.index == end for launch in state.usable) for end in span]
    if shows_no_change(posterior, min(made), plan.min_effect):
        return ExhaustedRange(posterior=posterior)
    under_way = [sum(launch.index == end for launch in context.pending) for end in span]
    if min(made) >= MAX_ROUNDS:
        return ExhaustedRange(Note("part below noise", positions=span))
    if min(made[0] + under_way[0], made[1] + under_way[1]) >= MAX_ROUNDS:
        return Wait(f"the last launches of positions {span[0]} and {span[1]} are under way")
    runs = max(state.prices.best_runs(posterior.sigma, posterior.tau, plan.max_runs), min(2, plan.max_runs))
    end = span[made[1] + under_way[1] < made[0] + under_way[0]]
    return NextLaunch(end, runs, "search", Reason("another step", span=span))


def _confirming(plan: Plan, state: SearchState, span: Span, context: SlotContext) -> bool:
    """Whether an A/B of this part has begun and is undecided."""
    if any(launch.purpose == "confirm" for launch in context.within(*span)):
        return True
    last = [pairs for pairs in state.trials if is_inside(pairs, span) and pairs.alone]
    return any(judge_pairs(plan, state, pairs, span).passed is None for pairs in last)


def _searched(
    plan: Plan, state: SearchState, posterior: Posterior, span: Span, context: SlotContext
) -> NextLaunch | Wait | ExhaustedRange:
    answer = search(plan, state, posterior, span, context, MAX_FAILED_TRIALS)
    if not isinstance(answer, RangeResult):
        return answer
    if answer.verdict == "not reproduced":
        return ExhaustedRange(posterior=posterior)
    return ExhaustedRange(Note("part not confirmed", positions=span))


def _better(plan: Plan, state: SearchState, posterior: Posterior, span: Span) -> Note | None:
    """An improvement, shown by the part's ends alone."""
    low, high = ([x for x in state.usable if x.index == end] for end in span)
    change = confirm.compare(low, high, confirm.expected(posterior), plan.sign)
    worst = change.high if plan.sign > 0 else -change.low
    if worst >= 0 or abs(change.effect) < plan.min_effect:
        return None
    return Note("part improves", positions=span, effect=change.effect)
