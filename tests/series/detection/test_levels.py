"""Levels of a series: medians, intervals that hold whatever the noise, spreads."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from perfbisect.series.detection.model import levels, outermost


def test_a_level_is_a_median_between_cuts() -> None:
    first, second = levels([1.0, 2.0, 9.0, 20.0, 22.0], [3])
    assert (first.first, first.last, first.value) == (0, 2, 2.0)
    assert (second.first, second.last, second.value) == (3, 4, 21.0)
    assert (first.low, first.high) == (1.0, 9.0)
    # Distances from 2: 1, 0, 7; their median 1, times 1.4826, over 2.
    assert first.spread == pytest.approx(0.7413)


def test_without_cuts_there_is_one_level_and_of_nothing_none() -> None:
    assert [outermost(count) for count in (1, 2, 5)] == [0, 0, 0]
    assert len(levels([1.0, 2.0, 3.0], [0, 3])) == 1
    (only,) = levels([3.0], [])
    assert (only.low, only.value, only.high, only.spread) == (3.0, 3.0, 3.0, None)
    assert levels([], []) == ()


@pytest.mark.parametrize("count", [6, 7, 9, 10, 30, 99, 365, 1500])
def test_the_interval_is_the_narrowest_that_holds_the_median(count: int) -> None:
    out = outermost(count)
    assert 2 * binom.cdf(out, count, 0.5) <= 0.05 < 2 * binom.cdf(out + 1, count, 0.5)


def test_the_interval_covers_the_median_of_skewed_noise() -> None:
    rng = np.random.default_rng(3)
    nights = rng.exponential(1.0, (2000, 20))
    held = [one.low <= np.log(2) <= one.high for row in nights for one in levels(row.tolist(), [])]
    # 95.9 % by the binomial, +- 1.3 % of 2000.
    assert np.mean(held) > 0.945
