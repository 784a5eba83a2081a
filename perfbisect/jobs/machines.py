"""The machines of a fleet, as a job sees them: what each can measure, the chosen slots, a plan's forecast."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field

from perfbisect.common.quantities import counted, minutes
from perfbisect.errors import MachineError
from perfbisect.jobs.documents import Document
from perfbisect.machine.slots import Slot
from perfbisect.model.attempt import is_same_class


class DoctorCheckDocument(Document):
    """The result of a check of a machine; ``advice`` is empty if it is good, or but a note."""

    name: str
    state: Literal["good", "note", "warning", "bad"]
    found: str
    advice: str


class MachineDocument(Document):
    """``perfbisect agent look``: what a machine can measure.

    ``slots``: as many as launches can run at once; ``problem``: why there is none. ``environments``: keys of
    those that are built here. ``checks``: of ``perfbisect doctor``, where they were asked for; ``time``: of
    its clock, in Unix seconds; ``skew``: seconds by which that is known to differ from the clock that asked.
    """

    schema_: Literal["perfbisect.agent-look/2"] = Field(default="perfbisect.agent-look/2", alias="schema")
    name: str
    version: str
    machine_class: str
    devices: tuple[str, ...]
    slots: tuple[Slot, ...]
    leased: tuple[str, ...]
    """Devices and processors that others lease now."""
    problem: str
    environments: tuple[str, ...]
    checks: tuple[DoctorCheckDocument, ...] = ()
    time: float = 0.0
    skew: float = 0.0

    @classmethod
    def unusable(cls, name: str, problem: str) -> MachineDocument:
        """A machine that cannot be used, and why."""
        return cls(
            name=name,
            version="",
            machine_class="",
            devices=(),
            slots=(),
            leased=(),
            problem=problem,
            environments=(),
        )


@dataclass(frozen=True)
class JobSlots:
    """The slots of a job, all of one machine class, and a plan's notes on them.

    ``machines``: those of a fleet that they are on.
    """

    slots: tuple[Slot, ...] = ()
    machine_class: str = ""
    notes: tuple[str, ...] = ()
    machines: tuple[MachineDocument, ...] = ()


def choose_slots(machines: Sequence[MachineDocument], most: int | None = None) -> JobSlots:
    """The slots of the class that has most of them, at most so many; classes are never mixed.

    Raises:
        MachineError: no machine can be used.
    """
    usable = [machine for machine in machines if machine.slots]
    if not usable:
        problems = "; ".join(f"{machine.name}: {machine.problem or 'no slot'}" for machine in machines)
        raise MachineError(
            f"no machine of the fleet can be used: {problems or 'it has none'}",
            next_step="perfbisect doctor --fleet says what each machine lacks",
        )
    kinds = [
        [other for other in usable if is_same_class(machine.machine_class, other.machine_class)]
        for machine in usable
    ]
    chosen = max(kinds, key=lambda kind: sum(len(machine.slots) for machine in kind))
    left_out = [
        f"machine {machine.name} is not used: {machine.problem or f'another class, {machine.machine_class}'}"
        for machine in machines
        if machine not in chosen
    ]
    slots = tuple(slot_here(machine.name, slot) for machine in chosen for slot in machine.slots)[:most]
    used = {slot.machine for slot in slots}
    chosen = [machine for machine in chosen if machine.name in used]
    kind = chosen[0].machine_class
    measured = f"measured on {', '.join(machine.name for machine in chosen)}: {kind}"
    return JobSlots(slots, kind, (measured, *left_out), tuple(chosen))


def slot_here(machine: str, slot: Slot) -> Slot:
    """A slot of a machine as its fleet names it."""
    return replace(slot, name="/".join(filter(None, (machine, slot.name))), machine=machine)


class MachineForecastDocument(Document):
    """What a machine of a fleet will probably do: minutes of its slots, and of environments those it has.

    GPU minutes are those of the devices of its slots; building takes none. ``environments_missing``: those
    that may be copied there.
    """

    machine: str
    slots: int
    minutes_low: float
    minutes_high: float
    gpu_minutes_low: float
    gpu_minutes_high: float
    environments_there: int
    environments_missing: int


def forecast_machine(
    machine: MachineDocument, low: float, high: float, *, gpus: int, needed: Collection[str]
) -> MachineForecastDocument:
    """A machine that measures from ``low`` to ``high`` minutes; ``needed``: keys of environments."""
    there = len(set(needed) & set(machine.environments))
    return MachineForecastDocument(
        machine=machine.name,
        slots=len(machine.slots),
        minutes_low=low,
        minutes_high=high,
        gpu_minutes_low=low * gpus,
        gpu_minutes_high=high * gpus,
        environments_there=there,
        environments_missing=len(set(needed)) - there,
    )


def machine_rows(machines: Sequence[MachineForecastDocument]) -> Iterator[tuple[str, str]]:
    """A row for each machine in a plan for a person."""
    for row in machines:
        spent = f"{minutes(row.minutes_low)} to {minutes(row.minutes_high)} of {counted(row.slots, 'slot')}"
        gpus = f", {row.gpu_minutes_low:.0f} to {row.gpu_minutes_high:.0f} GPU minutes"
        missing = row.environments_missing
        copied = f", up to {missing} environments are copied there" if missing else ""
        yield "on", f"{row.machine}: {spent}{gpus if row.gpu_minutes_high else ''}{copied}"
