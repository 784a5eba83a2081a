"""Which jobs have two sides to profile, and profiles of the pretend engine from the command to the report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perfbisect.commands.workspace import open_workspace
from perfbisect.errors import UsageError
from perfbisect.explain import plans
from perfbisect.explain.command import ExplainRequest
from perfbisect.explain.plans import measured_sides, plan_profile
from perfbisect.explain.profile_job import ProfileDocument
from perfbisect.jobs.folders import Jobs
from perfbisect.jobs.journal import read
from perfbisect.jobs.requests import NO_REQUEST
from perfbisect.measure import profiling
from perfbisect.measure.profiling import ProfileLimits
from tests.command_line import isolate, type_command
from tests.fakes.history import CALM, MEASURED_WITH, PretendHistory, make_history
from tests.fixtures.jobs import SETTING, MakePlan, Start
from tests.jobs.world import World, history
from tests.measure.test_profiling import py_spy

CELL = str(Path(__file__).parents[2] / "pretend" / "cells" / "pretend.yaml")


def test_a_bisection_has_its_culprit_and_the_change_before_it(start: Start) -> None:
    world = World(history(6).changes, slow=4, factor=1.5)
    begun = start(world)
    begun.run()
    sides = measured_sides(begun.job, begun.events)
    assert (sides.a.change, sides.b.change) == (world.changes[3], world.changes[4])
    assert sides.is_slower


def test_a_bisection_without_a_culprit_has_none(start: Start) -> None:
    begun = start(World(history(6).changes, slow=None))
    begun.run()
    with pytest.raises(UsageError, match="names no single culprit") as caught:
        measured_sides(begun.job, begun.events)
    assert caught.value.next_step == f"perfbisect report {begun.job.id}"


def test_a_job_that_a_fleet_measured_is_refused(
    plan_for: MakePlan, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(history(6).changes, slow=4, factor=1.5)
    setting = SETTING.model_copy(update={"fleet": "ssh:hosts.yaml"})
    begun = start(world, plan=plan_for(world).model_copy(update={"setting": setting}))
    assert begun.run().culprit is not None
    isolate(tmp_path, monkeypatch)
    (tmp_path / "state").mkdir(exist_ok=True)
    (tmp_path / "jobs").rename(tmp_path / "state" / "jobs")
    for words in (("--profile",), ("--profile", "--dry-run")):
        outcome = type_command(["explain", begun.job.id, *words])
        assert outcome.code == 2 and outcome.out == ""
        assert "measures on a fleet" in outcome.err
        assert "next:  compare the two changes on this machine, and explain that job" in outcome.err
    assert len(Jobs(tmp_path / "state").all()) == 1, "nothing was started"


@pytest.fixture
def pretend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PretendHistory:
    made = make_history(tmp_path / "repo", commits=3, slow=2, factor=2.0, pace=CALM)
    isolate(tmp_path, monkeypatch)
    spy = py_spy(tmp_path)
    for module in (profiling, plans):
        monkeypatch.setattr(module, "find_py_spy", lambda: spy)
    quick = ProfileLimits(windows=1, window=1.0, load=20.0, trace=5.0, answer=5.0, least_steps=1)
    monkeypatch.setattr(profiling, "ProfileLimits", lambda: quick)
    return made


@pytest.mark.processes
def test_the_sides_of_a_comparison_are_profiled(pretend: PretendHistory, tmp_path: Path) -> None:
    compared = type_command(
        [
            *("compare", CELL, "--repo", str(pretend.path), "--a", pretend.good, "--b", pretend.bad),
            *("--blocks", "2", *MEASURED_WITH, "--quiet"),
        ]
    )
    assert "regression" in compared.out
    source, workspace = Jobs(tmp_path / "state").all()[-1], open_workspace()
    profile = ExplainRequest(job_id=source.id, profile=True, launches=1, quiet=True)
    dry = replace(profile, launches=None, dry_run=True).run(workspace)
    assert "4 profile launches" in "\n".join(dry.lines)
    planned = plan_profile(workspace, source, NO_REQUEST, budget=60.0)
    assert planned.plan.is_slower and planned.plan.source == source.id
    before = read(source.journal).events
    result = profile.run(workspace)
    document = result.document
    assert isinstance(document, ProfileDocument)
    assert [launch.change.id for launch in document.launches] == [pretend.good, pretend.bad]
    assert {(x.purpose, x.outcome, x.value) for x in document.launches} == {("profile", "measured", None)}
    assert document.result is not None
    # The stub records one function of no file of the diff; its share of a step is as long as the step.
    assert document.result.kind in ("not in the diff", "no growth seen")
    assert document.result.launches == (1, 1)
    assert read(source.journal).events == before
    job = Jobs(tmp_path / "state").find(document.job)
    assert document.result.sentence in type_command(["report", job.id]).out
    with pytest.raises(UsageError, match="has no two sides"):
        plan_profile(workspace, job, NO_REQUEST, budget=60.0)
