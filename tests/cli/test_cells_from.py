"""``perfbisect cells from``: from a report to a cell to a plan in two commands."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.command_line import type_command, type_json
from tests.fakes.history import make_history

REPORT = """Slower with v0.15.0 than with v0.14.1:
export VLLM_USE_V1=1
vllm serve acme/tiny -tp $N
vllm bench serve --model acme/tiny --random-input-len 64 --num-prompts 8 --max-concurrency 2
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "report.md").write_text(REPORT)
    return tmp_path


def test_a_report_becomes_a_cell_that_agrees_with_it(here: Path) -> None:
    told = type_json("cells", "from", "@report.md", "-o", "cells/slow.yaml")
    assert (here / "cells" / "slow.yaml").read_text() == told["content"]
    assert (told["good"], told["bad"]) == ("v0.14.1", "v0.15.0")
    assert told["next"] == "perfbisect bisect cells/slow.yaml --good v0.14.1 --bad v0.15.0"
    assert told["unsaid"] == ["serve_args.tensor-parallel-size"]
    assert type_command(["cells", "validate", "cells/slow.yaml"]).code == 0
    matched = type_json("cells", "match", "@report.md")
    assert [one["cell"] for one in matched["cells"]] == ["slow"]
    assert matched["unsaid"] == told["unsaid"] and "temperature" in matched["missing"]


def test_without_a_file_the_cell_is_printed_as_one(here: Path) -> None:
    shown = type_command(["cells", "from", REPORT])
    (here / "printed.yaml").write_text(shown.out)
    assert type_command(["cells", "validate", "printed.yaml"]).code == 0
    assert "# next: perfbisect bisect cell.yaml --good v0.14.1" in shown.out


def test_a_report_is_read_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    for content, code in ((REPORT.encode(), 0), (b"\xff\xfe", 2)):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
        assert type_command(["cells", "from", "-"]).code == code
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(REPORT.encode())))
    assert type_command(["cells", "match", "-"]).code == 4  # read, and no cell agrees


def test_a_result_file_is_given_by_its_path(here: Path) -> None:
    (here / "run.json").write_text(json.dumps({"model_id": "acme/tiny", "num_prompts": 8}))
    assert "model: acme/tiny" in type_json("cells", "from", "run.json")["content"]


def test_a_cell_that_is_there_is_not_replaced(here: Path) -> None:
    (here / "mine.yaml").write_text("mine")
    told = type_json("cells", "from", "@report.md", "-o", "mine.yaml", code=2)
    assert "is there already" in told["error"]
    assert (here / "mine.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("report.md/cell.yaml", "cannot be written: [Errno 17] File exists: 'report.md'"),
        ("loop/cell.yaml", "cannot be written: [Errno 17] File exists: 'loop'"),
        ("/proc/cell.yaml", "cannot be written: "),
        ("my cell.yaml", "'my cell' names no cell: name: letters, digits"),
    ],
)
def test_an_output_that_cannot_be_written_is_named(here: Path, output: str, said: str) -> None:
    (here / "loop").symlink_to("loop")
    told = type_json("cells", "from", "@report.md", "-o", output, code=2)
    assert said in told["error"] and told["where"] == output
    assert told["next"].startswith("choose another -o")


@pytest.mark.parametrize(
    ("report", "said"),
    [
        ("nothing of it", "no `vllm serve`"),
        ("vllm serve $M", "does not say the model"),
        ("vllm serve 'a\n", "No closing quotation"),
        ("\x1b[31mvllm serve a b\x1b[0m", "'b' is not a long option"),
    ],
)
def test_a_report_without_a_cell_ends_with_2_and_leaves_nothing(here: Path, report: str, said: str) -> None:
    told = type_json("cells", "from", report, "-o", "x/cell.yaml", code=2)
    assert said in told["error"] and told["next"]
    assert sorted(path.name for path in here.iterdir()) == ["report.md"]


def test_a_plan_says_what_of_the_report_was_not_compared(here: Path) -> None:
    type_json("cells", "from", "@report.md", "-o", "slow.yaml")
    history = make_history(here / "repo", commits=3, slow=1, factor=2.0)
    ends = ("--repo", str(history.path), "--good", history.good, "--bad", history.bad)
    words = ("bisect", "slow.yaml", *ends, "--env", f"overlay:{sys.executable},base=any", "--dry-run")
    shown = type_command([*words, "--expect-workload", "@report.md"]).out
    assert "the report does not say it: task, serve_args.tensor-parallel-size, temperature" in shown
    assert "the report" not in type_command(words).out
