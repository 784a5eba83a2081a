"""The checks of ``doctor`` on this machine, on recorded ones and on a machine described by a file."""

from __future__ import annotations

import ast
import inspect
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfbisect.environments import uv
from perfbisect.errors import BuildError
from perfbisect.jobs.machines import DoctorCheckDocument
from perfbisect.machine import sampler
from perfbisect.machine.devices import Smi
from perfbisect.machine.leases import LeaseHolder, lease
from perfbisect.machine.profile import CUDA, LaunchCommand, Profile, load_machine
from perfbisect.machine.slots import Slot
from perfbisect.setup import doctor
from perfbisect.setup.doctor import check_devices, device_checks, run_checks
from perfbisect.system import processes
from tests.machine import fake_smi
from tests.machine.test_sampling import HOG, used
from tests.system.stand_ins import start, until


def test_every_check_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_uv() -> Path:
        raise BuildError("no uv command\nsomewhere", next_step="install it")

    monkeypatch.setattr(uv, "find_uv", no_uv)
    shell, profile = {"PERFBISECT_LOCKS": str(tmp_path / "locks")}, Profile(name="cpu", devices="none")
    checks = doctor.machine_checks(state=tmp_path, cache=tmp_path / "a/b", shell=shell, profile=profile)
    by_name = {result.name: result for result in run_checks(checks)}
    assert list(by_name) == [
        "python", "system", "git", "uv", "state", "cache", "memory", "shm", "ports", "machine", "leases",
        "load", "clock", "py-spy",
    ]  # fmt: skip
    uv_check = by_name["uv"]
    assert (uv_check.state, uv_check.found, uv_check.advice) == (
        "bad",
        "no uv command somewhere",
        "install it",
    )
    assert by_name["machine"].found == "cpu: no devices, cells with `gpus: 0` only"
    assert by_name["leases"].state == by_name["python"].state == "good"
    assert all((check.state in ("good", "note")) == (check.advice == "") for check in by_name.values())
    unfit = ("is not installed", "not synchronised", "no nvcc", "none: ")
    assert not [c.found for c in by_name.values() if c.state == "good" and any(x in c.found for x in unfit)]


def test_who_leases_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "locks"
    with lease(Slot("gpu2", ("GPU-2",), (0,), (1,)), folder=folder, holder=LeaseHolder("b-17", user="eve")):
        check = doctor.check_leases(folder)
    assert check.state == "warning"
    assert f"eve (pid {os.getpid()}, job b-17" in check.found
    assert check.found.endswith("has GPU-2, 2 of the cores")


def test_who_keeps_the_machine_busy_is_told(tmp_path: Path) -> None:
    hogs = [start(tmp_path, HOG, name=f"hog{n}") for n in range(os.cpu_count() or 1)]
    try:
        until(lambda: all(used(hog) > 0.05 for hog in hogs))
        check = doctor.check_load()
    finally:
        for hog in hogs:
            processes.stop(hog, 0.0)
    assert check.state == "warning" and "(pid " in check.found and "% of one" in check.found


@pytest.mark.parametrize("free, state", [(1.0, "bad"), (5.0, "warning"), (50.0, "good")])
def test_room_for_environments(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: float, state: str
) -> None:
    usage = SimpleNamespace(free=int(free * 1024**3))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    check = doctor.check_disk("cache", tmp_path / "not" / "there" / "yet")
    assert check.state == state and f"{free:.1f} GiB free" in check.found


@pytest.mark.parametrize("available, state", [(1024.0, "bad"), (3072.0, "warning"), (9000.0, "good")])
def test_memory(monkeypatch: pytest.MonkeyPatch, available: float, state: str) -> None:
    monkeypatch.setattr(sampler, "memory", lambda: (16384.0, available))
    assert doctor.check_memory().state == state


def test_a_command_that_fails_is_a_bad_check(tmp_path: Path) -> None:
    broken = tmp_path / "git"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    (check,) = run_checks([("git", lambda: doctor.check_command(broken))])
    assert check.state == "bad" and "exit status 3" in check.found and check.advice


Smis = Callable[[str], Smi]

MACHINE = r"""name: toy
devices:
  command: [toy-smi, list]
  each: '^(?P<index>\d+) (?P<name>\S+)'
driver: {command: [toy-smi, version], each: 'driver (?P<driver>\S+)'}
memory: {command: [toy-smi, memory], each: '^(?P<index>\d+): (?P<used>\d+)/(?P<total>\d+)'}
tenants: {command: [toy-smi, who], each: '^(?P<index>\d+) runs (?P<pid>\d+)'}
select:
  variable: TOY_VISIBLE
  env: {TOY_ORDER: bus}
lease:
  command: [toy-queue, '--devices={gpus}', --]
  lost: [75, -15]
"""
ANSWERS = {
    "list": "0 toy9\n1 toy9\n",
    "version": "driver 4.2\n",
    "memory": "0: 10/1000\n1: 20/1000\n",
    "who": "",
}


@pytest.fixture
def smi(tmp_path: Path) -> Smis:
    return lambda name: Smi(fake_smi.install(tmp_path, fake_smi.MACHINES / name))


@pytest.mark.parametrize(
    ("machine", "mask", "state", "found"),
    [
        (
            "eight",
            None,
            "warning",
            "8 x NVIDIA H200, driver 570.133.20; gpu2: 129842 of 143771 MiB in use",
        ),
        ("eight", "0,1", "good", "2 x NVIDIA H200, driver 570.133.20 (CUDA_VISIBLE_DEVICES=0,1)"),
        ("eight", "9", "bad", "CUDA_VISIBLE_DEVICES=9"),
        ("container", None, "warning", "a process the driver does not name"),
        ("throttled", None, "warning", "throttled: hardware thermal slowdown"),
        ("mig", None, "warning", "2 x NVIDIA H100 80GB HBM3 MIG 3g.40gb"),
        ("broken", None, "bad", "couldn't communicate with the NVIDIA driver"),
    ],
)
def test_devices_of_a_machine(smi: Smis, machine: str, mask: str | None, state: str, found: str) -> None:
    check = check_devices({} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}, smi(machine), CUDA)
    assert (check.state, found in check.found) == (state, True), check
    assert ("MIG instance" in check.advice) is (machine == "mig")
    assert "gpu3" not in check.found


class Toy:
    """A machine whose devices the commands of its file tell of, each an answer that a test may change."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        (folder / "toy.yaml").write_text(MACHINE)
        patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        for name in ANSWERS:
            self.says(name, ANSWERS[name])
        for name in ("toy-smi", "toy-queue"):
            (folder / name).write_text(f'#!/bin/sh\nexec cat {folder}/"$1"\n')
            (folder / name).chmod(0o755)

    def says(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    @property
    def profile(self) -> Profile:
        return load_machine(str(self.folder / "toy.yaml"))

    def checks(self, **shell: str) -> dict[str, DoctorCheckDocument]:
        return {result.name: result for result in run_checks(tuple(device_checks(shell, self.profile)))}


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    return Toy(tmp_path, monkeypatch)


def test_all_that_a_machine_file_names_is_looked_at(toy: Toy) -> None:
    found = toy.checks()
    assert {check.state for check in found.values()} == {"good"}
    assert {name: check.found for name, check in found.items()} == {
        "machine": f"toy: {toy.folder}/toy-smi lists devices",
        "devices": "2 x toy9, driver 4.2",
        "select": "TOY_VISIBLE is not set here: all are used; the engine on the first gets "
        "TOY_ORDER=bus TOY_VISIBLE=0",
        "driver": "toy-smi version: 4.2",
        "device memory": "toy-smi memory: 2 found",
        "tenants": "toy-smi who: 0 found",
        "lease command": f"{toy.folder}/toy-queue precedes every server command "
        "(toy-queue --devices=1 --); lost: 75, -15",
    }


def test_the_users_mask_is_read_from_the_machines_variable(toy: Toy) -> None:
    found = toy.checks(TOY_VISIBLE="1", CUDA_VISIBLE_DEVICES="7")
    assert found["devices"].found == "1 x toy9, driver 4.2 (TOY_VISIBLE=1)"
    assert found["select"].found.endswith("only these are used; the engine on the first gets "
                                          "TOY_ORDER=bus TOY_VISIBLE=1")  # fmt: skip
    none = toy.checks(TOY_VISIBLE="5")
    assert (none["devices"].state, none["devices"].advice) == ("bad", "unset or fix TOY_VISIBLE")
    assert none["select"].state == "warning"


@pytest.mark.parametrize(
    ("name", "says", "check", "state", "said", "advice"),
    [
        ("list", "nothing", "devices", "bad", "no devices were found", "devices in the machine file"),
        ("version", "?", "driver", "warning", "driver.each finds nothing", "fix driver.each"),
        ("memory", "?", "device memory", "warning", "memory.each finds nothing", "is not checked"),
        ("memory", "0: 900/1000", "devices", "warning", "900 of 1000 MiB in use", "slots use these last"),
    ],
)
def test_what_a_command_does_not_tell(
    toy: Toy, name: str, says: str, check: str, state: str, said: str, advice: str
) -> None:
    toy.says(name, says)
    found = toy.checks()[check]
    assert (found.state, said in found.found, advice in found.advice) == (state, True, True), found


def test_commands_that_are_not_there(toy: Toy) -> None:
    for name in ("toy-smi", "toy-queue"):
        (toy.folder / name).unlink()
    found = toy.checks()
    assert [name for name, check in found.items() if check.state == "bad"] == [
        *("machine", "devices", "driver", "device memory", "tenants", "lease command"),
    ]
    assert found["machine"].found == "toy: no toy-smi on the PATH"
    assert "fix devices.command in the machine file" in found["machine"].advice
    assert "fix memory in the machine file" in found["device memory"].advice
    assert "toy-queue" in found["lease command"].found and "lease.command" in found["lease command"].advice


@pytest.mark.parametrize(
    ("report", "has_nvcc", "state", "found"),
    [
        (
            "CUDA Version : 12.8",
            True,
            "good",
            "driver for CUDA 12.8, runs cu129 cu128 cu126 cu124 cu121; {nvcc}:",
        ),
        (
            "CUDA Version : 13.0",
            False,
            "note",
            "driver for CUDA 13.0, runs cu130 cu129 cu128 cu126; no nvcc:",
        ),
        ("no driver", False, "warning", "the driver does not say which CUDA it is for"),
    ],
)
def test_what_the_driver_runs(tmp_path: Path, report: str, has_nvcc: bool, state: str, found: str) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\necho '{report}'\n")
    command.chmod(0o755)
    if has_nvcc:
        (tmp_path / "nvcc").touch(0o755)
    check = doctor.check_cuda({"PATH": str(tmp_path)}, Smi(str(command)))
    assert check.state == state
    assert check.found.startswith(found.format(nvcc=tmp_path / "nvcc"))
    assert "cuda" in [name for name, _ in device_checks({}, CUDA)]


def test_nvidia_where_its_command_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = dict(device_checks({}, CUDA))["machine"]()
    assert (found.state, found.found) == ("bad", "cuda: no nvidia-smi on the PATH")
    assert found.advice.endswith("--machine cpu")


def test_a_machine_without_devices_is_asked_for_none() -> None:
    cpu = Profile(name="cpu", devices="none", lease=LaunchCommand(command=(shutil.which("env") or "env",)))
    assert [name for name, _ in device_checks({}, cpu)] == ["machine", "lease command"]


def test_what_only_some_jobs_use_is_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor.clock, "synchronised", lambda: False)
    checks = {
        "py-spy": lambda: doctor.check_sampling(None),
        "clock": doctor._check_clock,
        "settings": lambda: doctor.check_settings(tmp_path, None),
    }
    found = {result.name: result for result in run_checks(tuple(checks.items()))}
    assert {name: result.state for name, result in found.items()} == dict.fromkeys(checks, "note")
    assert "not installed" in found["py-spy"].found and "not synchronised" in found["clock"].found


def test_every_kind_of_finding_has_its_words() -> None:
    calls = [node for node in ast.walk(ast.parse(inspect.getsource(doctor))) if isinstance(node, ast.Call)]
    kinds = {
        argument.value
        for call in calls
        if "Finding" in (ast.unparse(call.func), ast.unparse(call.args[0]) if call.args else "")
        for argument in call.args[1:3]
        if isinstance(argument, ast.Constant)
    } - {"good", "note", "warning", "bad"}
    template = (Path(doctor.__file__).parent / "templates" / "doctor.jinja").read_text()
    assert kinds == set(re.findall(r'if kind == "([^"]+)"', template))
