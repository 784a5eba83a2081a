"""What known machines add to their nights, and changes that come with another machine."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.series.detection.machines import machine_offsets, replaced_machines
from perfbisect.series.detection.model import SeriesValues, detect

ADDS = {"a": 0.0, "b": 0.08, "c": -0.05}


def staying(n: int, seed: int) -> tuple[str, ...]:
    """Machines of n nights that recur, each that of the night before with a probability of 0.7."""
    rng = np.random.default_rng([n, seed, 1])
    names = list("abcabc")
    while len(names) < n:
        names.append(names[-1] if rng.random() < 0.7 else str(rng.choice(list(ADDS))))
    return tuple(names)


def nights(machines: tuple[str, ...], seed: int, noise: float = 0.01) -> np.ndarray:
    spread = noise * np.random.default_rng([len(machines), seed, 2]).normal(size=len(machines))
    return np.asarray(spread + [ADDS[name] for name in machines])


def series(logs: np.ndarray, machines: tuple[str, ...] = ()) -> SeriesValues:
    values = tuple(float(v) for v in 100 * np.exp(logs))
    return SeriesValues("cell ttft", values, tuple(range(len(values))), min_effect=0.015, machines=machines)


@given(st.permutations("abc"), st.floats(-5, 5), st.integers(2, 40), st.integers(0, 9))
def test_offsets_are_those_of_the_machines(names: list[str], level: float, at: int, seed: int) -> None:
    """Up to a constant, at any level, whatever their names, and where the level changes."""
    drawn = staying(60, seed)
    logs = nights(drawn, seed, 0.001)
    machines = [names["abc".index(name)] for name in drawn]
    offsets = machine_offsets(level + logs + 0.5 * (np.arange(60) >= at), machines)
    assert np.ptp(offsets - [ADDS[name] for name in drawn]) < 0.02


@pytest.mark.parametrize(
    "machines",
    ["a" * 40, "a" * 20 + "b" * 20, "a" * 19 + "b" + "a" * 20, " " * 40, "ab" * 10 + "cd" * 10],
    ids=["one", "one after another", "one in between", "not known", "two that alternate replace two"],
)
def test_of_machines_that_do_not_alternate_nothing_is_known(machines: str) -> None:
    """Nor of those that measure alike: a series of these is as if its machines were not known."""
    names = tuple(name.strip() for name in machines)
    logs = nights(("a",) * 40, 3) + 0.3 * (np.arange(40) >= 30)
    assert not machine_offsets(logs, names).any()
    assert detect(series(logs, names)) == detect(series(logs))


def test_a_machine_is_no_step_and_hides_none() -> None:
    for seed in range(8):
        machines = staying(60, seed)
        logs = nights(machines, seed)
        assert detect(series(logs, machines)) == ()
        (found,) = detect(series(logs + 0.05 * (np.arange(60) >= 40), machines))
        assert 40 in found.places and found.low < math.expm1(0.05) < found.high
    assert detect(series(logs)), "where they are not known, this shows steps"


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
def test_a_machine_is_replaced_wholly(
    machines: str, places: tuple[int, ...], found: tuple[str, str] | None
) -> None:
    assert replaced_machines([name.strip() for name in machines], 0, places, len(machines)) == found


def test_each_night_has_its_machine() -> None:
    with pytest.raises(ValueError, match="1 machines of 20 nights"):
        dataclasses.replace(series(np.zeros(20)), machines=("a",))
