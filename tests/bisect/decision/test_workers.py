"""Several slots on one bisection: context sees the ends, context waits, and what stays on one slot."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfbisect.bisect.decision.decide import next_action
from perfbisect.bisect.decision.model import (
    Measured,
    NextLaunch,
    Pending,
    Plan,
    Reason,
    SearchEnd,
    Skipped,
    Wait,
)
from tests.bisect.worlds import Bench, SlotSimulation


def bench(step=0.3, at=21, n=40, sigma=0.01, tau=0.01, seed=1, **plan):
    return Bench(Plan(n=n, **plan), {at: step} if step else {}, sigma, tau, seed)


def context(count=2, speed=0.0, **world):
    return SlotSimulation(bench(**world), {f"gpu{k}": k * speed for k in range(count)})


def searching(**world):
    """One slot's events up to its first probe, and that probe."""
    one = bench(**world)
    one.play()
    at = next(k for k, action in enumerate(one.actions) if action.purpose == "search")
    return one, one.events[:at], one.actions[at]


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    step=st.sampled_from([0.0, 0.06, 0.4]),
    n=st.integers(1, 40),
    name=st.sampled_from(["", "gpu3", "0"]),
)
def test_one_slot_of_any_name_gets_the_answers_of_one_without(seed, step, n, name):
    skips = frozenset({n // 2} - {0, n})
    world = Bench(Plan(n=n, budget=300), {max(1, n // 3): step}, 0.02, 0.01, seed, skips)
    world.play()
    for cut in range(0, len(world.actions), 3):
        events = [replace(event, slot=name) for event in world.events[:cut]]
        assert next_action(world.plan, events, (), name) == world.actions[cut]
        assert next_action(world.plan, events, slot=name, slots=(name,)) == world.actions[cut]


@pytest.mark.parametrize("count", [2, 3, 4])
def test_each_slot_sees_both_ends_first(count):
    world = context(count)
    assert world.play().culprits == (21,)
    for slot in world.speed:
        made = [action for name, action in world.asked if name == slot]
        assert {action.index for action in made[:2]} == {0, 40}
        assert [action.purpose for action in made[:2]] == ["end", "end"]
        assert made[0].runs == made[1].runs
    firsts = [next(a.index for name, a in world.asked if name == slot) for slot in world.speed]
    assert firsts == [0, 40, 0, 40][:count]


def test_probes_at_once_divide_what_is_left():
    world, events, first = searching()
    plan = world.plan
    others = [Pending(first.index, first.runs, "search", "b")]
    second = next_action(plan, both_ends(events, "a", "c"), others, "a")
    others.append(Pending(second.index, second.runs, "search", "c"))
    third = next_action(plan, both_ends(events, "a", "c", "d"), others, "d")
    assert {second.purpose, third.purpose} == {"search"}
    low, middle, high = sorted({first.index, second.index, third.index})
    assert (5 <= low <= 15, 17 <= middle <= 23, 25 <= high <= 35) == (True, True, True)


def both_ends(events, *slots):
    """The events as made by the first slot, and its ends as every slot saw them."""
    own = [replace(event, slot=slots[0]) for event in events]
    return own + [replace(event, slot=slot) for slot in slots[1:] for event in own[:2]]


def test_more_than_four_launches_at_once_wait():
    world, events, _ = searching()
    slots = [f"g{k}" for k in range(6)]
    events = both_ends(events, *slots)
    pending = []
    answers = []
    for slot in slots:
        answers.append(next_action(world.plan, events, pending, slot, slots))
        if isinstance(answers[-1], NextLaunch):
            pending.append(Pending(answers[-1].index, answers[-1].runs, "search", slot))
    assert [type(answer) for answer in answers] == [NextLaunch] * 4 + [Wait] * 2
    assert len({launch.index for launch in pending}) == 4


def test_the_minutes_under_way_count():
    world, events, _ = searching(n=200, at=150)
    events = both_ends(events, "a", "b")
    spent = sum(event.minutes for event in events)
    pending = [Pending(100, 1, "search", "b")]
    cost = 4 + 3 + 1.5
    tight = replace(world.plan, budget=spent + 1.5 * cost)
    assert isinstance(next_action(tight, events, (), "a"), NextLaunch)
    assert isinstance(next_action(tight, events, pending, "a"), Wait)
    ample = replace(world.plan, budget=spent + 2.5 * cost + 9)
    assert isinstance(next_action(ample, events, pending, "a"), NextLaunch)
    spare = replace(world.plan, budget=spent + 0.5)
    assert next_action(spare, events, (), "a").outcome.verdict == "out of budget"


@pytest.mark.parametrize("seed", range(4))
def test_an_a_b_stays_on_one_slot(seed):
    world = context(3, seed=seed, speed=0.05)
    end = world.play()
    assert end.culprits == (21,)
    trial = [event for event in world.events if event.purpose == "confirm"]
    assert len({event.slot for event in trial}) == 1
    assert [event.index for event in trial] == [(21, 20, 20, 21)[k % 4] for k in range(len(trial))]
    first = next(k for k, (_, action) in enumerate(world.asked) if action.purpose == "confirm")
    assert {action.purpose for _, action in world.asked[first:]} == {"confirm"}
    assert world.waits


def in_the_middle():
    """An A/B of three launches on slot a, between which slot b measured; and the plan."""
    world, events, _ = searching()
    events = both_ends(events, "a", "b")
    probes = [
        world.answer(NextLaunch(index, 3, "search", Reason("most informative")))
        for index in (10, 20, 21, 30, 20, 21)
    ]
    probes = [replace(event, slot="b") for event in probes]
    pair = [world.answer(NextLaunch(index, 1, "confirm", Reason("pair"))) for index in (21, 20, 20)]
    # Between the levels: it speaks for neither side.
    values = {20: (100.0,), 21: (100.0 * math.exp(0.15),)}
    pair = [replace(event, slot="a", values=values[event.index]) for event in pair]
    late = replace(world.answer(NextLaunch(33, 1, "search", Reason("most informative"))), slot="b")
    return world.plan, [*events, *probes, pair[0], late, pair[1], pair[2]]


def test_what_other_slots_do_does_not_part_a_pair():
    plan, events = in_the_middle()
    for more in ([], [replace(events[-3], slot="b")], [Skipped(34, "search", 2.0, "b")]):
        action = next_action(plan, [*events, *more], (), "a")
        assert (action.index, action.purpose) == (21, "confirm")
        pending = [Pending(21, 1, "confirm", "a")]
        assert "the A/B on slot a" in next_action(plan, [*events, *more], pending, "b").why
    begun = [Pending(21, 1, "confirm", "a")]
    assert "A/B" in next_action(plan, events[:-4], begun, "b").why


@pytest.mark.parametrize("slot", ["a", ""])
def test_a_skip_within_the_a_b_ends_it(slot):
    plan, events = in_the_middle()
    action = next_action(plan, [*events, Skipped(20, "confirm", 2.0, slot)], (), "a", ("a", "b"))
    assert (action.index, action.purpose) != (20, "confirm")


def test_an_a_b_whose_parent_another_slot_could_not_serve_is_given_up():
    plan, events = in_the_middle()
    events = [*events, Skipped(20, "search", 2.0, "b")]
    assert isinstance(next_action(plan, events, (), "b", ("a", "b")), NextLaunch)


def test_an_a_b_on_a_slot_that_is_no_more_begins_again():
    plan, events = in_the_middle()
    assert isinstance(next_action(plan, events, (), "b", ("a", "b")), Wait)
    for slots in (("b",), ()):
        assert isinstance(next_action(plan, events, (), "b", slots), NextLaunch)
    again = [*events, Measured(21, "confirm", (130.0,), 0, 3, 1.5, "b")]
    assert next_action(plan, again, (), "b", ("b",)).index == 20


def test_a_slot_that_joins_late_sees_both_ends():
    world, events, _ = searching()
    events = [
        *both_ends(events, "a"),
        replace(world.answer(NextLaunch(20, 1, "search", Reason("most informative"))), slot="a"),
    ]
    first = next_action(world.plan, events, (), "b")
    assert (first.index, first.purpose) == (0, "end")
    events.append(replace(world.answer(first), slot="b"))
    second = next_action(world.plan, events, (), "b")
    assert (second.index, second.purpose) == (40, "end")
    events.append(replace(world.answer(second), slot="b"))
    assert next_action(world.plan, events, (), "b").purpose == "search"


def test_the_last_rounds_of_the_ends_are_waited_for():
    world = bench(step=0.06, sigma=0.05, tau=0.12, seed=4)
    world.play()
    events = [replace(event, slot="a") for event in world.events[:20]]
    assert {event.purpose for event in events} == {"end"}
    pending = [Pending(40, 2, "end", "b"), Pending(0, 2, "end", "c")]
    assert isinstance(next_action(world.plan, events[:18], pending, "a"), Wait)
    assert isinstance(next_action(world.plan, events, (), "a"), SearchEnd)


def test_a_slot_that_is_not_free_or_not_there():
    with pytest.raises(ValueError, match="one of its own"):
        next_action(Plan(n=4), [], [Pending(0, 1, "end", "a")], "a")
    with pytest.raises(ValueError, match="not among"):
        next_action(Plan(n=4), [], (), "a", ("b",))


@pytest.mark.parametrize("speed", [0.0, -0.7])
def test_slots_of_unlike_speed_name_nobody_wrongly(speed):
    for seed in range(5):
        world = context(2, speed=speed, step=0.1, sigma=0.02, tau=0.015, seed=seed)
        assert (world.play().verdict, world.play().culprits) == ("found", (21,))
        none = context(2, speed=speed, step=0.0, sigma=0.02, tau=0.015, seed=seed)
        assert none.play().verdict in ("not reproduced", "too small")


def test_four_slots_are_sooner_and_dearer():
    one, four = (context(count, n=200, at=120, step=0.1, sigma=0.02, tau=0.01, seed=5) for count in (1, 4))
    assert one.play().culprits == four.play().culprits == (120,)
    spent = [sum(event.minutes for event in world.events) for world in (one, four)]
    assert spent[0] == pytest.approx(one.clock)
    assert four.clock < 0.85 * one.clock
    assert spent[1] < 3 * spent[0]
