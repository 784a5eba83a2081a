"""Several slots on one bisection: context sees the ends, context waits, and what stays on one slot."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfbisect.bisect.decision.decide import next_action
from perfbisect.bisect.decision.endpoints import MAX_ROUNDS
from perfbisect.bisect.decision.model import (
    NextLaunch,
    Pending,
    Plan,
    Reason,
    SearchOutcome,
    Skipped,
    Trial,
    Wait,
)
from tests.bisect.worlds import Bench
from tests.long import mostly_long


def bench(step=0.3, at=21, n=40, sigma=0.01, tau=0.01, seed=1, **plan):
    return Bench(Plan(n=n, **plan), {at: step} if step else {}, sigma, tau, seed)


def context(count=2, speed=0.0, **world):
    return replace(bench(**world), speed={f"gpu{k}": k * speed for k in range(count)})


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
    others = [Pending(first.index, "search", first.runs, "b")]
    second = next_action(plan, both_ends(events, "a", "c"), others, "a")
    others.append(Pending(second.index, "search", second.runs, "c"))
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
            pending.append(Pending(answers[-1].index, "search", answers[-1].runs, slot))
    assert [type(answer) for answer in answers] == [NextLaunch] * 4 + [Wait] * 2
    assert len({launch.index for launch in pending}) == 4


def test_the_minutes_under_way_count():
    world, events, _ = searching(n=200, at=150)
    events = both_ends(events, "a", "b")
    spent = sum(event.minutes for event in events)
    pending = [Pending(100, "search", 1, "b")]
    cost = 4 + 3 + 1.5
    tight = replace(world.plan, budget=spent + 1.5 * cost)
    assert isinstance(next_action(tight, events, (), "a"), NextLaunch)
    assert isinstance(next_action(tight, events, pending, "a"), Wait)
    ample = replace(world.plan, budget=spent + 2.5 * cost + 9)
    assert isinstance(next_action(ample, events, pending, "a"), NextLaunch)
    spare = replace(world.plan, budget=spent + 0.5)
    assert next_action(spare, events, (), "a").verdict == "out of budget"


@pytest.mark.parametrize("seed", range(4))
def test_an_a_b_is_made_in_pairs_on_several_slots_at_once(seed):
    world = context(3, seed=seed, speed=0.05)
    end = world.play()
    assert end.culprits == (21,)
    asked = [(slot, action) for slot, action in world.asked if action.purpose == "confirm"]
    assert {action.trial for _, action in asked} == {Trial(0, 20, 21, asked[0][1].runs)}
    slots = list(dict.fromkeys(slot for slot, _ in asked))
    assert len(slots) >= 2, "a pair each, at once"
    for k, slot in enumerate(slots):
        made = [action for name, action in asked if name == slot]
        order = (21, 20, 20, 21) if k % 2 == 0 else (20, 21, 21, 20)
        assert [action.index for action in made] == [order[j % 4] for j in range(len(made))]
        mates = [action.mate for action in made]
        assert mates == [None if j % 2 else order[(j + 1) % 4] for j in range(len(made))]
    first = next(k for k, (_, action) in enumerate(world.asked) if action.purpose == "confirm")
    kinds = [action.why.kind for _, action in world.asked[first:]]
    assert kinds == ["pair"] * len(asked) + ["slow at times"] * (len(kinds) - len(asked))


def test_each_slot_of_an_a_b_has_a_level_of_its_own():
    """Slots of unlike speed, one pair on each: a pair tells what it tells on one slot."""
    world = context(3, speed=0.5, step=0.2)
    end = world.play()
    pairs = {}
    for event in world.events:
        if event.purpose == "confirm":
            pairs.setdefault(event.slot, {})[event.index] = math.log(event.values[0])
    steps = [pair[21] - pair[20] for pair in pairs.values() if len(pair) == 2]
    assert len(steps) >= 2
    assert math.log1p(end.confirmed.effect) == pytest.approx(sum(steps) / len(steps), abs=0.02)
    assert end.confirmed.high - end.confirmed.low < 0.2


def test_on_a_fleet_an_a_b_has_pairs_on_other_machines_than_the_first():
    world, events, _ = searching()
    events = both_ends(events, "a/0", "b/0", "c/0")
    events = [replace(event, machine=event.slot[0]) for event in events]
    trial = Trial(0, 20, 21, 1)
    pending = [Pending(21, "confirm", 1, "a/0", trial)]
    asked = []
    for slot in ("b/0", "c/0"):
        asked.append(next_action(world.plan, events, pending, slot))
        pending.append(Pending(asked[-1].index, "confirm", 1, slot, trial))
    assert [(x.index, x.mate, x.trial) for x in asked] == [(20, 21, trial), (21, 20, trial)]
    alone = [replace(event, machine="") for event in events]
    assert isinstance(next_action(world.plan, alone, pending[:2], "c/0"), Wait), "two pairs are enough"


def test_what_a_machine_out_of_use_has_under_way_does_not_count():
    world, events, _ = searching()
    events = [replace(event, machine=event.slot) for event in both_ends(events, "a", "b", "c")]
    trial = Trial(0, 20, 21, 1)
    pending = [Pending(21, "confirm", 1, slot, trial) for slot in ("a", "b")]
    lost = [Pending(20, "confirm", 1, "d", trial)]
    slots = ("a", "b", "c")
    action = next_action(world.plan, events, [*pending, *lost], "c", slots)
    assert action == next_action(world.plan, events, pending, "c", slots)
    assert action.trial == trial


TRIAL = Trial(0, 20, 21, 1)


def in_the_middle():
    """An A/B of three launches on slot a, between which slot b measured; and the plan."""
    world, events, _ = searching()
    events = both_ends(events, "a", "b")
    probes = [
        world.answer(NextLaunch(index, "search", 3, Reason("most informative")))
        for index in (10, 20, 21, 30, 20, 21)
    ]
    probes = [replace(event, slot="b") for event in probes]
    pair = [
        world.answer(NextLaunch(index, "confirm", 1, Reason("pair"), trial=TRIAL)) for index in (21, 20, 20)
    ]
    # Between the levels: it speaks for neither side.
    values = {20: (100.0,), 21: (100.0 * math.exp(0.15),)}
    pair = [replace(event, slot="a", values=values[event.index]) for event in pair]
    late = replace(world.answer(NextLaunch(33, "search", 1, Reason("most informative"))), slot="b")
    return world.plan, [*events, *probes, pair[0], late, pair[1], pair[2]]


def test_what_other_slots_do_does_not_part_a_pair():
    plan, events = in_the_middle()
    for more in ([], [replace(events[-3], slot="b")], [Skipped(34, "search", 2.0, "b")]):
        action = next_action(plan, [*events, *more], (), "a")
        assert (action.index, action.purpose, action.trial) == (21, "confirm", TRIAL)
        pending = [Pending(21, "confirm", 1, "a", TRIAL)]
        assert next_action(plan, [*events, *more], pending, "b") == Wait("an A/B is under way")


@pytest.mark.parametrize("slot", ["a", ""])
def test_a_skip_within_the_a_b_ends_it(slot):
    plan, events = in_the_middle()
    action = next_action(plan, [*events, Skipped(20, "confirm", 2.0, slot)], (), "a", ("a", "b"))
    assert (action.index, action.purpose) != (20, "confirm")


def test_an_a_b_whose_parent_another_slot_could_not_serve_is_given_up():
    plan, events = in_the_middle()
    events = [*events, Skipped(20, "search", 2.0, "b")]
    assert isinstance(next_action(plan, events, (), "b", ("a", "b")), NextLaunch)


def test_an_a_b_on_a_slot_that_is_no_more_goes_on_elsewhere():
    plan, events = in_the_middle()
    assert isinstance(next_action(plan, events, (), "b", ("a", "b")), Wait)
    action = next_action(plan, events, (), "b", ("b",))
    assert (action.index, action.mate, action.trial) == (20, 21, TRIAL)


def test_a_slot_that_joins_late_sees_both_ends():
    world, events, _ = searching()
    events = [
        *both_ends(events, "a"),
        replace(world.answer(NextLaunch(20, "search", 1, Reason("most informative"))), slot="a"),
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
    events = [replace(event, slot="a") for event in world.events[: 2 * MAX_ROUNDS]]
    assert {event.purpose for event in events} == {"end"}
    pending = [Pending(40, "end", 2, "b"), Pending(0, "end", 2, "c")]
    assert isinstance(next_action(world.plan, events[:-2], pending, "a"), Wait)
    assert isinstance(next_action(world.plan, events, (), "a"), SearchOutcome)


def test_a_slot_that_is_not_free_or_not_there():
    with pytest.raises(ValueError, match="one of its own"):
        next_action(Plan(n=4), [], [Pending(0, "end", 1, "a")], "a")
    with pytest.raises(ValueError, match="not among"):
        next_action(Plan(n=4), [], (), "a", ("b",))


@pytest.mark.parametrize("speed", mostly_long([0.0, -0.7], short=[-0.7]))
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
