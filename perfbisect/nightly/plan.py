"""What a night measures, on which machine, the order of its launches, and its budget; pure functions.

Groups of cells are taken shortest first, since the budget holds more of them. Their launches run in rounds,
each in a random order of its own, so that a machine that slows down within the night affects all cells alike.
On a fleet each machine has groups, an order and a budget of its own.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from perfbisect.jobs.plans import MeasurementConfig, PlanPart, read_cell
from perfbisect.machine.slots import Slot
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from perfbisect.model.metric import MetricRef, parse_metric

_Item = TypeVar("_Item")

_HOME_NIGHTS = 20
"""The last nights of a cell by which its machine is chosen: one that is back after a few has it again."""


@dataclass(frozen=True)
class ScheduledGroup:
    """Cells measured by the same server launch: one, or several that share a server.

    ``launches``: how many are wanted, each expected to take ``launch_minutes``. ``ordered``: the cells keep
    this order; otherwise each launch shuffles them.
    """

    cells: tuple[str, ...]
    launches: int
    launch_minutes: float
    ordered: bool = False

    @property
    def total_minutes(self) -> float:
        """Expected minutes of all launches."""
        return self.launches * self.launch_minutes


@dataclass(frozen=True)
class ScheduledLaunch:
    """The cells of one launch, in order, and its number among theirs, from 1."""

    cells: tuple[str, ...]
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
    """What a night measures; ``groups``: cells of one server, ``ordered``: in that order."""

    verb: Literal["nightly"] = "nightly"
    name: str
    file: str
    branch: str
    commit: Change
    setting: MeasurementConfig
    seed: int
    budget: float
    cells: tuple[CellPlan, ...]
    groups: tuple[tuple[str, ...], ...]
    ordered: bool = False
    notes: tuple[str, ...] = ()

    def cell(self, name: str) -> CellPlan:
        return next(cell for cell in self.cells if cell.name == name)

    def group_of(self, cell: str) -> tuple[str, ...]:
        """The cells that share their launches with a cell, itself among them."""
        return next(names for names in self.groups if cell in names)

    @property
    def wanted(self) -> tuple[CellPlan, ...]:
        """The cells to measure."""
        return tuple(cell for cell in self.cells if not cell.skip)

    @property
    def machines(self) -> tuple[str, ...]:
        """The machines of a fleet that measure; one without a name: this one."""
        return tuple(dict.fromkeys(cell.machine for cell in self.wanted))

    def groups_on(
        self, machine: str, launch_minutes: Mapping[str, float] | None = None
    ) -> tuple[ScheduledGroup, ...]:
        """The wanted groups of a machine; ``launch_minutes`` by cell replaces the forecast."""
        known = launch_minutes or {}
        wanted = {cell.name: cell for cell in self.wanted if cell.machine == machine}
        groups = [[wanted[name] for name in names if name in wanted] for names in self.groups]
        return tuple(
            ScheduledGroup(
                cells=tuple(cell.name for cell in cells),
                launches=max(cell.launches for cell in cells),
                launch_minutes=sum(known.get(cell.name, cell.launch_minutes) for cell in cells),
                ordered=self.ordered,
            )
            for cells in groups
            if cells
        )

    def order_on(self, machine: str) -> tuple[ScheduledLaunch, ...]:
        return schedule_launches(self.groups_on(machine), self.budget, self.seed)

    @property
    def order(self) -> tuple[ScheduledLaunch, ...]:
        """All launches, machine by machine."""
        return tuple(launch for machine in self.machines for launch in self.order_on(machine))

    def fitting(self) -> frozenset[str]:
        """The cells expected to fit the budget of their machine."""
        fits = [fit_to_budget(self.groups_on(machine), self.budget)[0] for machine in self.machines]
        return frozenset(name for groups in fits for group in groups for name in group.cells)

    @property
    def minutes(self) -> float:
        """Expected minutes of the cells that fit, of the machine with most of them."""
        fits = self.fitting()
        planned = [cell for cell in self.wanted if cell.name in fits]
        on_machines = (
            sum(cell.minutes for cell in planned if cell.machine == machine) for machine in self.machines
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
    counts = Counter(recent[::-1])  # of equal counts the first is taken
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
    groups: Sequence[ScheduledGroup], budget: float
) -> tuple[tuple[ScheduledGroup, ...], tuple[ScheduledGroup, ...]]:
    """Split groups into those that fit the budget (minutes), shortest first, and the others."""
    ordered = sorted(groups, key=lambda group: (group.total_minutes, group.cells))
    spent, count = 0.0, 0
    while count < len(ordered) and spent + ordered[count].total_minutes <= budget:
        spent += ordered[count].total_minutes
        count += 1
    return tuple(ordered[:count]), tuple(ordered[count:])


def schedule_launches(
    groups: Sequence[ScheduledGroup], budget: float, seed: int
) -> tuple[ScheduledLaunch, ...]:
    """Order all launches: the fitting groups in rounds, then the excess ones, shortest first."""
    fitting, excess = fit_to_budget(groups, budget)
    launches: list[ScheduledLaunch] = []
    for number in range(1, max((group.launches for group in fitting), default=0) + 1):
        wanted = [group for group in fitting if group.launches >= number]
        drawn = _shuffled(wanted, seed, number, lambda group: "\0".join(group.cells))
        launches += [_schedule(group, number, seed) for group in drawn]
    for group in excess:
        launches += [_schedule(group, number, seed) for number in range(1, group.launches + 1)]
    return tuple(launches)


def next_launch(
    order: Sequence[ScheduledLaunch],
    groups: Sequence[ScheduledGroup],
    launches: Mapping[str, int],
    failed: Collection[str],
    spent: float,
    budget: float,
) -> ScheduledLaunch | None:
    """Choose the next launch; None when measuring is over.

    A group starts only if all its launches are expected to fit beside the outstanding ones of the groups that
    have started. A started group continues while minutes are left, so at most one launch exceeds the budget.
    ``launches``: completed ones of each cell.
    """

    def has_started(group: ScheduledGroup) -> bool:
        return any(launches.get(cell, 0) for cell in group.cells)

    def missing_launches(group: ScheduledGroup) -> int:
        left = (group.launches - launches.get(cell, 0) for cell in group.cells if cell not in failed)
        return max(left, default=0)

    group_of = {cell: group for group in groups for cell in group.cells}
    started = [group for group in groups if has_started(group)]
    outstanding = sum(missing_launches(group) * group.launch_minutes for group in started)
    for scheduled in order:
        open_cells = [cell for cell in scheduled.cells if cell not in failed]
        cells = tuple(cell for cell in open_cells if launches.get(cell, 0) < scheduled.launch)
        if not cells:
            continue
        group = group_of[cells[0]]
        needed = spent + outstanding + group.total_minutes
        if spent < budget if has_started(group) else needed <= budget:
            return ScheduledLaunch(cells, scheduled.launch)
    return None


def derive_seed(*words: str) -> int:
    """Hash the identity of a night, so that repeating it draws the same order."""
    return int(hashlib.sha256("\0".join(words).encode()).hexdigest()[:8], 16)


def _schedule(group: ScheduledGroup, launch: int, seed: int) -> ScheduledLaunch:
    cells = group.cells if group.ordered else tuple(_shuffled(group.cells, seed, launch, str))
    return ScheduledLaunch(cells, launch)


def _shuffled(items: Iterable[_Item], seed: int, launch: int, name: Callable[[_Item], str]) -> list[_Item]:
    def draw(item: _Item) -> bytes:
        return hashlib.sha256(f"{seed} {launch} {name(item)}".encode()).digest()

    return sorted(items, key=draw)
