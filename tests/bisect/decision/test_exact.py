"""The search of a metric whose launches agree: one launch a position, one pair, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.bisect.decision.decide import beliefs, next_action
from perfbisect.bisect.decision.model import (
    Event,
    Measured,
    NextLaunch,
    Pending,
    Plan,
    SearchOutcome,
    Skipped,
)


def search(
    plan: Plan,
    level: Callable[[int], float],
    slots: Sequence[str] = ("",),
    failing: frozenset[int] = frozenset(),
) -> tuple[SearchOutcome, list[Event]]:
    """The end of a search, and its events; ``failing``: positions that cannot be served."""
    events: list[Event] = []
    while True:
        asked: dict[str, NextLaunch] = {}
        for slot in slots:
            pending = tuple(Pending(x.index, x.purpose, x.runs, at, x.trial) for at, x in asked.items())
            action = next_action(plan, events, pending, slot, slots)
            if isinstance(action, SearchOutcome):
                return action, events
            if isinstance(action, NextLaunch):
                asked[slot] = action
        assert asked, "with nothing under way some slot gets a launch"
        for slot, x in asked.items():
            if x.index in failing:
                events.append(Skipped(x.index, x.purpose, 1.0, slot))
            else:
                events.append(
                    Measured(x.index, x.purpose, (level(x.index),), run=1.0, slot=slot, trial=x.trial)
                )


@given(st.data())
def test_the_step_is_named_in_the_launches_of_a_binary_search(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 400))
    culprit, sign = data.draw(st.integers(1, n)), data.draw(st.sampled_from((1, -1)))
    factor = data.draw(st.floats(1.011, 3.0))
    plan = Plan(n, sign, min_effect=0.01, exact=True)
    outcome, events = search(plan, lambda i: 1000.0 * (factor**sign if i >= culprit else 1.0))
    assert (outcome.verdict, outcome.culprits, outcome.share) == ("found", (culprit,), pytest.approx(1.0))
    assert len(events) <= 2 + math.ceil(math.log2(n)) + 2
    assert outcome.confirmed is not None
    assert outcome.confirmed.effect == pytest.approx(factor**sign - 1)
    assert outcome.confirmed.low == outcome.confirmed.high == pytest.approx(outcome.confirmed.effect)


@given(st.data())
def test_positions_that_fail_are_named_with_their_neighbour(data: st.DataObject) -> None:
    n = data.draw(st.integers(3, 40))
    culprit = data.draw(st.integers(1, n))
    failing = data.draw(st.frozensets(st.integers(1, n - 1), max_size=6))
    outcome, _ = search(
        Plan(n, -1, min_effect=0.01, exact=True), lambda i: 0.8 if i >= culprit else 1.0, failing=failing
    )
    assert outcome.verdict == "found"
    assert culprit in outcome.culprits
    assert set(outcome.culprits[:-1]) <= failing


def test_one_slot_makes_all_launches() -> None:
    """Another slot may have a little more memory, which is no step."""
    for culprit in (1, 17, 60):
        level = lambda i, culprit=culprit: 0.8 if i >= culprit else 1.0  # noqa: E731
        outcome, events = search(Plan(60, -1, min_effect=0.01, exact=True), level, ("a", "b", "c"))
        assert (outcome.verdict, outcome.culprits) == ("found", (culprit,))
        assert {event.slot for event in events if isinstance(event, Measured)} == {"a"}


def test_ends_that_agree_are_launched_twice_and_nothing_is_found() -> None:
    for value in (1.0, 0.995, 1.3):
        plan = Plan(30, -1, min_effect=0.01, exact=True)
        outcome, events = search(plan, lambda i, value=value: value if i == 30 else 1.0)
        assert (outcome.verdict, len(events)) == ("not reproduced", 4)
        assert [note.kind for note in outcome.notes] == (["ends swapped"] if value > 1.1 else [])


def test_many_small_steps_are_gradual_and_one_of_several_is_not_the_whole() -> None:
    plan = Plan(30, -1, min_effect=0.01, exact=True)
    outcome, _ = search(plan, lambda i: 0.998**i)
    assert outcome.verdict == "gradual"
    outcome, _ = search(plan, lambda i: (0.9 if i >= 8 else 1.0) * (0.8 if i >= 20 else 1.0))
    assert (outcome.verdict, outcome.culprits) == ("found", (20,))
    assert [note.kind for note in outcome.notes] == ["more steps"]


def test_the_largest_step_is_named_wherever_the_middle_of_the_ends_is_crossed() -> None:
    plan = Plan(30, -1, min_effect=0.01, exact=True)
    outcome, _ = search(plan, lambda i: 1.0 - 0.04 * (i >= 8) - 0.008 * (i >= 15) - 0.045 * (i >= 20))
    assert (outcome.verdict, outcome.culprits) == ("found", (20,))


def test_a_step_that_is_partly_undone_is_not_the_whole_change() -> None:
    outcome, _ = search(
        Plan(16, -1, min_effect=0.01, exact=True), lambda i: 0.8 if 5 <= i < 10 else 0.99 if i >= 10 else 1.0
    )
    assert (outcome.verdict, outcome.culprits) == ("found", (5,))
    assert [note.kind for note in outcome.notes] == ["more steps"]


def test_gradual_does_not_say_that_nothing_changed() -> None:
    outcome, events = search(Plan(32, -1, min_effect=0.01, exact=True), lambda i: 1 - 0.006 * (i // 12))
    assert (outcome.verdict, len(events)) == ("gradual", 3)
    assert outcome.beliefs is not None and outcome.beliefs.none == 0.0


def test_a_culprit_that_fails_at_its_pair_is_named_with_its_neighbour() -> None:
    events: list[Event] = []
    plan = Plan(16, -1, min_effect=0.01, exact=True)
    while isinstance(action := next_action(plan, events), NextLaunch):
        if (action.index, action.purpose) == (9, "confirm"):
            events.append(Skipped(9, "confirm", 1.0))
        else:
            values = (0.9 if action.index >= 9 else 1.0,)
            events.append(Measured(action.index, action.purpose, values, run=1.0, trial=action.trial))
    assert isinstance(action, SearchOutcome)
    assert (action.verdict, action.culprits, len(events)) == ("found", (9, 10), 9)


def test_a_share_steps_by_a_difference() -> None:
    plan = Plan(16, -1, min_effect=0.01, absolute=True, exact=True)
    outcome, _ = search(plan, lambda i: 0.0 if i >= 5 else 0.05)
    assert (outcome.culprits, outcome.confirmed and outcome.confirmed.effect) == ((5,), pytest.approx(-0.05))


def test_launches_that_differ_hand_over_to_the_general_search() -> None:
    noise = iter([1.0, 1.02, 0.99, 1.01] * 400)
    plan = Plan(12, -1, min_effect=0.01, exact=True, budget=math.inf)
    outcome, events = search(plan, lambda i: next(noise) * (0.7 if i >= 5 else 1.0))
    assert (outcome.verdict, outcome.culprits) == ("found", (5,))
    assert sum(isinstance(event, Measured) for event in events) > 9


def test_the_budget_ends_it_and_the_rest_of_the_range_leads() -> None:
    plan = Plan(64, -1, min_effect=0.01, exact=True, budget=5.0, cached=frozenset(range(65)))
    outcome, events = search(plan, lambda i: 0.8 if i >= 40 else 1.0)
    assert outcome.verdict == "out of budget"
    assert outcome.beliefs is not None and outcome.beliefs.p[40] > 0
    known = beliefs(plan, events)
    assert sum(known.p) == pytest.approx(1.0) and known.p[40] > 0
