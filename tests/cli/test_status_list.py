"""``perfbisect status`` without an id: of jobs that have ended the verdict, who and by how much."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from perfbisect.bisect.job import BISECT
from perfbisect.bisect.plan import BisectPlan
from perfbisect.commands import status
from perfbisect.commands.session import run_job
from perfbisect.engine.experiment import run_experiment
from perfbisect.experiments.run import RUN
from perfbisect.jobs.folders import Job, Jobs
from perfbisect.jobs.plans import require_plan
from perfbisect.jobs.runner import JobContext
from tests.command_line import type_command, type_json
from tests.experiments.factory import CHANGES, job_of, measured, run_plan
from tests.fixtures.jobs import BegunJob, Start
from tests.jobs.world import Clock, FakeBuilder, Watch, World, history

if TYPE_CHECKING:
    from perfbisect.commands.session import JobSession
    from perfbisect.commands.workspace import Workspace


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


@dataclass
class Session:
    """Stands in for a session: the job, and what it is measured with."""

    begun: BegunJob

    @property
    def job(self) -> Job:
        return self.begun.job

    def tools(self, *_: object, **__: object) -> JobContext:
        return self.begun.watch.tools(self.begun.world)


def test_a_finished_job_is_listed_without_judging_its_launches_again(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = start(World(history(8).changes, slow=5))
    plan = require_plan(begun.job, begun.events, BisectPlan)
    with begun.job.held():
        run_job(cast("Workspace", None), cast("JobSession", Session(begun)), BISECT, plan, FakeBuilder())
    state = begun.job.path.parents[1]
    judged = listed_again(state)
    monkeypatch.setattr(status, "status_document", lambda *_: pytest.fail("it was judged again"))
    assert listed(state) == judged
    (told,), _ = judged
    assert (told["outcome"], told["exit_code"], told["verb"], told["cell"]) == ("found", 3, "bisect", "tiny")
    assert told["launches"] == len(begun.records)


def listed_again(state: Path) -> tuple[list[dict[str, object]], list[str]]:
    """The list as it is without the records of how jobs ended: their launches are judged."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(status, "_recorded_line", lambda _: None)
        return listed(state)


def test_a_comparison_tells_its_effect(tmp_path: Path) -> None:
    measured(Jobs(tmp_path).new(Clock()(), "abcd"), World(CHANGES, None, tau=0.005))
    (told,), (line,) = listed(tmp_path)
    assert (told["outcome"], told["exit_code"]) == ("same", 0)
    assert re.search(r"  same: tpot [+-]0\.\d %$", line)


def test_a_run_tells_its_value(tmp_path: Path) -> None:
    world, watch = World(CHANGES, None, sigma=0.001, tau=0.001), Watch()
    job = job_of(tmp_path, run_plan(world, 1), watch, world)
    with job.held():
        run_experiment(RUN, job, watch.tools(world))
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
