"""``run``: launches of one change."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.bisect.job import amend, bisect
from perfbisect.compare.documents import RunDocument, run_document
from perfbisect.compare.job import run
from perfbisect.compare.report import run_report
from perfbisect.environments.base import Refusal
from perfbisect.errors import BuildError, ServerError, UsageError
from perfbisect.jobs.journal import read
from perfbisect.model.attempt import Failure
from perfbisect.report.kind import Amendment
from perfbisect.report.markdown import report_markdown
from tests.compare.factory import job_of, run_plan
from tests.jobs.world import FakeBuilder, PowerCut, Watch, World, history


def test_every_launch_is_measured_and_summed_up(tmp_path: Path) -> None:
    world, watch = World(history(2).changes, slow=None), Watch()
    job = job_of(tmp_path, run_plan(world), watch, world)
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
    job = job_of(tmp_path, run_plan(world), watch, world)
    with pytest.raises(PowerCut):
        run(job, watch.tools(world))
    assert not run_document(job, read(job.journal).events).finished
    document = run(job, watch.tools(world))
    assert [x.outcome for x in document.launches] == ["measured", "abandoned", "measured", "measured"]


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
        bisect(job, watch.tools(world))
    with pytest.raises(UsageError, match="is not a bisection"):
        amend(job, watch.tools(world), Amendment(budget=10.0))
