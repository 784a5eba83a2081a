"""Numbers as they are shown."""

from __future__ import annotations

import pytest

from perfbisect.common.numbers import minutes, number, percent, probability, with_unit


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0, "0"),
        (14.20449, "14.20"),
        (1234567.0, "1,234,567"),
        (0.0012344, "0.001234"),
        (-3.5, "-3.500"),
    ],
)
def test_a_value_has_four_digits(value: float | None, shown: str) -> None:
    assert number(value) == shown


def test_units() -> None:
    assert with_unit(14.2, "ms") == "14.20 ms"
    assert with_unit(0.015, "share") == "1.50 %"
    assert percent(0.1234) == "+12.3 %"
    assert percent(-0.1234) == "-12.3 %"
    assert percent(0.1234, signed=False) == "12.3 %"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.2, "12 s"), (1.0, "1.0 min"), (99.94, "99.9 min"), (125.4, "2 h 05 min"), (0, "0 s")],
)
def test_times(value: float, shown: str) -> None:
    assert minutes(value) == shown


@pytest.mark.parametrize(("value", "shown"), [(1.0, "0.99"), (0.5, "0.50"), (0.004, "<0.01"), (0.0, "0.00")])
def test_nothing_is_surer_than_the_model(value: float, shown: str) -> None:
    assert probability(value) == shown
