"""What a night measures, on which machine, the order of its launches, and its budget; pure functions.

Cells are taken shortest first, since the budget holds more of them. Their launches run in rounds, each in a
random order of its own, so that a machine that slows down within the night affects all cells alike. On a
fleet each machine has cells, an order and a budget of its own.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ConfigDict

from perfbisect.jobs.plans import MeasurementConfig, PlanPart, read_cell
from perfbisect.machine.slots import Slot
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from perfbisect.model.metric import MetricRef, parse_metric

_HOME_NIGHTS = 20
"""The last nights of a cell by which its machine is chosen: one that is back after a few has it again."""


@dataclass(frozen=True)
class ScheduledLaunch:
    """A launch of a cell, and its number among the cell's, from 1."""

    cell: str
    launch: int


class CellPlan(PlanPart):
    """A cell of a night; ``source``: its file (``FILE@c4-n40``); ``skip``: why it is not measured.

    ``machine``: of a fleet, on which it is measured; empty without a fleet, or where it can use none.
    ``slot``: of that machine, as it was when the night was planned. ``name``: the cell's, with the machine
    where each cell is measured on every one.
    """

    name: str
    source: str
    cell: dict[str, Any]
    digest: str
    metric: str
    launches: int
    runs: int
    launch_minutes: float
    forecast_basis: str
    skip: str = ""
    machine: str = ""
    slot: Slot | None = None

    @property
    def headline(self) -> MetricRef:
        return parse_metric(self.metric)

    @property
    def minutes(self) -> float:
        """Expected minutes of all launches."""
        return self.launches * self.launch_minutes

    @property
    def series(self) -> tuple[str, str]:
        """The cell and the machine whose series the night adds to."""
        return str(self.cell["name"]), self.machine

    @property
    def history_key(self) -> str:
        """What later nights know its measurements by."""
        return self.digest if self.name == self.cell["name"] else f"{self.digest} on {self.machine}"

    def on(self, machine: str, slot: Slot, name: str = "") -> CellPlan:
        """The same on a machine; ``name``: where it is one of several that measure it."""
        return self.model_copy(update={"machine": machine, "slot": slot, "name": name or self.name})

    def load(self) -> Cell:
        """Parse the cell; raises what :func:`read_cell` raises."""
        return read_cell(self.cell, self.digest)


class NightPlan(PlanPart):
    """What a night measures."""

    # A night that an earlier version began names groups of cells, too: it is resumed, cell by cell.
    model_config = ConfigDict(extra="ignore")

    verb: Literal["nightly"] = "nightly"
    name: str
    file: str
    branch: str
    commit: Change
    setting: MeasurementConfig
    seed: int
    budget: float
    cells: tuple[CellPlan, ...]
    notes: tuple[str, ...] = ()

    def cell(self, name: str) -> CellPlan:
        return next(cell for cell in self.cells if cell.name == name)

    @property
    def wanted(self) -> tuple[CellPlan, ...]:
        """The cells to measure."""
        return tuple(cell for cell in self.cells if not cell.skip)

    @property
    def machines(self) -> tuple[str, ...]:
        """The machines of a fleet that measure; one without a name: this one."""
        return tuple(dict.fromkeys(cell.machine for cell in self.wanted))

    def wanted_on(self, machine: str) -> tuple[CellPlan, ...]:
        return tuple(cell for cell in self.wanted if cell.machine == machine)

    def order_on(self, machine: str) -> tuple[ScheduledLaunch, ...]:
        return schedule_launches(self.wanted_on(machine), self.budget, self.seed)

    @property
    def order(self) -> tuple[ScheduledLaunch, ...]:
        """All launches, machine by machine."""
        return tuple(launch for machine in self.machines for launch in self.order_on(machine))

    def fitting(self) -> frozenset[str]:
        """The cells expected to fit the budget of their machine."""
        fits = [fit_to_budget(self.wanted_on(machine), self.budget)[0] for machine in self.machines]
        return frozenset(cell.name for cells in fits for cell in cells)

    @property
    def minutes(self) -> float:
        """Expected minutes of the cells that fit, of the machine with most of them."""
        fits = self.fitting()
        on_machines = (
            sum(cell.minutes for cell in self.wanted_on(machine) if cell.name in fits)
            for machine in self.machines
        )
        return max(on_machines, default=0.0)


def setting_key(setting: MeasurementConfig) -> str:
    """What must be equal for a measurement of a commit to count for another night."""
    return " ".join(filter(None, (setting.environment, setting.client, setting.constraints, setting.machine)))


@dataclass(frozen=True)
class CellMachines:
    """The machines of a fleet on which a cell can be measured: the ``slot`` of each.

    ``preferred``: those of the class that most of them have. ``left_out``: why, by the names of the others.
    """

    slots: Mapping[str, Slot] = field(default_factory=dict)
    preferred: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)


def find_home(nights: Sequence[str], among: Collection[str] | None = None) -> str:
    """The machine that a cell's series lives on: the one of most of its last nights, of equals the later.

    ``nights``: the machine of each, oldest first; ``among``: these only. Empty: none of them measured it.
    """
    recent = [machine for machine in nights[-_HOME_NIGHTS:] if among is None or machine in among]
    # Among equal counts max takes the first, which is the later machine.
    counts = Counter(recent[::-1])
    return max(counts, key=lambda machine: counts[machine], default="")


def assign_machines(
    cells: Sequence[CellPlan], machines: Mapping[str, CellMachines], nights: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """The machine of each cell: the one that its series lives on, else the one with least to do.

    ``machines``, ``nights``: by the name of the cell. A cell that no machine can measure is left out.
    """
    homes = {cell.name: find_home(nights.get(cell.name, ()), machines[cell.name].slots) for cell in cells}
    assigned = {name: home for name, home in homes.items() if home}
    load = Counter[str]()
    for cell in cells:
        load[homes[cell.name]] += round(60 * cell.minutes)
    for cell in sorted(cells, key=lambda cell: (-cell.minutes, cell.name)):
        if cell.name not in assigned and machines[cell.name].preferred:
            chosen = min(machines[cell.name].preferred, key=lambda machine: load[machine])
            assigned[cell.name] = chosen
            load[chosen] += round(60 * cell.minutes)
    return assigned


def fit_to_budget(
    cells: Sequence[CellPlan], budget: float
) -> tuple[tuple[CellPlan, ...], tuple[CellPlan, ...]]:
    """Split cells into those that fit the budget (minutes), shortest first, and the others."""
    ordered = sorted(cells, key=lambda cell: (cell.minutes, cell.name))
    spent, count = 0.0, 0
    while count < len(ordered) and spent + ordered[count].minutes <= budget:
        spent += ordered[count].minutes
        count += 1
    return tuple(ordered[:count]), tuple(ordered[count:])


def schedule_launches(cells: Sequence[CellPlan], budget: float, seed: int) -> tuple[ScheduledLaunch, ...]:
    """Order all launches: the fitting cells in rounds, then the excess ones, shortest first."""
    fitting, excess = fit_to_budget(cells, budget)
    launches: list[ScheduledLaunch] = []
    for number in range(1, max((cell.launches for cell in fitting), default=0) + 1):
        names = [cell.name for cell in fitting if cell.launches >= number]
        # A digest and no generator: what is drawn is the same in every version of Python.
        drawn = sorted(names, key=lambda name: hashlib.sha256(f"{seed} {number} {name}".encode()).digest())
        launches += [ScheduledLaunch(name, number) for name in drawn]
    for cell in excess:
        launches += [ScheduledLaunch(cell.name, number) for number in range(1, cell.launches + 1)]
    return tuple(launches)


def next_launch(
    order: Sequence[ScheduledLaunch],
    cells: Sequence[CellPlan],
    launches: Mapping[str, int],
    failed: Collection[str],
    spent: float,
    budget: float,
) -> ScheduledLaunch | None:
    """Choose the next launch; None when measuring is over.

    A cell starts only if all its launches are expected to fit beside the outstanding ones of the cells that
    have started. A started cell continues while minutes are left, so at most one launch exceeds the budget.
    ``launches``: completed ones of each cell.
    """
    outstanding = sum(
        max(cell.launches - launches[cell.name], 0) * cell.launch_minutes
        for cell in cells
        if launches.get(cell.name) and cell.name not in failed
    )
    minutes = {cell.name: cell.minutes for cell in cells}
    for scheduled in order:
        done = launches.get(scheduled.cell, 0)
        if scheduled.cell in failed or done >= scheduled.launch:
            continue
        if spent < budget if done else spent + outstanding + minutes[scheduled.cell] <= budget:
            return scheduled
    return None
