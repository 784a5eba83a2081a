"""What a report's launches say beside each other: levels on both sides of a step, A/B pairs, times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from perfbisect.core.compare import side_levels
from perfbisect.render.documents import LaunchDocument, ReportDocument


@dataclass(frozen=True)
class Level:
    """Positions ``first`` to ``last`` measure alike: the median of their launches."""

    first: int
    last: int
    value: float


def steps(report: ReportDocument) -> tuple[tuple[int, int], ...]:
    """Where the metric moves: the first and last position of each set of culprits, in the history's order."""
    named = [step.culprits for step in report.steps]
    if not named and report.outcome == "found":
        named = [report.culprits]
    return tuple(sorted((culprits[0].index, culprits[-1].index) for culprits in named if culprits))


def levels(report: ReportDocument) -> tuple[Level, ...]:
    """A level between each two steps; without a step those of the two ends alone."""
    last = report.positions - 1
    moves = steps(report)
    if moves:
        starts = [0, *(stop for _, stop in moves)]
        stops = [*(start - 1 for start, _ in moves), last]
    else:
        starts, stops = [0, last], [0, last]
    out = []
    for start, stop in zip(starts, stops, strict=True):
        values = [x.value for x in report.launches if start <= x.position <= stop and x.value is not None]
        if values:
            out.append(Level(start, stop, median(values)))
    return tuple(out)


def pair_levels(found: Sequence[tuple[LaunchDocument, LaunchDocument]], effect: float) -> tuple[float, float]:
    """The levels of parent and culprit, as far apart as the effect of their A/B."""
    left, right = ([math.log(x.value) for x in side if x.value] for side in zip(*found, strict=True))
    a, b = side_levels(left, right, math.log1p(effect))
    return math.exp(a), math.exp(b)


def pairs(report: ReportDocument) -> tuple[tuple[LaunchDocument, LaunchDocument], ...]:
    """The confirming A/B's launches, parent's and culprit's, as they followed each other on one slot."""
    if report.confirmed is None:
        return ()
    sides = (report.confirmed.left.id, report.confirmed.right.id)
    waiting: dict[str, LaunchDocument] = {}
    out = []
    for launch in report.launches:
        if launch.purpose != "confirm" or launch.value is None or launch.change.id not in sides:
            continue
        before = waiting.get(launch.slot)
        if before is None or before.change.id == launch.change.id:
            waiting[launch.slot] = launch
            continue
        del waiting[launch.slot]
        out.append((before, launch) if before.change.id == sides[0] else (launch, before))
    return tuple(out)


def times(launches: Sequence[LaunchDocument]) -> tuple[float, ...]:
    """Minutes from the first launch to each: as told, else by the clock, else one after the other."""
    told = [launch.at for launch in launches]
    known = [at for at in told if at is not None]
    if len(known) == len(told):
        return tuple(known)
    try:
        clock = [datetime.fromisoformat(launch.started_at).timestamp() / 60 for launch in launches]
    except ValueError:
        clock = []
    if clock and len(set(clock)) == len(clock):
        return tuple(moment - clock[0] for moment in clock)
    out, spent = [], 0.0
    for launch in launches:
        out.append(spent)
        spent += launch.minutes
    return tuple(out)
