"""Which alerts are worth a bisection, and how a commit is known without one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from perfbisect.core.alert import Alert
from perfbisect.core.night_worth import Rules, State, named, no_time, not_worth


def alert(**changed: Any) -> Alert:
    """A step of a median by a tenth, of the product, that is still there; as much of it as is read."""
    known = {"shape": "step", "until": None, "effect": 0.1, "shift": 0.095, "part": "typical"}
    known |= {"cause": "product", "recovered": False} | changed
    found = SimpleNamespace(effect=known["effect"], shape=known["shape"])
    series = SimpleNamespace(part=known["part"])
    finding = SimpleNamespace(found=found, series=series, until=known["until"], shift=known["shift"])
    made: Any = SimpleNamespace(
        finding=finding, cause=SimpleNamespace(word=known["cause"]), recovered=known["recovered"]
    )
    found_alert: Alert = made
    return found_alert


@pytest.mark.parametrize("changed", [{}, {"cause": "unknown"}, {"shape": "transient"}, {"shape": "drift"}])
def test_what_is_worth_it(changed: dict[str, Any]) -> None:
    assert not_worth(alert(**changed), "open", Rules()) == ""


@pytest.mark.parametrize(
    ("changed", "state", "rules", "why"),
    [
        ({}, "open", Rules(wanted=False), "the configuration says bisect: {when: never}"),
        ({}, "acknowledged", Rules(), "somebody knows of it"),
        ({}, "closed", Rules(), "it is closed"),
        ({"recovered": True}, "open", Rules(), "the series is back where it was"),
        ({"shape": "transient", "until": 3}, "open", Rules(), "it passed"),
        ({"cause": "instrument"}, "open", Rules(), "the instrument changed, not the product"),
        ({"cause": "workload"}, "open", Rules(), "the workload changed, not the product"),
        ({"cause": "night"}, "open", Rules(), "the night was bad, not the product"),
        ({"shift": -0.1, "effect": -0.1}, "open", Rules(), "it became better"),
        ({"part": "tail"}, "open", Rules(), "the median did not move"),
        ({}, "open", Rules(least=0.2), "10.0% is less than the 20.0% from which it is worth it"),
    ],
)
def test_what_is_not(changed: dict[str, Any], state: State, rules: Rules, why: str) -> None:
    assert not_worth(alert(**changed), state, rules) == why


def test_tails_where_they_are_asked_for_and_throughput_that_falls() -> None:
    assert not_worth(alert(part="tail"), "open", Rules(tails=True)) == ""
    assert not_worth(alert(effect=-0.1), "open", Rules(least=0.05)) == "", "worse is the way of its metric"


def test_a_commit_that_is_known_without_a_launch() -> None:
    assert named(1, "") == ("named", "the window holds one commit")
    assert named(7, "reverted by abc") == ("attributed", "reverted by abc")
    assert named(7, "") == ("", "")


def test_minutes_that_are_left() -> None:
    assert no_time(30.0, 30.0) == ""
    assert no_time(12.4, 30.0) == "12 minutes are left, and it takes 30 at least"
