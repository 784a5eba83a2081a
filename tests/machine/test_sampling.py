"""The machine sampled while real processes of ours and of others keep it busy."""

from __future__ import annotations

import os
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from perfbisect.machine.devices import Smi
from perfbisect.machine.interference import UNJUDGED, InterferenceLimits, interference_reason
from perfbisect.machine.sampler import Sampler, _DeviceSampler
from perfbisect.machine.slots import Slot
from perfbisect.system.processes import OwnedProcess, Process, process
from tests.machine import fake_smi
from tests.system.stand_ins import IDLE, running, told, until

HOG = "while True: pass"
DEVICES = replace(UNJUDGED, device_memory=64.0, slowed=0.05)
"""What others do to the processors of this machine is not the matter."""

WAVES = """
import subprocess, sys
burn = "import time; end = time.process_time() + 0.08\\nwhile time.process_time() < end: pass"
print("begins", flush=True)
while True:
    subprocess.run([sys.executable, "-S", "-c", burn], check=True)
"""

MEMORY = """
import time
held = bytearray(500 * 2**20)
for page in range(0, len(held), 4096):
    held[page] = 1
print("holds", flush=True)
time.sleep(60)
"""


def one_core() -> int:
    return min(os.sched_getaffinity(0))


def on_one_core(script: str) -> str:
    """The script, on one core: what it can use there is nobody else's to take away altogether."""
    return f"import os; os.sched_setaffinity(0, {{{one_core()}}})\n{script}"


def used(owned: OwnedProcess) -> float:
    return sum(row.cpu_seconds + row.waited_seconds for row in owned.living())


def core(name: str = "one") -> Slot:
    return Slot(name, server_cores=(one_core(),))


def nobody() -> tuple[Process, ...]:
    return ()


def test_hog_of_ours_is_not_a_tenant(tmp_path: Path) -> None:
    """The same busy process: unknown to the sampler it is foreign, known it is ours."""
    with running(tmp_path, on_one_core(HOG)) as owned:
        until(lambda: used(owned) > 0.1)
        known = Sampler(owned.living, slot=core(), every=0.25)
        unknown = Sampler(nobody, slot=core(), every=0.25)
        before = used(owned)
        with known, unknown:
            until(lambda: used(owned) > before + 0.6, 60.0)
        mine, theirs = known.summary(), unknown.summary()
    assert mine.problem == theirs.problem == ""
    assert mine.processors == 1
    assert mine["own_cpu"].mean > 0.05 and theirs["own_cpu"].mean == 0.0
    # Both saw the same core over the same time, but for the moments between their looks.
    assert theirs["foreign_cpu"].mean == pytest.approx(
        mine["foreign_cpu"].mean + mine["own_cpu"].mean, abs=0.2
    )


def test_hog_of_others_voids_the_run(tmp_path: Path) -> None:
    with running(tmp_path, IDLE, name="ours") as ours, running(tmp_path, on_one_core(HOG)) as hog:
        before = used(hog)
        with Sampler(ours.living, slot=core(), every=0.25) as sampler:
            until(lambda: used(hog) > before + 0.6, 60.0)
        seen = sampler.summary()
    assert seen["foreign_cpu"].mean > 0.25, "the core was full, and none of it ours"
    why = interference_reason(seen, InterferenceLimits())
    assert why is not None and "other work used" in why and "1 processor (limit 25%)" in why
    assert interference_reason(seen, UNJUDGED) is None


def test_children_that_come_and_go_are_ours(tmp_path: Path) -> None:
    """Most of the work is done by processes that no look has seen: it is in their parent's account."""
    with running(tmp_path, on_one_core(WAVES)) as owned:
        told(tmp_path / "out.log", "begins")
        before = used(owned)
        with Sampler(owned.living, slot=core(), every=0.4) as sampler:
            until(lambda: used(owned) > before + 0.5, seconds=30)
        after = used(owned)
        seen = sampler.summary()
    worked = sum(share for share in seen["own_cpu"].values)
    assert worked > 0, "none was seen"
    assert seen["own_cpu"].mean * seen.seconds == pytest.approx(after - before, rel=0.6)


def test_memory_hog_is_seen(tmp_path: Path) -> None:
    with Sampler(nobody, every=0.1) as sampler:
        time.sleep(0.3)
        with running(tmp_path, MEMORY):
            told(tmp_path / "out.log", "holds")
            time.sleep(0.3)
    seen = sampler.summary()
    assert seen["foreign_memory"].high - seen["foreign_memory"].low > 200
    assert seen["available_memory"].high - seen["available_memory"].low > 200
    limit = (seen["available_memory"].low + 100) / seen.total_memory
    why = interference_reason(seen, replace(UNJUDGED, available=limit))
    assert why is not None and "MiB of memory were left" in why and "others held" in why


def test_sampler_that_fails_says_so_and_ends() -> None:
    def broken() -> tuple[Process, ...]:
        raise RuntimeError("no table")

    with Sampler(broken) as sampler:
        time.sleep(0.05)
    assert sampler.summary().problem == "RuntimeError: no table"
    assert interference_reason(sampler.summary(), InterferenceLimits()) is None


def machine(folder: Path, *, processes: str) -> Smi:
    """The machine with eight devices, with other processes on them."""
    made = Path(shutil.copytree(fake_smi.MACHINES / "eight", folder / "machine"))
    (made / "processes.csv").write_text("pid, gpu_uuid, used_memory\n" + processes, "utf-8")
    return Smi(fake_smi.install(folder, made))


def uuid(index: int) -> str:
    return f"GPU-0000000{index}-aaaa-bbbb-cccc-0123456789a{index}"


def test_devices_of_the_slot_and_who_else_is_on_them(tmp_path: Path) -> None:
    with running(tmp_path, IDLE) as ours:
        rows = f"{ours.pid}, {uuid(2)}, 129000\n{os.getpid()}, {uuid(2)}, 828\n4242424, {uuid(1)}, 70000\n"
        smi = machine(tmp_path, processes=rows)
        with Sampler(ours.living, slot=Slot("gpu2", (uuid(2),)), smi=smi, every=0.05) as sampler:
            time.sleep(0.2)
        seen = sampler.summary()
    (device,) = seen.devices
    assert (device.uuid, device["clock"].values[0], device["temperature"].high) == (uuid(2), 1.0, 61)
    assert not seen.hidden and seen.strayed == ()
    assert list(device.foreign.values()) == [828]
    (name,) = device.foreign
    assert f"(pid {os.getpid()})" in name
    why = interference_reason(seen, DEVICES)
    assert why is not None and f"others computed on device {uuid(2)}" in why and "828 MiB" in why


@pytest.mark.parametrize(
    ("rows", "hidden", "why"),
    [
        (f"OURS, {uuid(5)}, 129000\n", False, f"outside its slot: .* on {uuid(5)}"),
        # Process ids of the host are not ours, and not proof of somebody else's.
        (f"4242424, {uuid(2)}, 129000\n", True, None),
        (f"OURS, {uuid(2)}, 500\n4242424, {uuid(2)}, 70000\n", False, None),  # it has ended
    ],
    ids=("engine outside its slot", "container", "ended"),
)
def test_processes_that_the_driver_lists(tmp_path: Path, rows: str, hidden: bool, why: str | None) -> None:
    with running(tmp_path, IDLE) as ours:
        smi = machine(tmp_path, processes=rows.replace("OURS", str(ours.pid)))
        with Sampler(ours.living, slot=Slot("gpu2", (uuid(2),)), smi=smi) as sampler:
            pass
    seen = sampler.summary()
    reason = interference_reason(seen, DEVICES)
    assert seen.hidden is hidden
    assert reason is None if why is None else re.search(why, reason or "")


def test_slowed_device_voids_the_run(tmp_path: Path) -> None:
    smi = Smi(fake_smi.install(tmp_path, fake_smi.MACHINES / "throttled"))
    hot = "GPU-40000000-aaaa-bbbb-cccc-0123456789e0"
    with Sampler(nobody, slot=Slot("gpu0", (hot,)), smi=smi) as sampler:
        pass
    why = interference_reason(sampler.summary(), DEVICES)
    assert why is not None and "hardware thermal slowdown" in why and "87 degrees" in why


def test_engine_that_begins_during_the_look_is_ours(tmp_path: Path) -> None:
    """What is ours is asked after the driver: a worker born since the look before is no tenant."""
    with running(tmp_path, IDLE) as ours:
        smi = machine(tmp_path, processes=f"{ours.pid}, {uuid(2)}, 500\n{os.getpid()}, {uuid(2)}, 70000\n")
        born: list[Process] = []

        def living() -> tuple[Process, ...]:
            found = (*ours.living(), *born)
            here = process(os.getpid())
            assert here is not None
            born[:] = [here]
            return found

        with Sampler(living, slot=Slot("gpu2", (uuid(2),)), smi=smi) as sampler:
            pass
    assert interference_reason(sampler.summary(), DEVICES) is None


def test_driver_that_fails_now_and_then_says_what_it_said_before(tmp_path: Path) -> None:
    """A look without an answer is no sample without a cause, and our processes stay identified."""
    rows = f"{os.getpid()}, {uuid(2)}, 500\n4242424, {uuid(2)}, 70000\n"
    smi = machine(tmp_path, processes=rows)
    table = tmp_path / "machine" / "gpu.csv"
    table.write_text(table.read_text().replace("0x0000000000000000", "0x0000000000000008"))
    device = _DeviceSampler(smi, (), (uuid(2),))
    device.take(lambda: {os.getpid()})
    (tmp_path / "machine" / "error.txt").write_text("9\nno driver")
    device.take(lambda: {os.getpid()})
    assert device.samples == 2 and not device.hidden
    assert device.sampled()[0].reasons == {"hardware slowdown": 1.0}
