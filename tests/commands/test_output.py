"""What is written where: as wide as the terminal, quiet where that is wanted, briefly in JSON."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import click
import pytest
from pydantic import Field

import perfbisect
from perfbisect.cli.app import run
from perfbisect.commands.comparisons import run_comparisons
from perfbisect.commands.options import JobOptions
from perfbisect.commands.output import CommandResult, print_lines, print_output
from perfbisect.commands.settings import NO_SETTINGS
from perfbisect.commands.workspace import Workspace
from perfbisect.experiments.compare import CompareResult
from perfbisect.jobs.documents import LongDocument
from perfbisect.jobs.folders import Job


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", [40, 72, 300])
def test_a_list_fits_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.chdir(tmp_path)
    plain, terminal = io.StringIO(), Terminal()
    for out in (plain, terminal):
        monkeypatch.setattr(sys, "stdout", out)
        assert run(["cells", "list"]) == 0
    assert terminal.getvalue().split() == plain.getvalue().split()
    assert max(map(len, plain.getvalue().splitlines())) > 72, "whole where nobody looks"
    for row in terminal.getvalue().splitlines():
        assert len(row) <= width or len(row.split()) == 1


class Series(LongDocument):
    shown = {"first": 2, "last": -2, "short": 9}  # noqa: RUF012 - as the documents have it
    schema_: str = Field(default="series/1", alias="schema")
    first: tuple[int, ...] = tuple(range(5))
    last: tuple[int, ...] = tuple(range(5))
    short: tuple[int, ...] = (1,)


def test_a_brief_document_says_what_it_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    print_output(CommandResult(Series(), ()), as_json=True)
    assert json.loads(capsys.readouterr().out) == {
        "schema": "series/1",
        "left_out": {"first": 3, "last": 3},
        "first": [0, 1],
        "last": [3, 4],
        "short": [1],
    }
    print_output(CommandResult(Series(), ()), as_json=True, full=True)
    assert json.loads(capsys.readouterr().out)["left_out"] == {}
    assert Series().brief().brief() == Series().brief()


class Settled:
    """Stands in for a comparison that is measured; keeps who was called with what."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.seen: list[tuple[str, bool, bool]] = []

    def __call__(
        self, here: Workspace, job: Job, kind: object, asked: str, working: JobOptions, *, held: bool = False
    ) -> CompareResult:
        del here, kind, working
        self.jobs.append(job)
        self.seen.append((asked, held, self.jobs[0].holder is not None))
        if asked == "broken":
            raise RuntimeError(asked)
        return cast(CompareResult, asked)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> Settled:
    stand_in = Settled()
    monkeypatch.setattr("perfbisect.commands.comparisons.measure", stand_in)
    return stand_in


def test_who_waits_for_the_first_job_waits_for_all(tmp_path: Path, settled: Settled) -> None:
    here = Workspace(tmp_path, tmp_path, NO_SETTINGS, None, tmp_path)

    def conclude(told: Sequence[object]) -> CommandResult:
        return CommandResult(Series(first=(len(told),)), (), 3)

    result = run_comparisons(here, ["a", "b"], JobOptions(), conclude, dry_run=False)  # type: ignore[list-item]
    first = settled.jobs[0]
    assert (result.document, result.exit_code) == (Series(first=(2,)), 3)
    assert settled.seen == [("a", True, True), ("b", False, True)]
    assert first.holder is None
    ending = Job(first.path).read_exit()
    assert ending is not None
    assert ending.exit_code == 3
    assert json.loads(first.result.read_text())["first"] == [2]


def test_a_later_job_s_failure_is_how_the_first_ended(tmp_path: Path, settled: Settled) -> None:
    here = Workspace(tmp_path, tmp_path, NO_SETTINGS, None, tmp_path)
    with pytest.raises(RuntimeError, match="broken"):
        run_comparisons(
            here,
            ["a", "broken"],  # type: ignore[list-item]
            JobOptions(),
            lambda _: CommandResult(Series(), ()),
            dry_run=False,
        )
    ending = Job(settled.jobs[0].path).read_exit()
    assert ending is not None
    assert (ending.exit_code, "broken" in ending.error) == (1, True)


@pytest.mark.parametrize("count", [3, 60])
def test_the_verdict_ends_what_a_terminal_does_not_show_whole(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setenv("COLUMNS", "80")
    rows = [f"row {number}" for number in range(count)]
    ending = ("compare: regression", "  next: perfbisect report 1")
    print_output(CommandResult(Series(), rows, closing=ending, tone="bad"), as_json=False)
    shown = terminal.getvalue()
    assert shown.startswith("row 0\n")
    if count < 24:
        assert "regression" not in shown
    else:
        assert click.style("\ncompare: regression", fg="red", bold=True) in shown
        assert shown.endswith("  next: perfbisect report 1\n")


def test_what_a_terminal_folds_counts_by_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setenv("COLUMNS", "80")
    command = "  next: " + "x" * 800
    assert print_lines([command, "a\nb"]) == 11 + 2
    result = CommandResult(Series(), [command] * 3, closing=("compare: regression",))
    print_output(result, as_json=False)
    assert "compare: regression" in terminal.getvalue(), "3 lines of 11 rows each"


def test_every_report_on_a_terminal_ends_with_its_verdict() -> None:
    """A verb that prints the lines of a report by itself would let its verdict scroll away."""
    package = Path(str(perfbisect.__file__)).parent
    sources = [*package.glob("commands/*.py"), *package.glob("cli/*.py")]
    assert [path.name for path in sources if "report_lines" in path.read_text()] == ["output.py"]
