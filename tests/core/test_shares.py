"""Two shares from counts, against published examples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.core.shares import most_of_none, two_proportions

COUNTS = st.integers(1, 5000).flatmap(lambda of: st.tuples(st.integers(0, of), st.just(of)))


# Newcombe 1998, table II, method 10: hits and counts of the second share, then of the first; the interval.
NEWCOMBE = [
    ((48, 80, 56, 70), 0.0524, 0.3339),
    ((3, 10, 9, 10), 0.1705, 0.8090),
    ((2, 7, 6, 7), 0.0582, 0.8062),
    ((0, 29, 5, 56), -0.0381, 0.1926),
    ((0, 20, 0, 10), -0.1611, 0.2775),
    ((0, 10, 0, 10), -0.2775, 0.2775),
]


@pytest.mark.parametrize(("counts", "low", "high"), NEWCOMBE)
def test_newcombes_examples(counts: tuple[int, int, int, int], low: float, high: float) -> None:
    found = two_proportions(*counts)
    assert (found.low, found.high) == pytest.approx((low, high), abs=6e-5)


def test_acceptance_that_fell_from_half_to_a_third() -> None:
    found = two_proportions(1024, 2034, 656, 2094)
    assert (found.a, found.b) == pytest.approx((0.5034, 0.3133), abs=1e-4)
    assert found.high < -0.15
    assert found.p < 1e-30


@given(one=COUNTS, other=COUNTS)
def test_sides_may_be_swapped(one: tuple[int, int], other: tuple[int, int]) -> None:
    found, turned = two_proportions(*one, *other), two_proportions(*other, *one)
    assert (turned.difference, turned.low, turned.high) == pytest.approx(
        (-found.difference, -found.high, -found.low)
    )
    assert 0 <= found.p <= 1


@pytest.mark.parametrize("counts", [(1, 0, 1, 1), (2, 1, 1, 1), (-1, 3, 0, 3)])
def test_counts_that_are_none(counts: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="is no share"):
        two_proportions(*counts)


@pytest.mark.parametrize(("of", "most"), [(1, 0.95), (10, 0.2589), (100, 0.0295), (2048, 0.001462)])
def test_no_hit_at_all_bounds_the_share_by_the_rule_of_three(of: int, most: float) -> None:
    """The exact bound of Clopper and Pearson: (1 - p) ** of is 0.05 there."""
    assert most_of_none(of) == pytest.approx(most, rel=2e-3)
    assert most_of_none(of) <= 3 / of


def test_no_trial_is_no_share() -> None:
    with pytest.raises(ValueError, match="0 of 0"):
        most_of_none(0)
