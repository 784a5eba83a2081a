"""Environments come from a machine that builds: real git and a real agent; its paths are below ``there``."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import perfbisect
from perfbisect.changes.git import Repository
from perfbisect.environments.base import Builder
from perfbisect.environments.factory import make_builder
from perfbisect.errors import BuildError, MachineError
from perfbisect.fleet.building import BuildMachines
from perfbisect.fleet.connection import Connection
from perfbisect.fleet.hosts import FleetHost, HostSettings
from perfbisect.jobs.plans import MeasurementConfig
from perfbisect.model.change import Change
from tests.fakes.history import PretendHistory, make_history
from tests.fleet.moved_machine import MovedMachine
from tests.fleet.sites import MAIN, await_that

SPEC = f"overlay:{sys.executable},base=any"


@dataclass(frozen=True)
class Place:
    """A driver's cache, a machine that builds, and a history whose third commit cannot be imported."""

    history: PretendHistory
    machine: MovedMachine
    site: BuildMachines
    builder: Builder
    log: Path

    @property
    def changes(self) -> list[Change]:
        return [Change(sha) for sha in self.history.commits]

    def built(self, folder: Path) -> set[str]:
        """Keys of the environments in a folder's cache."""
        return {path.parent.name for path in (folder / "cache" / "environments").glob("*/stamp.json")}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    history = make_history(tmp_path / "repo", commits=4, slow=None, broken=2)
    here, there = tmp_path / "here", tmp_path / "there"
    there.mkdir()
    monkeypatch.setenv("PERFBISECT_STATE", str(tmp_path / "nowhere"))
    machine = MovedMachine(here, there)
    host = FleetHost("builder", machine, HostSettings(folder=str(there / "perfbisect"), command=MAIN))
    repository, cache = Repository.open(history.path), here / "cache"
    site = BuildMachines([host], MeasurementConfig(environment=SPEC), repository, cache)
    builder = make_builder(SPEC, repository=repository, cache=cache, site=site)
    return Place(history, machine, site, builder, tmp_path / "build.log")


def test_an_environment_is_built_there_and_brought_here_once(place: Place) -> None:
    first, second, *_ = place.changes
    builder = place.builder
    builder.prepare(place.changes)
    environment = builder.ensure(first, log=place.log, timeout=120)
    assert (environment.key, environment.engine_commit) == (builder.key(first), first.id)
    assert environment.seconds > 0
    assert Path(environment.engine_file).is_relative_to(place.machine.here)
    assert Path(environment.engine_file).read_bytes() == _engine_of(place, first)
    assert place.built(place.machine.there) == place.built(place.machine.here) == {environment.key}
    assert "# built on builder" in place.log.read_text()

    asked = len(place.machine.commands)
    assert builder.ensure(first, log=place.log, timeout=120).seconds == 0.0
    assert len(place.machine.commands) == asked
    builder.ensure(second, log=place.log, timeout=120)
    assert place.machine.count("index-pack") == 1  # all commits were sent at once


def _engine_of(place: Place, change: Change) -> bytes:
    return Repository.open(place.history.path).read(change.id, "vllm/__init__.py")


@pytest.mark.processes
def test_what_does_not_build_there_is_a_fault_of_the_change(place: Place) -> None:
    broken = place.changes[2]
    with pytest.raises(BuildError, match=r"vllm.helpers.* \(on builder\)") as raised:
        place.builder.ensure(broken, log=place.log, timeout=120)
    assert raised.value.output
    assert "ModuleNotFoundError" in place.log.read_text()
    assert place.built(place.machine.here) == set()


@pytest.mark.processes
def test_a_copy_that_is_cut_short_leaves_nothing_and_is_made_again(place: Place) -> None:
    place.machine.cut_output = 4000
    with pytest.raises(MachineError, match="cannot be copied from builder"):
        place.builder.ensure(place.changes[0], log=place.log, timeout=120)
    assert place.built(place.machine.here) == set()
    place.machine.cut_output = None
    place.builder.ensure(place.changes[0], log=place.log, timeout=120)
    assert place.built(place.machine.here) == place.built(place.machine.there)


def test_another_environment_than_this_machine_would_build_is_refused(place: Place) -> None:
    with pytest.raises(MachineError, match="would build another environment"):
        place.site.build(SPEC, place.changes[0], "0" * 20, log=place.log, timeout=120)
    assert place.built(place.machine.there) == set()


def answering(text: str, folder: Path) -> FleetHost:
    """A machine whose agent prints a text."""
    return FleetHost(
        "builder",
        Connection(),
        HostSettings(folder=str(folder), command=("sh", "-c", f"echo '{text}'", "sh")),
    )


@pytest.mark.parametrize(
    ("version", "code", "problem"),
    [("0.0.0", None, "perfbisect 0.0.0 is on builder"), (perfbisect.__version__, "disk_full", "no room")],
)
def test_a_fault_of_the_machine_is_no_fault_of_the_change(
    place: Place, tmp_path: Path, version: str, code: str | None, problem: str
) -> None:
    failure = {"part": "machine", "message": "no room", "code": code, "output": ""} if code else None
    answer = {"schema": "perfbisect.agent-build/1", "version": version, "key": "ab", "seconds": 0}
    host = answering(json.dumps({**answer, "environments": [], "failure": failure}), tmp_path)
    config = MeasurementConfig(environment=SPEC)
    site = BuildMachines([host], config, None, tmp_path / "cache")
    with pytest.raises(MachineError, match=problem) as raised:
        site.build("release:x", Change("x==1", "release"), "ab", log=place.log, timeout=10)
    assert raised.value.code == code


_DRIVER = """
import sys
from pathlib import Path
from perfbisect.fleet.building import BuildMachines
from perfbisect.fleet.connection import Connection
from perfbisect.fleet.hosts import FleetHost, HostSettings
from perfbisect.jobs.plans import MeasurementConfig
from perfbisect.model.change import Change
folder = Path(sys.argv[1])
agent = ("sh", "-c", "trap 'touch ended; exit 130' TERM; touch began; while :; do sleep 0.05; done", "sh")
host = FleetHost("builder", Connection(), HostSettings(folder=str(folder), command=agent))
site = BuildMachines([host], MeasurementConfig(environment="release:x"), None, folder / "cache")
site.build("release:x", Change("x==1", "release"), "ab", log=folder / "log", timeout=100)
"""


def test_a_build_ends_with_its_driver(tmp_path: Path) -> None:
    build = tmp_path / "builds" / "ab"
    driver = subprocess.Popen([sys.executable, "-c", _DRIVER, str(tmp_path)])
    await_that((build / "began").exists, "the build does not begin", 60.0)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    await_that((build / "ended").exists, "the build does not end", 60.0)
