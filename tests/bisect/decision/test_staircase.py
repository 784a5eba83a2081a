"""The staircase against plain sums over every level and size, and where its steps fall."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfbisect.bisect.decision.beliefs import step_prior
from perfbisect.bisect.decision.staircase import MEAN_STEPS, staircase

LEAST = 0.04


def density(z, scale):
    """Nine tenths Gaussian, one tenth a Student-t3 three times as wide, in units of the Gaussian's peak."""
    far = 2 / (math.sqrt(3) * math.pi) / (1 + (z / scale / 3) ** 2 / 3) ** 2 / 3
    return (0.9 * np.exp(-0.5 * (z / scale) ** 2) + 0.1 * far * math.sqrt(2 * math.pi)) / scale


def by_plain_sums(y, scale, index, build_sd, mass):
    """Three positions, so that two steps are one in either gap."""
    levels = np.linspace(min(y) - 0.2, max(y) + 0.2, 400)
    width = levels[1] - levels[0]
    offsets = np.linspace(-4, 4, 41) * build_sd
    share = np.exp(-0.5 * np.linspace(-4, 4, 41) ** 2)
    share /= share.sum()

    def seen(place, level):
        own = [(value, s) for value, s, at in zip(y, scale, index, strict=True) if at == place]
        return sum(
            w * np.prod([density(v - level - u, s) for v, s in own], axis=0)
            for w, u in zip(share, offsets, strict=True)
        )

    sizes = np.arange(0.03, 0.5, 0.002)
    prior = np.diff(step_prior(np.append(sizes - 0.001, sizes[-1] + 0.001), LEAST))
    first, second, third = np.unique(index)
    reach = np.linspace(min(y) - 0.2, max(y) + 1.4, 1601)
    tables = [seen(place, reach) for place in (first, second, third)]
    total = 0.0
    for one, p in zip(sizes, prior, strict=True):
        for two, q in zip(sizes, prior, strict=True):
            shifts = (0.0, one, one + two)
            parts = [np.interp(levels + x, reach, t) for x, t in zip(shifts, tables, strict=True)]
            total += p * q * float(np.prod(parts, axis=0).sum()) * width
    chance = 1 - np.exp(-MEAN_STEPS * np.array(mass))
    at_least_two = 1 - math.exp(-MEAN_STEPS) * (1 + MEAN_STEPS)
    return math.log(total * chance.prod() / at_least_two / math.sqrt(2 * math.pi))


@pytest.mark.parametrize("build_sd", [0.0, 0.01])
@pytest.mark.parametrize("middle", [0.05, 0.10, 0.16])
def test_it_agrees_with_plain_sums(build_sd, middle):
    y = np.array([0.0, 0.02, middle, middle + 0.01, 0.2, 0.19])
    scale, index = np.array([0.02, 0.02, 0.03, 0.02, 0.02, 0.025]), np.array([0, 0, 5, 5, 9, 9])
    logs, _ = staircase(y[None], scale[None], index, np.array([build_sd]), np.array([0.6, 0.4]), LEAST)
    assert logs[0] == pytest.approx(by_plain_sums(y, scale, index, build_sd, [0.6, 0.4]), abs=0.05)


def test_its_steps_fall_where_the_level_rises():
    index = np.repeat(np.arange(0, 60, 5), 3)
    level = 0.1 * (index >= 15) + 0.07 * (index >= 40) + 0.06 * (index >= 50)
    y = level + np.random.default_rng(4).normal(0, 0.01, len(index))
    logs, falls = staircase(y[None], np.full((1, 36), 0.01), index, np.zeros(1), np.full(11, 1 / 11), LEAST)
    assert {*np.argsort(-falls)[:3]} == {2, 7, 9}
    assert falls.sum() == pytest.approx(1) and falls[[2, 7, 9]].sum() > 0.95
    ramp = 0.23 * index / 55 + np.random.default_rng(4).normal(0, 0.01, len(index))
    other, _ = staircase(ramp[None], np.full((1, 36), 0.01), index, np.zeros(1), np.full(11, 1 / 11), LEAST)
    assert logs[0] > other[0] + 5


def test_steps_of_any_size_have_a_finite_likelihood():
    """Levels far apart for the noise: the grid is coarse there."""
    index = np.repeat(np.arange(4), 2)
    y = np.array([0.0, 0.001, 2.0, 2.001, 2.001, 2.0, 4.5, 4.501])
    logs, falls = staircase(y[None], np.full((1, 8), 0.001), index, np.zeros(1), np.full(3, 1 / 3), LEAST)
    assert np.isfinite(logs).all() and falls == pytest.approx([0.5, 0.0, 0.5], abs=0.01)


def test_many_positions_that_no_staircase_has_are_unlikely_not_impossible():
    """Every second one lies 20 standard deviations off: the product is less than any float."""
    index, scale = np.arange(200), np.full((1, 200), 0.001)
    y = 0.002 * index + 0.01 * (-1.0) ** index
    logs, falls = staircase(y[None], scale, index, np.zeros(1), np.full(199, 1 / 199), LEAST)
    assert np.isfinite(logs).all() and logs[0] < 200 * math.log(1 / 0.001) - 1000
    assert falls.sum() == pytest.approx(1)


def test_levels_that_fall_are_finite_too():
    """No staircase comes down: every launch of the second position is out of its reach."""
    index, y = np.repeat(np.arange(3), 60), np.repeat([2.0, 0.0, 2.0], 60)
    logs, falls = staircase(y[None], np.full((1, 180), 0.001), index, np.zeros(1), np.full(2, 0.5), LEAST)
    assert np.isfinite(logs).all() and logs[0] < 0 and np.isfinite(falls).all()
