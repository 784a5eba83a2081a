"""``perfbisect track`` as it is typed: what it prints, and how bad input ends."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.command_line import type_command, type_json
from tests.series.made import name_of, nights, result, served, write

CELL = "omni/random@c4-n40"


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BUILDKITE_TOKEN", raising=False)
    monkeypatch.delenv("BUILDKITE_API_TOKEN", raising=False)


@pytest.fixture
def results(home: Path) -> None:
    nights(home / "kanban", [600.0, 660.0, 594.0])
    told("ingest", "kanban")


def told(*words: str) -> str:
    outcome = type_command(["track", *words])
    assert outcome.code == 0, outcome
    return outcome.out


def test_from_the_kanban_to_the_table(home: Path) -> None:
    nights(home / "kanban", [600.0, 660.0, None, 594.0])
    ingested = told("ingest", "kanban")
    assert "3 builds, 3 files: 3 new" in ingested
    assert "branch not said, not known to be of main: 3 builds" in ingested
    lines = shown = told("show", CELL).splitlines()
    assert f"{CELL}: audio_ttfp in ms, lower is better" in lines
    lines = lines[lines.index(f"{CELL}: audio_ttfp in ms, lower is better") :]
    assert lines[1].split() == ["date", "(UTC)", "build", "commit", "value", "change"]
    assert lines[3].split() == ["2026-04-02", "19:00", "101?", "-", "660.0", "+10.0", "%"]
    assert lines[4].endswith("-10.0 %  1 night missing before")
    assert shown[1] == "  ?: branch not said, not known to be of main: 3 builds"
    assert CELL in told("show")
    assert "Means of 2026-03-29 to 2026-04-04" in told("rebaseline", "omni")


@pytest.mark.usefixtures("results")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("ingest", "kanban", "--from", "folder", "--zone", "Mars"), "no time zone"),
        (("ingest", "plain"), "does not say its zone"),
        (("ingest", "https://buildkite.com/vllm/vllm-omni"), "BUILDKITE_TOKEN is not set"),
        (("ingest",), "missing: "),
        (("show", "nosuch"), "no cell 'nosuch'"),
        (("show", "--since", "soon"), "does not match the format"),
        (("export", "nosuch"), "no cell 'nosuch'"),
        (("export", "--metric", "speed"), "unknown metric"),
        (("export", "--metric", "tpot:p99"), "no point reports tpot:p99"),
        (("export", "--since", "2030-01-01"), "no point since 2030-01-01"),
        (("export", "--json"), "--json tells of files, and none is named"),
        (("export", "--format", "github-action-benchmark"), "is two files, and none is named"),
        (("export", "--format", "xml"), "'xml' is not one of"),
        (("publish",), "missing: "),
        (("publish", "out", "20260101"), "no job '20260101'"),
    ],
)
def test_bad_input(home: Path, words: tuple[str, ...], message: str) -> None:
    write(home / "plain" / "1" / "a.json", served())
    outcome = type_command(["track", *words])
    told_on, silent = (outcome.out, outcome.err) if "--json" in words else (outcome.err, outcome.out)
    assert (outcome.code, silent) == (2, "")
    assert message in told_on
    assert told("show", CELL), "nothing is lost"


def test_names_cannot_act_on_a_terminal(home: Path) -> None:
    result(home / "kanban", "1", name_of(test="\x1b[31m<b>"), served())
    told("ingest", "kanban")
    shown = told("show")
    assert "\x1b" not in shown
    assert "\\x1b[31m<b>/random@c4-n40" in shown


@pytest.mark.usefixtures("results")
def test_a_table_on_standard_output() -> None:
    words = ["track", "export", "omni", "--metric", "audio_ttfp", "--since", "2026-04-02"]
    rows = list(csv.DictReader(io.StringIO(type_command(words).out)))
    assert [(row["night"], row["cell"], float(row["value"])) for row in rows] == [
        ("2026-04-02", CELL, 660.0),
        ("2026-04-03", CELL, 594.0),
    ]


@pytest.mark.usefixtures("results")
def test_files_for_the_action(home: Path) -> None:
    told = type_json("track", "export", "--format", "github-action-benchmark", "-o", "out/bench.json")
    assert told["schema"] == "perfbisect.track-export/1"
    assert told["files"] == {"smaller": "out/bench-smaller.json", "bigger": "out/bench-bigger.json"}
    assert (told["points"], told["cells"]) == (3, 1)
    smaller = json.loads((home / "out" / "bench-smaller.json").read_text())
    assert {"name": f"{CELL} audio_ttfp", "unit": "ms", "value": 594.0} in [
        {name: entry[name] for name in ("name", "unit", "value")} for entry in smaller
    ]
    assert not {"failed", "output_tokens"} & {entry["name"].split()[1] for entry in smaller}


@pytest.mark.usefixtures("results")
def test_a_file_is_told(home: Path) -> None:
    told = type_command(["track", "export", "-o", "series.csv"])
    assert told.out == "Export: 1 file\n  series.csv: csv\n  3 points of 1 cell were read\n"
    assert (home / "series.csv").read_text().startswith("night,began,cell,")
