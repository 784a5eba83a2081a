"""Every step of a range: after one is named, the parts to its left and its right are ranges of their own.

What was measured counts in each part where it lies; the ends of a part were measured already, by the search
and by the A/B. A part is closed when its launches speak against a further step as those of a whole range must
(:mod:`perfbisect.bisect.decision.endpoints`); else it is searched, and its step has an A/B of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfbisect.bisect.decision import confirm, outcome
from perfbisect.bisect.decision.beliefs import Posterior
from perfbisect.bisect.decision.endpoints import GO_ON, NOT_REPRODUCED, PATIENCE, ROUNDS, excludes
from perfbisect.bisect.decision.model import Done, Measure, Note, Plan, Reason, Wait
from perfbisect.bisect.decision.outcome import Named
from perfbisect.bisect.decision.search import NAME_AT, Ended, inside, judged, search, state_of
from perfbisect.bisect.decision.state import Crew, Pairs, Story

ATTEMPTS = 2
"""A/B comparisons that may fail in a part before it is given up."""

Span = tuple[int, int]


@dataclass(frozen=True)
class Closed:
    """Nothing more to find in a part: ``note`` says why it was given up, else ``state`` shows no step."""

    note: Note | None = None
    state: Posterior | None = None


def named(plan: Plan, story: Story) -> tuple[Named, ...]:
    """The steps that are named, in the history's order.

    Each A/B is judged in the part of the history in which it was made, on what was known as soon as it could
    be named: later launches of other parts take no name back.
    """
    spans: dict[Span, int] = {(0, plan.n): 0}
    steps: list[Named] = []
    left: list[tuple[Pairs, Span | None]] = [(pairs, None) for pairs in story.trials]
    while left:
        again: list[tuple[Pairs, Span | None]] = []
        for pairs, judged_in in left:
            span = next((span for span in spans if inside(pairs, span)), None)
            if span is None or span == judged_in:
                continue
            step = _name(plan, story, pairs, span, spans[span])
            if step is None:
                again.append((pairs, span))
                continue
            del spans[span]
            spans[(span[0], step.parent)] = spans[(step.culprit, span[1])] = step.known
            steps.append(step)
        left = again
    return tuple(sorted(steps, key=lambda step: step.culprit))


def _name(plan: Plan, story: Story, pairs: Pairs, span: Span, since: int) -> Named | None:
    """The step of an A/B that passed, from the first launch on with which all launches agree with it."""
    trial = judged(plan, story, pairs, span)
    if not trial.passed:
        return None
    parent, culprit = confirm.sides(trial.launches)
    first = max(pairs.after, since)
    for known in range(first, len(story.data) + 1):
        if known > first and not span[0] <= story.data[known - 1].index <= span[1]:
            continue
        state = state_of(plan, story.data[:known], span)
        mass = 0.0 if state is None else float(state.p[parent + 1 : culprit + 1].sum())
        if state is not None and mass >= NAME_AT:
            return Named(parent, culprit, mass, state, trial.launches, known)
    return None


def parts(n: int, steps: tuple[Named, ...]) -> tuple[Span, ...]:
    """What lies between the ends and the named steps, where there is a candidate."""
    lows = [0, *(step.culprit for step in steps)]
    highs = [*(step.parent for step in steps), n]
    return tuple((low, high) for low, high in zip(lows, highs, strict=True) if low < high)


def go_on(
    plan: Plan, story: Story, state: Posterior, steps: tuple[Named, ...], crew: Crew
) -> Measure | Wait | Done:
    """What the free slot does for the first part that has something to do, or the end."""
    wait: Wait | None = None
    closed: list[tuple[Span, Closed]] = []
    for span in parts(plan.n, steps):
        answer = _part(plan, story, span, crew)
        if isinstance(answer, Measure):
            return answer
        if isinstance(answer, Wait):
            wait = wait or answer
        else:
            closed.append((span, answer))
    if wait is not None:
        return wait
    notes = [
        answer.note if answer.state is None else _better(plan, story, answer.state, span)
        for span, answer in closed
    ]
    return Done(outcome.every(plan, story, state, steps, [note for note in notes if note is not None]))


def _part(plan: Plan, story: Story, span: Span, crew: Crew) -> Measure | Wait | Closed:
    if set(span) & story.skips:
        return Closed(Note("part not measurable", positions=span))
    state = state_of(plan, story.data, span)
    if state is None:
        return Closed(Note("part on unlike slots", positions=span))
    if state.none < GO_ON or _confirming(plan, story, span, crew):
        return _searched(plan, story, state, span, crew)
    made = [sum(launch.index == end for launch in story.usable) for end in span]
    if state.none > NOT_REPRODUCED and min(made) >= PATIENCE and excludes(state, plan.min_effect):
        return Closed(state=state)
    under_way = [sum(launch.index == end for launch in crew.pending) for end in span]
    if min(made) >= ROUNDS:
        return Closed(Note("part below noise", positions=span))
    if min(made[0] + under_way[0], made[1] + under_way[1]) >= ROUNDS:
        return Wait(f"the last launches of positions {span[0]} and {span[1]} are under way")
    runs = max(story.prices.best_runs(state.sigma, state.tau, plan.max_runs), min(2, plan.max_runs))
    end = span[made[1] + under_way[1] < made[0] + under_way[0]]
    return Measure(end, runs, "search", Reason("another step", span=span))


def _confirming(plan: Plan, story: Story, span: Span, crew: Crew) -> bool:
    """Whether an A/B of this part has begun and is undecided."""
    if any(launch.purpose == "confirm" for launch in crew.within(*span)):
        return True
    last = [pairs for pairs in story.trials if inside(pairs, span) and pairs.alone]
    return any(judged(plan, story, pairs, span).passed is None for pairs in last)


def _searched(plan: Plan, story: Story, state: Posterior, span: Span, crew: Crew) -> Measure | Wait | Closed:
    answer = search(plan, story, state, span, crew, ATTEMPTS)
    if not isinstance(answer, Ended):
        return answer
    if answer.word == "not reproduced":
        return Closed(state=state)
    return Closed(Note("part not confirmed", positions=span))


def _better(plan: Plan, story: Story, state: Posterior, span: Span) -> Note | None:
    """A step that makes it better, told by the part's ends alone."""
    low, high = ([x for x in story.usable if x.index == end] for end in span)
    change = confirm.compare(low, high, confirm.expected(state), plan.sign)
    worst = change.high if plan.sign > 0 else -change.low
    if worst >= 0 or abs(change.effect) < plan.min_effect:
        return None
    return Note("part improves", positions=span, effect=change.effect)
