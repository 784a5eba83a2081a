"""The folders of nights, their lock, and the value of their launches."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from statistics import median

import pytest

from perfbisect.engine.experiment import run_experiment
from perfbisect.errors import MachineError
from perfbisect.experiments.run import RUN, ChangeResult
from perfbisect.jobs.folders import Job, Jobs
from perfbisect.jobs.journal import read
from perfbisect.jobs.replay import launches
from perfbisect.model.metric import parse_metric
from perfbisect.nightly.journal import NightJobs, Nights
from perfbisect.series.points import Point
from perfbisect.series.sources.journals import read_run, recorded_results
from perfbisect.stats.two_sample import Scale
from tests.experiments.factory import job_of, run_plan
from tests.jobs.world import Watch, World, history

NOW = datetime(2026, 1, 5, 2, 0, tzinfo=timezone.utc)


def test_nights_are_in_order_of_time_and_know_their_commit(tmp_path: Path) -> None:
    nights = Nights(tmp_path, "n")
    assert nights.all() == ()
    later = nights.new(NOW.replace(day=6), "ab" * 20)
    first = nights.new(NOW, "cd" * 20)
    assert nights.all() == (), "a night begins with its journal"
    for one in (later, first):
        one.journal.touch()
    assert nights.all() == (first, later)
    assert first.id == "20260105-020000-cdcdcdcdcd"
    assert first.measures("cd" * 20)
    assert not first.measures("ab" * 20)
    assert first.events() == ()
    assert nights.new(NOW, "cd" * 20).id == "20260105-020001-cdcdcdcdcd", "no night has the folder of another"


def test_a_holder_that_did_not_write_itself_down(tmp_path: Path) -> None:
    with Nights(tmp_path, "n").held(NOW):
        record = tmp_path / "nightly/n/holder.json"
        record.write_text('{"pid": 1, "created": 1.0, "since": "2026-01-05T02:00:00+00:00"}')
        with pytest.raises(MachineError, match="in use by another process"):
            Nights(tmp_path, "n").held(NOW).__enter__()
        with Nights(tmp_path, "another").held(NOW):
            record.unlink()
        with pytest.raises(MachineError, match="in use by another process"):
            Nights(tmp_path, "n").held(NOW).__enter__()


TPOT = parse_metric("tpot")


def test_a_journal_is_read_again_only_where_it_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, watch = World(history(2).changes, slow=None), Watch()
    job, jobs, read_jobs = job_of(tmp_path, run_plan(world), watch, world), NightJobs(Jobs(tmp_path)), []
    events = Job.events
    monkeypatch.setattr(Job, "events", lambda job: read_jobs.append(job.id) or events(job))
    planned = jobs.result(job.id)
    assert planned is not None and jobs.result(job.id) is planned
    assert (planned.launches, read_jobs) == ((), [job.id])
    run_experiment(RUN, job, watch.tools(world))
    measured = jobs.result(job.id)
    assert measured is not None and len(measured.launches) == 3
    assert jobs.result("20260101-000000-none") is None


@pytest.mark.parametrize("runs", [1, 2, 3, 4, 5, 6])
def test_every_surface_has_the_same_value(tmp_path: Path, runs: int) -> None:
    world, watch = World(history(2).changes, slow=None, sigma=0.2), Watch()
    job = job_of(tmp_path, run_plan(world, runs=runs), watch, world)
    document = run_experiment(RUN, job, watch.tools(world))
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
    points = [p for p in recorded_results(*recorded, "") if isinstance(p, Point)]
    assert tuple(point.values["tpot:median"] for point in points) == values
    result = NightJobs(Jobs(tmp_path)).result(job.id)
    assert isinstance(result, ChangeResult) and result.headline is not None
    assert result.headline.median == median(values)
