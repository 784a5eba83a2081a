"""The rules of other nightlies, by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from scripts.nightly_rules import RULES, alarms_ever, main, nights_until, pytorch_hud, vllm_nightly

SEVEN = [101.0, 99.0, 101.0, 99.0, 101.0, 99.0, 101.0]
"""Mean 100 1/7, population standard deviation 0.98974."""


@pytest.mark.parametrize(("newest", "alarm"), [(102.12, False), (102.13, True), (90.0, False)])
def test_two_sigma_of_seven_nights_for_the_worse(newest: float, alarm: bool) -> None:
    assert vllm_nightly([50.0, *SEVEN, newest], 0) == alarm
    assert not vllm_nightly([50.0, *SEVEN, newest], 9), "a night before those of interest"


def test_at_least_one_percent_is_asked_for() -> None:
    assert not vllm_nightly([100.0] * 7 + [100.9], 0)
    assert vllm_nightly([100.0] * 7 + [101.0], 0)


@pytest.mark.parametrize(
    ("days", "alarm"),
    [
        ([100, 100, 100, 100, 100, 121], False),
        ([100, 90, 110, 100, 121, 121], True),
        ([100, 100, 100, 100, 120, 121], False),
        ([100, 100, 100, 121, 121, 100], False),
    ],
    ids=["one day", "two days", "exactly 1.2 is allowed", "the newest is not worse"],
)
def test_two_days_of_a_fifth_over_the_median_of_three(days: list[float], alarm: bool) -> None:
    assert pytorch_hud(days, 0) == alarm


def test_nights_are_counted_from_the_first_changed_one() -> None:
    quiet = [100.0, 100.5] * 30
    assert not any(alarms_ever(alarm, quiet) for alarm in RULES.values())
    assert nights_until(RULES["vLLM nightly"], quiet, 0.05) == 1
    assert nights_until(RULES["PyTorch HUD"], quiet, 0.25) == 2
    assert nights_until(RULES["PyTorch HUD"], quiet, 0.10) is None
    assert nights_until(RULES["perfbisect"], quiet, 0.10) == 2


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "series" / "injected"
    folder.mkdir(parents=True)
    values = 100 * np.exp(0.02 * np.random.default_rng(3).normal(size=90))
    values[70:] *= 1.1
    row = {"values": values.tolist(), "truth": [70], "sizes": [0.1]}
    (folder / "contiguous.json").write_text(json.dumps({"series": [row]}))
    assert main(["--series", "1", "--data", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 2 * len(RULES)
    assert "| measured | PyTorch HUD | 0 of 1 = 0 % | - | 100 % | - | 100 % |" in lines
