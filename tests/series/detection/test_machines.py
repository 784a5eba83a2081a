"""What known machines add to nights, and what is said to be of a machine."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfbisect.series.detection.machines import change_of_machine, machine_offsets
from perfbisect.series.detection.model import SeriesValues, detect

ADDS = {"a": 0.0, "b": 0.08, "c": -0.05}


def stays(n: int, seed: int, names: str = "ab", stay: float = 0.7) -> tuple[str, ...]:
    """A machine for each night, which measures the next as well with a probability."""
    rng = np.random.default_rng([n, seed, 1])
    machines = [str(rng.choice(list(names)))]
    while len(machines) < n:
        machines.append(machines[-1] if rng.random() < stay else str(rng.choice(list(names))))
    return tuple(machines)


def nights(machines: tuple[str, ...], seed: int, spread: float = 0.01) -> np.ndarray:
    noise = spread * np.random.default_rng([len(machines), seed, 2]).normal(size=len(machines))
    return noise + np.array([ADDS.get(name, 0.0) for name in machines])


def series(logs: np.ndarray, machines: tuple[str, ...] = ()) -> SeriesValues:
    values = tuple(float(v) for v in 100 * np.exp(logs))
    return SeriesValues("cell ttft", values, tuple(range(len(values))), min_effect=0.015, machines=machines)


@given(st.lists(st.sampled_from("abc"), min_size=20, max_size=60), st.floats(-5, 5), st.integers(0, 99))
def test_offsets_without_noise_are_those_of_the_machines(names: list[str], level: float, at: int) -> None:
    """Up to a constant, at any level, and for machines that recur; also where the level changes."""
    machines = (*names, *"abcabcabcabc")
    truth = nights(machines, 0, 0.0)
    offsets = machine_offsets(level + truth, machines)
    assert np.ptp(offsets - truth) == pytest.approx(0.0, abs=1e-6)
    moved = level + truth + 0.5 * (np.arange(len(machines)) >= 6 + at % len(names))
    assert np.ptp(machine_offsets(moved, machines) - truth) < 0.26


@pytest.mark.parametrize(
    "machines",
    ["a" * 30, "a" * 15 + "b" * 15, "a" * 12 + "b" * 6 + "a" * 12, "", "abcdefghijklmnopqrstuvwxyzABCD"],
    ids=["one", "one after another", "one in between", "not known", "fresh every night"],
)
def test_nothing_is_subtracted_of_machines_that_do_not_alternate(machines: str) -> None:
    names = tuple(machines) or ("",) * 30
    assert not machine_offsets(nights(names, 3), names).any()


def test_a_known_machine_is_no_step_and_hides_none() -> None:
    """Kinds that stay for some nights: without their names nearly every such series shows steps of 8 %."""
    for seed in range(6):
        machines = stays(60, seed, "abc")
        logs = nights(machines, seed)
        assert detect(series(logs, machines)) == ()
        (found,) = detect(series(logs + 0.05 * (np.arange(60) >= 40), machines))
        assert (found.shape, found.machines) == ("step", None)
        assert 40 in found.places and found.low < math.expm1(0.05) < found.high


def test_a_step_on_another_machine_is_said_to_be_of_it() -> None:
    machines = (*stays(40, 1, "ac"), *"b" * 12)
    (found,) = detect(series(nights(machines, 5), machines))
    assert (found.index, found.machines) == (40, ("a, c", "b"))
    (unknown,) = detect(series(nights(machines, 5), ("",) * 40 + tuple("b" * 12)))
    assert unknown.machines is None


@pytest.mark.parametrize(
    ("machines", "places", "found"),
    [
        ("aaaabbbb", (4,), ("a", "b")),
        ("aaaabbbb", (2, 3, 4), ("a", "b")),
        ("aaaabbbb", (3,), None),
        ("ab ab ddd ", (5, 6), ("a, b", "d")),
        ("abcdeeee", (4,), None),
        ("aaaabcde", (4,), None),
        ("        ", (4,), None),
        ("aababbab", (4,), None),
    ],
)
def test_a_change_of_machine_is_whole(
    machines: str, places: tuple[int, ...], found: tuple[str, str] | None
) -> None:
    names = tuple(name.strip() for name in machines)
    assert change_of_machine(names, 0, places, len(names)) == found


def test_each_night_has_its_machine() -> None:
    with pytest.raises(ValueError, match="1 machines of 20 nights"):
        dataclasses.replace(series(np.zeros(20)), machines=("a",))


@settings(max_examples=20, deadline=None)
@given(st.permutations(["a", "b", "c"]), st.floats(-0.2, 0.2))
def test_names_and_offsets_do_not_matter(order: list[str], adds: float) -> None:
    """Another name of each machine, and another offset of one, leave the changes as they are."""
    machines = stays(50, 9, "abc", 0.3)
    logs = nights(machines, 9) + 0.1 * (np.arange(50) >= 30)
    (plain,) = detect(series(logs, machines))
    renamed = tuple(order["abc".index(name)] for name in machines)
    logs = logs + adds * np.array([name == "b" for name in machines])
    (other,) = detect(series(logs, renamed))
    assert other.index == plain.index
    assert other.effect == pytest.approx(plain.effect, abs=0.01)
