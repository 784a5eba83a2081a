"""``perfbisect cells match``: reports in files, cells that a report does not tell apart, broken files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfbisect.cli.app import run

CELL = """family: text
model: acme/tiny
num_prompts: 8
max_concurrency: 2
task: {task}
dataset_args: {{random-input-len: 64}}
"""
REPORT = """It got slower:

vllm serve acme/tiny --port 8000
vllm bench serve --model acme/tiny --port 8000 --dataset-name random --random-input-len 64 \\
    --num-prompts 8 --max-concurrency 2 --temperature 0
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a cell that the report agrees with, and the report in a file."""
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells" / "one.yaml").write_text(CELL.format(task="first"))
    (tmp_path / "report.txt").write_text(REPORT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def matched(capsys: pytest.CaptureFixture[str], text: str, code: int = 0) -> dict[str, Any]:
    assert run(["cells", "match", text, "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert isinstance(document, dict)
    return document


@pytest.mark.usefixtures("here")
def test_a_report_may_stand_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    typed = matched(capsys, REPORT)
    assert [one["cell"] for one in typed["cells"]] == ["one"]
    assert matched(capsys, "@report.txt") == typed


@pytest.mark.usefixtures("here")
def test_a_path_without_its_mark_says_what_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    told = matched(capsys, "report.txt", code=2)
    assert "'report.txt' is the name of a file" in told["error"]
    assert told["next"].endswith("@report.txt")


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_a_file_that_cannot_be_read_is_named(
    here: Path, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    if content is not None:
        (here / "lost.txt").write_bytes(content)
    told = matched(capsys, "@lost.txt", code=2)
    assert told["where"] == "lost.txt"
    assert "cannot be read" in told["error"]


@pytest.mark.usefixtures("here")
def test_a_report_that_addresses_somebody_is_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert matched(capsys, f"@somebody {REPORT}")["exact"]


def test_what_is_not_said_tells_no_known_cells_apart(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "task" in matched(capsys, REPORT)["missing"]
    assert matched(capsys, REPORT)["apart"] == []
    (here / "cells" / "two.yaml").write_text(CELL.format(task="second"))
    assert matched(capsys, REPORT)["apart"] == ["task"]
    assert run(["cells", "match", REPORT]) == 0
    assert "these would: task" in capsys.readouterr().out


def test_a_broken_file_of_another_cell_is_a_warning(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "cells" / "broken.yaml").write_text("family: nix\n")
    told = matched(capsys, REPORT)
    assert [one["cell"] for one in told["cells"]] == ["one"]
    (warning,) = told["warnings"]
    assert "broken.yaml:1" in warning and "there is no family 'nix'" in warning
    for asked in (["show", "broken"], ["validate", "cells/broken.yaml"], ["lint", "broken"]):
        assert run(["cells", *asked]) == 2
    assert run(["cells", "match", REPORT, "--among", "cells/broken.yaml"]) == 2
