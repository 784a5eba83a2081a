"""Kinds of machines: NVIDIA and none as ever, and one whose devices other commands tell of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perfbisect.errors import MachineError
from perfbisect.machine import devices
from perfbisect.machine.devices import Gpu
from perfbisect.machine.profile import CUDA, DeviceSelection, LaunchCommand, Profile, load_machine, machine
from perfbisect.machine.slots import plan_slots
from perfbisect.machine.topology import Topology

GOLDEN = Path(__file__).parent / "npu"
BIG = Topology(tuple((n,) for n in range(32)))


@pytest.fixture
def ascend() -> Profile:
    return load_machine("ascend")


def answering(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, code: int = 0) -> None:
    """A command ``npu-smi`` that prints a file."""
    command = folder / "npu-smi"
    command.write_text(f'#!/bin/sh\n[ "$1" = info ] || exit 2\ncat {GOLDEN / text}\nexit {code}\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_cuda_and_cpu_are_what_they_were() -> None:
    assert load_machine("cuda") == CUDA
    cpu = load_machine("cpu")
    assert cpu.list_devices() == ()
    assert machine({}, cpu).kind == f"{machine({}, cpu).cpu} x {len(os.sched_getaffinity(0))}"


def test_devices_of_another_maker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ascend: Profile) -> None:
    answering(tmp_path, monkeypatch, "a2.txt")
    first, second = ascend.list_devices()
    assert (first.name, first.memory, first.driver, first.bus) == ("910B3", 65536, "24.1.rc3", "0000:81:00.0")
    assert (first.uuid, first.index, first.label) == ("ascend-4.0", 0, "gpu0")
    assert (second.uuid, second.index) == ("ascend-5.0", 1)
    here = machine({}, ascend)
    assert here.kind == "910B3 x 2, driver 24.1.rc3, ascend VLLM_PLUGINS=ascend"
    assert [gpu.uuid for gpu in machine({"ASCEND_RT_VISIBLE_DEVICES": "1"}, ascend).gpus] == ["ascend-5.0"]


def test_what_they_do_and_who_is_on_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ascend: Profile
) -> None:
    answering(tmp_path, monkeypatch, "a2.txt")
    smi = ascend.smi()
    busy, free = devices.readings(smi)
    assert (busy.used, busy.total, busy.utilization, busy.power, busy.temperature) == (
        61234,
        65536,
        37,
        95.1,
        48,
    )
    assert (free.uuid, free.used) == ("ascend-5.0", 3377)
    assert [reading.uuid for reading in devices.readings(smi, ["ascend-5.0"])] == ["ascend-5.0"]
    assert [(t.pid, t.uuid, t.memory) for t in devices.tenants(smi)] == [
        (20311, "ascend-4.0", 57801.0),
        (20477, "ascend-4.0", 134.0),
    ]


def test_two_chips_a_card_are_two_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ascend: Profile
) -> None:
    answering(tmp_path, monkeypatch, "a3.txt")
    found = ascend.list_devices()
    assert [(gpu.uuid, gpu.index) for gpu in found] == [
        *(("ascend-0.0", 0), ("ascend-0.1", 1), ("ascend-1.0", 2), ("ascend-1.1", 3)),
    ]
    smi = ascend.smi()
    assert [reading.power for reading in devices.readings(smi)] == [171.9, None, 168.2, None]
    assert [tenant.uuid for tenant in devices.tenants(smi)] == ["ascend-1.0"]


def test_slots_are_chosen_by_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ascend: Profile
) -> None:
    answering(tmp_path, monkeypatch, "a3.txt")
    here = machine({}, ascend)
    one, two = plan_slots(here, gpus=1, workers=2, topology=BIG, profile=ascend)
    assert [dict(slot.env) for slot in (one, two)] == [
        {"ASCEND_RT_VISIBLE_DEVICES": "1"},
        {"ASCEND_RT_VISIBLE_DEVICES": "3"},
    ], "free devices first: the driver alone holds 5 % of a third of them"
    assert one.devices == ("ascend-0.1",)


def test_a_driver_that_fails_has_no_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ascend: Profile
) -> None:
    answering(tmp_path, monkeypatch, "a2.txt", code=3)
    assert ascend.list_devices() == ()
    monkeypatch.setenv("PATH", "/nonexistent")
    assert ascend.list_devices() == ()
    smi = ascend.smi()
    assert "npu-smi cannot be started" in smi.devices(("uuid",)).problem


def test_masks() -> None:
    gpu = [Gpu("X", 1, "1", f"u{n}", index=n) for n in range(3)]
    assert CUDA.mask(gpu[1:]) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1,2"}
    other = Profile(name="x", devices="none", select=DeviceSelection(variable="V"))
    assert other.mask(gpu[:1]) == {"V": "0"}


def test_the_words_before_the_server() -> None:
    def behind(*command: str) -> Profile:
        return CUDA.model_copy(update={"lease": LaunchCommand(command=command)})

    words = behind("env", "-u", "X", "N={gpus}", "D={devices}", "{other}").before(
        2, {"CUDA_VISIBLE_DEVICES": "4,5"}
    )
    assert words == ("env", "-u", "X", "N=2", "D=4,5", "{other}")
    assert CUDA.before(2, {}) == ()
    with pytest.raises(MachineError, match="lease command 'no-such-queue'"):
        behind("no-such-queue").before(1, {})


def test_what_is_served_otherwise_is_another_class() -> None:
    none = Profile(name="cuda", devices="none")
    plain, other = machine({}, none), machine({}, none.model_copy(update={"env": {"A": "1"}}))
    assert other.kind == f"{plain.kind}, cuda A=1"
