"""Which alerts stand first, and in which list."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfbisect.dashboard.pages import EventKind, events, kind, weight
from tests.dashboard.site_world import ACCEPTED, HARM, TTFT, alert, cell, site

CELL = cell(0, 30)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, "wrong"),
        ({"cause": "unknown"}, "wrong"),
        ({"effect": -0.1}, "better"),
        ({"cause": "instrument"}, "other"),
        ({"cause": "workload"}, "other"),
        ({"cause": "night"}, "other"),
        ({"recovered": True}, "over"),
        ({"cause": "night", "recovered": True}, "over"),
        ({"state": "acknowledged", "recovered": True}, "acknowledged"),
        ({"state": "closed"}, "closed"),
    ],
)
def test_the_list_of_an_alert(more: dict[str, object], expected: EventKind) -> None:
    found = replace(alert(CELL, "ttft", 9, 0.1), **more)  # type: ignore[arg-type]
    assert kind(found) == expected


def test_the_weight_is_the_near_end_in_smallest_effects_less_what_chance_shows() -> None:
    # ln 1.1 = 0.09531, ln 1.05 = 0.04879
    found = alert(CELL, "ttft", 9, 0.12, interval=(0.10, 0.14), p=0.5)
    assert weight(found, TTFT) == pytest.approx(0.5 * 0.09531 / 0.04879, rel=1e-3)
    assert weight(replace(found, p=None), TTFT) == pytest.approx(1.9535, rel=1e-3)


def test_twice_as_slow_weighs_as_much_as_twice_as_fast() -> None:
    slow = alert(CELL, "ttft", 9, 1.2, interval=(1.0, 1.4))
    fast = alert(CELL, "ttft", 9, -0.55, interval=(-0.6, -0.5))
    assert weight(slow, TTFT) == pytest.approx(weight(fast, TTFT))


def test_what_may_be_nothing_weighs_nothing() -> None:
    assert weight(alert(CELL, "ttft", 9, 0.5, interval=(-0.01, 1.0)), TTFT) == 0


def test_a_share_weighs_by_its_difference() -> None:
    found = alert(CELL, ACCEPTED.name, 9, -0.06, interval=(-0.08, -0.04), p=None)
    assert weight(found, ACCEPTED) == pytest.approx(2.0)


def test_events_stand_by_list_then_by_weight_and_hold_their_alerts() -> None:
    found = events(site())
    lists = [event.kind for event in found]
    assert lists == ["wrong", "wrong", "wrong", "better", "other", "other", "over", "acknowledged"]
    # The deploy is surely 16 % slower, the drift 3 %, the third maybe only 1 %.
    assert [event.alerts[0].cell.split("_")[0] for event in found[:2]] == ["text", "omni"]
    assert found[2].id == HARM
    assert found[0].id == "deploy"
    assert {a.metric for a in found[0].alerts} == {"ttft", "output_throughput"}
    assert len(found[0].alerts) == 3
    weights = [event.weight for event in found[:3]]
    assert weights == sorted(weights, reverse=True)
