"""What a night measures, the order of its launches, and its budget; pure functions.

Groups of cells are taken shortest first, since the budget holds more of them. Their launches run in rounds,
each in a random order of its own, so that a machine that slows down within the night affects all cells alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from perfbisect.jobs.plans import MeasurementConfig, PlanPart, read_cell
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from perfbisect.model.metric import MetricRef, parse_metric

_Item = TypeVar("_Item")


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
    """A cell of a night; ``source``: its file (``FILE@c4-n40``); ``skip``: why it is not measured."""

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

    @property
    def headline(self) -> MetricRef:
        return parse_metric(self.metric)

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

    @property
    def wanted(self) -> tuple[CellPlan, ...]:
        """The cells to measure."""
        return tuple(cell for cell in self.cells if not cell.skip)

    @property
    def setting_key(self) -> str:
        return setting_key(self.setting)

    def launch_groups(self, launch_minutes: Mapping[str, float] | None = None) -> tuple[ScheduledGroup, ...]:
        """The wanted groups; ``launch_minutes`` by cell replaces the forecast."""
        known, wanted = launch_minutes or {}, {cell.name: cell for cell in self.wanted}
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

    @property
    def order(self) -> tuple[ScheduledLaunch, ...]:
        return schedule_launches(self.launch_groups(), self.budget, self.seed)

    def fitting(self) -> frozenset[str]:
        """The cells expected to fit the budget."""
        groups, _ = fit_to_budget(self.launch_groups(), self.budget)
        return frozenset(name for group in groups for name in group.cells)


def setting_key(setting: MeasurementConfig) -> str:
    """What must be equal for a measurement of a commit to count for another night."""
    return " ".join(filter(None, (setting.environment, setting.client, setting.constraints, setting.machine)))


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
