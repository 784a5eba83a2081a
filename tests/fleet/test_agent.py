"""``perfbisect agent`` with the pretend engine: real processes, real HTTP."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from perfbisect.cells.loading import load_cell
from perfbisect.fleet.agent import HEARTBEAT, MANIFEST
from perfbisect.fleet.bundle import Bundle, BundledLaunch
from perfbisect.jobs.folders import Job
from perfbisect.jobs.plans import MeasurementConfig, cell_data
from perfbisect.jobs.replay import launches
from perfbisect.machine.slots import Slot
from perfbisect.measure.attempt import read_attempt
from perfbisect.model.change import Change
from tests.fakes.history import ENGINE, PretendHistory, make_history
from tests.fleet.driver import CELL
from tests.fleet.sites import MAIN, await_that, processes_below

TOKEN = "0123456789abcdef" * 2


class Machine:
    """A machine with the pretend engine's history, on which an agent is called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.history: PretendHistory = make_history(folder / "repo", commits=3, slow=2, factor=2.5)
        self.env = os.environ | {
            "PERFBISECT_CACHE": str(folder / "cache"),
            "PERFBISECT_LOCKS": str(folder / "locks"),
            "PERFBISECT_BACKOFF": "0.1",
            "OMP_NUM_THREADS": "1",
        }

    def bundle(self, *commits: str, token: str = TOKEN, runs: int = 1, **changed: Any) -> Bundle:
        cell = load_cell(str(CELL))
        setting = MeasurementConfig(
            repository=str(self.history.path),
            cache=str(self.folder / "cache"),
            environment=f"overlay:{sys.executable},base=any",
            client=f"existing:{sys.executable},path={ENGINE}",
            machine="cpu",
        )
        fields: dict[str, Any] = {
            "cell": cell_data(cell),
            "digest": cell.digest,
            "setting": setting,
            "metric": cell.headline,
            "token": token,
            "limit": 5.0,
            "launches": tuple(BundledLaunch(change=Change(sha), runs=runs) for sha in commits),
        }
        return Bundle(**fields | changed)

    def start(self, bundle: Bundle, name: str) -> subprocess.Popen[str]:
        request = self.folder / "{}.json".format(name.replace("/", "-"))
        request.write_text(bundle.model_dump_json())
        command = [*MAIN, "agent", "run"]
        return subprocess.Popen(
            [*command, str(request), "--folder", str(self.folder / name), "--json"],
            env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder,
        )  # fmt: skip

    def run(self, bundle: Bundle, name: str) -> tuple[int, dict[str, Any]]:
        process = self.start(bundle, name)
        output, errors = process.communicate(timeout=120)
        return process.returncode, json.loads(output or json.dumps({"errors": errors}))

    def living(self, name: str) -> list[psutil.Process]:
        """Processes that work in a bundle's folder."""
        return processes_below(self.folder / name)

    def wait_for_server(self, name: str) -> None:
        journal = self.folder / name / "journal.jsonl"
        await_that(
            lambda: journal.exists() and '"launched"' in journal.read_text(), "no server is launched", 60.0
        )


def finish(process: subprocess.Popen[str]) -> int:
    process.communicate(timeout=120)
    return process.returncode


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("machine"))


@pytest.fixture
def name(request: pytest.FixtureRequest, machine: Machine) -> Iterator[str]:
    """A folder of this test's own, in which nothing is left alive."""
    folder = request.node.name
    yield folder
    assert not machine.living(folder)


def test_a_pair_is_measured_in_its_order_under_one_lease(machine: Machine, name: str) -> None:
    pair = machine.bundle(machine.history.bad, machine.history.good)
    code, document = machine.run(pair, name)
    assert (code, document["state"]) == (0, "ended")
    assert [launch["outcome"] for launch in document["launches"]] == ["measured", "measured"]
    assert [launch["change"] for launch in document["launches"]] == [
        machine.history.bad,
        machine.history.good,
    ]
    folder = machine.folder / name
    attempts = [read_attempt(folder / launch["folder"]) for launch in document["launches"]]
    assert [attempt and attempt.failure for attempt in attempts] == [None, None]
    began, released = document["leased"]
    assert began <= document["launches"][0]["began"] <= document["launches"][1]["began"] <= released
    assert json.loads((folder / MANIFEST).read_text()) == document
    for path, digest in document["files"].items():
        assert hashlib.sha256((folder / path).read_bytes()).hexdigest() == digest
    assert {f"{launch['folder']}/attempt.json" for launch in document["launches"]} <= document["files"].keys()
    assert json.loads((folder / HEARTBEAT).read_text())["phase"]


@pytest.mark.processes
def test_a_second_call_measures_nothing(machine: Machine, name: str) -> None:
    bundle = machine.bundle(machine.history.good)
    first = machine.run(bundle, name)
    assert machine.run(bundle, name) == first
    assert len(launches(Job(machine.folder / name).events())) == 1


@pytest.mark.processes
def test_a_call_beside_a_running_agent_says_so(machine: Machine, name: str) -> None:
    bundle = machine.bundle(*[machine.history.good] * 8)
    process = machine.start(bundle, name)
    machine.wait_for_server(name)
    code, document = machine.run(bundle, name)
    assert (code, document["state"], document["files"]) == (0, "running", {})
    assert document["launches"][0]["outcome"] in ("running", "measured")
    assert document["launches"][-1]["outcome"] == "not made"
    process.send_signal(signal.SIGTERM)
    assert finish(process) == 130


def test_a_killed_agent_is_cleaned_up_after_and_its_bundle_is_not_continued(
    machine: Machine, name: str
) -> None:
    bundle = machine.bundle(machine.history.good, machine.history.bad)
    process = machine.start(bundle, name)
    machine.wait_for_server(name)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert machine.living(name)
    code, document = machine.run(bundle, name)
    assert (code, document["state"], document["leased"]) == (0, "ended", None)
    assert [launch["outcome"] for launch in document["launches"]] == ["lost", "not made"]
    assert len(launches(Job(machine.folder / name).events())) == 1


def test_an_agent_that_is_stopped_ends_its_processes(machine: Machine, name: str) -> None:
    process = machine.start(machine.bundle(machine.history.good), name)
    machine.wait_for_server(name)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 130


@pytest.mark.processes
def test_a_bundle_ends_at_its_limit(machine: Machine, name: str) -> None:
    code, _ = machine.run(machine.bundle(machine.history.good, runs=6, limit=0.01), name)
    assert code == 130


@pytest.mark.processes
def test_a_folder_is_of_one_bundle(machine: Machine, name: str) -> None:
    machine.run(machine.bundle(machine.history.good), name)
    code, document = machine.run(machine.bundle(machine.history.good, token="f" * 32), name)
    assert code == 2
    assert document["where"].endswith(name)


@pytest.mark.processes
def test_brought_environments_are_used_by_their_keys(machine: Machine, name: str) -> None:
    """Nothing of the repository is needed, and nothing is built."""
    built = machine.bundle(machine.history.good)
    machine.run(built, f"{name}/first")
    attempt = read_attempt(machine.folder / name / "first" / "attempts" / "001")
    assert attempt is not None
    setting = built.setting.model_copy(update={"repository": "", "environment": "nothing:here"})
    keys = {machine.history.good: attempt.provenance.environment_key}
    code, document = machine.run(
        machine.bundle(machine.history.good, token="a" * 32, setting=setting, environments=keys),
        f"{name}/again",
    )
    assert (code, document["launches"][0]["reason"]) == (0, "")
    missing = {machine.history.good: "0" * 20}
    code, document = machine.run(
        machine.bundle(*[machine.history.good] * 2, token="b" * 32, setting=setting, environments=missing),
        f"{name}/missing",
    )
    launch, second = document["launches"]
    assert (code, launch["outcome"], second["outcome"]) == (0, "measured", "not made")
    assert document["leased"] is None
    failed = read_attempt(machine.folder / name / "missing" / launch["folder"])
    assert failed is not None and failed.failure is not None and failed.failure.fault == "machine"


@pytest.mark.processes
def test_a_slot_is_leased_as_it_is_described(machine: Machine, name: str) -> None:
    """Two agents on one core: the second has to wait, and does not for longer than it may."""
    core = min(os.sched_getaffinity(0))
    slot = Slot(f"core{core}", server_cores=(core,), client_cores=(core,))
    long = machine.bundle(*[machine.history.good] * 8, slot=slot)
    process = machine.start(long, f"{name}/first")
    machine.wait_for_server(f"{name}/first")
    code, document = machine.run(
        machine.bundle(machine.history.good, token="c" * 32, slot=slot), f"{name}/second"
    )
    assert code == 5
    assert "leased" in document["error"]
    process.send_signal(signal.SIGTERM)
    assert finish(process) == 130


def test_a_request_with_a_wrong_field_is_located(machine: Machine, name: str) -> None:
    request = machine.folder / f"{name}.json"
    document = json.loads(machine.bundle(machine.history.good).model_dump_json())
    request.write_text(json.dumps(document | {"token": "short"}, indent=1))
    command = [*MAIN, "agent", "run", str(request)]
    done = subprocess.run(
        [*command, "--folder", str(machine.folder / name)], env=machine.env, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert f"{request}:" in done.stderr and "token" in done.stderr
    assert not (machine.folder / name).exists()


def test_look_lists_slots_and_environments(machine: Machine) -> None:
    command = [*MAIN, "agent", "look", "--json"]
    done = subprocess.run(
        [*command, "--machine", "cpu"], env=machine.env, capture_output=True, text=True, cwd=machine.folder
    )
    document = json.loads(done.stdout)
    assert done.returncode == 0
    assert document["slots"] == [asdict(Slot("")) | {"devices": [], "server_cores": [], "client_cores": []}]
    assert document["problem"] == ""
