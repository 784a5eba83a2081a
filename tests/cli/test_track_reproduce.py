"""``track reproduce`` on a machine that shows what the nights showed: the ends of the window, measured."""

from __future__ import annotations

import json
import shlex
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from perfbisect.cli.app import run
from tests.fakes.history import ENGINE, make_history
from tests.jobs.test_kill9 import CELL
from tests.series.made import name_of, served, write
from tests.series.made_series import noise, step

NIGHTS, AT = 20, 12
PACE = {"STEP_MS": 2.0, "LAUNCH_SD": 0.005, "RUN_SD": 0.005, "OUTLIER_PROBABILITY": 0.0}


def test_the_step_of_the_nights_is_measured_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"STATE": "state", "CACHE": "cache", "LOCKS": "locks"}.items():
        monkeypatch.setenv(f"PERFBISECT_{name}", str(tmp_path / value))
    monkeypatch.setenv("PERFBISECT_LIMITS", "off")
    history = make_history(tmp_path / "repo", commits=NIGHTS, slow=AT, factor=3.0, pace=PACE)
    levels = step(noise(3, NIGHTS, 15.0), AT, 2.0)
    for night, (commit, value) in enumerate(zip(history.commits, levels, strict=True)):
        at = f"{datetime(2026, 1, 1, 19) + timedelta(days=night):%Y%m%d-%H%M%S}"
        document = served(date=at, backend="vllm", commit=commit, median_tpot_ms=value)
        write(tmp_path / "nights" / f"n{night:03d}" / name_of("text", at=at), document)
    assert run(["track", "ingest", str(tmp_path / "nights"), "--zone", "UTC"]) == 0
    assert run(["track", "detect"]) == 0
    capsys.readouterr()
    words = [
        "track",
        "reproduce",
        "20260113-product",
        "--repo",
        str(history.path),
        "--cell",
        str(CELL),
        "--json",
    ]
    words += ["--metric", "tpot", "--env", f"overlay:{sys.executable},base=any"]
    words += ["--client", f"existing:{sys.executable},path={ENGINE}", "--blocks", "1"]
    monkeypatch.setattr(sys, "argv", ["perfbisect", *words])
    code = run(words)
    told = capsys.readouterr()
    assert code == 3, told.err
    document = json.loads(told.out)
    assert document["verdict"] == "regression"
    assert document["a"]["change"]["id"] == history.commits[AT - 1]
    assert document["b"]["change"]["id"] == history.culprit
    assert document["low"] > 0.5
    assert "tpot of text/random@c4-n40 became worse there; does it here?" in told.err
    program, *following = shlex.split(document["next"])
    assert (program, following[0]) == ("perfbisect", "bisect")
    assert run([*following, "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["metric"]["name"] == "tpot"
    assert (plan["good"]["id"], plan["bad"]["id"]) == (history.commits[AT - 1], history.culprit)
