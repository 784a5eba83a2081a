"""What each machine of a fleet will probably do: for ``--dry-run``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from perfbisect.common.quantities import counted, minutes
from perfbisect.fleet.bundle import MachineDocument
from perfbisect.jobs.documents import Document


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
