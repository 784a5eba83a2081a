"""Noise: effects of run order and of slots are estimated where several launches show them, and removed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfbisect.bisect.decision.decide import beliefs
from perfbisect.bisect.decision.model import Measured, Plan
from perfbisect.bisect.decision.noise import launches, run_order_effects, slot_offsets
from perfbisect.stats.two_sample import Scale


def made(rng: np.random.Generator, count: int, runs: int, shift: float, sigma: float) -> list[np.ndarray]:
    """Launches of very different levels whose runs after the first are shifted."""
    out = []
    for _ in range(count):
        logs = rng.normal(0.0, 0.3) + rng.normal(0.0, sigma, runs)
        logs[1:] += shift
        out.append(logs)
    return out


def test_an_effect_that_all_launches_show_is_found():
    effects = run_order_effects(made(np.random.default_rng(1), 8, 3, -0.06, 0.01))
    assert effects[0] == 0.0
    assert effects[1:] == pytest.approx([-0.06, -0.06], abs=0.015)


def test_noise_is_rarely_taken_for_an_effect():
    rng = np.random.default_rng(2)
    found = sum(bool(run_order_effects(made(rng, 8, 2, 0.0, 0.03)).any()) for _ in range(400))
    assert found < 25


def test_launches_of_one_and_of_two_runs_stand_on_one_level():
    """The first run 8 % slower than the second, in every launch: the centres must not show it."""
    rng = np.random.default_rng(4)
    events = []
    for index, runs in ((0, 2), (9, 2), (9, 2), (0, 2), (0, 2), (9, 2), (4, 1), (4, 1), (4, 1)):
        level = math.log(100.0) + (0.2 if index == 9 else 0.0)
        logs = level + rng.normal(0.0, 0.004, runs)
        logs[1:] -= 0.08
        events.append(Measured(index, "search", tuple(np.exp(logs))))
    data = launches(tuple(events), Scale())
    good = np.mean([x.center for x in data if x.index == 0])
    middle = np.mean([x.center for x in data if x.index == 4])
    assert middle - good == pytest.approx(0.0, abs=0.01)
    assert max(abs(r) for x in data for r in x.residuals) < 0.02
    assert sum(beliefs(Plan(n=9), tuple(events)).p[5:]) > 0.95


@settings(max_examples=30, deadline=None)
@given(
    slow=st.floats(-1.0, 1.0),
    level=st.floats(-3, 3),
    step=st.floats(-0.5, 0.5),
    rounds=st.integers(2, 5),
)
def test_without_noise_the_shift_is_exact(slow, level, step, rounds):
    slots = ["a", "a", "b", "b"] * rounds + ["a", "b"]
    index = [0, 9, 9, 0] * rounds + [0, 4]
    levels = {0: level, 9: level + step, 4: level + 0.2}
    y = np.array([levels[i] + (slow if s == "b" else 0.0) for s, i in zip(slots, index, strict=True)])
    shift, error = slot_offsets(slots, index, y)
    here = np.array([s == "b" for s in slots])
    assert not shift[~here].any() and not error[~here].any()
    # A shift is held back by its prior as if another launch or so had shown none.
    assert np.allclose(shift[here], slow, atol=0.01)
    assert 0.0 < error[here][0] < 0.02


def test_the_error_is_that_of_a_difference_of_means():
    rng = np.random.default_rng(5)
    off, told = [], []
    for _ in range(300):
        slots = ["a", "a", "b", "b"] * 3
        index = [0, 9, 9, 0] * 3
        y = rng.normal(0, 0.02, 12) + np.array([0.7 if s == "b" else 0.0 for s in slots])
        shift, error = slot_offsets(slots, index, y)
        off.append(shift[2] - 0.7)
        told.append(error[2])
    assert np.std(off) == pytest.approx(0.02 * math.sqrt(2 / 6), rel=0.2)
    assert np.mean(np.abs(off) < 1.96 * np.array(told)) > 0.93


def test_a_slot_that_shares_no_position_cannot_be_compared():
    slots = ["a", "a", "b", "b", "c", "d", "d"]
    index = [0, 9, 9, 5, 5, 7, 8]
    y = np.array([0.0, 0.3, 0.4, 0.2, 0.6, 0.0, 0.0])
    shift, error = slot_offsets(slots, index, y)
    assert np.isinf(error).tolist() == [False] * 5 + [True] * 2
    assert shift[4] > shift[3] > shift[0]
    assert shift[0] == pytest.approx(-0.1, abs=0.02)


def test_one_contaminated_launch_moves_a_shift_little():
    slots = ["a", "a", "b", "b"] * 3
    index = [0, 9, 9, 0] * 3
    y = np.random.default_rng(1).normal(0, 0.004, 12)
    y[2] += 0.3
    shift, _ = slot_offsets(slots, index, y)
    assert abs(shift[2]) < 0.01


def test_launches_are_freed_of_their_slot():
    def measured(index, value, slot):
        return Measured(index, "end", (value, value), slot=slot)

    events = (
        *(measured(i, v, "a") for i, v in ((0, 100.0), (9, 120.0), (9, 120.0), (0, 100.0))),
        *(measured(i, 2 * v, "b") for i, v in ((9, 120.0), (0, 100.0))),
        *(measured(i, 3 * v, "c") for i, v in ((0, 100.0), (5, 120.0), (9, 120.0))),
    )
    made = launches(events, Scale())
    levels = {0: math.log(100), 9: math.log(120), 5: math.log(120)}
    for launch in made:
        assert launch.center == pytest.approx(levels[launch.index], abs=0.02)
        assert (launch.offset_se == 0) == (launch.slot == "a")
    alone = launches((*events[:4], measured(5, 360.0, "c")), Scale())
    assert math.isinf(alone[-1].offset_se)


SLOTS = ["a", "b", "a", "b", "c", "c", "a", "b", "d", "c"]
INDEX = [0, 0, 9, 9, 0, 9, 4, 4, 7, 4]
CENTERS = np.array(
    [4.600513, 4.650396, 4.718371, 4.722345, 5.29553, 5.392089, 4.708546, 4.729159, 4.911203, 5.37229]
)


@pytest.mark.parametrize("machines", [(), ("",) * 10, ("m",) * 10])
def test_offsets_within_one_machine_are_what_they_were(machines):
    """Known answers, computed before machines had offsets of their own."""
    offset, error = slot_offsets(SLOTS, INDEX, CENTERS, machines)
    b, c = 0.005050969363827796, 0.666623631365202
    assert offset == pytest.approx([0, b, 0, b, c, c, 0, b, 0, c], rel=1e-9)
    b, c = 0.008224843861351031, 0.014999120874063212
    assert error[:8] == pytest.approx([0, b, 0, b, c, c, 0, b], rel=1e-9)
    assert math.isinf(error[8])
    plain = slot_offsets(SLOTS, INDEX, CENTERS)
    assert (offset.tolist(), error.tolist()) == (plain[0].tolist(), plain[1].tolist()), "bit for bit"


def blocks(offsets, *, rounds=1, noise=0.01, seed=3):
    """Both ends of a range by each slot in turn: slots, positions and centres."""
    rng = np.random.default_rng(seed)
    slots = [name for name in offsets for _ in range(2 * rounds)]
    index = [0, 9, 9, 0][: 2 * min(2, rounds)] * (len(slots) // (2 * min(2, rounds)))
    level = np.array([offsets[name] + 0.1 * (i > 0) for name, i in zip(slots, index, strict=True)])
    return slots, index, level + rng.normal(0, noise, len(slots))


def test_the_offset_of_a_machine_is_held_back_less_than_that_of_a_slot():
    slots, index, y = blocks({"a": 0.0, "b": 0.05})
    within, _ = slot_offsets(slots, index, y, ["m"] * 4)
    between, error = slot_offsets(slots, index, y, ["m", "m", "n", "n"])
    assert within[2] < 0.02, "two launches do not show that a slot is unlike its neighbour"
    assert between[2] == pytest.approx(0.05, abs=0.02)
    assert 0.01 < error[2] < 0.03


def test_the_slots_of_a_machine_share_its_offset():
    offsets = {"m/0": 0.0, "n/0": 0.08, "n/1": 0.08, "n/2": 0.08}
    slots, index, y = blocks(offsets, noise=0.004)
    machines = [name[0] for name in slots]
    offset, error = slot_offsets(slots, index, y, machines)
    assert offset[2::2] == pytest.approx([0.08] * 3, abs=0.01)
    alone = slot_offsets(slots[:4], index[:4], y[:4], machines[:4])[1]
    assert error[2] < alone[2], "its neighbours tell of the machine, too"
    unlike, _ = slot_offsets(slots, index, y + 0.4 * np.array([s == "n/2" for s in slots]), machines)
    assert unlike[2:7:2] == pytest.approx([0.08, 0.08, 0.48], abs=0.02), "a slot may differ from its machine"


def test_offsets_of_machines_are_those_of_any_slot_taken_as_the_measure():
    slots, index, y = blocks({"a": 0.0, "b": 0.3, "c": -0.2}, rounds=2)
    machines = slots
    first, _ = slot_offsets(slots, index, y, machines)
    other, error = slot_offsets(slots, index, y, machines, measure="b")
    assert other[0] == pytest.approx(first[0] - first[4], abs=0.01)
    assert not other[4] and not error[4]


def test_launches_of_a_search_know_their_machine():
    events = [
        Measured(i, "end", (v, v), slot=s, machine=s)
        for s, speed in (("a", 1.0), ("b", 1.06), ("c", 0.93))
        for i, v in ((0, 100.0 * speed), (9, 120.0 * speed))
    ]
    levels = {0: math.log(100), 9: math.log(120)}
    for launch in launches(tuple(events), Scale()):
        assert launch.center == pytest.approx(levels[launch.index], abs=0.012)
    one = launches(tuple(replace(event, machine="one") for event in events), Scale())
    none = launches(tuple(replace(event, machine="") for event in events), Scale())
    assert tuple(replace(launch, machine="") for launch in one) == none
