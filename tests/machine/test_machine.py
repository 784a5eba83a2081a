"""The machine: its class, its room."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from perfbisect.errors import MachineError
from perfbisect.machine import devices, profile
from perfbisect.machine.devices import Gpu
from perfbisect.machine.profile import Machine

H200 = Gpu("NVIDIA H200", 143771, "570.86.15", "GPU-1111")
OTHER = Gpu("NVIDIA H200", 143771, "570.86.15", "GPU-2222")
L4 = Gpu("NVIDIA L4", 23034, "570.86.15", "GPU-3333")


def test_machine_without_devices_is_named_by_its_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: ())
    here = profile.machine({})
    assert here.kind.endswith(f" x {len(os.sched_getaffinity(0))}")
    assert here.cpu and here.cpu in here.kind
    assert here.memory > 2**20
    facts = here.facts()
    assert facts["machine_class"] == here.kind
    assert facts["kernel"] == os.uname().release


def test_class_tells_machines_apart() -> None:
    def kind(*gpus: Gpu) -> str:
        return Machine("h", "cpu", 8, 1, "6.1", gpus).kind

    assert kind() == "cpu x 8"
    assert kind(H200, OTHER) == kind(OTHER, H200) == "NVIDIA H200 x 2, driver 570.86.15"
    assert kind(L4, H200) == "NVIDIA H200 x 1 + NVIDIA L4 x 1, driver 570.86.15"
    assert kind(Gpu(H200.name, 1, "580.1", "x")) != kind(H200)


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile.check_room(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Usage(2**20))
    with pytest.raises(MachineError, match="1 MiB free"):
        profile.check_room(tmp_path)


class _Usage:
    def __init__(self, free: int) -> None:
        self.free = free


def test_kernel_tells_how_many_it_killed() -> None:
    assert profile.oom_kills() >= 0
