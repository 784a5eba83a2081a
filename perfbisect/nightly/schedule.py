"""Launch order and budget of a night; pure functions.

Groups are taken shortest first, since the budget holds more of them. Their launches run in rounds, each in a
random order of its own, so that a machine that slows down within the night affects all cells alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

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


def fit_to_budget(
    groups: Sequence[ScheduledGroup], budget: float
) -> tuple[tuple[ScheduledGroup, ...], tuple[ScheduledGroup, ...]]:
    """Split groups into those that fit the budget (minutes), shortest first, and the others."""
    fitting, excess, spent = list[ScheduledGroup](), list[ScheduledGroup](), 0.0
    for group in sorted(groups, key=lambda group: (group.total_minutes, group.cells)):
        if not excess and spent + group.total_minutes <= budget:
            fitting.append(group)
            spent += group.total_minutes
        else:
            excess.append(group)
    return tuple(fitting), tuple(excess)


def schedule_launches(
    groups: Sequence[ScheduledGroup], budget: float, seed: int
) -> tuple[ScheduledLaunch, ...]:
    """Order all launches: the fitting groups in rounds, then the excess ones, shortest first."""
    fitting, excess = fit_to_budget(groups, budget)
    rounds = range(1, max((group.launches for group in fitting), default=0) + 1)
    in_rounds = [
        _schedule(group, launch, seed)
        for launch in rounds
        for group in _shuffled((group for group in fitting if group.launches >= launch), seed, launch)
    ]
    afterwards = [
        _schedule(group, launch, seed) for group in excess for launch in range(1, group.launches + 1)
    ]
    return (*in_rounds, *afterwards)


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
    group_of = {cell: group for group in groups for cell in group.cells}
    outstanding = sum(
        _missing_launches(group, launches, failed) * group.launch_minutes
        for group in groups
        if _has_started(group, launches)
    )
    for scheduled in order:
        cells = tuple(
            cell
            for cell in scheduled.cells
            if cell not in failed and launches.get(cell, 0) < scheduled.launch
        )
        if not cells:
            continue
        group = group_of[cells[0]]
        if _has_started(group, launches):
            fits = spent < budget
        else:
            fits = spent + outstanding + group.total_minutes <= budget
        if fits:
            return ScheduledLaunch(cells, scheduled.launch)
    return None


def derive_seed(*words: str) -> int:
    """Hash the identity of a night, so that repeating it draws the same order."""
    return int(hashlib.sha256("\0".join(words).encode()).hexdigest()[:8], 16)


def _has_started(group: ScheduledGroup, launches: Mapping[str, int]) -> bool:
    return any(launches.get(cell, 0) for cell in group.cells)


def _missing_launches(group: ScheduledGroup, launches: Mapping[str, int], failed: Collection[str]) -> int:
    missing = (group.launches - launches.get(cell, 0) for cell in group.cells if cell not in failed)
    return max(missing, default=0)


def _schedule(group: ScheduledGroup, launch: int, seed: int) -> ScheduledLaunch:
    cells = group.cells if group.ordered else tuple(_shuffled(group.cells, seed, launch))
    return ScheduledLaunch(cells, launch)


def _shuffled(items: Iterable[_Item], seed: int, launch: int) -> list[_Item]:
    def draw(item: _Item) -> bytes:
        name = "\0".join(item.cells) if isinstance(item, ScheduledGroup) else str(item)
        return hashlib.sha256(f"{seed} {launch} {name}".encode()).digest()

    return sorted(items, key=draw)
