"""Nights over a fleet: the real agent and the pretend engine on machines that a pretend ssh reaches."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from perfbisect.jobs.folders import Job
from perfbisect.jobs.replay import Launch, launches
from perfbisect.series.store import SeriesStore
from tests.fakes.history import ENGINE
from tests.fleet.test_fleet_jobs import World

pytestmark = pytest.mark.fleet

_NIGHTLY = """\
name: n
cells: [cells/*.yaml]
repo: {repository}
branch: {commit}
env: "overlay:{python},base=any"
client: "existing:{python},path={engine}"
machine: cpu
fleet: ssh:hosts.yaml
budget: 1h
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    (tmp_path / "cells").mkdir()
    for name in ("one", "two"):
        (tmp_path / "cells" / f"{name}.yaml").write_text((tmp_path / "cell.yaml").read_text())
    commit = world.history.good
    text = _NIGHTLY.format(repository=world.history.path, commit=commit, python=sys.executable, engine=ENGINE)
    (tmp_path / "nightly.yaml").write_text(text)
    yield world
    assert not world.living()


def made(world: World) -> list[Launch]:
    """The launches of all jobs."""
    folders = sorted((world.folder / "state" / "jobs").iterdir())
    return [launch for folder in folders for launch in launches(Job(folder).events())]


def night(world: World) -> dict[str, Any]:
    code, document = world.finish(world.start("nightly", "nightly.yaml", "--json"))
    assert code == 0, document
    return document


def overlap(a: Launch, b: Launch) -> bool:
    """Whether two launches were under way at the same time."""
    begun = [datetime.fromisoformat(launch.started_at) for launch in (a, b)]
    ended = [t + timedelta(minutes=launch.minutes) for t, launch in zip(begun, (a, b), strict=True)]
    return max(begun) < min(ended)


def test_a_night_is_spread_over_the_machines(world: World) -> None:
    machines = {cell["name"]: cell["machine"] for cell in night(world)["cells"]}
    assert sorted(machines.values()) == ["alpha", "beta"]
    measured = made(world)
    assert len(measured) == 4
    assert {launch.outcome for launch in measured} == {"measured"}
    first = {launch.machine: launch for launch in reversed(measured)}
    assert overlap(first["alpha"], first["beta"]), "they measure at the same time"
    with SeriesStore.of(world.folder / "state") as store:
        assert {point.cell: point.machine for point in store.points()} == machines


def test_a_killed_night_goes_on_and_one_that_is_given_up_leaves_nothing(world: World) -> None:
    for _ in range(2):
        process = world.start("nightly", "nightly.yaml", "--json")
        world.wait_for_launch()
        process.send_signal(signal.SIGKILL)
        process.communicate()
    still_open = [launch for launch in made(world) if launch.outcome == "running"]
    assert still_open
    later = datetime.now(timezone.utc) + timedelta(hours=13)
    world.env["PERFBISECT_NOW"] = later.isoformat()
    night(world)
    after = made(world)
    assert not [launch for launch in after if launch.outcome == "running"]
    finished = [launch for launch in after if launch.outcome == "measured"]
    assert world.measured_there() == len(finished), "what a machine measured counts, and nothing goes on"
