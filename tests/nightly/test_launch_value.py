"""A launch has one value, whatever shows it or decides from it."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from perfbisect.compare.job import run
from perfbisect.jobs.journal import read
from perfbisect.jobs.replay import launches
from perfbisect.model.metric import parse_metric
from perfbisect.nightly.journal import CellLaunches
from perfbisect.series.points import Point
from perfbisect.series.sources.journals import read_run, recorded_results
from perfbisect.stats.two_sample import Scale
from tests.compare.test_run import job_of, plan
from tests.jobs.world import Watch, World, history

TPOT = parse_metric("tpot")


@pytest.mark.parametrize("runs", [1, 2, 3, 4, 5, 6])
def test_every_surface_has_the_same_value(tmp_path: Path, runs: int) -> None:
    world, watch = World(history(2).changes, slow=None, sigma=0.2), Watch()
    job = job_of(tmp_path, plan(world, runs=runs), watch, world)
    document = run(job, watch.tools(world))
    seen = launches(read(job.journal).events)
    attempts = [launch.attempt for launch in seen if launch.attempt is not None]
    values = tuple(attempt.value(TPOT) for attempt in attempts)
    scale = Scale.of(TPOT.metric)

    assert len(set(values)) == 3
    assert tuple(launch.value for launch in document.launches) == values
    assert document.metrics[0].launches == values
    assert tuple(scale.value(scale.level(a.values(TPOT))) for a in attempts) == pytest.approx(values)
    recorded = read_run(job.journal)
    assert recorded is not None
    points = [p for p in recorded_results(recorded.build, recorded.document, "") if isinstance(p, Point)]
    assert tuple(point.values["tpot:median"] for point in points) == values
    assert CellLaunches(seen).value(TPOT) == median(values)
