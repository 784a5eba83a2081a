"""``--fleet`` as it is typed, and the slots that follow from what machines say."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import perfbisect
from perfbisect.errors import LocatedError, MachineError, UsageError
from perfbisect.fleet.bundle import Ticket, UnreachableError
from perfbisect.fleet.connection import Connection, SshConnection
from perfbisect.fleet.folders import FolderFleet, Hosts
from perfbisect.fleet.hosts import FleetHost, HostSettings, read_hosts
from perfbisect.fleet.specs import absolute_fleet, build_hosts, make_fleet
from perfbisect.jobs.machines import DoctorCheckDocument, MachineDocument, choose_slots
from perfbisect.machine.slots import Slot
from perfbisect.setup.doctor import fleet_checks, run_checks


def machine(
    name: str, kind: str = "H200", slots: Sequence[Slot] = (Slot(""),), problem: str = ""
) -> MachineDocument:
    fields = {"version": "0", "devices": (), "leased": (), "environments": (), "problem": problem}
    return MachineDocument(name=name, machine_class=kind, slots=tuple(slots), **fields)


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    path = tmp_path / "hosts.yaml"
    path.write_text(
        "hosts: [box1, {name: box2, address: perf@10.0.0.7, folder: /data/pb}]\noptions: ['-4']\n"
    )
    return path


def test_hosts_take_what_they_leave_out_from_the_file(hosts: Path) -> None:
    first, second = read_hosts(hosts)
    assert (first.name, first.folder) == ("box1", ".perfbisect")
    assert first.below("/home/perf").folder == "/home/perf/.perfbisect"
    assert first.below("/home/perf").agent()[0] == "/home/perf/.perfbisect/agent/bin/perfbisect"
    assert (second.folder, second.agent()[0]) == ("/data/pb", "/data/pb/agent/bin/perfbisect")
    assert not second.settings.is_relative


def test_options_of_a_host_precede_those_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text("hosts: [{name: box1, options: [-p, '2222']}, box2]\noptions: [-p, '22']\n")
    assert [host.connection for host in read_hosts(path)] == [
        SshConnection("box1", ("-p", "2222", "-p", "22")),
        SshConnection("box2", ("-p", "22")),
    ]


def test_a_machine_that_builds_does_not_measure(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text("hosts: [box1, {name: builder, role: build}]\n")
    fleet = make_fleet(f"ssh:{path}", tmp_path)
    assert [host.name for host in fleet.hosts()] == ["box1"]
    assert [host.name for host in build_hosts(f"slurm:nodes=n1+n2+ssh:{path}")] == ["builder"]
    assert build_hosts("") == build_hosts("slurm") == ()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("hosts: []\n", 1),
        ("hosts:\n  - box1\n  - box1\n", 1),
        ("hosts:\n  - name: box1\n    adress: x\n", 3),
        ("hosts:\n  - name: box1\n    address: -oProxyCommand=touch\n", 3),
        ("hosts:\n  - name: ../up\n", 2),
        ("hosts:\n  - name: box1\n    role: compile\n", 3),
        ("hosts:\n  - name: box1\n    role: build\n", 1),
    ],
)
def test_a_wrong_file_of_hosts_is_located(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text(text)
    with pytest.raises(LocatedError) as raised:
        read_hosts(path)
    assert str(raised.value.where).startswith(f"{path}:{line}")


_SINFO = """\
#!/bin/sh
[ "$*" = "--noheader --Node --format=%N|%f --partition=h100" ] && printf 'n1|a,b\\nn1|a,b\\nn2|a\\nn3|b\\n'
"""


def test_a_specification_names_an_engine_or_several(
    hosts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sinfo").write_text(_SINFO)
    (tmp_path / "sinfo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    expected = {f"ssh:{hosts}": "box1 box2", "slurm:partition=h100": "n1 n2 n3"}
    expected[f"slurm:partition=h100,constraint=a,nodes=n2+n3+ssh:{hosts}"] = "n2 box1 box2"
    for spec, names in expected.items():
        assert [host.name for host in make_fleet(spec, tmp_path).hosts()] == names.split()


@pytest.mark.parametrize("spec", ["", "slrum", "dask:auto", "ssh", "slurm:partion=h100", "slurm:h100"])
def test_a_wrong_specification_says_what_is_allowed(spec: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        make_fleet(spec, tmp_path)
    assert raised.value.next_step


def test_a_plan_keeps_absolute_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_fleet("slurm:nodes=a+b+ssh:hosts.yaml") == f"slurm:nodes=a+b+ssh:{tmp_path}/hosts.yaml"
    assert absolute_fleet("") == ""


def test_slots_are_of_the_class_that_has_most() -> None:
    two = (Slot("GPU0", devices=("GPU-a",)), Slot("GPU1", devices=("GPU-b",)))
    down = machine("c", problem="down", slots=())
    found = choose_slots([machine("old", "H100"), machine("a", slots=two), machine("b"), down])
    assert [slot.name for slot in found.slots] == ["a/GPU0", "a/GPU1", "b"]
    assert [slot.machine for slot in found.slots] == ["a", "a", "b"]
    assert found.notes[1:] == (
        "machine old is not used: another class, H100",
        "machine c is not used: down",
    )
    assert [one.name for one in choose_slots([machine("a"), machine("b")], 1).machines] == ["a"]
    with pytest.raises(MachineError, match="c: down"):
        choose_slots([down])


def listed(*names: str, folder: str = "/nowhere") -> Hosts:
    """An engine with machines of these names."""
    return lambda: [FleetHost(name, Connection(), HostSettings(folder=folder)) for name in names]


def silent() -> Sequence[FleetHost]:
    raise UnreachableError("the controller does not answer")


def test_machines_of_joined_fleets_have_names_of_their_own() -> None:
    assert len(FolderFleet("one+two", listed("a"), listed("b")).machines()) == 2
    with pytest.raises(UsageError, match="two machines are called a"):
        FolderFleet("one+two", listed("a"), listed("a")).machines()


def test_machines_of_joined_fleets_are_reached_beside_a_silent_engine(tmp_path: Path) -> None:
    there = listed("b", folder=str(tmp_path))
    bundle = tmp_path / "bundles" / ("0" * 32)
    bundle.mkdir(parents=True)
    (bundle / "request.json").write_text("{}")
    fleet = FolderFleet("gone+two", silent, there)
    assert fleet.host("b").name == "b"
    assert fleet.find("0" * 32) == Ticket("0" * 32, "b")
    for call in (lambda: fleet.host("c"), lambda: fleet.find("1" * 32), fleet.machines):
        with pytest.raises(UnreachableError):
            call()
    assert FolderFleet("two", there).find("1" * 32) is None
    with pytest.raises(MachineError, match="has no machine c any more"):
        FolderFleet("two", there).host("c")


def test_doctor_says_what_each_machine_lacks() -> None:
    unreached = machine("c", problem="no route", slots=())
    machines = [machine("a"), machine("b"), machine("old", "H100"), unreached]
    results = {check.name: check for check in run_checks(fleet_checks(machines, "ssh:hosts.yaml"))}
    assert {name: check.state for name, check in results.items()} == {
        "a": "good", "b": "good", "old": "warning", "c": "bad",
    }  # fmt: skip
    assert results["c"].found == "no route"
    assert "agent install c" in results["c"].advice
    (lacking,) = run_checks(fleet_checks([unreached], "ray:auto"))
    assert "agent install c --fleet ray:auto" in lacking.advice
    (lacking,) = run_checks(fleet_checks([unreached], "slurm"))
    assert "agent install" not in lacking.advice


def test_doctor_says_what_is_not_good_on_a_machine() -> None:
    good = DoctorCheckDocument(name="uv", state="good", found="uv 0.9", advice="")
    bad = DoctorCheckDocument(name="git", state="bad", found="no git command", advice="install git")
    late = machine("a").model_copy(update={"checks": (good, bad), "skew": 3600.0})
    builder = machine("builder", "cpu")
    results = run_checks(fleet_checks([late], "ssh:hosts.yaml", [builder]))
    assert [(row.name, row.state, row.found) for row in results] == [
        ("a", "good", "H200, 1 slot, 0 environments"),
        ("a", "bad", "git: no git command"),
        ("a", "warning", "clock: at least 3600 s from the one here, which dates the job"),
        ("builder", "good", "cpu, builds, 0 environments"),
    ]
    assert results[1].advice == "install git"


_LOOK = """
import json, sys, time
print(json.dumps({
    "schema": "perfbisect.agent-look/2", "name": "x", "version": "%s", "machine_class": "cpu", "devices": [],
    "slots": [], "leased": [], "problem": "", "environments": [], "time": time.time() + %f,
    "checks": [{"name": "arguments", "state": "good", "found": " ".join(sys.argv[1:]), "advice": ""}],
}))
"""


@pytest.mark.parametrize(("off", "skew"), [(0.0, 0.0), (3600.0, 3600.0), (-3600.0, 3600.0)])
def test_the_clock_of_a_machine_is_compared_with_the_one_here(off: float, skew: float) -> None:
    command = (sys.executable, "-c", _LOOK % (perfbisect.__version__, off))
    fleet = FolderFleet(
        "one", lambda: [FleetHost("box", Connection(), HostSettings(folder="/nowhere", command=command))]
    )
    (found,) = fleet.machines(checks=True)
    assert found.skew == pytest.approx(skew, abs=60)
    assert (found.skew == 0.0) == (off == 0.0)
    assert found.checks[0].found == "agent look --json --gpus 0 --checks"
    (found,) = fleet.machines()
    assert found.checks[0].found == "agent look --json --gpus 0"
