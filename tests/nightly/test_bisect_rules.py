"""Which alerts are worth a bisection, and how a commit is known without one."""

from __future__ import annotations

from typing import Any

import pytest

from perfbisect.nightly.bisect import culprit_known_from, rejection_of
from perfbisect.nightly.config import BisectRules
from tests.series.made_alert import made_alert


def above(smallest: str) -> BisectRules:
    return BisectRules.model_validate({"smallest": smallest})


@pytest.mark.parametrize("changed", [{}, {"cause": "unknown"}, {"shape": "transient"}, {"shape": "drift"}])
def test_what_is_worth_it(changed: dict[str, Any]) -> None:
    assert rejection_of(made_alert(**changed), BisectRules()) is None


@pytest.mark.parametrize(
    ("changed", "is_over", "rules", "why"),
    [
        ({}, False, BisectRules(when="never"), "never"),
        ({"state": "acknowledged"}, False, BisectRules(), "acknowledged"),
        ({"state": "closed"}, False, BisectRules(), "closed"),
        ({"recovered": True}, False, BisectRules(), "recovered"),
        ({"shape": "transient"}, True, BisectRules(), "over"),
        ({"cause": "instrument"}, False, BisectRules(), "instrument"),
        ({"cause": "workload"}, False, BisectRules(), "workload"),
        ({"cause": "night"}, False, BisectRules(), "night"),
        ({"effect": -0.1}, False, BisectRules(), "improvement"),
        ({"metric": "ttft:p99"}, False, BisectRules(), "tail"),
        (
            {},
            False,
            above("20%"),
            "small",
        ),
    ],
)
def test_what_is_not(changed: dict[str, Any], is_over: bool, rules: BisectRules, why: str) -> None:
    assert rejection_of(made_alert(**changed), rules, is_over=is_over) == why


def test_tails_where_they_are_asked_for_and_throughput_that_falls() -> None:
    assert rejection_of(made_alert(metric="ttft:p99"), BisectRules(tails=True)) is None
    assert rejection_of(made_alert(metric="output_throughput", effect=-0.1), above("5%")) is None, (
        "worse is the way of its metric"
    )


def test_a_commit_that_is_known_without_a_launch() -> None:
    assert culprit_known_from(1, "") == ("named", "the window contains one commit")
    assert culprit_known_from(7, "reverted by abc") == ("attributed", "reverted by abc")
    assert culprit_known_from(7, "") is None
