"""``perfbisect cells match``: reports in files, cells that a report does not tell apart, broken files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.command_line import type_command, type_json

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


def matched(text: str, code: int = 0) -> dict[str, Any]:
    return type_json("cells", "match", text, code=code)


@pytest.mark.usefixtures("here")
def test_a_report_may_stand_in_a_file() -> None:
    typed = matched(REPORT)
    assert [one["cell"] for one in typed["cells"]] == ["one"]
    assert matched("@report.txt") == typed
    Path("report.txt").write_text(REPORT.partition("\n\n")[2], encoding="utf-8-sig")
    assert matched("@report.txt") == typed


@pytest.mark.usefixtures("here")
def test_a_path_without_its_mark_says_what_to_type() -> None:
    told = matched("report.txt", code=2)
    assert "'report.txt' is the name of a file" in told["error"]
    assert told["next"].endswith("@report.txt")


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_a_file_that_cannot_be_read_is_named(here: Path, content: bytes | None) -> None:
    if content is not None:
        (here / "lost.txt").write_bytes(content)
    told = matched("@lost.txt", code=2)
    assert told["where"] == "lost.txt"
    assert "cannot be read" in told["error"]


@pytest.mark.usefixtures("here")
def test_a_report_that_addresses_somebody_is_no_file() -> None:
    assert matched(f"@somebody {REPORT}")["exact"]


def test_what_is_not_said_tells_no_known_cells_apart(here: Path) -> None:
    assert "task" in matched(REPORT)["missing"]
    assert matched(REPORT)["apart"] == []
    (here / "cells" / "two.yaml").write_text(CELL.format(task="second"))
    assert matched(REPORT)["apart"] == ["task"]
    assert "these would: task" in type_command(["cells", "match", REPORT]).out


def test_a_broken_file_of_another_cell_is_a_warning(here: Path) -> None:
    (here / "cells" / "broken.yaml").write_text("family: nix\n")
    told = matched(REPORT)
    assert [one["cell"] for one in told["cells"]] == ["one"]
    (warning,) = told["warnings"]
    assert "broken.yaml:1" in warning and "is missing" in warning
    (here / "cells" / "loop.yaml").symlink_to("loop.yaml")
    assert [text.split(": ")[1] for text in matched(REPORT)["warnings"]] == [
        *("cells/broken.yaml:1", "cells/loop.yaml")
    ]
    for asked in (["show", "broken"], ["validate", "cells/broken.yaml"], ["lint", "broken"]):
        assert type_command(["cells", *asked]).code == 2
    assert type_command(["cells", "match", REPORT, "--among", "cells/broken.yaml"]).code == 2


@pytest.mark.usefixtures("home")
def test_where_no_cell_agrees_the_next_step_is_said() -> None:
    shown = type_command(["cells", "match", "vllm bench serve --model acme/unheard-of --num-prompts 3"])
    last = shown.out.splitlines()[-1]
    assert shown.code == 4
    assert last.startswith("next: no cell agrees: ") and "nearest: perfbisect cells show " in last
