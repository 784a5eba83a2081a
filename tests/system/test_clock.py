"""The clock: whether it was set while this machine ran."""

from __future__ import annotations

import time

import pytest

from perfbisect.system import clock
from perfbisect.system.clock import Drift


@pytest.mark.parametrize("by", [3600.0, -90.0])
def test_clock_that_was_set(monkeypatch: pytest.MonkeyPatch, by: float) -> None:
    drift = Drift()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + by)
    assert drift.seconds() == pytest.approx(by, abs=0.5)


def test_clock_that_only_ran() -> None:
    assert Drift().seconds() == pytest.approx(0.0, abs=0.5)


def test_kernel_is_asked_or_says_nothing() -> None:
    assert clock.synchronised() in (True, False, None)
