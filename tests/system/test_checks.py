"""The checks of the machine for ``doctor``: what is seen of real and of made-up machines."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfbisect.errors import BuildError
from perfbisect.system import checks, counters
from perfbisect.system.checks import Check
from perfbisect.system.leases import Holder, lease
from perfbisect.system.nvidia_smi import Smi
from perfbisect.system.slots import Slot
from tests.system import fake_smi
from tests.system.stand_ins import start, until
from tests.system.test_sampling import HOG, used

Smis = Callable[[str], Smi]


@pytest.fixture
def smi(tmp_path: Path) -> Smis:
    return lambda name: Smi(fake_smi.install(tmp_path, fake_smi.MACHINES / name))


def test_every_check_of_this_machine(tmp_path: Path) -> None:
    def no_uv() -> Path:
        raise BuildError("no uv command\nsomewhere", next_step="install it")

    shell = {"PERFBISECT_LOCKS": str(tmp_path / "locks")}
    found = checks.machine_checks(
        state=tmp_path, cache=tmp_path / "a/b", shell=shell, uv=no_uv, smi=Smi(None)
    )
    by_name = {check.name: check for check in found}
    assert list(by_name) == [
        "python", "system", "git", "uv", "state", "cache", "memory", "shm", "ports", "devices", "leases",
        "load", "clock",
    ]  # fmt: skip
    assert by_name["uv"].state == "bad" and by_name["uv"].found.startswith("no uv command somewhere")
    assert by_name["devices"].found == "no nvidia-smi: cells with `gpus: 0` only"
    assert by_name["leases"].state == by_name["python"].state == "good"
    assert all((check.state == "good") == (check.advice == "") for check in found)


def test_who_leases_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "locks"
    with lease(Slot("gpu2", ("GPU-2",), (0,), (1,)), folder=folder, holder=Holder("b-17", user="eve")):
        check = checks.held(folder)
    assert check.state == "warning"
    assert f"eve (pid {os.getpid()}, job b-17" in check.found
    assert check.found.endswith("has GPU-2, 2 of the cores")


def test_who_keeps_the_machine_busy_is_told(tmp_path: Path) -> None:
    hogs = [start(tmp_path, HOG, name=f"hog{n}") for n in range(os.cpu_count() or 1)]
    try:
        until(lambda: all(used(hog) > 0.05 for hog in hogs))
        check = checks.load()
    finally:
        for hog in hogs:
            hog.popen.kill()
            hog.popen.wait(10)
    assert check.state == "warning" and "(pid " in check.found and "% of one" in check.found


@pytest.mark.parametrize("free, state", [(1.0, "bad"), (5.0, "warning"), (50.0, "good")])
def test_room_for_environments(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: float, state: str
) -> None:
    usage = SimpleNamespace(free=int(free * 1024**3))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    check = checks.disk("cache", tmp_path / "not" / "there" / "yet")
    assert check.state == state and f"{free:.1f} GiB free" in check.found


@pytest.mark.parametrize("available, state", [(1024.0, "bad"), (3072.0, "warning"), (9000.0, "good")])
def test_memory(monkeypatch: pytest.MonkeyPatch, available: float, state: str) -> None:
    monkeypatch.setattr(counters, "memory", lambda: (16384.0, available))
    assert checks.memory().state == state


def test_command_that_fails_is_a_bad_check(tmp_path: Path) -> None:
    broken = tmp_path / "git"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(subprocess.CalledProcessError):
        checks.command("git", broken)
    check = checks.guarded("git", lambda: checks.command("git", broken))
    assert check.state == "bad" and "exit status 3" in check.found and check.advice


def seen(smi: Smi, mask: str | None = None) -> Check:
    return checks.devices({} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}, smi)


def test_eight_devices_one_in_use(smi: Smis) -> None:
    check = seen(smi("eight"))
    assert check.state == "warning"
    assert check.found.startswith("8 x NVIDIA H200, driver 570.133.20; gpu2: 129842 of 143771 MiB in use by ")
    assert "pid 731022" in check.found and "gpu3" not in check.found


def test_mask_leaves_free_devices(smi: Smis) -> None:
    check = seen(smi("eight"), "0,1")
    assert check == Check("devices", "good", "2 x NVIDIA H200, driver 570.133.20 (CUDA_VISIBLE_DEVICES=0,1)")


def test_mask_that_leaves_nothing(smi: Smis) -> None:
    check = seen(smi("eight"), "9")
    assert check.state == "bad" and "CUDA_VISIBLE_DEVICES=9" in check.found


def test_container_does_not_say_who(smi: Smis) -> None:
    check = seen(smi("container"))
    assert check.state == "warning" and "whom the driver does not name" in check.found


def test_hot_device(smi: Smis) -> None:
    check = seen(smi("throttled"))
    assert check.state == "warning" and "held back: hardware thermal slowdown" in check.found


def test_instances_are_warned_of(smi: Smis) -> None:
    check = seen(smi("mig"))
    assert check.state == "warning" and "MIG instance" in check.advice
    assert "2 x NVIDIA H100 80GB HBM3 MIG 3g.40gb" in check.found


def test_broken_driver(smi: Smis) -> None:
    check = seen(smi("broken"))
    assert check.state == "bad" and "couldn't communicate with the NVIDIA driver" in check.found
