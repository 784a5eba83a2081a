"""The checks of the machine for ``doctor``: what is seen of real and of made-up machines."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfbisect.errors import BuildError
from perfbisect.machine import sampler
from perfbisect.machine.leases import LeaseHolder, lease
from perfbisect.machine.profile import Profile
from perfbisect.machine.slots import Slot
from perfbisect.setup import doctor
from perfbisect.setup.doctor import Check
from tests.machine.test_sampling import HOG, used
from tests.system.stand_ins import start, until


def test_every_check_of_this_machine(tmp_path: Path) -> None:
    def no_uv() -> Path:
        raise BuildError("no uv command\nsomewhere", next_step="install it")

    shell = {"PERFBISECT_LOCKS": str(tmp_path / "locks")}
    found = doctor.machine_checks(
        state=tmp_path,
        cache=tmp_path / "a/b",
        shell=shell,
        uv=no_uv,
        profile=Profile(name="cpu", devices="none"),
    )
    by_name = {check.name: check for check in found}
    assert list(by_name) == [
        "python", "system", "git", "uv", "state", "cache", "memory", "shm", "ports", "machine", "leases",
        "load", "clock",
    ]  # fmt: skip
    assert by_name["uv"] == Check("uv", "bad", "no uv command somewhere", "install it")
    assert by_name["machine"].found == "cpu: no devices, cells with `gpus: 0` only"
    assert by_name["leases"].state == by_name["python"].state == "good"
    assert all((check.state == "good") == (check.advice == "") for check in found)


def test_who_leases_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "locks"
    with lease(Slot("gpu2", ("GPU-2",), (0,), (1,)), folder=folder, holder=LeaseHolder("b-17", user="eve")):
        check = doctor.held(folder)
    assert check.state == "warning"
    assert f"eve (pid {os.getpid()}, job b-17" in check.found
    assert check.found.endswith("has GPU-2, 2 of the cores")


def test_who_keeps_the_machine_busy_is_told(tmp_path: Path) -> None:
    hogs = [start(tmp_path, HOG, name=f"hog{n}") for n in range(os.cpu_count() or 1)]
    try:
        until(lambda: all(used(hog) > 0.05 for hog in hogs))
        check = doctor.load()
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
    check = doctor.disk("cache", tmp_path / "not" / "there" / "yet")
    assert check.state == state and f"{free:.1f} GiB free" in check.found


@pytest.mark.parametrize("available, state", [(1024.0, "bad"), (3072.0, "warning"), (9000.0, "good")])
def test_memory(monkeypatch: pytest.MonkeyPatch, available: float, state: str) -> None:
    monkeypatch.setattr(sampler, "memory", lambda: (16384.0, available))
    assert doctor.memory().state == state


def test_command_that_fails_is_a_bad_check(tmp_path: Path) -> None:
    broken = tmp_path / "git"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(subprocess.CalledProcessError):
        doctor.command("git", broken)
    check = doctor.guarded("git", lambda: doctor.command("git", broken))
    assert check.state == "bad" and "exit status 3" in check.found and check.advice
