"""Machines of a fleet: their offsets, and which are unlike the others."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfbisect.bisect.decision.decide import next_action
from perfbisect.bisect.decision.machines import (
    MAX_END_PAIRS,
    MachineOffset,
    ends_by_machine,
    machine_offsets,
    outlying_machines,
)
from perfbisect.bisect.decision.model import Lost, Measured, NextLaunch, Pending, Plan, SearchOutcome, Wait
from perfbisect.bisect.decision.noise import launches
from perfbisect.stats.two_sample import Scale


def ends(speeds, *, noise=0.015, seed=1, step=1.1, rounds=1, only=None):
    """Both ends on every machine; ``only``: the machine that has the step."""
    rng = np.random.default_rng(seed)
    return [
        Measured(
            index,
            "end",
            (
                100.0
                * speed
                * (step if index and only in (None, name) else 1.0)
                * float(np.exp(rng.normal(0, noise))),
            ),
            slot=f"{name}/0",
            machine=name,
        )
        for name, speed in speeds.items()
        for index in (0, 9) * rounds
    ]


def names(events, sign=1):
    return [x.machine for x in outlying_machines(machine_offsets(events, 9, Scale(sign)))]


def test_one_machine_has_no_offset():
    assert machine_offsets(ends({"": 1.0}), 9, Scale()) == ()
    assert machine_offsets([*ends({"a": 1.0}), Lost(3.0)], 9, Scale()) == ()


@pytest.mark.parametrize("sign", [1, -1])
def test_offsets_are_against_the_middle_machine(sign):
    offsets = machine_offsets(ends({"slow": 1.5, "a": 1.0, "b": 1.06}), 9, Scale(sign))
    assert [x.machine for x in offsets] == ["slow", "a", "b"]
    assert [x.launches for x in offsets] == [2, 2, 2]
    effects = [x.relative(Scale(sign)) for x in offsets]
    assert [effect for effect, _, _ in effects] == pytest.approx([0.415, -0.05, 0.0], abs=0.04)
    assert all(low <= effect <= high for effect, low, high in effects)
    assert effects[2] == (0.0, 0.0, 0.0)
    assert effects[0][1] < 1.5 / 1.06 - 1 < effects[0][2]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("speed", [1.6, 0.62])
def test_a_machine_unlike_most_others_is_an_outlier(seed, speed):
    events = ends({"odd": speed, "a": 1.0, "b": 1.07, "c": 0.94}, seed=seed, rounds=2)
    assert names(events) == names(events, -1) == ["odd"]


@pytest.mark.parametrize("seed", range(5))
def test_machines_that_differ_as_machines_do_are_kept(seed):
    assert names(ends({"a": 1.0, "b": 1.22, "c": 0.9, "d": 1.08}, seed=seed, rounds=2)) == []


def test_of_two_machines_none_is_the_odd_one():
    assert names(ends({"a": 1.0, "b": 2.0}, rounds=3)) == []
    assert names(ends({"a": 1.0, "b": 2.0, "c": 4.0}, rounds=3)) == [], "no two are alike"
    assert names(ends({"a": 1.0, "b": 1.0, "c": 2.0, "d": 2.0}, rounds=3)) == [], "two against two"


def test_a_machine_is_judged_only_after_it_has_measured_both_ends():
    events = ends({"a": 1.0, "b": 1.0, "odd": 2.0}, rounds=2)
    first = [x for x in events if x.machine != "odd" or x.index == 0]
    assert names(events) == ["odd"]
    assert names(first) == []
    apart = [
        Measured(x.index, "end", x.values, slot=f"odd/{x.index}", machine="odd") if x.machine == "odd" else x
        for x in events
    ]
    assert names(apart) == [], "each of its slots has seen one end"


def test_a_machine_that_shares_no_position_is_not_judged():
    events = [*ends({"a": 1.0, "b": 1.0, "c": 1.0}), Measured(5, "search", (300.0,), slot="d/0", machine="d")]
    offsets = machine_offsets(events, 9, Scale())
    assert math.isinf(offsets[-1].error)
    assert outlying_machines(offsets) == ()


@pytest.mark.parametrize("only", ["a", "c"])
@pytest.mark.parametrize("step", [1.3, 2.0])
def test_a_step_on_one_machine_alone_is_no_offset(step, only):
    speeds = {"a": 1.25, "b": 1.0, "c": 0.8, "d": 1.0}
    for seed in range(5):
        assert names(ends(speeds, step=step, only=only, rounds=3, seed=seed)) == []


def test_an_offset_near_the_limit_needs_launches():
    def judged(offset, error, at_ends=0.4):
        alike = [MachineOffset(name, 4, 0.0, 0.02, 0.0) for name in "ab"]
        return outlying_machines([*alike, MachineOffset("c", 4, offset, error, at_ends)])

    assert judged(0.30, 0.02) == ()
    assert len(judged(0.30, 0.01)) == len(judged(-0.30, 0.01, -0.4)) == 1
    assert judged(0.26, 0.0) == ()
    assert judged(0.5, 0.01, 0.1) == judged(0.5, 0.01, None) == (), "at both ends"


FLEET = {"a": 1.0, "b": 1.06, "c": 0.95, "d": 1.02}


def told(events):
    return [x.machine for x in ends_by_machine(launches(tuple(events), Scale()), 9, 0.02) if x.is_told]


@pytest.mark.parametrize("seed", range(5))
def test_a_step_that_one_machine_alone_shows_is_told(seed):
    events = ends(FLEET, only="b", rounds=3, seed=seed)
    assert told(events) == ["b"]
    assert told(ends(FLEET, rounds=3, seed=seed)) == [], "all have it"
    assert told(ends(FLEET, step=1.0, rounds=3, seed=seed)) == [], "none has it"
    (there,) = [x for x in ends_by_machine(launches(tuple(events), Scale()), 9, 0.02) if x.machine == "b"]
    assert there.there.low < 0.1 < there.there.high
    assert -0.03 < there.elsewhere.low < there.elsewhere.high < 0.03
    assert there.others == ("a", "c", "d")


def test_one_pair_tells_nothing_and_asks_for_more():
    events = ends(FLEET, only="b", step=1.2)
    rows = {x.machine: x for x in ends_by_machine(launches(tuple(events), Scale()), 9, 0.02)}
    assert not any(x.is_told for x in rows.values())
    assert [name for name, x in rows.items() if x.is_doubtful] == ["b"]


def test_machines_without_both_ends_are_left_out():
    events = [x for x in ends(FLEET) if x.machine != "d" or x.index == 0]
    assert {x.machine for x in ends_by_machine(launches(tuple(events), Scale()), 9, 0.02)} == {"a", "b", "c"}
    assert ends_by_machine(launches(tuple(ends({"a": 1.0})), Scale()), 9, 0.02) == ()


PLAN = Plan(n=9)
SLOTS = [f"{name}/0" for name in FLEET]


def asked(events, slot, pending=(), plan=PLAN):
    return next_action(plan, events, pending, slot, SLOTS)


def test_the_ends_of_the_odd_machine_are_measured_again_before_the_search_ends():
    """Three machines of four say that nothing changed; what the fourth says is settled there."""
    events = ends(FLEET, only="b", step=1.15, noise=0.004)
    for machine in "acd":
        events += ends({machine: FLEET[machine]}, step=1.0, noise=0.004, rounds=2)
    assert isinstance(asked(events, "a/0"), Wait)
    why = []
    while isinstance(action := asked(events, "b/0"), NextLaunch):
        assert (action.purpose, len(why) < 2 * MAX_END_PAIRS) == ("end", True)
        why.append(action.why.kind)
        value = 106.0 * (1.15 if action.index else 1.0) * (1.004 if len(why) % 2 else 1.0)
        events.append(Measured(action.index, "end", (value,) * action.runs, slot="b/0", machine="b"))
    assert why[0] == "on one machine"
    assert isinstance(action, SearchOutcome)
    assert action.verdict == "too small", "it is not denied"
    (note,) = [note for note in action.notes if note.kind == "ends differ on one machine"]
    assert note.machines == ("b", "a", "c", "d")
    assert note.effect == pytest.approx(0.15, abs=0.02)
    assert note.whole == pytest.approx(0.0, abs=0.02)


def test_a_step_on_one_machine_ends_it_before_the_search():
    events = ends(FLEET, only="b", step=1.15, noise=0.004, rounds=3)
    outcome = asked(events, "a/0")
    assert isinstance(outcome, SearchOutcome)
    assert outcome.verdict == "too small"
    assert [note.machines[0] for note in outcome.notes if note.kind == "ends differ on one machine"] == ["b"]
    everywhere = asked(ends(FLEET, step=1.15, noise=0.004, rounds=3), "a/0")
    assert isinstance(everywhere, NextLaunch) and everywhere.purpose == "search"


def test_a_machine_that_is_gone_or_too_dear_is_not_waited_for():
    events = ends(FLEET, only="b", step=1.15, noise=0.004)
    for machine in "acd":
        events += ends({machine: FLEET[machine]}, step=1.0, noise=0.004, rounds=2)
    left = [slot for slot in SLOTS if slot != "b/0"]
    assert isinstance(next_action(PLAN, events, (), "a/0", left), SearchOutcome)
    assert isinstance(asked(events, "b/0", plan=Plan(n=9, budget=0.1)), SearchOutcome)


def test_the_search_does_not_end_before_each_machine_saw_both_ends():
    events = []
    for machine in "acd":
        events += ends({machine: FLEET[machine]}, step=1.0, noise=0.004, rounds=2)
    events += ends({"b": FLEET["b"]}, noise=0.004)[:1]
    pending = [Pending(9, "end", 1, "b/0")]
    assert isinstance(asked(events, "a/0", pending), Wait)
    alone = [x for x in events if x.machine == "a"]
    one = next_action(PLAN, alone, pending[:0], "a/0", ("a/0",))
    assert not isinstance(one, Wait)
