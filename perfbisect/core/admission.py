"""Sorting the results of one build: which are points, which are not, and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from perfbisect.core.point import Build, Fate, Point, Rejection

_ALIKE = 0.02
"""By how much, relatively, the tokens of a request differ between two runs of one workload."""

_TOKENS = ("input_tokens",)
"""What a workload fixes, whoever answers it."""


@dataclass(frozen=True)
class Place:
    """A file with one content: its ``name`` in ``build``. ``numbered``: a pipeline counts the build."""

    build: str
    name: str
    numbered: bool


def first_place(places: Iterable[Place]) -> Place:
    """Which of the places of one content counts: in a numbered build before elsewhere, else by name."""
    return min(places, key=lambda place: (not place.numbered, place.build, place.name))


def admit(points: Sequence[Point]) -> tuple[tuple[Point, ...], tuple[Rejection, ...]]:
    """The results of one build -> its points with their night and server start, and what is none.

    Several results of one cell: the last of equal ones counts, since a step that is run again replaces the
    first; where they are of unlike workloads neither does, since nothing tells which is which.
    """
    night = min((point.began for point in points), default="")[:10]
    by_cell: dict[str, list[Point]] = {}
    for point in sorted(points, key=lambda p: (p.began, p.raw, p.record)):
        by_cell.setdefault(point.cell, []).append(replace(point, night=night, start=_start(point)))
    admitted: list[Point] = []
    rejected: list[Rejection] = []
    for cell, found in by_cell.items():
        *earlier, last = found
        if earlier and last.build.source != "journal":
            unlike = next((p for p in earlier if not _alike(p, last)), None)
            if unlike is not None:
                rejected += [_rejection(p, "ambiguous", _two(unlike, last)) for p in found]
                continue
            rejected += [
                _rejection(p, "repeated", f"{cell} was measured again in this build: {last.raw}")
                for p in earlier
            ]
            found = [last]
        admitted += found
    return tuple(sorted(admitted, key=lambda p: (p.began, p.cell, p.raw))), tuple(rejected)


def _start(point: Point) -> str:
    """One server serves every workload of a test; that for text alone is another test of the same name."""
    if point.start:
        return point.start
    kind = "-text" if point.workload.only_text else ""
    return f"{point.build.key}/{point.workload.test}{kind}"


def _alike(a: Point, b: Point) -> bool:
    if a.workload != b.workload:
        return False
    for name in _TOKENS:
        left, right = a.covariates.get(name), b.covariates.get(name)
        if left and right and abs(left - right) > _ALIKE * max(left, right):
            return False
    return True


def _two(a: Point, b: Point) -> str:
    told = [
        f"{name} {a.covariates.get(name)} and {b.covariates.get(name)}"
        for name in _TOKENS
        if a.covariates.get(name) != b.covariates.get(name)
    ]
    told += ["model or backend"] if a.workload != b.workload else []
    return f"two workloads under one name, {a.raw} and {b.raw}: {', '.join(told)} differ"


def _rejection(point: Point, fate: Fate, reason: str) -> Rejection:
    return Rejection(point.build, fate, reason, point.raw, point.record, point.cell, point.night)


def unread(build: Build, fate: Fate, reason: str, raw: str, record: int = 0) -> Rejection:
    """A result of which nothing is known but why it is no point."""
    return Rejection(build, fate, reason, raw, record)
