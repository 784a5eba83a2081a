"""Bounds of a share from counts, against published examples."""

from __future__ import annotations

import pytest

from perfbisect.stats.sequential import most_of_none


@pytest.mark.parametrize(("of", "most"), [(1, 0.95), (10, 0.2589), (100, 0.0295), (2048, 0.001462)])
def test_no_hit_at_all_bounds_the_share_by_the_rule_of_three(of: int, most: float) -> None:
    """The exact bound of Clopper and Pearson: (1 - p) ** of is 0.05 there."""
    assert most_of_none(of) == pytest.approx(most, rel=2e-3)
    assert most_of_none(of) <= 3 / of


def test_no_trial_is_no_share() -> None:
    with pytest.raises(ValueError, match="at least one trial"):
        most_of_none(0)
