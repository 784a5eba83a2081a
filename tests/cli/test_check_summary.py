"""What a check leaves for a CI: the summary of its job, and a file for a comment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.command_line import isolate, type_command
from tests.fakes.history import ENGINE, PretendHistory, make_history

CELL = Path(__file__).parents[2] / "pretend" / "cells" / "pretend.yaml"
PACE = {"LAUNCH_SD": 0.005, "RUN_SD": 0.005, "OUTLIER_PROBABILITY": 0.0}


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PretendHistory:
    isolate(tmp_path, monkeypatch)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    monkeypatch.delenv("BUILDKITE_BUILD_URL", raising=False)
    for name, value in (("SERVER_URL", "https://github.com"), ("REPOSITORY", "o/r"), ("RUN_ID", "7")):
        monkeypatch.setenv(f"GITHUB_{name}", value)
    return make_history(tmp_path / "vllm", commits=3, slow=2, factor=2.0, docs=(1,), pace=PACE)


def check(history: PretendHistory, at: str, *words: str) -> int:
    environment = ("--env", f"overlay:{sys.executable},base=any")
    client = ("--client", f"existing:{sys.executable},path={ENGINE}")
    limit = ("--against", history.good, "--max-regression", "10%")
    typed = [
        "check",
        str(CELL),
        "--repo",
        str(history.path),
        "--at",
        at,
        *limit,
        *environment,
        *client,
        *words,
    ]
    return type_command([*typed, "--markdown", "check.md"]).code


def test_nothing_to_measure_is_told(history: PretendHistory, tmp_path: Path) -> None:
    assert check(history, f"{history.bad}~1") == 0
    text = (tmp_path / "check.md").read_text()
    assert "Nothing was measured." in text and ": passed" in text
    assert "[The CI job](https://github.com/o/r/actions/runs/7)" in text
    assert (tmp_path / "summary").read_text() == text


def test_a_plan_leaves_nothing(history: PretendHistory, tmp_path: Path) -> None:
    assert check(history, history.bad, "--dry-run") == 0
    assert not (tmp_path / "check.md").exists() and not (tmp_path / "summary").exists()


def test_a_summary_that_cannot_be_written_takes_no_verdict_away(
    history: PretendHistory, tmp_path: Path
) -> None:
    (tmp_path / "summary").mkdir()
    assert check(history, f"{history.bad}~1") == 0


@pytest.mark.processes
def test_a_check_has_picture_and_numbers(history: PretendHistory, tmp_path: Path) -> None:
    assert check(history, history.bad, "--launches", "4") == 3
    text = (tmp_path / "summary").read_text()
    assert ": failed" in text and "```text" in text
    assert text.count("| **") == 3, "three numbers"
