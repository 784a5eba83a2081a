"""``perfbisect track export`` and ``publish`` as they are typed."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.command_line import type_command, type_json
from tests.series.made import nights

CELL = "omni/random@c4-n40"


@pytest.fixture(autouse=True)
def results(home: Path) -> None:
    nights(home / "kanban", [600.0, 660.0, 594.0])
    assert type_command(["track", "ingest", "kanban"]).code == 0


def test_a_table_on_standard_output() -> None:
    words = ["track", "export", "omni", "--metric", "audio_ttfp", "--since", "2026-04-02"]
    rows = list(csv.DictReader(io.StringIO(type_command(words).out)))
    assert [(row["night"], row["cell"], float(row["value"])) for row in rows] == [
        ("2026-04-02", CELL, 660.0),
        ("2026-04-03", CELL, 594.0),
    ]


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


def test_a_file_is_told(home: Path) -> None:
    told = type_command(["track", "export", "-o", "series.csv"])
    assert told.out == "Export: 1 file\n  series.csv: csv\n  3 points of 1 cell were read\n"
    assert (home / "series.csv").read_text().startswith("night,began,cell,")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("export", "nosuch"), "no cell 'nosuch'"),
        (("export", "--metric", "speed"), "unknown metric"),
        (("export", "--metric", "tpot:p99"), "no point reports tpot:p99"),
        (("export", "--since", "2030-01-01"), "no point since 2030-01-01"),
        (("export", "--json"), "--json tells of files, and none is named"),
        (("export", "--format", "github-action-benchmark"), "is two files, and none is named"),
        (("export", "--format", "xml"), "'xml' is not one of"),
        (("publish",), "Missing argument"),
        (("publish", "out", "20260101"), "no job '20260101'"),
    ],
)
def test_bad_input(words: tuple[str, ...], message: str) -> None:
    told = type_command(["track", *words])
    assert told.code == 2
    assert message in told.out + told.err
