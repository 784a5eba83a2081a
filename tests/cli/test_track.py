"""``perfbisect track`` as it is typed: what it prints, and how bad input ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_line import type_command
from tests.series.made import name_of, nights, result, served, write

CELL = "omni/random@c4-n40"


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BUILDKITE_TOKEN", raising=False)
    monkeypatch.delenv("BUILDKITE_API_TOKEN", raising=False)


def told(*words: str) -> str:
    outcome = type_command(["track", *words])
    assert outcome.code == 0, outcome
    return outcome.out


def test_from_the_kanban_to_the_table(home: Path) -> None:
    nights(home / "kanban", [600.0, 660.0, None, 594.0])
    ingested = told("ingest", "kanban")
    assert "3 builds, 3 files: 3 new" in ingested
    assert "3 builds do not say their branch: not known to be of main" in ingested
    lines = shown = told("show", CELL).splitlines()
    assert f"{CELL}: audio_ttfp in ms, lower is better" in lines
    lines = lines[lines.index(f"{CELL}: audio_ttfp in ms, lower is better") :]
    assert lines[1].split() == ["date", "(UTC)", "build", "commit", "value", "change"]
    assert lines[3].split() == ["2026-04-02", "19:00", "101?", "-", "660.0", "+10.0", "%"]
    assert lines[4].endswith("-10.0 %  1 night missing before")
    assert shown[1] == "  ?: 3 builds do not say their branch: not known to be of main"
    assert CELL in told("show")
    assert "Means of 2026-03-29 to 2026-04-04" in told("rebaseline", "omni")


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
def test_bad_input(home: Path, words: tuple[str, ...], message: str) -> None:
    write(home / "plain" / "1" / "a.json", served())
    nights(home / "kanban", [600.0])
    told("ingest", "kanban")
    outcome = type_command(["track", *words])
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
    assert told("show", CELL), "nothing is lost"


def test_names_cannot_act_on_a_terminal(home: Path) -> None:
    result(home / "kanban", "1", name_of(test="\x1b[31m<b>"), served())
    told("ingest", "kanban")
    shown = told("show")
    assert "\x1b" not in shown
    assert "\\x1b[31m<b>/random@c4-n40" in shown
