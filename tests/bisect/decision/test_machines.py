"""Machines of a fleet: their offsets, and which are unlike the others."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfbisect.bisect.decision.machines import MachineOffset, machine_offsets, outlying_machines
from perfbisect.bisect.decision.model import Lost, Measured


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
    return [x.machine for x in outlying_machines(machine_offsets(events, 9, sign))]


def test_one_machine_has_no_offset():
    assert machine_offsets(ends({"": 1.0}), 9, 1) == ()
    assert machine_offsets([*ends({"a": 1.0}), Lost(3.0)], 9, 1) == ()


@pytest.mark.parametrize("sign", [1, -1])
def test_offsets_are_against_the_middle_machine(sign):
    offsets = machine_offsets(ends({"slow": 1.5, "a": 1.0, "b": 1.06}), 9, sign)
    assert [x.machine for x in offsets] == ["slow", "a", "b"]
    assert [x.launches for x in offsets] == [2, 2, 2]
    effects = [x.relative(sign) for x in offsets]
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
    offsets = machine_offsets(events, 9, 1)
    assert math.isinf(offsets[-1].error)
    assert outlying_machines(offsets) == ()


@pytest.mark.parametrize("step", [1.2, 1.5, 2.0])
def test_a_step_on_one_machine_alone_is_no_offset(step):
    assert names(ends({"a": 1.0, "b": 1.0, "c": 1.03, "d": 1.0}, step=step, only="a", rounds=2)) == []


def test_an_offset_near_the_limit_needs_launches():
    def judged(offset, error):
        alike = [MachineOffset(name, 4, 0.0, 0.02, sees_ends=True) for name in "ab"]
        return outlying_machines([*alike, MachineOffset("c", 4, offset, error, sees_ends=True)])

    assert judged(0.30, 0.02) == ()
    assert len(judged(0.30, 0.01)) == len(judged(-0.30, 0.01)) == 1
    assert judged(0.26, 0.0) == ()
