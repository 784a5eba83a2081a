"""Jobs over a fleet: the real agent and the pretend engine on machines that a pretend ssh reaches."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from perfbisect.jobs.folders import Job
from perfbisect.jobs.replay import Launch, launches
from tests.fakes.history import ENGINE, make_history
from tests.fakes.ssh import PretendMachines
from tests.fleet.driver import CELL
from tests.fleet.sites import MAIN, await_that, processes_below
from tests.long import mostly_long


class World:
    """A history with a planted slow commit, and machines "alpha" and "beta", which is 8 % slower."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.history = make_history(folder / "repo", commits=8, slow=5, factor=1.6)
        self.machines = PretendMachines(folder / "machines")
        cache = str(folder / "cache")
        self.machines.add("alpha", PERFBISECT_CACHE=cache)
        self.machines.add("beta", PERFBISECT_CACHE=cache, CUDA_VISIBLE_DEVICES="slow")
        text = CELL.read_text().replace("./models", str(CELL.parent / "models"))
        (folder / "cell.yaml").write_text(f"{text}\nenv: {{PRETEND_SLOW_DEVICES: 'slow:1.08'}}\n")
        (folder / "hosts.yaml").write_text("hosts: [alpha, beta]\n")
        self.env = os.environ | {
            "PERFBISECT_CACHE": cache,
            "PERFBISECT_STATE": str(folder / "state"),
            "PERFBISECT_BACKOFF": "0.1",
            "PATH": self.machines.path(os.environ["PATH"]),
            "OMP_NUM_THREADS": "1",
        }

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*MAIN, *words], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=self.folder,
        )  # fmt: skip

    def measuring(self, verb: str, *words: str) -> list[str]:
        environment = ("--env", f"overlay:{sys.executable},base=any")
        client = ("--client", f"existing:{sys.executable},path={ENGINE}")
        where = ("--repo", str(self.history.path), "--machine", "cpu", "--fleet", "ssh:hosts.yaml")
        return [verb, str(self.folder / "cell.yaml"), *words, *where, *environment, *client, "--json"]

    def bisect(self, *words: str) -> list[str]:
        return self.measuring("bisect", "--good", self.history.good, "--bad", self.history.bad, *words)

    def finish(self, process: subprocess.Popen[str]) -> tuple[int, dict[str, Any]]:
        output, errors = process.communicate(timeout=280)
        return process.returncode, json.loads(output or json.dumps({"errors": errors}))

    @property
    def job(self) -> Job:
        (folder,) = (self.folder / "state" / "jobs").iterdir()
        return Job(folder)

    def manifests(self) -> dict[Path, dict[str, Any]]:
        """Of the bundles that have ended, by their folders on the machines."""
        folders = [folder for name in ("alpha", "beta") for folder in self.machines.bundles(name)]
        paths = {folder: folder / "run" / "manifest.json" for folder in folders}
        return {folder: json.loads(path.read_text()) for folder, path in paths.items() if path.exists()}

    def measured_there(self) -> int:
        """Launches with a result on the machines."""
        launches = [launch for bundle in self.manifests().values() for launch in bundle["launches"]]
        return sum(launch["outcome"] == "measured" for launch in launches)

    def wait_for_launch(self) -> None:
        """Until a launch is under way on each machine."""
        await_that(lambda: all(map(self._measures, ("alpha", "beta"))), "a machine launches nothing", 100.0)

    def _measures(self, name: str) -> bool:
        return any((bundle / "run" / "heartbeat.json").exists() for bundle in self.machines.bundles(name))

    def living(self) -> list[psutil.Process]:
        """Processes that work in the machines' folders."""
        return processes_below(self.machines.folder)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    assert not world.living()


def _measured(job: Job) -> list[Launch]:
    return [launch for launch in launches(job.events()) if launch.outcome == "measured"]


@pytest.mark.fleet
def test_a_bisection_over_two_machines_names_the_commit(world: World) -> None:
    code, document = world.finish(world.start(*world.bisect()))
    assert code == 3, document
    assert document["culprits"][0]["changes"][0]["id"] == world.history.culprit
    made = _measured(world.job)
    assert {launch.machine for launch in made} == {"alpha", "beta"}
    for launch in made:
        assert (world.job.path / launch.folder / "attempt.json").exists()
        assert launch.attempt is not None and launch.attempt.slot == launch.machine
    assert world.measured_there() == len(made)
    bundles = world.manifests()
    assert {folder.name for folder in bundles} <= {launch.token for launch in made}
    pairs = [bundle for bundle in bundles.values() if len(bundle["launches"]) == 2]
    assert len(pairs) >= 3  # the ends on both machines, and the A/B
    assert all(bundle["leased"] is not None for bundle in pairs)
    assert {launch.machine for launch in made if launch.purpose == "confirm"} == {"alpha", "beta"}
    again = document["replication"]
    assert (again["said"], {again["machine"], *again["others"]}) == ("holds", {"alpha", "beta"})


@pytest.mark.fleet
def test_a_machine_with_the_role_build_makes_the_environments(world: World) -> None:
    home = world.machines.add("builder", PERFBISECT_CACHE=str(world.folder / "cache"))
    hosts = world.folder / "hosts.yaml"
    hosts.write_text("hosts: [alpha, beta, {name: builder, role: build}]\n")
    words = ["--a", world.history.good, "--b", world.history.bad, "--blocks", "1"]
    code, document = world.finish(world.start(*world.measuring("compare", *words)))
    assert code in (3, 4), document
    made = _measured(world.job)
    assert {launch.machine for launch in made} <= {"alpha", "beta"}
    stamps = (world.folder / "cache" / "environments").glob("*/stamp.json")
    built = {path.name for path in (home / ".perfbisect" / "builds").iterdir()}
    assert built < {path.parent.name for path in stamps}  # and the client, an interpreter that is here
    assert len(built) == 2
    logs = [world.job.path / made[0].folder / name for name in ("build.log", "build-mate.log")]
    assert all("# built on builder" in log.read_text() for log in logs)


@pytest.mark.fleet
def test_a_killed_driver_takes_back_what_goes_on_without_it(world: World) -> None:
    process = world.start(*world.bisect())
    world.wait_for_launch()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = launches(world.job.events())
    still_open = [launch for launch in before if launch.outcome == "running"]
    assert still_open
    code, document = world.finish(world.start("resume", "--json"))
    assert code == 3, document
    assert document["culprits"][0]["changes"][0]["id"] == world.history.culprit
    after = {launch.id: launch for launch in launches(world.job.events())}
    assert [after[launch.id].outcome for launch in still_open] == ["measured"] * len(still_open)
    # The verdict cuts off what is under way on the other machine: a bundle of at most two launches each.
    finished = len(_measured(world.job))
    assert finished <= world.measured_there() <= finished + 2 * (len(after) - finished)


@pytest.mark.fleet
def test_stop_ends_what_a_killed_driver_left_on_the_machines(world: World) -> None:
    process = world.start(*world.bisect())
    world.wait_for_launch()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert world.living()
    code, _ = world.finish(world.start("stop", world.job.id, "--json"))
    assert code == 0
    assert not world.living()


@pytest.mark.fleet
def test_a_comparison_makes_each_block_on_one_machine(world: World) -> None:
    """Of equal commits, and of a tolerance that no two blocks reach: it does not end after the first."""
    words = ["--a", world.history.good, "--b", world.history.commits[1]]
    words += ["--blocks", "2", "--min-effect", "0.01%"]
    code, document = world.finish(world.start(*world.measuring("compare", *words)))
    assert code in (3, 4), document
    made = [launch.machine for launch in _measured(world.job)]
    blocks = [made[start : start + 4] for start in range(0, len(made), 4)]
    assert all(len(set(block)) == 1 for block in blocks)
    assert [block[0] for block in blocks] == ["alpha", "beta"]


@pytest.mark.parametrize("blocks", mostly_long([1, 2, 3], short=[2]))
def test_dry_runs_price_each_machine_by_its_share_of_blocks(world: World, blocks: int) -> None:
    words = ["--a", world.history.good, "--b", world.history.commits[1], "--blocks", str(blocks), "--dry-run"]
    code, document = world.finish(world.start(*world.measuring("compare", *words)))
    assert code == 0, document
    machines = document["machines"]
    whole = sum(row["minutes_high"] for row in machines)
    assert 0 < whole <= document["minutes_high"]  # builds are the driver's
    assert [row["machine"] for row in machines] == ["alpha", "beta"][:blocks]
    assert 0 < machines[0]["minutes_low"] <= document["minutes_low"]
    assert [row["minutes_low"] for row in machines[1:]] == [0.0] * (len(machines) - 1)
    shares = {1: [1.0], 2: [0.5, 0.5], 3: [2 / 3, 1 / 3]}[blocks]
    assert [row["minutes_high"] / whole for row in machines] == pytest.approx(shares)
    assert all((row["environments_there"], row["environments_missing"]) == (0, 2) for row in machines)


@pytest.mark.processes
def test_a_dry_run_of_one_change_prices_the_machine_that_makes_it(world: World) -> None:
    words = ["--at", world.history.good, "--launches", "3", "--dry-run"]
    code, document = world.finish(world.start(*world.measuring("run", *words)))
    assert code == 0, document
    assert (document["schema"], document["most_launches"]) == ("perfbisect.change-plan/1", 3)
    (machine,) = document["machines"]
    assert machine["machine"] == "alpha"
    assert 0 < machine["minutes_low"] == machine["minutes_high"] <= document["minutes_high"]
    assert not list((world.folder / "state").glob("jobs/*"))


@pytest.mark.processes
def test_a_machine_that_does_not_answer_is_left_out(world: World) -> None:
    (world.machines.folder / "beta" / "down").touch()
    code, document = world.finish(world.start(*world.bisect("--dry-run")))
    assert code == 0
    assert any("machine beta is not used" in note for note in document["notes"])
    (world.machines.folder / "alpha" / "down").touch()
    code, document = world.finish(world.start(*world.bisect("--dry-run")))
    assert code == 5
    (missing,) = [note for note in document["notes"] if "nothing can start on the fleet" in note]
    assert "alpha" in missing
