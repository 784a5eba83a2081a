"""When a mean becomes the baseline."""

from __future__ import annotations

import pytest

from perfbisect.series.rebaseline import propose

WEEK = (10.0, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0)


@pytest.mark.parametrize(
    ("old", "sign", "new", "status"),
    [
        (12.0, 1, 10.0, "better"),
        (8.0, -1, 10.0, "better"),
        (10.1, 1, 10.0, "same"),
        (9.5, 1, 10.0, "worse, tolerated"),
        (9.0, 1, 9.0, "kept"),
        (11.0, -1, 11.0, "kept"),
        (None, 1, 10.0, "new"),
    ],
)
def test_what_got_worse_by_more_than_seven_per_cent_is_not_absorbed(
    old: float | None, sign: int, new: float, status: str
) -> None:
    made = propose(old, WEEK, sign=sign, smallest=0.03)
    assert (made.new, made.status) == (new, status)
    assert made.mean == 10.0


def test_the_mean_is_plain() -> None:
    assert propose(None, (9.0, 9.5, 10.5, 11.0), sign=1, smallest=0.03).new == 10.0


def test_one_wild_night_makes_no_baseline() -> None:
    made = propose(12.0, (*WEEK[:6], 500.0), sign=1, smallest=0.03)
    assert (made.new, made.status) == (12.0, "kept")
    assert made.why == "the nights are not one level: 10 to 500"
    none = propose(None, (*WEEK[:6], 500.0), sign=1, smallest=0.03)
    assert (none.new, none.status) == (None, "skipped"), "there is nothing to keep"
    assert propose(12.0, (*WEEK[:6], 11.0), sign=1, smallest=0.03).status == "better"


def test_nights_that_are_no_level_make_none() -> None:
    """Mean and median agree, and nobody knows the level: its standard error is 10 %."""
    wild = (6.0, 8.0, 12.0, 14.0, 10.0)
    made = propose(None, wild, sign=1, smallest=0.03)
    assert (made.new, made.status, made.why) == (None, "skipped", "the nights are not one level: 6 to 14")
    assert propose(12.0, wild, sign=1, smallest=0.03).status == "kept"
    assert propose(None, (9.0, 9.5, 10.5, 11.0, 10.0), sign=1, smallest=0.03).status == "new"


def test_too_few_nights_change_nothing() -> None:
    made = propose(12.0, WEEK[:3], sign=1, smallest=0.03)
    assert (made.new, made.status, made.why) == (12.0, "too few", "3 of 7 nights, 4 needed")
    assert propose(12.0, WEEK[:4], sign=1, smallest=0.03).status == "better"
    assert propose(12.0, (), sign=1, smallest=0.03).mean is None


def test_what_is_open_is_not_touched() -> None:
    made = propose(12.0, WEEK, sign=1, smallest=0.03, skip="alert a1 is open")
    assert (made.new, made.status, made.why) == (12.0, "skipped", "alert a1 is open")
