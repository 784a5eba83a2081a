"""Points of a cell -> its lineages, one for each kind of machine that measured it: two are not comparable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfbisect.core.point import Point

ON = " on "
"""Between the name of a cell and the kind of machine, of every kind but the first."""


def lineages(points: Sequence[Point]) -> Iterator[tuple[str, tuple[Point, ...]]]:
    """The points of one cell by kind of machine, with the name of each: ``qwen3_tts@c4-n40 on H100``.

    The kind that measured first keeps the cell's own name, so that what was told of it stays when another
    comes. Points that do not say their machine count with it.
    """
    ordered = sorted(points, key=lambda point: (point.began, point.raw, point.record))
    if not ordered:
        return
    kinds = dict.fromkeys(filter(None, map(kind_of, ordered)))
    first = next(iter(kinds), "")
    for kind in kinds or {"": None}:
        own = tuple(point for point in ordered if (kind_of(point) or first) == kind)
        yield (own[0].cell if kind == first else f"{own[0].cell}{ON}{kind}"), own


def kind_of(point: Point) -> str:
    """The kind of machine as the source calls it; empty where it does not say."""
    return str(point.covariates.get("hardware") or "")


def cell_of(lineage: str) -> str:
    """The cell of a lineage's name."""
    return lineage.partition(ON)[0]
