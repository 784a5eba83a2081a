"""Boundaries against the published tables of group-sequential designs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfbisect.stats.sequential import crossing_probability, most_of_none, stopping_boundaries

# Jennison, Turnbull: Group Sequential Methods (2000), tables 2.1 (Pocock) and 2.3 (O'Brien, Fleming).
POCOCK = {(1, 0.05): 1.960, (2, 0.05): 2.178, (5, 0.05): 2.413, (10, 0.05): 2.555, (5, 0.01): 2.986}
OBRIEN = {(1, 0.05): 1.960, (2, 0.05): 1.977, (5, 0.05): 2.040, (10, 0.05): 2.087}


@pytest.mark.parametrize(("looks", "alpha"), POCOCK)
def test_pocock(looks: int, alpha: float) -> None:
    assert stopping_boundaries(looks, alpha, 0.5) == pytest.approx([POCOCK[looks, alpha]] * looks, abs=0.003)


@pytest.mark.parametrize(("looks", "alpha"), OBRIEN)
def test_obrien_fleming(looks: int, alpha: float) -> None:
    last = OBRIEN[looks, alpha]
    expected = [last * (looks / k) ** 0.5 for k in range(1, looks + 1)]
    assert stopping_boundaries(looks, alpha, 0.0) == pytest.approx(expected, rel=0.002)


@settings(max_examples=10)
@given(looks=st.integers(1, 8), alpha=st.floats(0.002, 0.2))
def test_stricter_early_and_exact_in_all(looks: int, alpha: float) -> None:
    bounds = stopping_boundaries(looks, alpha)
    assert list(bounds) == sorted(bounds, reverse=True)
    assert crossing_probability(np.array(bounds)) == pytest.approx(alpha, rel=1e-3)


@pytest.mark.parametrize(("looks", "alpha"), [(0, 0.05), (3, 0.0), (3, 1.0)])
def test_nonsense(looks: int, alpha: float) -> None:
    with pytest.raises(ValueError, match="at least one look"):
        stopping_boundaries(looks, alpha)


@pytest.mark.parametrize(("of", "most"), [(1, 0.95), (10, 0.2589), (100, 0.0295), (2048, 0.001462)])
def test_no_hit_at_all_bounds_the_share_by_the_rule_of_three(of: int, most: float) -> None:
    """The exact bound of Clopper and Pearson: (1 - p) ** of is 0.05 there."""
    assert most_of_none(of) == pytest.approx(most, rel=2e-3)
    assert most_of_none(of) <= 3 / of
