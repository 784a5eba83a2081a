"""The clock, and the day of a rehearsal."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone

import psutil
import pytest

from perfbisect.errors import UsageError
from perfbisect.system import clock
from perfbisect.system.clock import now


def test_a_rehearsal_begins_when_it_is_told_and_time_goes_on() -> None:
    real = datetime.now(timezone.utc)
    assert abs(now({}) - real) < timedelta(seconds=5)
    lived = real - datetime.fromtimestamp(psutil.Process().create_time(), timezone.utc)
    told = now({"PERFBISECT_NOW": "2026-01-05T04:00:00+02:00"})
    begun = datetime(2026, 1, 5, 2, tzinfo=timezone.utc)
    assert told.utcoffset() == timedelta(0)
    assert begun + lived <= told < begun + lived + timedelta(seconds=5)
    assert now({"PERFBISECT_NOW": "2026-01-05T02:00:00Z"}) >= told


def test_what_was_written_a_while_ago_was_a_while_ago_in_a_rehearsal_too() -> None:
    rehearsal = {"PERFBISECT_NOW": "2026-01-05T02:00:00Z"}
    ago = now(rehearsal) - clock.local_moment(time.time() - 3600, rehearsal)
    assert ago.total_seconds() == pytest.approx(3600, abs=5)
    assert clock.local_moment(86_400.0, {}) == datetime(1970, 1, 2, tzinfo=timezone.utc)


@pytest.mark.parametrize("told", ["soon", "2026-01-05", "2026-01-05T02:00:00"])
def test_a_time_without_its_zone_is_none(told: str) -> None:
    with pytest.raises(UsageError, match="no time with a zone"):
        now({"PERFBISECT_NOW": told})
