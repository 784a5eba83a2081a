"""Distinguishable sets: what skips leave."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.bisect.decision.beliefs import distinguishable_sets, leading, nearest, parent_of


def test_candidates_between_testable_neighbours_are_one_set():
    assert distinguishable_sets(6, frozenset({2, 3, 5})) == ((1, 1), (2, 4), (5, 6))
    assert distinguishable_sets(1, frozenset()) == ((1, 1),)
    assert parent_of(4, frozenset({2, 3})) == 1


def test_the_leading_set_adds_up_its_members():
    p = np.array([0, 0.3, 0.2, 0.2, 0.1, 0.2])
    assert leading(p, frozenset())[:2] == (1, 1)
    first, last, mass = leading(p, frozenset({2, 3}))
    assert (first, last) == (2, 4)
    assert abs(mass - 0.5) < 1e-12


def test_the_nearest_testable_position():
    assert nearest(5, 0, 10, frozenset()) == 5
    assert nearest(5, 0, 10, frozenset({5})) == 4
    assert nearest(5, 0, 10, frozenset({4, 5, 3})) == 6
    assert nearest(1, 0, 3, frozenset({1, 2})) is None


@given(st.integers(1, 40), st.sets(st.integers(1, 39)))
def test_sets_cover_every_candidate_once(n, skips):
    skips = frozenset(s for s in skips if s < n)
    groups = distinguishable_sets(n, skips)
    assert [i for first, last in groups for i in range(first, last + 1)] == list(range(1, n + 1))
    assert all(last not in skips and (first - 1) not in skips for first, last in groups)
