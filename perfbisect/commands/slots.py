"""Where a job launches: slots of this machine, or of the machines of a fleet."""

from __future__ import annotations

import os
from collections.abc import Sequence

from perfbisect.commands.fleets import fleets
from perfbisect.commands.workspace import Workspace
from perfbisect.errors import MachineError, UsageError
from perfbisect.jobs.machines import JobSlots, MachineDocument, choose_slots
from perfbisect.jobs.plans import MeasurementConfig
from perfbisect.jobs.replay import Launch
from perfbisect.jobs.runner import LEAST_CORES
from perfbisect.machine.leases import holders, lock_folder
from perfbisect.machine.profile import load_profile, machine
from perfbisect.machine.slots import Slot, machine_of, plan_slots
from perfbisect.measure.serving import check_stages
from perfbisect.model.attempt import is_same_class
from perfbisect.model.cell import Cell


def find_slots(
    workspace: Workspace, cell: Cell, setting: MeasurementConfig, workers: int = 1, *, dry_run: bool = False
) -> JobSlots:
    """The slots for concurrent launches of a cell, on this machine or on the fleet.

    On a fleet ``workers`` are the most, 1: all. A dry run needs no machine: where nothing can start it gets
    no slots and a note.
    """
    try:
        if setting.fleet:
            machines = fleet_machines(workspace, cell, setting.fleet)
            return choose_slots(machines, workers if workers > 1 else None)
        slots = slots_here(cell, workers, setting.machine)
        kind = machine_of(slots[0], dict(os.environ), load_profile(setting.machine)).kind
        return JobSlots(slots, kind, _slot_notes(slots))
    except MachineError as error:
        if not dry_run:
            raise
        where = "the fleet" if setting.fleet else "this machine"
        return JobSlots(notes=(f"nothing can start on {where}: {error.message}",))


def fleet_machines(workspace: Workspace, cell: Cell, spec: str) -> Sequence[MachineDocument]:
    """A fleet's machines, with their slots for a cell. :raises MachineError: the engine does not answer."""
    workers = None if cell.gpus else 1
    return fleets().machines(spec, workspace.state, cell.gpus, workers)


def slots_here(cell: Cell, workers: int, named: str) -> tuple[Slot, ...]:
    """Slots of this machine for concurrent launches of a cell, unused ones first.

    ``named``: the machine profile, empty: detected.
    """
    shell, profile = dict(os.environ), load_profile(named)
    profile.before(cell.gpus, shell)
    locks = holders(lock_folder(shell))
    slots = plan_slots(
        machine(shell, profile),
        gpus=cell.gpus,
        workers=workers,
        # Devices in use are taken last, not left out: with --wait the job may wait for them.
        avoid={lock.name for lock in locks if lock.name.startswith(("GPU-", "MIG-"))},
        profile=profile,
    )
    # All slots of a job are of one class: what fits one fits each.
    check_stages(cell, slots[0], profile.platform)
    return slots


def _slot_notes(slots: Sequence[Slot]) -> tuple[str, ...]:
    """Notes on the devices and cores of the slots, if they are part of the machine."""
    notes = []
    if any(slot.env and not slot.devices for slot in slots):
        notes.append("the cell reserves no device (gpus: 0): its engine sees none of those that are here")
    for slot in slots:
        parts = [f"devices {', '.join(slot.devices)}"] if slot.devices else []
        if slot.cores:
            server, client = _spans(slot.server_cores), _spans(slot.client_cores)
            parts.append(f"cores {server} for the server, {client} for the client")
        if slot.name:
            notes.append(f"slot {slot.name}: {'; '.join(parts)}")
    return tuple(notes)


def _spans(cores: Sequence[int]) -> str:
    """Format processors as the kernel does: ``0-3,8``."""
    parts: list[list[int]] = []
    for core in sorted(cores):
        if parts and core == parts[-1][-1] + 1:
            parts[-1].append(core)
        else:
            parts.append([core])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def require_same_machine(job: str, launches: Sequence[Launch], kind: str) -> None:
    """Require that a job has measured on this machine class, if on any."""
    before = next((x.attempt for x in launches if x.outcome == "measured" and x.attempt), None)
    if before is not None and not is_same_class(before.provenance.machine_class, kind):
        raise UsageError(
            f"job {job} has measured on {before.provenance.machine_class}, this would be {kind}: "
            "launches on them are not comparable",
            next_step=f"perfbisect resume {job} on that machine, with as many --workers as before",
        )


def spare_cores(slots: Sequence[Slot]) -> frozenset[int]:
    """Processors that no slot of this job and no lease on this host uses."""
    here = [slot for slot in slots if not slot.machine]
    if not all(slot.cores for slot in here):
        return frozenset()
    taken = {core for slot in here for core in slot.cores}
    for held in holders(lock_folder(dict(os.environ))):
        if held.kind == "core" and held.name.isdigit():
            taken.add(int(held.name))
    return frozenset(os.sched_getaffinity(0) - taken)


def reason_not_prebuilding(slots: Sequence[Slot]) -> str:
    """Why environments are not built ahead; empty if they are."""
    if not all(slot.cores for slot in slots if not slot.machine):
        return "the attempt has the whole machine"
    spare = len(spare_cores(slots))
    return "" if spare >= LEAST_CORES else f"{spare} processors are on no slot, and it takes {LEAST_CORES}"
