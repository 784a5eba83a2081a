"""The picture of a series around a change, in one line of text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.series.nightly_report import sparkline


@pytest.mark.parametrize(
    ("values", "change", "picture"),
    [
        ((10.0, 10.0, 17.0, 17.0), 2, "▁▁██"),
        ((17.0, 14.0, 10.0), 1, "█▅▁"),
        ((5.0, 5.0), 1, "▄▄"),
        ((3.0,), 0, "▄"),
    ],
    ids=["a step up", "a fall", "all alike", "one night"],
)
def test_a_picture_has_a_bar_for_each_night(values: tuple[float, ...], change: int, picture: str) -> None:
    assert sparkline(values, change) == picture


@given(
    st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=120).flatmap(
        lambda values: st.tuples(st.just(values), st.integers(0, len(values) - 1))
    )
)
def test_a_long_series_is_cut_to_the_nights_around_the_change(given_: tuple[list[float], int]) -> None:
    values, change = given_
    values[change] = 2e9
    shown = sparkline(values, change)
    assert len(shown) == min(32, len(values))
    assert "█" in shown or len(values) == 1


def test_the_newest_nights_are_shown_where_the_change_is_among_them() -> None:
    assert sparkline([1.0] * 50 + [2.0] * 10, 50) == "▁" * 22 + "█" * 10
