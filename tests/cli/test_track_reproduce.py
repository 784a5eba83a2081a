"""``track reproduce`` on a machine that shows what the nights showed: the ends of the window, measured."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.command_line import type_command, type_json
from tests.fakes.history import CALM, MEASURED_WITH, make_history
from tests.jobs.test_kill9 import CELL
from tests.series.made import name_of, served, write
from tests.series.made_series import noise, step

NIGHTS, AT = 20, 12
PACE = {"STEP_MS": 2.0, **CALM}


def ingest_nights(home: Path, commits: Sequence[str], levels: Sequence[float]) -> None:
    """A night of each commit with this time per output token, ingested and searched for changes."""
    for night, (commit, value) in enumerate(zip(commits, levels, strict=True)):
        at = f"{datetime(2026, 1, 1, 19) + timedelta(days=night):%Y%m%d-%H%M%S}"
        document = served(date=at, backend="vllm", commit=commit, median_tpot_ms=value)
        write(home / "nights" / f"n{night:03d}" / name_of("text", at=at), document)
    assert type_command(["track", "ingest", str(home / "nights"), "--zone", "UTC"]).code == 0
    assert type_command(["track", "detect"]).code == 0


@pytest.mark.processes
def test_whether_an_alert_is_over_is_measured_where_the_nights_do_not_say(home: Path) -> None:
    """The last night looks fast, which is too few; the engine at HEAD is as slow as the alert."""
    history = make_history(home / "repo", commits=NIGHTS, slow=AT, factor=3.0, pace=PACE)
    ingest_nights(home, history.commits, step(noise(3, NIGHTS, 15.0), AT, 2.0, NIGHTS - 1))
    words = ["track", "fixed", "20260113-product", "--repo", str(history.path), "--cell", str(CELL)]
    words += [*MEASURED_WITH, "--blocks", "1"]
    nights = type_command(["track", "fixed", "20260113-product", "--json"])
    assert (nights.code, json.loads(nights.out)["verdict"]) == (4, "too few nights")
    plan = type_json(*words, "--dry-run")
    assert plan["a"]["change"]["id"] == history.commits[AT - 1]
    told = type_command([*words, "--measure", "--json"])
    assert told.code == 3, told
    document = json.loads(told.out)
    assert (document["verdict"], document["by_nights"]) == ("not over", "too few nights")
    assert document["compared"] == [history.commits[AT - 1][:12], history.commits[-1][:12]]
    assert document["left"] > 0.5 and document["job"]


@pytest.mark.processes
def test_the_step_of_the_nights_is_measured_here(home: Path) -> None:
    history = make_history(home / "repo", commits=NIGHTS, slow=AT, factor=3.0, pace=PACE)
    ingest_nights(home, history.commits, step(noise(3, NIGHTS, 15.0), AT, 2.0))
    words = ["track", "reproduce", "20260113-product", "--repo", str(history.path), "--cell", str(CELL)]
    words += ["--json", "--metric", "tpot", *MEASURED_WITH, "--blocks", "1"]
    told = type_command(words)
    assert told.code == 3, told
    document = json.loads(told.out)
    assert document["verdict"] == "regression"
    assert document["a"]["change"]["id"] == history.commits[AT - 1]
    assert document["b"]["change"]["id"] == history.culprit
    assert document["metrics"][0]["low"] > 0.5
    assert "tpot of text/random@c4-n40 became worse there; does it here?" in told.err
    program, *following = shlex.split(document["next"])
    assert (program, following[0]) == ("perfbisect", "bisect")
    plan = type_json(*following, "--dry-run")
    assert plan["metric"]["name"] == "tpot"
    assert (plan["good"]["id"], plan["bad"]["id"]) == (history.commits[AT - 1], history.culprit)
