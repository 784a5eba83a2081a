"""A driver that is killed and resumed measures nothing twice, loses nothing and leaves nothing alive."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfbisect.fleet.executor import end_bundles
from perfbisect.jobs.folders import Job
from perfbisect.jobs.replay import launches
from perfbisect.measure.attempt import read_attempt
from tests.fleet.driver import NOT_SUBMITTED, PAIR, PAIR_POINTS, POINTS, SUBMITTED, drive
from tests.fleet.sites import Site, await_that
from tests.long import mostly_long


@pytest.fixture
def job(site: Site, tmp_path: Path) -> Iterator[Job]:
    """A job on the site, of which no process lives afterwards."""
    site.clean()
    job = Job(tmp_path / "job")
    yield job
    site.clean()
    tokens = [launch.token for launch in launches(job.events())]
    await_that(lambda: not any(map(site.living, tokens)), "processes of a launch live after its end", 10.0)


_OF_THE_ENGINE = ("half submitted", "running", "half fetched")
"""Points at which the engine is at work. Ray is tried at these alone: each takes it half a minute."""

_MARKS = [pytest.mark.fleet, pytest.mark.ray]
_CASES = [
    *mostly_long((("folders", point) for point in POINTS), short=[("folders", "running")]),
    *(pytest.param(name, point, marks=_MARKS[:1]) for name in ("ssh", "slurm") for point in POINTS),
    *(pytest.param("ray", point, marks=_MARKS) for point in _OF_THE_ENGINE),
]


def _run_killed_driver(site: Site, job: Job, point: str, *changes: str) -> None:
    """Run a driver that is killed at a point; a launch that is running then goes on until it is released."""
    if point == "running":
        site.hold()
    command = [sys.executable, "-m", "tests.fleet.driver", site.name, str(site.folder), str(job.path), point]
    done = subprocess.run(
        [*command, *changes],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize(("site", "point"), _CASES, indirect=["site"])
def test_a_driver_that_is_killed_is_resumed(site: Site, job: Job, point: str) -> None:
    _run_killed_driver(site, job, point)
    site.release()
    before = launches(job.events())
    assert [launch.outcome for launch in before] == ([] if point == "before the start" else ["running"])
    after = drive(site.fleet(), job)
    made = [launch for launch in after if launch.outcome == "measured"]
    assert len(made) == 1
    attempt = read_attempt(job.path / made[0].folder)
    assert attempt is not None and (attempt.id, attempt.slot) == (made[0].id, "fast")
    assert (job.path / made[0].folder / "server.log").read_text() == "a server\n"
    assert len(site.measured()) == 1
    if point in SUBMITTED:
        assert [launch.token for launch in after] == [launch.token for launch in before]
    else:
        assert point in NOT_SUBMITTED
        assert [launch.outcome for launch in after] == ["abandoned"] * len(before) + ["measured"]


_STOPPED = [
    *(pytest.param("folders", point) for point in ("half submitted", "running", "ended")),
    *(
        pytest.param(name, point, marks=_MARKS[:1])
        for name in ("ssh", "slurm")
        for point in ("half submitted", "running")
    ),
    pytest.param("ray", "running", marks=_MARKS),
]


@pytest.mark.parametrize(("site", "point"), _STOPPED, indirect=["site"])
def test_a_stop_after_the_driver_was_killed_leaves_nothing_alive(site: Site, job: Job, point: str) -> None:
    _run_killed_driver(site, job, point)
    (left,) = launches(job.events())
    assert left.is_unresolved
    if point == "running":
        await_that(lambda: bool(site.servers(left.token)), "no server was started")
    assert end_bundles(site.fleet(), [left.token], 10.0) == (point == "running")
    assert not site.servers(left.token)
    assert end_bundles(site.fleet(), [left.token], 10.0) == 0
    site.release()
    assert len(site.measured()) == (point != "half submitted")


@pytest.mark.parametrize("point", mostly_long(PAIR_POINTS, short=["between the two"]))
@pytest.mark.parametrize("site", ["folders"], indirect=True)
def test_a_pair_whose_driver_is_killed_is_measured_once(site: Site, job: Job, point: str) -> None:
    _run_killed_driver(site, job, point, *PAIR)
    site.release()
    after = drive(site.fleet(), job, PAIR)
    assert [(launch.change.id, launch.outcome) for launch in after] == [(sha, "measured") for sha in PAIR]
    assert len(site.measured()) == 2
    for launch in after:
        attempt = read_attempt(job.path / launch.folder)
        assert attempt is not None and (attempt.id, attempt.change_id) == (
            launch.id,
            launch.change.id,
        )
