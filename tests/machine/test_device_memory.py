"""Memory of devices that is waited for: it comes back, or somebody is named who holds it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perfbisect.errors import Interrupted, MachineError
from perfbisect.machine.devices import Smi, wait_for_memory
from tests.machine import fake_smi

UUID = "GPU-00000002-aaaa-bbbb-cccc-0123456789a2"
FREE = "GPU-00000001-aaaa-bbbb-cccc-0123456789a1"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    made = tmp_path / "machine"
    made.mkdir()
    for file in (fake_smi.MACHINES / "eight").iterdir():
        (made / file.name).write_text(file.read_text("utf-8"), "utf-8")
    return made


@pytest.fixture
def smi(tmp_path: Path, machine: Path) -> Smi:
    return Smi(fake_smi.install(tmp_path, machine))


def test_free_at_once(smi: Smi) -> None:
    assert wait_for_memory((FREE,), share=0.9, timeout=0, smi=smi) == {FREE: 4}
    assert wait_for_memory((UUID,), share=0.05, timeout=0, smi=smi) == {UUID: 129842}


def test_holder_is_named(smi: Smi) -> None:
    with pytest.raises(MachineError) as raised:
        wait_for_memory((UUID,), share=0.9, timeout=0, smi=smi)
    said = str(raised.value)
    assert f"device {UUID}: 129842 of 143771 MiB are in use, 90% must be free" in said
    assert "held by pid 731022, not of this container or gone with 129828 MiB (waited 0 s)" in said


def test_holder_of_this_machine_has_a_name(smi: Smi, machine: Path) -> None:
    (machine / "processes.csv").write_text(f"pid, gpu_uuid, used_memory\n{os.getpid()}, {UUID}, [N/A]\n")
    with pytest.raises(MachineError, match=rf"held by \S+ \(pid {os.getpid()}\) \(waited"):
        wait_for_memory((UUID,), share=0.9, timeout=0, smi=smi)


def test_nobody_is_named(smi: Smi, machine: Path) -> None:
    (machine / "processes.csv").write_text("pid, gpu_uuid, used_memory\n")
    with pytest.raises(MachineError, match="held by a process that the driver does not name"):
        wait_for_memory((UUID,), share=0.9, timeout=0, smi=smi)


def test_it_comes_back(smi: Smi, machine: Path) -> None:
    """Whoever is told that it waits ends what held it."""
    heard: list[str] = []

    def told(text: str) -> None:
        heard.append(text)
        table = machine / "gpu.csv"
        table.write_text(table.read_text().replace("129842, 13315", "4, 143153"))

    assert wait_for_memory((UUID,), share=0.9, timeout=30, smi=smi, on_wait=told, every=0.01) == {UUID: 4}
    assert len(heard) == 1 and heard[0].startswith("waits for memory of devices: device GPU-00000002")


def test_stop_while_waiting(smi: Smi) -> None:
    with pytest.raises(Interrupted, match="waited for memory"):
        wait_for_memory((UUID,), share=0.9, timeout=60, smi=smi, asked=lambda: True)


def test_nothing_to_wait_for() -> None:
    assert wait_for_memory(("MIG-1",), share=0.9, timeout=0, smi=Smi(None)) == {}


def test_device_that_fell_off_the_bus(smi: Smi, machine: Path) -> None:
    table = machine / "gpu.csv"
    table.write_text("".join(line for line in table.read_text().splitlines(True) if UUID not in line))
    with pytest.raises(MachineError, match=f"the driver does not list device {UUID}"):
        wait_for_memory((UUID,), share=0.9, timeout=0, smi=smi)
    (machine / "error.txt").write_text("15\nGPU is lost\n")
    with pytest.raises(MachineError, match=f"{UUID}: GPU is lost"):
        wait_for_memory((UUID,), share=0.9, timeout=0, smi=smi)
