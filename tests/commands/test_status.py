"""``perfbisect status``: what the slots of a running job do."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from perfbisect.commands.status import idle_slots
from perfbisect.jobs.replay import Launch
from tests.report.live_session import launched


def launch(number: int, slot: str, started_at: str, outcome: Literal["measured", "running"]) -> Launch:
    return replace(launched(number, 0, slot).launch, started_at=started_at, outcome=outcome)


def test_a_slot_is_idle_since_the_end_of_its_last_launch() -> None:
    launches = [
        launch(1, "box2", "2026-01-01T10:00:00+00:00", "measured"),
        launch(2, "box1", "2026-01-01T10:01:00+00:00", "measured"),
        launch(3, "box2", "2026-01-01T10:02:30+00:00", "measured"),
        launch(4, "box1", "2026-01-01T10:03:00+00:00", "running"),
    ]
    assert [(idle.slot, idle.since) for idle in idle_slots(launches)] == [
        ("box2", "2026-01-01T10:03:30+00:00")
    ]
    assert [idle.slot for idle in idle_slots(launches[:3])] == ["box1", "box2"]


def test_the_whole_machine_is_no_slot() -> None:
    assert idle_slots([launch(1, "", "2026-01-01T10:00:00+00:00", "measured")]) == ()
