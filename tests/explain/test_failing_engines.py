"""The pretend engine hangs, or answers nonsense, since a commit: found by the command and explained."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.bisect.failure import job as failure_job
from tests.command_line import isolate, type_command, type_json
from tests.fakes.history import MEASURED_WITH, make_history

CELL = str(Path(__file__).parents[2] / "pretend" / "cells" / "pretend.yaml")
ASKED = ("--ask", "Count <b>from</b> zero", "--expect-answer", "w1 w2")


def failing(folder: Path, fault: str) -> tuple[list[str], str]:
    """The command that finds since when there is a fault, and the commit that brought it."""
    history = make_history(folder / "repo", commits=4, slow=None, since={2: fault})
    ends = ("--repo", str(history.path), "--good", history.good, "--bad", history.bad)
    return ["bisect", CELL, "--find", "failure", *ends, *MEASURED_WITH], history.commits[2]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(tmp_path, monkeypatch)


def test_a_server_that_accepts_and_never_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_job, "_LEAST_S", 2.0)
    words, culprit = failing(tmp_path, "silent")
    result = type_json(*words, code=3)
    assert (result["outcome"], result["culprit"]["id"]) == ("found", culprit)
    assert result["failure"]["signature"] == "first request: PATH: no answer within # s (limit # s)"
    assert (result["failure"]["frames"], result["failure"]["answer"]) == ([], "")
    told = type_json("explain", result["job"])
    assert (told["fails"]["id"], told["serves"]["id"]) == (culprit, result["parent"]["id"])
    (note,) = told["notes"]
    assert "the engine hung" in note
    assert told["hunks"] == []
    assert told["log_lines"]


def test_a_server_that_answers_nonsense(tmp_path: Path) -> None:
    words, culprit = failing(tmp_path, "nonsense")
    assert type_json(*words)["outcome"] == "not reproduced", "nothing is asked, and it serves"
    plan = type_command([*words, *ASKED, "--dry-run"])
    assert "asked" in plan.out and "the answer has to have w1 w2" in plan.out
    result = type_json(*words, *ASKED, code=3)
    assert (result["outcome"], result["culprit"]["id"]) == ("found", culprit)
    failure = result["failure"]
    assert (failure["signature"], failure["code"]) == (
        "first request: the answer has no 'w# w#'",
        "wrong_answer",
    )
    assert failure["answer"] == f"it is: {'!' * 64!r}"
    report = (Path(result["folder"]) / "report.md").read_text()
    assert "| asked | `Count <b>from</b> zero` |" in report
    assert f"| answer | `it is: '{'!' * 64}'` |" in report
    assert "!" * 64 in type_json("explain", result["job"])["notes"][0]


@pytest.mark.parametrize("options", [ASKED[:2], ASKED[2:], ("--find", "step", *ASKED)])
def test_what_is_asked_and_expected_go_together(tmp_path: Path, options: tuple[str, ...]) -> None:
    words, _ = failing(tmp_path, "nonsense")
    assert "go together" in type_json(*words, *options, code=2)["error"]
