"""The devices, from what ``nvidia-smi`` says on several machines (see smi/README.md)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perfbisect.errors import Interrupted, MachineError
from perfbisect.machine import devices
from perfbisect.machine.devices import DeviceProcess, Gpu, Smi, wait_for_memory
from tests.machine import fake_smi

Smis = Callable[[str], Smi]


@pytest.fixture
def smi(tmp_path: Path) -> Smis:
    """The command of a machine by name."""
    return lambda name: Smi(fake_smi.install(tmp_path, fake_smi.MACHINES / name))


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of its own on the path."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    devices.gpus.cache_clear()
    yield tmp_path
    devices.gpus.cache_clear()


def test_eight_devices(smi: Smis) -> None:
    found = devices.list_devices(smi("eight"))
    assert [gpu.index for gpu in found] == list(range(8))
    assert {gpu.name for gpu in found} == {"NVIDIA H200"}
    assert found[3] == Gpu(
        "NVIDIA H200",
        143771,
        "570.133.20",
        "GPU-00000003-aaaa-bbbb-cccc-0123456789a3",
        3,
        "00000000:5D:00.0",
        "Default",
    )
    assert devices.usable(found) == found


READINGS = [
    ("eight", 0, {"used": 4, "total": 143771, "reasons": ("idle",)}),
    ("eight", 2, {"used": 129842, "clock": 1980, "top_clock": 1980, "temperature": 61, "reasons": ()}),
    ("eight", 2, {"power": 588.21, "power_limit": 700, "utilization": 98}),
    ("container", 0, {"used": 61312, "reasons": ("software power cap",)}),
    ("laptop", 0, {"power": 11.87, "power_limit": None}),
    # An older driver has its own name for the reasons.
    ("throttled", 0, {"clock": 585, "top_clock": 1590, "temperature": 87}),
    (
        "throttled",
        0,
        {"reasons": ("hardware slowdown", "software thermal slowdown", "hardware thermal slowdown")},
    ),
]


@pytest.mark.parametrize("name, index, expected", READINGS)
def test_state_of_a_device(smi: Smis, name: str, index: int, expected: dict[str, object]) -> None:
    now = devices.readings(smi(name))[index]
    assert {field: getattr(now, field) for field in expected} == expected


@pytest.mark.parametrize(
    "name, computes",
    [
        ("eight", ((731022, "GPU-00000002-aaaa-bbbb-cccc-0123456789a2", 129828),)),
        ("laptop", ((2307, "GPU-50000000-aaaa-bbbb-cccc-0123456789f0", None),)),
        ("container", ()),
    ],
)
def test_who_computes(smi: Smis, name: str, computes: tuple[tuple[int, str, float | None], ...]) -> None:
    found = devices.tenants(smi(name))
    assert found == tuple(DeviceProcess(*row) for row in computes)


def test_instances_stand_for_the_device_they_are_on(smi: Smis) -> None:
    found = devices.list_devices(smi("mig"))
    assert [gpu.label for gpu in found] == ["gpu0", "gpu0.0", "gpu0.1", "gpu0.2", "gpu1"]
    usable = devices.usable(found)
    assert [gpu.label for gpu in usable] == ["gpu0.0", "gpu0.1", "gpu0.2", "gpu1"]
    last = usable[2]
    assert last.uuid == "MIG-20000002-aaaa-5bbb-8ccc-0123456789c2"
    assert last.parent == found[0].uuid and last.bus == found[0].bus
    assert last.name == "NVIDIA H100 80GB HBM3 MIG 1c.1g.10gb" and last.memory == 10 * 1024


def test_field_unknown_to_the_driver_is_asked_once(smi: Smis) -> None:
    command = smi("laptop")
    devices.list_devices(command)
    assert command._unknown == {"mig.mode.current"}
    devices.readings(command)
    assert command._unknown == {"mig.mode.current", "clocks_throttle_reasons.active"}


def test_broken_driver_says_why(smi: Smis) -> None:
    command = smi("broken")
    assert devices.list_devices(command) == () == devices.readings(command)
    assert "couldn't communicate with the NVIDIA driver" in command.devices(("name",)).problem


@pytest.mark.parametrize("then", ["echo 'No devices were found'", "kill -9 $$", "echo a, b, c", "exit 3"])
def test_driver_that_is_of_no_use(on_path: Path, then: str) -> None:
    command = on_path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\n{then}\n")
    command.chmod(0o755)
    assert devices.gpus() == ()
    assert devices.tenants(Smi()) == ()


def test_driver_that_hangs_is_given_up(on_path: Path) -> None:
    command = on_path / "nvidia-smi"
    command.write_text("#!/bin/sh\nexec sleep 60\n")
    command.chmod(0o755)
    answer = Smi(timeout_s=0.2).devices(("name",))
    assert answer.rows == () and "did not answer" in answer.problem


@pytest.mark.parametrize(
    "mask, left",
    [
        (None, ["gpu0.0", "gpu0.1", "gpu0.2", "gpu1"]),
        ("", []),
        ("1,0", ["gpu1", "gpu0.0"]),
        ("1,9,0", ["gpu1"]),
        ("-1", []),
        ("GPU-10000001", ["gpu1"]),
        ("GPU-10000000", ["gpu0.0"]),
        ("GPU-1", []),
        ("MIG-20000001-aaaa-5bbb-8ccc-0123456789c1", ["gpu0.1"]),
        ("MIG-2000000", []),
        (" 1 , 0 ", ["gpu1", "gpu0.0"]),
    ],
)
def test_mask_of_devices(smi: Smis, mask: str | None, left: list[str]) -> None:
    found = devices.list_devices(smi("mig"))
    assert [gpu.label for gpu in devices.visible(found, mask)] == left


@pytest.mark.parametrize(
    "mask, names",
    [
        ("0x0000000000000000", ()),
        ("0x0000000000000001", ("idle",)),
        ("0x0000000000000044", ("software power cap", "hardware thermal slowdown")),
        ("0x0000000000000200", ("0x200",)),
        ("", ()),
        ("Active", ()),
    ],
)
def test_bits_of_the_mask_have_names(mask: str, names: tuple[str, ...]) -> None:
    assert devices.reasons(mask) == names


UUID = "GPU-00000002-aaaa-bbbb-cccc-0123456789a2"
FREE = "GPU-00000001-aaaa-bbbb-cccc-0123456789a1"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """The answers of a machine, which a test may change."""
    return Path(shutil.copytree(fake_smi.MACHINES / "eight", tmp_path / "machine"))


@pytest.fixture
def changing(tmp_path: Path, machine: Path) -> Smi:
    return Smi(fake_smi.install(tmp_path, machine))


def test_free_at_once(changing: Smi) -> None:
    wait_for_memory((FREE,), share=0.9, timeout=0, smi=changing)
    wait_for_memory((UUID,), share=0.05, timeout=0, smi=changing)
    wait_for_memory(("MIG-1",), share=0.9, timeout=0, smi=Smi(None))


@pytest.mark.parametrize(
    ("processes", "holder"),
    [
        ("731022, GPU, 129828\n", r"pid 731022, not of this container or gone with 129828 MiB \(waited 0 s"),
        (f"{os.getpid()}, GPU, [N/A]\n", rf"\S+ \(pid {os.getpid()}\) \(waited"),
        ("", "a process that the driver does not name"),
    ],
    ids=("gone", "own", "none"),
)
def test_holder_is_named(changing: Smi, machine: Path, processes: str, holder: str) -> None:
    text = f"pid, gpu_uuid, used_memory\n{processes.replace('GPU', UUID)}"
    (machine / "processes.csv").write_text(text)
    used = f"device {UUID}: 129842 of 143771 MiB are in use, 90% must be free; held by "
    with pytest.raises(MachineError, match=used + holder):
        wait_for_memory((UUID,), share=0.9, timeout=0, smi=changing)


def test_it_comes_back(changing: Smi, machine: Path) -> None:
    """Whoever is told that it waits ends what held it."""
    heard: list[str] = []

    def told(text: str) -> None:
        heard.append(text)
        table = machine / "gpu.csv"
        table.write_text(table.read_text().replace("129842, 13315", "4, 143153"))

    wait_for_memory((UUID,), share=0.9, timeout=30, smi=changing, on_wait=told, every=0.01)
    assert len(heard) == 1 and heard[0].startswith("waits for memory of devices: device GPU-00000002")


def test_stop_while_waiting(changing: Smi) -> None:
    with pytest.raises(Interrupted, match="waited for memory"):
        wait_for_memory((UUID,), share=0.9, timeout=60, smi=changing, stop_requested=lambda: True)


def test_device_that_fell_off_the_bus(changing: Smi, machine: Path) -> None:
    table = machine / "gpu.csv"
    table.write_text("".join(line for line in table.read_text().splitlines(True) if UUID not in line))
    with pytest.raises(MachineError, match=f"the driver does not list device {UUID}"):
        wait_for_memory((UUID,), share=0.9, timeout=0, smi=changing)
    (machine / "error.txt").write_text("15\nGPU is lost\n")
    with pytest.raises(MachineError, match=f"{UUID}: GPU is lost"):
        wait_for_memory((UUID,), share=0.9, timeout=0, smi=changing)
