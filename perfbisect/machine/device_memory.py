"""Waits for free device memory, which an ended engine releases slowly or another process holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from perfbisect.errors import Interrupted, MachineError
from perfbisect.machine import devices
from perfbisect.machine.devices import DeviceProcess, DeviceReading, Gpu, Smi
from perfbisect.machine.slots import Slot
from perfbisect.system.processes import StopRequested, never, process

_TICK = 1.0


def wait_for_memory(
    slot: Slot,
    *,
    share: float,
    timeout: float,
    smi: Smi | None = None,
    known: Sequence[Gpu] | None = None,
    told: Callable[[str], None] = lambda _: None,
    asked: StopRequested = never,
    every: float = _TICK,
) -> dict[str, float]:
    """Wait until ``share`` of the memory of each device of the slot is free; returns used MiB by UUID.

    ``timeout`` in seconds; ``told`` is called once with the holders. MIG instances are skipped: the driver
    reports memory of whole devices only.

    :raises MachineError: memory is still in use after ``timeout``, or a device is no longer listed. :raises
    Interrupted: ``asked`` returned true.
    """
    whole = _whole(slot, devices.gpus() if known is None else known)
    if not whole:
        return {}
    smi = smi or Smi()
    deadline = time.monotonic() + timeout
    said = False
    while True:
        now = {reading.uuid: reading for reading in devices.readings(smi, whole)}
        full = [reading for reading in now.values() if _free(reading) < share]
        gone = [uuid for uuid in whole if uuid not in now]
        if not full and not gone:
            return {uuid: reading.used for uuid, reading in now.items() if reading.used is not None}
        tenants = devices.tenants(smi) if full else ()
        why = "; ".join(
            [*(_held(reading, share, tenants) for reading in full), *(_lost(uuid, smi) for uuid in gone)]
        )
        if not said:
            told(f"waits for memory of devices: {why}")
            said = True
        if asked():
            raise Interrupted(f"stopped while it waited for memory: {why}")
        if time.monotonic() >= deadline:
            raise MachineError(
                f"{why} (waited {timeout:.0f} s)",
                next_step="nvidia-smi shows who uses the devices; choose others with CUDA_VISIBLE_DEVICES",
                code="device_memory_taken" if full else "device_failed",
            )
        time.sleep(min(every, max(0.0, deadline - time.monotonic())))


def _whole(slot: Slot, known: Sequence[Gpu]) -> tuple[str, ...]:
    instances = {gpu.uuid for gpu in known if gpu.parent}
    return tuple(uuid for uuid in slot.devices if uuid not in instances)


def _free(reading: DeviceReading) -> float:
    """Share of free memory; 1 if the driver does not report it."""
    if reading.total is None or reading.used is None or reading.total <= 0:
        return 1.0
    return 1.0 - reading.used / reading.total


def _lost(uuid: str, smi: Smi) -> str:
    problem = smi.devices(("uuid",)).problem
    return f"the driver does not tell of device {uuid}" + (f": {problem}" if problem else "")


def _held(reading: DeviceReading, share: float, tenants: Sequence[DeviceProcess]) -> str:
    here = [tenant for tenant in tenants if tenant.uuid == reading.uuid]
    names = ", ".join(
        str(process(tenant.pid) or f"pid {tenant.pid}, not of this container or gone")
        + ("" if tenant.memory is None else f" with {tenant.memory:.0f} MiB")
        for tenant in here
    )
    who = names or "a process that the driver does not name (another container, or one that just ended)"
    return (
        f"device {reading.uuid}: {reading.used or 0:.0f} of {reading.total or 0:.0f} MiB are in use, "
        f"{share:.0%} must be free; held by {who}"
    )
