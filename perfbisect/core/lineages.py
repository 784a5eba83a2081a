"""Points of a cell -> its lineages, one for each kind of machine that measured it: two are not comparable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from perfbisect.core.point import Point

ON = " on "
"""Between the name of a cell and the kind of machine, of every kind but the first."""


def lineages(points: Sequence[Point]) -> Iterator[tuple[str, tuple[Point, ...]]]:
    """The points of one cell by kind of machine, with the name of each: ``qwen3_tts@c4-n40 on H100``.

    The kind that measured first keeps the cell's own name, so that what was told of it stays when another
    comes. Points that do not say their machine count with it.
    """
    ordered = sorted(points, key=_place)
    if not ordered:
        return
    kinds = dict.fromkeys(filter(None, map(kind_of, ordered)))
    first = next(iter(kinds), "")
    for kind in kinds or {"": None}:
        own = tuple(point for point in ordered if (kind_of(point) or first) == kind)
        yield (own[0].cell if kind == first else f"{own[0].cell}{ON}{kind}"), own


@dataclass(frozen=True)
class Beginning:
    """A lineage begins beside the cell's first: ``first`` is measured on a kind of machine that had measured
    none of its points, ``before`` is the last one that says its kind."""

    lineage: str
    first: Point
    before: Point

    @property
    def what(self) -> str:
        """What the two kinds do not share: ``driver 550.54 -> driver 560.28``."""
        before, after = (kind_of(point).split(", ") for point in (self.before, self.first))
        gone, come = [x for x in before if x not in after], [x for x in after if x not in before]
        return f"{', '.join(gone or before)} -> {', '.join(come or after)}"


def beginnings(points: Iterable[Point]) -> Iterator[Beginning]:
    """Where another kind of machine began to measure a cell: an update of the driver makes one too."""
    for _, group in groupby(sorted(points, key=_place), key=lambda point: point.cell):
        known: set[str] = set()
        last: Point | None = None
        for point in filter(kind_of, group):
            kind = kind_of(point)
            if last is not None and kind not in known:
                yield Beginning(f"{point.cell}{ON}{kind}", point, last)
            known.add(kind)
            last = point


def _place(point: Point) -> tuple[str, str, str, int]:
    return point.cell, point.began, point.raw, point.record


def kind_of(point: Point) -> str:
    """The kind of machine as the source calls it; empty where it does not say."""
    return str(point.covariates.get("hardware") or "")


def cell_of(lineage: str) -> str:
    """The cell of a lineage's name."""
    return lineage.partition(ON)[0]
