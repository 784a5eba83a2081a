"""Whether an interval settles a claim."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.compare.claims import parse_change


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        (">= 3 %", 0.03, math.inf),
        (">3%", 0.03, math.inf),
        ("<= -8 %", -1.0, -0.08),
        ("3 .. 15 %", 0.03, 0.15),
        ("-1 to 1 %", -0.01, 0.01),
        ("+3% .. +15%", 0.03, 0.15),
    ],
)
def test_the_forms(text: str, low: float, high: float) -> None:
    change = parse_change(text)
    assert (change.low, change.high) == pytest.approx((low, high))


@pytest.mark.parametrize("text", ["", "faster", "3 %", ">= 3", ">= x %", "15 .. 3 %", "3 .. 3 %"])
def test_what_is_no_change(text: str) -> None:
    with pytest.raises(ValueError, match=r"no change|empty"):
        parse_change(text)


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (0.031, 0.14, "holds"),
        (0.02, 0.05, "inconclusive"),
        (0.12, 0.18, "inconclusive"),
        (-0.02, 0.02, "refuted"),
        (0.16, 0.2, "refuted"),
        (math.nan, math.nan, "inconclusive"),
    ],
)
def test_three_to_fifteen_per_cent(low: float, high: float, word: str) -> None:
    assert parse_change("3 .. 15 %").settles(low, high) == word


@given(low=st.floats(-0.5, 0.5), width=st.floats(0, 0.3), shrink=st.floats(0, 1))
def test_a_narrower_interval_never_turns_what_was_settled(low: float, width: float, shrink: float) -> None:
    change = parse_change("3 .. 15 %")
    told = change.settles(low, low + width)
    inner = change.settles(low, low + width * shrink)
    assert told in (inner, "inconclusive")
