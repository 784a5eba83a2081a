"""What bisections teach later ones: by how much builds differ."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfbisect.bisect.decision.model import BUILD_SD
from perfbisect.bisect.learnt import LearntDocument, lessons, with_learnt_builds
from perfbisect.bisect.plan import BisectPlan
from perfbisect.jobs.folders import Jobs
from perfbisect.measure.executor import AttemptRequest
from tests.fixtures.jobs import MakePlan, Play
from tests.jobs.world import Clock, World, history

COUNT = 24


def taught(play: Play, seed: int, sd: float) -> LearntDocument:
    """What a bisection teaches where builds differ by so much."""
    offsets = dict(
        zip(
            (change.id for change in history(COUNT).changes),
            np.exp(np.random.default_rng(seed).normal(0, sd, COUNT)),
            strict=True,
        )
    )

    def pace(request: AttemptRequest) -> float:
        return float(offsets[request.change.id])

    world = World(history(COUNT).changes, slow=11, factor=1.15, sigma=0.004, tau=0.004, seed=seed, pace=pace)
    learnt = play(world).learnt
    assert learnt is not None
    assert (learnt.builder, learnt.machine_class) == ("fake", "toy")
    return learnt


def mean(plan: BisectPlan) -> float:
    return float(np.array(plan.noise.builds) @ np.array(BUILD_SD))


def test_builds_that_differ_are_learnt(play: Play, plan_for: MakePlan) -> None:
    alike = [taught(play, seed, 0.0) for seed in range(3)]
    unlike = [taught(play, seed, 0.02) for seed in range(3)]
    plan = plan_for(World(history(COUNT).changes, slow=None))
    less, more = (with_learnt_builds(plan, taught, "toy") for taught in (alike, unlike))
    assert mean(less) < 0.005 < 0.01 < mean(more)
    assert sum(more.noise.builds) == pytest.approx(1)
    assert "learnt from 3 earlier bisections: builds differ by about" in more.notes[-1]
    for changed in ({"repository": "another"}, {"builder": "wheel"}, {"compiled": False}):
        assert with_learnt_builds(plan, [one.model_copy(update=changed) for one in unlike], "toy") == plan
    assert with_learnt_builds(plan, unlike, "another machine") == plan


def test_lessons_are_read_from_reports(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    one = LearntDocument(
        repository="r", builder="b", machine_class="m", compiled=True, builds=(0.0,) * len(BUILD_SD)
    )
    texts = ("{}", "no JSON", '{"learnt": null}', '{"learnt": ' + one.model_dump_json() + "}")
    for number, text in enumerate(texts):
        job = jobs.new(Clock()(), f"abc{number}")
        job.journal.touch()
        job.document.write_text(text)
    assert list(lessons(jobs)) == [one]
