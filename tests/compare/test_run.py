"""``run``: launches of one change."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.bisect.job import amend, bisect
from perfbisect.compare.documents import RunDocument, run_document
from perfbisect.compare.job import run
from perfbisect.compare.plan import MeasurementSetup, RunPlan, build_run_plan
from perfbisect.compare.report import run_report
from perfbisect.environments.base import Refusal
from perfbisect.errors import BuildError, ServerError, UsageError
from perfbisect.jobs.folders import Job, Jobs
from perfbisect.jobs.journal import read
from perfbisect.jobs.plans import resolve_metric, write_plan
from perfbisect.model.attempt import Failure
from perfbisect.report.kind import Amendment
from perfbisect.report.markdown import report_markdown
from tests.fixtures.jobs import SETTING
from tests.jobs.world import Clock, FakeBuilder, PowerCut, Watch, World, cell, history


def plan(
    world: World, launches: int = 3, runs: int = 2, builder: FakeBuilder | None = None, **changed: object
) -> RunPlan:
    measured = cell(**changed)
    setup = MeasurementSetup(measured, resolve_metric(measured, None), SETTING, builder or FakeBuilder())
    return build_run_plan(setup, change=world.changes[0], launches=launches, runs=runs)


def job_of(tmp_path: Path, made: RunPlan, watch: Watch, world: World) -> Job:
    job = Jobs(tmp_path).new(Clock()(), "abcd")
    write_plan(job, made, watch.tools(world).clock)
    return job


def test_every_launch_is_measured_and_summed_up(tmp_path: Path) -> None:
    world, watch = World(history(2).changes, slow=None), Watch()
    job = job_of(tmp_path, plan(world), watch, world)
    document = run(job, watch.tools(world))
    assert document.finished
    assert [x.outcome for x in document.launches] == ["measured"] * 3
    assert {request.runs for request in world.requests} == {2}
    headline = document.metrics[0]
    assert headline.name == "tpot:median"
    assert len(headline.launches) == 3
    assert headline.low <= headline.median <= headline.high
    assert headline.median == sorted(headline.launches)[1]
    assert headline.within == 0.05
    assert {m.name for m in document.metrics} >= {"tpot:p99", "output_throughput", "failed"}
    assert document.minutes.by_phase["launch"] == pytest.approx(3 * 30 / 60)
    assert RunDocument.model_validate_json(document.text()) == document
    assert "## Every launch" in report_markdown(run_report(document))
    assert run(job, watch.tools(world)) == document, "done is done"


def test_a_cut_run_goes_on_where_it_was(tmp_path: Path) -> None:
    world, watch = World(history(2).changes, slow=None), Watch()
    world.fault = lambda n, _: PowerCut() if n == 2 else None
    job = job_of(tmp_path, plan(world), watch, world)
    with pytest.raises(PowerCut):
        run(job, watch.tools(world))
    assert not run_document(job, read(job.journal).events).finished
    document = run(job, watch.tools(world))
    assert [x.outcome for x in document.launches] == ["measured", "abandoned", "measured", "measured"]


def test_a_change_that_does_not_serve_is_tried_twice(tmp_path: Path) -> None:
    world, watch = World(history(2).changes, slow=None), Watch()
    world.fault = lambda *_: Failure("first_request", "change", "500", "/the/log")
    with pytest.raises(ServerError, match="does not serve: first_request: 500") as caught:
        run(job_of(tmp_path, plan(world), watch, world), watch.tools(world))
    assert caught.value.where == "/the/log"
    assert len(world.requests) == 2


def test_a_change_that_cannot_be_built_is_told_at_once(tmp_path: Path) -> None:
    world, watch = World(history(2).changes, slow=None), Watch()
    world.fault = lambda *_: Failure("build", "change", "no wheel")
    with pytest.raises(BuildError, match="cannot be built: build: no wheel"):
        run(job_of(tmp_path, plan(world), watch, world), watch.tools(world))
    assert len(world.requests) == 1
    with pytest.raises(BuildError, match="cannot be built: too old"):
        plan(world, builder=FakeBuilder(refused={world.changes[0].id: Refusal("too old")}))
    with pytest.raises(UsageError, match="wrong base"):
        plan(world, builder=FakeBuilder(refused={world.changes[0].id: Refusal("wrong base", error=True)}))


def test_several_runs_need_an_engine_that_forgets() -> None:
    world = World(history(2).changes, slow=None)
    with pytest.raises(UsageError, match="a launch has one run"):
        plan(world, runs=2, env={"VLLM_SERVER_DEV_MODE": "0"})
    assert plan(world, runs=1, env={"VLLM_SERVER_DEV_MODE": "0"}).runs == 1


def test_a_run_is_no_bisection(tmp_path: Path) -> None:
    world, watch = World(history(2).changes, slow=None), Watch()
    job = job_of(tmp_path, plan(world), watch, world)
    with pytest.raises(UsageError, match="is not a bisection"):
        bisect(job, watch.tools(world))
    with pytest.raises(UsageError, match="is not a bisection"):
        amend(job, watch.tools(world), Amendment(budget=10.0))
