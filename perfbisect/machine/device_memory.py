"""Free memory on devices, waited for: it comes back slowly after an engine, or somebody else holds it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from perfbisect.errors import Interrupted, MachineError
from perfbisect.machine import devices
from perfbisect.machine.devices import Gpu, Reading, Smi, Tenant
from perfbisect.machine.slots import Slot
from perfbisect.system.processes import Asked, never, process

_TICK = 1.0


def wait_for_memory(
    slot: Slot,
    *,
    share: float,
    timeout: float,
    smi: Smi | None = None,
    known: Sequence[Gpu] | None = None,
    told: Callable[[str], None] = lambda _: None,
    asked: Asked = never,
    every: float = _TICK,
) -> dict[str, float]:
    """Return once at least ``share`` of the memory of each device of the slot is free: used MiB by UUID.

    ``timeout`` in seconds; ``told`` hears once who holds it. Devices whose memory the driver does not tell (a
    MIG instance: only that of the whole device) are passed over.

    :raises MachineError: it is not free in time: who holds it, as far as the driver tells; or the driver does
        not tell of a device any more.
    :raises Interrupted: ``asked`` said so.
    """
    whole = _whole(slot, devices.gpus() if known is None else known)
    if not whole:
        return {}
    smi = smi or Smi()
    deadline = time.monotonic() + timeout
    said = False
    while True:
        now = {one.uuid: one for one in devices.readings(smi, whole)}
        full = [one for one in now.values() if _free(one) < share]
        gone = [uuid for uuid in whole if uuid not in now]
        if not full and not gone:
            return {uuid: one.used for uuid, one in now.items() if one.used is not None}
        tenants = devices.tenants(smi) if full else ()
        why = "; ".join([*(_held(one, share, tenants) for one in full), *(_lost(uuid, smi) for uuid in gone)])
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


def _free(one: Reading) -> float:
    """Share of the memory that is free; all of it where the driver does not tell."""
    if one.total is None or one.used is None or one.total <= 0:
        return 1.0
    return 1.0 - one.used / one.total


def _lost(uuid: str, smi: Smi) -> str:
    problem = smi.devices(("uuid",)).problem
    return f"the driver does not tell of device {uuid}" + (f": {problem}" if problem else "")


def _held(one: Reading, share: float, tenants: Sequence[Tenant]) -> str:
    here = [tenant for tenant in tenants if tenant.uuid == one.uuid]
    names = ", ".join(
        str(process(tenant.pid) or f"pid {tenant.pid}, not of this container or gone")
        + ("" if tenant.memory is None else f" with {tenant.memory:.0f} MiB")
        for tenant in here
    )
    who = names or "a process that the driver does not name (another container, or one that just ended)"
    return (
        f"device {one.uuid}: {one.used or 0:.0f} of {one.total or 0:.0f} MiB are in use, "
        f"{share:.0%} must be free; held by {who}"
    )
