"""``run``: launches of one change."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.bisect.job import BISECT, amend
from perfbisect.engine.experiment import Amendment, run_experiment
from perfbisect.environments.base import Refusal
from perfbisect.errors import BuildError, ServerError, UsageError
from perfbisect.experiments.run import RUN, ChangeResult, read_run
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import read
from perfbisect.jobs.runner import JobContext
from perfbisect.model.attempt import Failure
from perfbisect.report.markdown import report_markdown
from tests.experiments.factory import job_of, run_plan
from tests.jobs.world import FakeBuilder, PowerCut, Watch, World, history


def run(job: Job, tools: JobContext) -> ChangeResult:
    return run_experiment(RUN, job, tools)


def test_every_launch_is_measured_and_summed_up(tmp_path: Path) -> None:
    world, watch = World(history(2).changes, slow=None), Watch()
    job = job_of(tmp_path, run_plan(world), watch, world)
    result = run(job, watch.tools(world))
    assert result.finished
    assert [x.outcome for x in result.launches] == ["measured"] * 3
    assert {request.runs for request in world.requests} == {2}
    headline = result.metrics[0]
    assert headline.name == "tpot:median"
    assert len(headline.launches) == 3
    assert headline.low <= headline.median <= headline.high
    assert headline.median == sorted(headline.launches)[1]
    assert headline.within == 0.05
    assert {m.name for m in result.metrics} >= {"tpot:p99", "output_throughput", "failed"}
    assert result.minutes.by_phase["launch"] == pytest.approx(3 * 30 / 60)
    assert ChangeResult.model_validate_json(result.text()) == result
    assert "## Every launch" in report_markdown(result.report())
    assert run(job, watch.tools(world)) == result, "done is done"


def test_a_cut_run_goes_on_where_it_was(tmp_path: Path) -> None:
    world, watch = World(history(2).changes, slow=None), Watch()
    world.fault = lambda n, _: PowerCut() if n == 2 else None
    job = job_of(tmp_path, run_plan(world), watch, world)
    with pytest.raises(PowerCut):
        run(job, watch.tools(world))
    assert not read_run(job, read(job.journal).events).finished
    result = run(job, watch.tools(world))
    assert [x.outcome for x in result.launches] == ["measured", "abandoned", "measured", "measured"]


def test_a_change_that_does_not_serve_is_tried_twice(tmp_path: Path) -> None:
    world, watch = World(history(2).changes, slow=None), Watch()
    world.fault = lambda *_: Failure("first_request", "change", "500", "/the/log")
    with pytest.raises(ServerError, match="does not serve: first_request: 500") as caught:
        run(job_of(tmp_path, run_plan(world), watch, world), watch.tools(world))
    assert caught.value.where == "/the/log"
    assert len(world.requests) == 2


def test_a_change_that_cannot_be_built_is_told_at_once(tmp_path: Path) -> None:
    world, watch = World(history(2).changes, slow=None), Watch()
    world.fault = lambda *_: Failure("build", "change", "no wheel")
    with pytest.raises(BuildError, match="cannot be built: build: no wheel"):
        run(job_of(tmp_path, run_plan(world), watch, world), watch.tools(world))
    assert len(world.requests) == 1
    with pytest.raises(BuildError, match="cannot be built: too old"):
        run_plan(world, builder=FakeBuilder(refused={world.changes[0].id: Refusal("too old")}))
    with pytest.raises(UsageError, match="wrong base"):
        run_plan(world, builder=FakeBuilder(refused={world.changes[0].id: Refusal("wrong base", error=True)}))


def test_several_runs_need_an_engine_that_forgets() -> None:
    world = World(history(2).changes, slow=None)
    with pytest.raises(UsageError, match="a launch has one run"):
        run_plan(world, runs=2, env={"VLLM_SERVER_DEV_MODE": "0"})
    assert run_plan(world, runs=1, env={"VLLM_SERVER_DEV_MODE": "0"}).runs == 1


def test_a_run_is_no_bisection(tmp_path: Path) -> None:
    world, watch = World(history(2).changes, slow=None), Watch()
    job = job_of(tmp_path, run_plan(world), watch, world)
    with pytest.raises(UsageError, match="is not a bisection"):
        run_experiment(BISECT, job, watch.tools(world))
    with pytest.raises(UsageError, match="is not a bisection"):
        amend(job, watch.tools(world), Amendment(budget=10.0))
