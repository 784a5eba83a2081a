"""Which alerts are worth a bisection, and how a commit is known without one."""

from __future__ import annotations

from typing import Any

import pytest

from perfbisect.nightly.bisect import Rules, named, no_time, not_worth
from perfbisect.series.alerts import Alert


def alert(**changed: Any) -> Alert:
    """A step of a median by a tenth, of the product, that is still there."""
    given: dict[str, Any] = {
        "id": "20260412-3f1a", "cell": "a", "metric": "ttft", "first": "2026-04-12T01:20:00Z",
        "last": "2026-04-13T01:20:00Z", "shape": "step", "cause": "product", "effect": 0.1,
        "interval": (0.05, 0.15), "places": (), "builds": (), "state": "open", "evidence": (), "new": True,
        "nights": 2,
    }  # fmt: skip
    return Alert(**given | changed)


@pytest.mark.parametrize("changed", [{}, {"cause": "unknown"}, {"shape": "transient"}, {"shape": "drift"}])
def test_what_is_worth_it(changed: dict[str, Any]) -> None:
    assert not_worth(alert(**changed), Rules()) == ""


@pytest.mark.parametrize(
    ("changed", "is_over", "rules", "why"),
    [
        ({}, False, Rules(wanted=False), "the configuration says bisect: {when: never}"),
        ({"state": "acknowledged"}, False, Rules(), "somebody knows of it"),
        ({"state": "closed"}, False, Rules(), "it is closed"),
        ({"recovered": True}, False, Rules(), "the series is back where it was"),
        ({"shape": "transient"}, True, Rules(), "it passed"),
        ({"cause": "instrument"}, False, Rules(), "the instrument changed, not the product"),
        ({"cause": "workload"}, False, Rules(), "the workload changed, not the product"),
        ({"cause": "night"}, False, Rules(), "the night was bad, not the product"),
        ({"effect": -0.1}, False, Rules(), "it became better"),
        ({"metric": "ttft:p99"}, False, Rules(), "the median did not move"),
        ({}, False, Rules(least=0.2), "10.0% is less than the 20.0% from which it is worth it"),
    ],
)
def test_what_is_not(changed: dict[str, Any], is_over: bool, rules: Rules, why: str) -> None:
    assert not_worth(alert(**changed), rules, is_over=is_over) == why


def test_tails_where_they_are_asked_for_and_throughput_that_falls() -> None:
    assert not_worth(alert(metric="ttft:p99"), Rules(tails=True)) == ""
    assert not_worth(alert(metric="output_throughput", effect=-0.1), Rules(least=0.05)) == "", (
        "worse is the way of its metric"
    )


def test_a_commit_that_is_known_without_a_launch() -> None:
    assert named(1, "") == ("named", "the window holds one commit")
    assert named(7, "reverted by abc") == ("attributed", "reverted by abc")
    assert named(7, "") == ("", "")


def test_minutes_that_are_left() -> None:
    assert no_time(30.0, 30.0) == ""
    assert no_time(12.4, 30.0) == "12 minutes are left, and it takes 30 at least"
