"""What a night measures, in which order, and when it stops: pure functions of its plan and of what was done.

The shortest cells are chosen first, for the budget holds more of them. Those that are chosen run round by
round, every round in an order of its own that the seed draws: the launches of one cell lie far apart, and a
machine that slows down in the night slows no cell alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from perfbisect.errors import (
    EXIT_INCONCLUSIVE,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_OURS,
    EXIT_OUTSIDE,
    EXIT_REGRESSION,
    EXIT_USAGE,
)

_Item = TypeVar("_Item")

WORST = (
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    EXIT_REGRESSION,
    EXIT_OUTSIDE,
    EXIT_OURS,
    EXIT_INCONCLUSIVE,
    EXIT_OK,
)
"""Exit codes of findings, the worst first."""


@dataclass(frozen=True)
class Group:
    """Cells that one launch measures: one, or those of a suite.

    ``launches``: how many they have; ``each``: minutes that one is expected to take. ``ordered``: the cells
    keep the order in which they stand here; else every launch draws one.
    """

    cells: tuple[str, ...]
    launches: int
    each: float
    ordered: bool = False

    @property
    def whole(self) -> float:
        """Minutes of all its launches."""
        return self.launches * self.each


@dataclass(frozen=True)
class Sitting:
    """One launch: the cells that it measures, in their order, and which launch of theirs it is, from 1."""

    cells: tuple[str, ...]
    launch: int


def chosen(groups: Sequence[Group], budget: float) -> tuple[tuple[Group, ...], tuple[Group, ...]]:
    """The groups whose launches fit into so many minutes, the shortest first; and those that do not."""
    taken, left, spent = list[Group](), list[Group](), 0.0
    for group in sorted(groups, key=lambda one: (one.whole, one.cells)):
        fits = not left and spent + group.whole <= budget
        (taken if fits else left).append(group)
        spent += group.whole if fits else 0.0
    return tuple(taken), tuple(left)


def sittings(groups: Sequence[Group], budget: float, seed: int) -> tuple[Sitting, ...]:
    """Every launch in its order: the chosen round by round, then the others, the shortest first, should there
    be minutes left after all."""
    taken, left = chosen(groups, budget)
    rounds = range(1, max((group.launches for group in taken), default=0) + 1)
    first = [
        _sitting(group, launch, seed)
        for launch in rounds
        for group in _drawn((one for one in taken if one.launches >= launch), seed, launch)
    ]
    rest = [_sitting(group, launch, seed) for group in left for launch in range(1, group.launches + 1)]
    return (*first, *rest)


def next_sitting(
    order: Sequence[Sitting],
    groups: Sequence[Group],
    done: Mapping[str, int],
    out: Collection[str],
    spent: float,
    budget: float,
) -> Sitting | None:
    """The launch that comes next; None where the night's measuring is over.

    A group is begun only if all its launches probably fit beside those that are owed to the groups that were
    begun; what was begun goes on while there are minutes, so that the budget is overrun by one launch at
    most. ``done``: launches that each cell has; ``out``: cells that failed. ``spent``: minutes so far.
    """
    of = {cell: group for group in groups for cell in group.cells}
    owed = sum(_owed(group, done, out) * group.each for group in groups if _begun(group, done))
    for sitting in order:
        cells = tuple(c for c in sitting.cells if c not in out and done.get(c, 0) < sitting.launch)
        if not cells:
            continue
        group = of[cells[0]]
        fits = spent < budget if _begun(group, done) else spent + owed + group.whole <= budget
        if fits:
            return Sitting(cells, sitting.launch)
    return None


def worst(codes: Iterable[int]) -> int:
    """The exit code of the worst finding. :raises ValueError: one that is none of :data:`WORST`."""
    return min(codes, key=WORST.index, default=EXIT_OK)


def seed_of(*words: str) -> int:
    """The seed of a night, from what it is: the same night draws the same order."""
    return int(hashlib.sha256("\0".join(words).encode()).hexdigest()[:8], 16)


def _begun(group: Group, done: Mapping[str, int]) -> bool:
    return any(done.get(cell, 0) for cell in group.cells)


def _owed(group: Group, done: Mapping[str, int], out: Collection[str]) -> int:
    return max((group.launches - done.get(cell, 0) for cell in group.cells if cell not in out), default=0)


def _sitting(group: Group, launch: int, seed: int) -> Sitting:
    cells = group.cells if group.ordered else tuple(_drawn(group.cells, seed, launch))
    return Sitting(cells, launch)


def _drawn(items: Iterable[_Item], seed: int, launch: int) -> list[_Item]:
    """In an order that the seed draws."""
    return sorted(items, key=lambda item: hashlib.sha256(f"{seed} {launch} {_text(item)}".encode()).digest())


def _text(item: object) -> str:
    return "\0".join(item.cells) if isinstance(item, Group) else str(item)
