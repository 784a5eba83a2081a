"""A new baseline of a cell: the mean of its last nights, and whether it may take the place of the old one.

The rule is the one by which vLLM-Omni's maintainers do it by hand (#5231, #6201): the plain mean of seven
days; it replaces the old baseline where it is as good or better, or worse by no more than 7 %; what got worse
by more keeps its baseline, or the regression would be absorbed; with too few nights nothing is changed. Nor
is it where one wild night makes the mean: that lies further from the median than what is tolerated; or where
the nights differ so much that the mean is not known to what is tolerated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from statistics import median, stdev
from typing import Literal

DAYS = 7
TOLERATED = 0.07
"""By how much worse a mean may be, as a share of the old baseline, and still become the new one."""
LEAST = 4
"""Nights, of seven, without which a mean is none."""

Status = Literal["better", "same", "worse, tolerated", "kept", "too few", "new", "skipped"]


@dataclass(frozen=True)
class Proposal:
    """``old`` None: there was none. ``mean`` None: no night. ``change``: of the mean against the old, as a
    share. ``nights``: how many have a value. ``why``: in words, where something is kept or left."""

    old: float | None
    mean: float | None
    new: float | None
    nights: int
    status: Status
    change: float | None = None
    why: str = ""


def propose(
    old: float | None,
    values: Sequence[float],
    *,
    sign: int,
    smallest: float,
    days: int = DAYS,
    skip: str = "",
) -> Proposal:
    """A value a night, of the last ``days`` days. ``sign`` +1 where larger is worse; ``smallest``: the
    smallest effect worth telling, as a share; ``skip``: why this one is not to be touched."""
    nights = len(values)
    mean = fsum(values) / nights if nights else None
    change = None if mean is None or not old else mean / old - 1
    if skip:
        return Proposal(old, mean, old, nights, "skipped", change, skip)
    least = -(-LEAST * days // DAYS)
    if mean is None or nights < least:
        return Proposal(
            old, mean, old, nights, "too few", change, f"{nights} of {days} nights, {least} needed"
        )
    middle = median(values)
    if abs(mean - middle) > TOLERATED * abs(middle):
        return _kept(old, mean, nights, change, f"one night makes the mean: their median is {middle:.6g}")
    if nights > 1 and stdev(values) / sqrt(nights) > TOLERATED * abs(mean):
        why = f"the nights are no level: {min(values):.6g} to {max(values):.6g}"
        return _kept(old, mean, nights, change, why)
    if change is None:
        return Proposal(old, mean, mean, nights, "new")
    worse = sign * change
    if worse > TOLERATED:
        return _kept(old, mean, nights, change, f"worse by {abs(change):.1%}: a regression is not absorbed")
    status: Status = "same" if abs(change) < smallest else "better" if worse < 0 else "worse, tolerated"
    return Proposal(old, mean, mean, nights, status, change)


def _kept(old: float | None, mean: float, nights: int, change: float | None, why: str) -> Proposal:
    """Where there is nothing to keep it is none."""
    return Proposal(old, mean, old, nights, "skipped" if old is None else "kept", change, why)
