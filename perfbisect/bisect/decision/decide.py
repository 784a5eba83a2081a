"""Which change made the metric worse: what to measure next, and when it is settled (METHOD part A).

:func:`next_action` is a fold: the whole state is the list of events, so the same events give the same
answer, and resuming is asking again. docs/method/bisection.md describes the model and its numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfbisect.bisect.decision import outcome
from perfbisect.bisect.decision.endpoints import Settled, hopeless, next_end
from perfbisect.bisect.decision.model import (
    Beliefs,
    Comparison,
    Done,
    Event,
    Imported,
    Lost,
    Measure,
    Measured,
    Note,
    Outcome,
    Pending,
    Plan,
    Purpose,
    Reason,
    Skipped,
    Step,
    Wait,
    Word,
)
from perfbisect.bisect.decision.multi_step import go_on, named, parts
from perfbisect.bisect.decision.search import Ended, search, state_of
from perfbisect.bisect.decision.state import Crew, Story, crew, fold

__all__ = [
    "Beliefs",
    "Comparison",
    "Done",
    "Event",
    "Imported",
    "Lost",
    "Measure",
    "Measured",
    "Note",
    "Outcome",
    "Pending",
    "Plan",
    "Purpose",
    "Reason",
    "Skipped",
    "Step",
    "Wait",
    "Word",
    "beliefs",
    "next_action",
]


def next_action(
    plan: Plan,
    events: Sequence[Event],
    pending: Sequence[Pending] = (),
    slot: str = "",
    slots: Sequence[str] = (),
) -> Measure | Wait | Done:
    """What the free ``slot`` measures next, or how it ended. A pure function of its arguments.

    ``pending`` are the launches under way on other slots; ``slots`` all that will ask, this one among them:
    an A/B that was begun on a slot which is not among them is begun again. Events come in the order in which
    the launches ended. The answer to a :class:`Measure` is one event with its index, purpose and slot; after
    a :class:`Lost` attempt the same is asked for again. A :class:`Wait` is worth asking again after the next
    event; with nothing under way, some slot never gets one. A launch is not begun where its expected minutes,
    and those of the launches under way, would exceed the budget.

    :raises ValueError: the plan or an event makes no sense, or an end of the range cannot be measured (it was
        skipped before it ever gave a value, or three times): an error about the range, never a verdict. Or
        the slot is not free.
    """
    who = crew(slot, pending, slots)
    story = fold(plan, tuple(events))
    action = _decide(plan, story, who)
    if not isinstance(action, Measure) or _affordable(plan, story, action, who):
        return action
    if pending:
        return Wait("the last minutes of the budget are being spent")
    return Done(_spent(plan, story))


def beliefs(plan: Plan, events: Sequence[Event]) -> Beliefs:
    """The posterior as it is shown beside a launch; before both ends were measured it is the prior.

    :raises ValueError: as :func:`next_action`.
    """
    story = fold(plan, tuple(events))
    return outcome.beliefs(plan, story, state_of(plan, story.data))


def _affordable(plan: Plan, story: Story, action: Measure, who: Crew) -> bool:
    expected = story.prices.under_way((*who.under_way, (action.index, action.runs)))
    return story.prices.spent + expected <= plan.budget


def _spent(plan: Plan, story: Story) -> Outcome:
    state = state_of(plan, story.data)
    steps = named(plan, story) if plan.every and state is not None else ()
    if state is None or not steps:
        return outcome.out_of_budget(plan, story, state)
    unsettled = Note("parts unsettled", spans=parts(plan.n, steps))
    return outcome.every(plan, story, state, steps, [unsettled])


def _decide(plan: Plan, story: Story, who: Crew) -> Measure | Wait | Done:
    if not story.searching and all(launch.purpose == "end" for launch in who.pending):
        step = next_end(plan, tuple(x for x in story.data if not x.imported), story.prices, who)
        if not isinstance(step, Settled):
            return step
        if step.word is not None:
            return Done(outcome.without_culprit(plan, story, step.state, step.word, step.needed))
    state = state_of(plan, story.data)
    if state is None:
        raise ValueError("a launch of the search or the A/B before both ends were measured")
    unseen = _unseen_end(plan, story, who)
    if unseen is not None:
        return unseen
    needed = 0 if who.pending else hopeless(plan, story.own, story.prices, state)
    if needed:
        return Done(outcome.without_culprit(plan, story, state, "too small", needed))
    steps = named(plan, story) if plan.every else ()
    if steps:
        return go_on(plan, story, state, steps, who)
    return _told(plan, story, search(plan, story, state, (0, plan.n), who))


def _unseen_end(plan: Plan, story: Story, who: Crew) -> Measure | None:
    """The end that a slot which joins the search has still to see: its speed is known by them."""
    for index in (0, plan.n):
        if not any(x.index == index and x.slot == who.slot and not x.imported for x in story.data):
            others = [x.runs for x in story.data if x.index == index and not x.imported]
            return Measure(index, others[-1], "end", Reason("end new to slot", index=index))
    return None


def _told(plan: Plan, story: Story, action: Measure | Wait | Ended) -> Measure | Wait | Done:
    if not isinstance(action, Ended):
        return action
    if action.word == "found":
        return Done(outcome.found(plan, story, action.state, action.trial))
    if action.word == "not reproduced":
        return Done(outcome.without_culprit(plan, story, action.state, action.word))
    return Done(outcome.unconfirmed(plan, story, action.state))
