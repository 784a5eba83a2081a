"""``perfbisect status`` without an id: of jobs that have ended the verdict, who and by how much."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from perfbisect.compare.job import run as measure
from perfbisect.jobs.folders import Jobs
from tests.command_line import type_command, type_json
from tests.compare.factory import CHANGES, job_of, measured, run_plan
from tests.fixtures.jobs import Start
from tests.jobs.world import Clock, Watch, World, history


def listed(state: Path) -> tuple[list[dict[str, object]], list[str]]:
    """The list as a program and as a person reads it."""
    words = ["status", "--state", str(state)]
    return type_json(*words)["jobs"], type_command(words).out.splitlines()[1:]


def test_a_bisection_names_its_culprit(start: Start) -> None:
    begun = start(World(history(8).changes, slow=5))
    begun.run()
    job = begun.job
    (told,), (line,) = listed(job.path.parents[1])
    assert (told["outcome"], told["exit_code"]) == ("found", 3)
    assert re.fullmatch(r"050505050505 Change 5, tpot \+[45]\d\.\d %", str(told["verdict"]))
    assert line.endswith(f"  found: {told['verdict']}")
    shown = type_command(["status", job.id, "--state", str(job.path.parents[1])]).out
    assert shown.startswith(f"{job.id}: finished, found: 050505050505 Change 5")


def test_a_comparison_tells_its_effect(tmp_path: Path) -> None:
    measured(Jobs(tmp_path).new(Clock()(), "abcd"), World(CHANGES, None, tau=0.005))
    (told,), (line,) = listed(tmp_path)
    assert (told["outcome"], told["exit_code"]) == ("same", 0)
    assert re.search(r"  same: tpot [+-]0\.\d %$", line)


def test_a_run_tells_its_value(tmp_path: Path) -> None:
    world, watch = World(CHANGES, None, sigma=0.001, tau=0.001), Watch()
    job = job_of(tmp_path, run_plan(world, 1), watch, world)
    with job.held():
        measure(job, watch.tools(world))
    (told,), (line,) = listed(tmp_path)
    assert told["exit_code"] == 0
    assert re.search(r" 1  measured: tpot 1[34]\.\d\d ms$", line)


@pytest.mark.parametrize(
    ("asked", "factor", "outcome"),
    [
        ({"expect": "<= -20 %"}, 0.6, "holds"),
        ({"expect": "<= -20 %"}, 1.0, "refuted"),
        ({"max_regression": 0.05}, 1.0, "passed"),
        ({"max_regression": 0.05}, 1.5, "failed"),
    ],
)
def test_a_claim_or_a_limit_tells_what_became_of_it(
    asked: dict[str, Any], factor: float, outcome: str, tmp_path: Path
) -> None:
    measured(Jobs(tmp_path).new(Clock()(), "abcd"), World(CHANGES, 1, factor=factor, tau=0.005), **asked)
    (told,), (line,) = listed(tmp_path)
    assert (told["outcome"], told["exit_code"]) == (outcome, 3 if outcome in ("refuted", "failed") else 0)
    assert re.search(rf"  {outcome}: tpot [+-]\d+\.\d %$", line)


def test_a_guard_that_decided_is_told(tmp_path: Path) -> None:
    world = World(CHANGES, 1, factor=0.6, tau=0.005, tokens=lambda position: 32.0 - 12 * position)
    measured(Jobs(tmp_path).new(Clock()(), "abcd"), world, expect="<= -20 %")
    _, (line,) = listed(tmp_path)
    assert re.search(r"  refuted: by a guard, tpot -\d+\.\d %$", line)
