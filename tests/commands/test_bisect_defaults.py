"""The good end and the cell that a bisection takes where nothing was typed."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from perfbisect.cells.loading import load_cell
from perfbisect.cli.app import run
from perfbisect.commands.bisect_defaults import choose_cell, find_last_good
from perfbisect.commands.workspace import Workspace, open_workspace
from perfbisect.errors import EXIT_INTERRUPTED, UsageError
from perfbisect.jobs.folders import JOURNAL, ExitRecord, Job
from perfbisect.model.metric import parse_metric
from perfbisect.series.store import SeriesStore
from tests.command_line import isolate, type_json
from tests.fakes import checkouts
from tests.fakes.history import make_history
from tests.series.made_series import cell as made_cell
from tests.series.made_series import noise, step

ROOT = Path(__file__).parents[2]
CELL = load_cell(ROOT / "pretend" / "cells" / "pretend.yaml")
FROZEN = ROOT / "tests" / "golden" / "frozen"


@dataclass(frozen=True)
class World:
    """A history of twelve commits, and where jobs and series of it are kept."""

    workspace: Workspace
    commits: tuple[str, ...]

    def change(self, at: int) -> dict[str, str]:
        return {"id": self.commits[at], "kind": "commit", "subject": f"commit {at}"}

    def ended(self, job: str, outcome: str, *places: int, **changed: Any) -> None:
        """A job that ended: a comparison of two commits, or a check of the last against those before."""
        folder = self.workspace.state / "jobs" / job
        folder.mkdir(parents=True)
        (folder / JOURNAL).touch()
        is_check = outcome in ("passed", "failed")
        frozen = FROZEN / ("check-good" if is_check else "compare-regression") / "result.json"
        document = json.loads(frozen.read_text())
        document["cell"]["digest"], document["metric"]["name"] = CELL.digest, "tpot"
        sides: dict[str, Any] = {
            name: document.get(name, {}) | {"change": self.change(at)}
            for name, at in zip("ab", places, strict=False)
        }
        if is_check:
            level = document["recorded"][0]
            recorded = [level | {"change": self.change(at)} for at in places[:-1]]
            sides = {"change": self.change(places[-1]), "recorded": recorded}
        written = document | sides | {"outcome": outcome} | changed
        (folder / "report.json").write_text(json.dumps(written))
        Job(folder).write_exit(ExitRecord(0, outcome=outcome))

    def night_values(self, values: Sequence[float], commits: Sequence[int]) -> None:
        """A night for each value, of the commit at that place of the history."""
        (series,) = made_cell({"tpot:median": values}, test=CELL.name)
        with SeriesStore.of(self.workspace.state) as store, store.transaction():
            for point, at in zip(series.points, commits, strict=True):
                workload = replace(point.workload, test=CELL.name, digest=CELL.digest)
                workload = replace(workload, dataset="", concurrency=None, prompts=0)
                build = replace(point.build, commit=self.commits[at], branch="")
                store.replace_results(
                    store.keep_build(build), [replace(point, build=build, workload=workload)], []
                )

    def good(self, bad: str = "HEAD", metric: str = "tpot") -> tuple[int, str]:
        """The place of the last good commit, and what says so."""
        change, why = find_last_good(self.workspace, CELL, parse_metric(metric), bad)
        return self.commits.index(change.id), why


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    isolate(tmp_path, monkeypatch)
    history = make_history(tmp_path / "repo", commits=12)
    return World(open_workspace(repo=history.path), history.commits)


@pytest.mark.parametrize(
    ("outcome", "places", "good"),
    [
        ("regression", (2, 9), 2),
        ("same", (2, 9), 9),
        ("improvement", (2, 9), 9),
        ("passed", (3, 8), 8),
        ("failed", (3, 8), 3),
        ("passed", (8,), 8),
    ],
)
def test_each_outcome_calls_a_side_good(
    world: World, outcome: str, places: tuple[int, ...], good: int
) -> None:
    world.ended("20261120-101500-aaaa", outcome, *places)
    found, why = world.good()
    assert found == good
    assert "20261120-101500-aaaa" in why and f"({outcome}) of 2026-11-20" in why


@pytest.mark.parametrize(
    ("outcome", "places", "changed"),
    [
        ("inconclusive", (2, 9), {}),
        ("failed", (8,), {}),  # against values: which commit has the good one is not known
        ("same", (9, 9), {}),  # two variants of a commit
        ("same", (2, 11), {}),  # the bad end itself
        ("regression", (2, 9), {"schema": "perfbisect.compare/999"}),
    ],
)
def test_what_says_nothing_of_an_earlier_commit_is_left_out(
    world: World, outcome: str, places: tuple[int, ...], changed: dict[str, str]
) -> None:
    world.ended("20261120-101500-aaaa", outcome, *places, **changed)
    with pytest.raises(UsageError) as error:
        world.good()
    assert (error.value.where, error.value.exit_code) == (str(world.workspace.state), 2)
    assert str(error.value.next_step).startswith("add --good")


def test_another_metric_and_a_later_commit_are_no_evidence(world: World) -> None:
    world.ended("20261120-101500-aaaa", "same", 2, 9)
    with pytest.raises(UsageError):
        world.good(metric="ttft")
    with pytest.raises(UsageError):
        world.good(bad="HEAD~4")


def test_the_newest_evidence_counts(world: World) -> None:
    world.ended("20261120-101500-aaaa", "same", 2, 9)
    world.ended("20261121-101500-bbbb", "passed", 3, 6)
    assert world.good()[0] == 6
    world.ended("20261122-101500-cccc", "inconclusive", 3, 10)
    assert world.good()[0] == 6


def test_the_last_night_is_good_where_no_regression_is_open(world: World) -> None:
    nights = [at * 12 // 40 for at in range(40)]
    world.night_values(noise(7, 40, 5.0), nights)
    place, why = world.good()
    assert place == 10
    assert f"the last night of series {CELL.name}" in why and "alert" not in why


def test_the_last_night_before_an_open_regression_is_good(world: World) -> None:
    nights = [at * 12 // 40 for at in range(40)]
    world.night_values(step(noise(7, 40, 5.0), 30, 1.5), nights)
    place, why = world.good()
    assert place == nights[29] == 8
    assert " before alert 20" in why
    # What was measured later is newer knowledge.
    world.ended("20991120-101500-aaaa", "same", 2, 9)
    assert world.good()[0] == 9


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    isolate(tmp_path, monkeypatch)
    checkouts.vllm(tmp_path / "vllm")
    monkeypatch.chdir(tmp_path / "vllm")
    return open_workspace()


def test_a_terminal_offers_the_cells_of_the_engine(
    checkout: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal("999\n2\n"))
    monkeypatch.setattr(sys, "stderr", shown)
    chosen = choose_cell(checkout)
    rows = [row.split() for row in shown.getvalue().splitlines() if row[:3].strip().isdigit()]
    assert [int(row[0]) for row in rows] == list(range(1, len(rows) + 1))
    assert chosen == rows[1][1]
    families = {load_cell(row[1]).family for row in rows}
    assert families == {"text"}


@pytest.mark.usefixtures("checkout")
def test_a_choice_is_said_as_a_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal("1\n"))
    monkeypatch.setattr(sys, "stderr", shown)
    assert run(["bisect", "--bad", "main"]) == 2
    assert "next time: perfbisect bisect text_cpu_llama100m --bad main\n" in shown.getvalue()
    assert "error: --good is missing" in shown.getvalue()


@pytest.mark.usefixtures("checkout")
def test_no_choice_is_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(""))
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert run(["bisect"]) == EXIT_INTERRUPTED


def test_without_a_terminal_the_cell_is_missing(checkout: Workspace) -> None:
    error = type_json("bisect", code=2)
    assert error["where"] == str(checkout.root / "perfbisect.yaml")
    assert "cells list" in error["next"]
