"""The simulated fleets: what they draw, count and print."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfbisect.bisect.decision.model import Lost, Measured, NextLaunch, Reason
from scripts import fleet_worlds
from scripts.fleet_worlds import WORLDS, Fleet, FleetSession, FleetSimulation, bar_lines, play

STILL = Fleet(n=12, sigma=0.0, tau=0.0)
WHY = Reason("pair")


def measured(world: Fleet, index: int, machine: str) -> float:
    made = FleetSimulation(world, np.random.default_rng(1))
    made.culprit = 5
    made.speeds = (0.0, 0.1, 0.2, 0.3)
    event = made.launch(NextLaunch(index, "search", 2, WHY), machine, 0.0)
    assert event.values[0] == event.values[1]
    assert (event.slot, event.machine) == (machine, machine)
    return event.values[0] / 100


def test_a_launch_has_the_speed_of_its_machine_and_the_step() -> None:
    assert measured(STILL, 4, "m0") == pytest.approx(1.0)
    assert measured(STILL, 5, "m0") == pytest.approx(1.1)
    assert measured(STILL, 5, "m2") == pytest.approx(1.1 * np.exp(0.2))
    alone = replace(STILL, only=1)
    assert measured(alone, 9, "m1") == pytest.approx(1.1 * np.exp(0.1))
    assert measured(alone, 9, "m0") == pytest.approx(1.0)


def test_an_environment_is_built_once_for_all_machines() -> None:
    made = FleetSimulation(STILL, np.random.default_rng(1))
    launches = [
        made.launch(NextLaunch(3, "search", 1, WHY), f"m{number}", minute)
        for number, minute in enumerate((0.0, 1.0, 4.0))
    ]
    assert [launch.build for launch in launches] == [4.0, 3.0, 0.0], (
        "a machine waits for the build of another"
    )


@pytest.mark.parametrize(("builds", "ahead"), [(0, 0), (2, 2), (None, 4)])
def test_what_the_machines_search_first_is_built_meanwhile(builds: int | None, ahead: int) -> None:
    made = FleetSimulation(replace(STILL, builds=builds), np.random.default_rng(1))
    made.launch(NextLaunch(0, "end", 1, WHY), "m0", 0.0, [])
    assert len(made.building) == ahead
    assert made.known.cached == frozenset(), "nothing is there yet"
    made.clock = 4.0
    assert len(made.known.cached) == 1 + ahead


def test_what_an_outlier_measured_is_lost_with_it() -> None:
    made = FleetSimulation(replace(STILL, sd=0.02, outlier=1.5), np.random.default_rng(1))
    for name in ("m0", "m1", "m2", "m3"):
        made.events += [made.launch(NextLaunch(index, "end", 1, WHY), name, 0.0) for index in (0, 12) * 2]
    made.put_out()
    assert made.machines == ["m0", "m1", "m2"]
    assert sum(isinstance(event, Lost) for event in made.events) == 4
    assert "m3" not in {event.machine for event in made.events if isinstance(event, Measured)}


@pytest.mark.processes
def test_a_session_is_the_same_again_and_counts_its_minutes() -> None:
    world = Fleet(n=12, sigma=0.01)
    session = play(world, 3)
    assert session == play(world, 3)
    assert (session.verdict, session.right, session.wrong) == ("found", True, False)
    assert session.replicated == "holds"
    assert session.wall < session.gpu < 4 * session.wall
    assert session.wall_after - session.wall == pytest.approx(session.gpu_after - session.gpu)
    one = play(replace(world, machines=1), 3)
    assert one.replicated == ""
    assert one.wall == one.wall_after == pytest.approx(one.gpu)


@pytest.mark.processes
def test_a_step_of_one_machine_that_is_named_is_refuted_on_another() -> None:
    world = Fleet(machines=2, n=12, sigma=0.005, tau=0.005, only=0)
    told = [session.replicated for session in (play(world, seed) for seed in range(4)) if session.right]
    assert len(told) >= 2
    assert set(told) == {"absent"}


def test_the_bars_are_counted_over_what_was_played() -> None:
    def sessions(**fields: object) -> list[FleetSession]:
        return [replace(FleetSession("found", right=True), **fields) for _ in range(4)]  # type: ignore[arg-type]

    played = {
        "1 machine": sessions(wall=100.0, gpu=100.0, wall_after=100.0, gpu_after=100.0),
        "4 machines": sessions(wall=35.0, gpu=140.0, wall_after=60.0, gpu_after=165.0, wrong=True),
        "4 machines, no change": sessions(differs=True),
        "4 machines, step on one": sessions(wrong=True, differs=True),
    }
    assert bar_lines(played) == [
        "wrong names: 4 of 12; bar 1 %",
        "no change called different: 4 of 4; bar 5 %",
        "4 machines / 1 machine, wall minutes: 0.35, with the replication 0.60; bar 0.40",
        "4 machines / 1 machine, gpu minutes: 1.40, with the replication 1.65; bar 1.75",
    ]
    assert bar_lines({}) == []


def test_an_unknown_world_is_refused() -> None:
    with pytest.raises(SystemExit, match="4 machines"):
        fleet_worlds.main(["--worlds", "nowhere"])
    assert {world.machines for world in WORLDS.values()} == {1, 2, 4}
