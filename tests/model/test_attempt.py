"""Attempts: one value a launch, and what forbids a comparison."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfbisect.model.attempt import Attempt, Provenance, RunResult, is_same_class, provenance_differences
from perfbisect.model.metric import parse_metric

PROVENANCE = Provenance(cell_digest="d", machine_class="m", client_digest="c")


def attempt(*values: float, name: str = "tpot:median") -> Attempt:
    runs = tuple(RunResult(index, seed=index, values={name: value}) for index, value in enumerate(values))
    return Attempt("a1", "change", "search", PROVENANCE, runs)


@pytest.mark.parametrize(
    ("runs", "value"),
    [
        ((5.0,), 5.0),
        ((2.0, 8.0), 4.0),
        ((2.0, 4.0, 99.0), 4.0),
        ((1.0, 2.0, 8.0, 9.0), 4.0),
        ((0.001, 2.0, 4.0, 8.0, 99.0), 4.0),
        ((0.0, 6.0), 3.0),
        ((-1.0, 0.0, 6.0), 0.0),
    ],
)
def test_the_value_is_the_robust_centre_of_the_logs(runs: tuple[float, ...], value: float) -> None:
    tpot = parse_metric("tpot")
    assert attempt(*runs).value(tpot) == pytest.approx(value)


def test_the_value_of_a_share_is_a_mean_without_logs() -> None:
    assert attempt(0.02, 0.08, name="failed").value(parse_metric("failed")) == pytest.approx(0.05)


def test_equal_runs_have_their_own_value() -> None:
    assert attempt(117.3, 117.3, 117.3).value(parse_metric("tpot")) == 117.3


def test_a_launch_without_a_run_has_no_value() -> None:
    with pytest.raises(ValueError, match="without a run"):
        attempt().value(parse_metric("tpot"))


@pytest.mark.parametrize("field", ["cell_digest", "machine_class", "client_digest"])
def test_a_field_that_differs_forbids_the_comparison(field: str) -> None:
    same = {"cell_digest": "d", "machine_class": "m", "client_digest": "c"}
    other = Provenance(**{**same, field: "x"})
    assert provenance_differences(PROVENANCE, other) == ((field, same[field], "x"),)
    assert provenance_differences(other, PROVENANCE) == ((field, "x", same[field]),)


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("H200 x 1, driver 5", "H200 x 1, driver 5, cpu A", True),
        ("H200 x 1, driver 5, x A=1", "H200 x 1, driver 5, cpu A, x A=1", True),
        ("H200 x 1, driver 5, cpu A", "H200 x 1, driver 5, cpu B", False),
        ("H200 x 1, driver 5", "H200 x 1, driver 6, cpu A", False),
        ("A x 8", "B x 8", False),
        ("A x 8", "A x 8", True),
    ],
)
def test_a_class_without_its_processors_is_that_with_them(a: str, b: str, same: bool) -> None:
    assert is_same_class(a, b) == is_same_class(b, a) == same
    there, here = replace(PROVENANCE, machine_class=a), replace(PROVENANCE, machine_class=b)
    assert (provenance_differences(there, here) == ()) == same
