"""``perfbisect track`` as it is typed: what it prints, and how bad input ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.cli.app import run
from tests.series.made import name_of, nights, result, served, write

CELL = "omni/random@c4-n40"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PERFBISECT_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("BUILDKITE_TOKEN", raising=False)
    monkeypatch.delenv("BUILDKITE_API_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def typed(*words: str) -> int:
    return run(["track", *words])


def test_from_the_kanban_to_the_table(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nights(home / "kanban", [600.0, 660.0, None, 594.0])
    assert typed("ingest", "kanban") == 0
    told = capsys.readouterr().out
    assert "3 builds, 3 files: 3 new" in told
    assert "3 builds do not say their branch: not known to be of main" in told
    assert typed("show", CELL) == 0
    lines = shown = capsys.readouterr().out.splitlines()
    assert f"{CELL}: audio_ttfp in ms, lower is better" in lines
    lines = lines[lines.index(f"{CELL}: audio_ttfp in ms, lower is better") :]
    assert lines[1].split() == ["date", "(UTC)", "build", "commit", "value", "change"]
    assert lines[3].split() == ["2026-04-02", "19:00", "101?", "-", "660.0", "+10.0", "%"]
    assert lines[4].endswith("-10.0 %  1 night missing before")
    assert shown[1] == "  ?: 3 builds do not say their branch: not known to be of main"
    assert typed("show") == 0
    assert CELL in capsys.readouterr().out
    assert typed("rebaseline", "omni") == 0
    assert "Means of 2026-03-29 to 2026-04-04" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("ingest", "kanban", "--from", "folder", "--zone", "Mars"), "no time zone"),
        (("ingest", "plain"), "does not say its zone"),
        (("ingest", "https://buildkite.com/vllm/vllm-omni"), "BUILDKITE_TOKEN is not set"),
        (("ingest",), "Missing argument"),
        (("show", "nosuch"), "no cell 'nosuch'"),
        (("show", "--since", "soon"), "does not match the format"),
    ],
)
def test_bad_input(
    home: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    write(home / "plain" / "1" / "a.json", served())
    nights(home / "kanban", [600.0])
    typed("ingest", "kanban")
    capsys.readouterr()
    assert typed(*words) == 2
    told = capsys.readouterr()
    assert message in told.err
    assert told.out == ""
    assert typed("show", CELL) == 0, "nothing is lost"


def test_names_cannot_act_on_a_terminal(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result(home / "kanban", "1", name_of(test="\x1b[31m<b>"), served())
    assert typed("ingest", "kanban") == 0
    assert typed("show") == 0
    told = capsys.readouterr().out
    assert "\x1b" not in told
    assert "\\x1b[31m<b>/random@c4-n40" in told
