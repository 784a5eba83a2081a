"""Sorting the results of one build: which are points, which are not, and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from perfbisect.core.point import Fate, Point, Rejection

_UNLIKE = 2.0
"""How many times longer prompts are those of another workload: one that draws them anew varies by less."""


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

    Several results of one cell: the last of like ones counts, since a step that is run again replaces the
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
    left, right = _prompt(a), _prompt(b)
    return a.workload == b.workload and not (left and right and max(left, right) > _UNLIKE * min(left, right))


def _prompt(point: Point) -> float:
    """Tokens of a prompt, the mean; 0 where it is not known."""
    return float(point.covariates.get("input_tokens") or 0)


def _two(a: Point, b: Point) -> str:
    other = a.workload != b.workload
    what = "models or backends differ" if other else f"prompts of {_prompt(a):g} and {_prompt(b):g} tokens"
    return f"two workloads under one name, {a.raw} and {b.raw}: {what}"


def _rejection(point: Point, fate: Fate, reason: str) -> Rejection:
    return Rejection(point.build, fate, reason, point.raw, point.record, point.cell, point.night)
