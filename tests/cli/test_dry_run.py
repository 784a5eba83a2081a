"""A plan can be looked at on a machine on which nothing of it could start."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from perfbisect.cli.app import run
from tests.skill.worlds import omni

CELL = "tts_default_voice_high_c"
"""A shipped cell of two devices."""


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in {"STATE": "state", "CACHE": "cache", "LOCKS": "locks"}.items():
        monkeypatch.setenv(f"PERFBISECT_{name}", str(tmp_path / value))
    return omni(tmp_path)["REPO"]


@pytest.mark.parametrize(
    "asked", ["bisect {cell} --good v0.21.0rc1 --bad main", "compare {cell} --a v0.21.0rc1 --b main"]
)
def test_a_dry_run_needs_no_devices(
    asked: str, repo: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*shlex.split(asked.format(cell=CELL)), "--repo", repo, "--machine", "cpu"]
    assert run([*words, "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    (told,) = [
        text for text in plan.get("notes", plan.get("told")) if "nothing can start on this machine" in text
    ]
    assert "need 2 devices of one kind; there is none visible" in told
    assert run(words) == 2
    assert "--dry-run needs none" in capsys.readouterr().err
    assert not list((tmp_path / "state").glob("jobs/*"))
