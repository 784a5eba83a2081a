"""What launches say of a difference, against the same integrals done plainly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, lognorm, t

from perfbisect.stats.robust import quantiles
from perfbisect.stats.two_sample import differ, difference_posterior, level_posterior

LEVELS = (0.01, 0.25, 0.5, 0.75, 0.99)


def plain(rows: list[list[float]], is_b: list[list[bool]], wide: float) -> tuple[float, ...]:
    """Quantiles of B - A by sums over fine grids of the difference, each block's level and the scale."""
    grid = np.linspace(-wide, wide, 301)
    level = np.linspace(-wide, wide, 801)
    total = np.zeros(len(grid))
    # Half a step of the scale either way of its grid does not matter here: both use the same one.
    for scale in 0.001 * 2 ** (0.5 * np.arange(19)):
        weight = np.exp(-0.5 * (np.log(scale / 0.025) / 1.2) ** 2)
        log = np.zeros(len(grid))
        for values, of_b in zip(rows, is_b, strict=True):
            each = np.zeros((len(grid), len(level)))
            for value, b in zip(values, of_b, strict=True):
                away = value - level[None, :] - (grid[:, None] if b else 0.0)
                each += t.logpdf(away / scale, 4) - np.log(scale)
            top = each.max()
            log += np.log(np.exp(each - top).sum(1) + 1e-300) + top
        total += weight * np.exp(log - 20)
    return quantiles(grid, total, LEVELS)


@pytest.mark.parametrize(
    ("rows", "is_b"),
    [
        ([[0.01, 0.06, 0.05, -0.01]], [[False, True, True, False]]),
        ([[0.0, 0.02, 0.01, -0.02, 0.015, 0.07, 0.06]], [[False] * 5 + [True] * 2]),
    ],
)
def test_two_sides_as_plain_sums_have_them(rows: list[list[float]], is_b: list[list[bool]]) -> None:
    delta, mass = difference_posterior(np.array(rows), np.array(is_b))
    assert quantiles(delta, mass, LEVELS) == pytest.approx(plain(rows, is_b, 0.5), abs=0.004)


def test_one_side_as_plain_sums_have_it() -> None:
    values = [0.031, 0.044, 0.029, 0.040, 0.15]
    grid = np.linspace(-0.4, 0.5, 3001)
    total = np.zeros(len(grid))
    for scale in 0.001 * 2 ** (0.5 * np.arange(19)):
        weight = lognorm.pdf(scale, 1.2, scale=0.025) * scale
        total += weight * np.prod([t.pdf((value - grid) / scale, 4) / scale for value in values], axis=0)
    delta, mass = level_posterior(np.array(values))
    assert quantiles(delta, mass, LEVELS) == pytest.approx(quantiles(grid, total, LEVELS), abs=0.003)


VALUES = st.lists(st.floats(-0.2, 0.2), min_size=2, max_size=9)


@settings(max_examples=25, deadline=None)
@given(values=VALUES, shift=st.floats(-3.0, 3.0))
def test_a_shift_moves_the_level_and_nothing_else(values: list[float], shift: float) -> None:
    here, there = (quantiles(*level_posterior(np.array(values) + s), LEVELS) for s in (0.0, shift))
    assert np.array(there) - shift == pytest.approx(np.array(here), abs=1e-6)


@settings(max_examples=25, deadline=None)
@given(known=VALUES, new=VALUES)
def test_who_is_held_against_whom_turns_the_sign(known: list[float], new: list[float]) -> None:
    row = np.array([[*known, *new]])
    is_new = np.array([[False] * len(known) + [True] * len(new)])
    here, there = (quantiles(*difference_posterior(row, side), (0.1, 0.5, 0.9)) for side in (is_new, ~is_new))
    assert [-x for x in reversed(there)] == pytest.approx(here, abs=0.01)


@pytest.mark.parametrize("noise", [0.01, 0.2])
@pytest.mark.parametrize("pairs", [2, 3])
def test_one_of_three_equal_groups_differs_no_more_often_than_stated(pairs: int, noise: float) -> None:
    """The guards of a bisection with a stated error of 1 %; two pairs whose ranges are apart: a third."""
    rng, jobs, error = np.random.default_rng([pairs, round(100 * noise)]), 300, 0.01
    wrong = sum(
        any(differ(noise * rng.normal(size=(2, pairs)), 0.01, error / 3) for _ in range(3))
        for _ in range(jobs)
    )
    assert wrong <= binom.ppf(0.999, jobs, error)


def test_launches_that_agree_by_chance_are_not_free_of_noise() -> None:
    """One of 32 requests failed in each launch of B; then answers of 28 tokens for 32, a step of 13 %."""
    assert not differ([[0.0, 0.0], [1 / 32, 1 / 32]], 0.005, 0.01 / 3)
    assert differ([[0.0, 0.0], [0.1335, 0.1335]], 0.01, 0.01 / 3)
    assert not differ([[0.0, 0.0], [0.1335, 0.1335], [0.1, -0.1]], 0.01, 0.01 / 3)


def test_a_difference_within_the_smallest_effect_is_none() -> None:
    groups = [0.0001 * np.arange(6), 0.004 + 0.0001 * np.arange(6)]
    assert differ(groups, 0.003, 0.01)
    assert not differ(groups, 0.02, 0.01)
