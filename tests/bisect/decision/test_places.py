"""The effect of a run's place in its launch: found where all launches show it, and taken out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.bisect.decision.decide import beliefs
from perfbisect.bisect.decision.model import Measured, Plan
from perfbisect.bisect.decision.noise import launches, run_order_effects


def made(rng: np.random.Generator, count: int, runs: int, shift: float, sigma: float) -> list[np.ndarray]:
    """Launches of very different levels whose runs after the first are shifted."""
    out = []
    for _ in range(count):
        logs = rng.normal(0.0, 0.3) + rng.normal(0.0, sigma, runs)
        logs[1:] += shift
        out.append(logs)
    return out


def test_an_effect_that_all_launches_show_is_found() -> None:
    effects = run_order_effects(made(np.random.default_rng(1), 8, 3, -0.06, 0.01))
    assert effects[0] == 0.0
    assert effects[1:] == pytest.approx([-0.06, -0.06], abs=0.015)


def test_noise_is_rarely_taken_for_an_effect() -> None:
    rng = np.random.default_rng(2)
    found = sum(bool(run_order_effects(made(rng, 8, 2, 0.0, 0.03)).any()) for _ in range(400))
    assert found < 25


def test_three_launches_say_nothing() -> None:
    logs = [np.array([x, x - 0.5]) for x in (0.0, 1.0, 2.0)]
    assert run_order_effects(logs).tolist() == [0.0, 0.0]


@given(st.lists(st.floats(-3, 3), min_size=0, max_size=6))
def test_launches_of_one_run_have_no_places(levels: list[float]) -> None:
    assert not run_order_effects([np.array([level]) for level in levels]).any()


def test_levels_do_not_enter() -> None:
    rng = np.random.default_rng(3)
    logs = made(rng, 6, 2, 0.1, 0.01)
    moved = [launch + rng.normal(0.0, 2.0) for launch in logs]
    assert run_order_effects(moved) == pytest.approx(run_order_effects(logs), abs=1e-9)


def test_launches_of_one_and_of_two_runs_stand_on_one_level() -> None:
    """The first run 8 % slower than the second, in every launch: the centres must not show it."""
    rng = np.random.default_rng(4)
    events = []
    for index, runs in ((0, 2), (9, 2), (9, 2), (0, 2), (0, 2), (9, 2), (4, 1), (4, 1), (4, 1)):
        level = math.log(100.0) + (0.2 if index == 9 else 0.0)
        logs = level + rng.normal(0.0, 0.004, runs)
        logs[1:] -= 0.08
        events.append(Measured(index, "search", tuple(np.exp(logs))))
    data = launches(tuple(events), 1)
    good = np.mean([x.center for x in data if x.index == 0])
    middle = np.mean([x.center for x in data if x.index == 4])
    assert middle - good == pytest.approx(0.0, abs=0.01)
    assert max(abs(r) for x in data for r in x.residuals) < 0.02
    assert sum(beliefs(Plan(n=9), tuple(events)).p[5:]) > 0.95
