"""The clock: whether it was set while this machine ran."""

from __future__ import annotations

import time

import pytest

from perfbisect.system import clock
from perfbisect.system.clock import Drift


@pytest.mark.parametrize("by, word", [(3600.0, "forward by 3600 s"), (-90.0, "back by 90 s")])
def test_clock_that_was_set(monkeypatch: pytest.MonkeyPatch, by: float, word: str) -> None:
    drift = Drift()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + by)
    assert drift.seconds() == pytest.approx(by, abs=0.5)
    assert word in drift.told()


def test_clock_that_only_ran() -> None:
    assert Drift().told() == ""


def test_kernel_is_asked_or_says_nothing() -> None:
    assert clock.synchronised() in (True, False, None)
