"""``perfbisect explain`` of jobs with the pretend engine: what moved, what did not, what has no counters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from perfbisect.serving.server import Server
from tests.command_line import isolate, type_command, type_json
from tests.fakes.history import CALM, MEASURED_WITH, PretendHistory, make_history

CELL = str(Path(__file__).parents[2] / "pretend" / "cells" / "pretend.yaml")

pytestmark = pytest.mark.slow


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PretendHistory:
    made = make_history(tmp_path / "repo", commits=5, slow=3, factor=4.0, pace=CALM)
    isolate(tmp_path, monkeypatch)
    return made


def types(*words: str) -> Mapping[str, Any]:
    document: Mapping[str, Any] = json.loads(type_command([*words, "--json"]).out)
    assert "error" not in document, document
    return document


def measured(history: PretendHistory, verb: str, *words: str) -> Mapping[str, Any]:
    return types(verb, CELL, "--repo", str(history.path), *MEASURED_WITH, *words)


def moved(document: Mapping[str, Any], kind: str = "time") -> Sequence[str]:
    rows = document["phases"]["phases"]
    return [row["name"] for row in rows if row["verdict"] == "moved" and row["kind"] == kind]


@pytest.mark.processes
def test_a_slower_step_is_explained_as_decode(history: PretendHistory) -> None:
    report = measured(history, "bisect", "--budget", "2h", "--good", history.good, "--bad", history.bad)
    assert (report["outcome"], report["culprit"]["id"]) == ("found", history.culprit)
    explained = types("explain", report["job"])
    assert explained["schema"] == "perfbisect.explain/2"
    assert (explained["a"]["id"], explained["b"]["id"]) == (history.commits[2], history.culprit)
    assert explained["phases"] == report["phases"]
    assert moved(explained) == ["decode"]
    (decode,) = (row for row in explained["phases"]["phases"] if row["name"] == "decode")
    # A step sleeps 5 ms, or 20.
    assert decode["a"] > 4.9 and decode["low"] > 0 and decode["difference"] > 10.0
    (sentence,) = explained["summary"]
    assert sentence.startswith("Decode +") and "ms a step (+" in sentence
    for form in ("text", "md", "html"):
        printed = type_command(["explain", report["job"], "--format", form])
        assert printed.code == 0 and sentence.split(";")[0] in printed.out
    for form in ("md", "html"):
        assert sentence.split(";")[0] in type_command(["report", report["job"], "--format", form]).out


@pytest.mark.processes
def test_equal_sides_have_no_phase_that_moved(history: PretendHistory) -> None:
    equal = measured(history, "compare", "--a", history.good, "--b", history.commits[1], "--blocks", "2")
    explained = types("explain", equal["job"])
    assert explained["phases"] == equal["phases"]
    assert explained["phases"]["launches_a"] == explained["phases"]["launches_b"] >= 2
    assert "decode" not in moved(explained)
    assert [row["name"] for row in explained["phases"]["phases"][:4]] == [
        "queue", "prefill", "decode", "outside the core",
    ]  # fmt: skip


@pytest.mark.processes
def test_without_counters_there_is_no_section(
    history: PretendHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Server, "_metrics", lambda *_: "")
    compared = measured(history, "compare", "--a", history.good, "--b", history.bad)
    assert (compared["verdict"], compared["phases"]) == ("regression", None)
    assert "Phases" not in type_command(["report", compared["job"]]).out
    explained = types("explain", compared["job"])
    assert (explained["phases"], explained["summary"]) == (None, [])
    assert any("without counters" in note for note in explained["notes"])
    refused = type_json("explain", compared["job"], "--hunks", "--dry-run", code=2)
    assert "compares no commit with its parent" in refused["error"]


@pytest.mark.processes
def test_a_dry_run_has_the_price_of_a_profile_and_of_a_search(history: PretendHistory) -> None:
    compared = measured(history, "compare", "--a", history.commits[2], "--b", history.culprit)
    explained = types("explain", compared["job"])
    assert explained["next"] == f"perfbisect explain {compared['job']} --profile --dry-run"
    profile = types("explain", compared["job"], "--profile", "--launches", "1", "--dry-run")
    assert (profile["schema"], profile["source"]) == ("perfbisect.profile-plan/3", compared["job"])
    assert profile["most_launches"] == 2 and profile["minutes_high"] > 0
    hunks = types("explain", compared["job"], "--hunks", "--budget", "90m", "--dry-run")
    assert (hunks["schema"], hunks["budget_minutes"]) == ("perfbisect.hunks-plan/3", 90)
    assert len(hunks["groups"]) == 1
    assert [job["job"] for job in types("status")["jobs"]] == [compared["job"]]


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["--profile", "--hunks"], "--profile"),
        (["--launches", "1"], "--launches"),
        (["--profile", "--min-effect", "2%"], "--min-effect"),
        (["--budget", "1h"], "--budget"),
        (["--dry-run"], "--dry-run"),
        (["--hunks", "--format", "md"], "--format"),
    ],
)
def test_options_that_do_not_go_together_start_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: Sequence[str], option: str
) -> None:
    isolate(tmp_path, monkeypatch)
    document = type_json("explain", *words, code=2)
    assert document["error"].startswith(f"{option} goes ")


def test_a_run_has_no_two_sides(history: PretendHistory) -> None:
    run = measured(history, "run", "--at", history.good, "--launches", "1")
    assert "no two sides" in type_json("explain", run["job"], code=2)["error"]
