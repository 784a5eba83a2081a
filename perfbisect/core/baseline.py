"""A new baseline of a cell, by the rule of vLLM-Omni's maintainers (#5231, #6201).

The plain mean of seven days replaces the old baseline unless it is worse by more than 7 %: a regression is
not absorbed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from statistics import stdev
from typing import Literal

DAYS = 7
TOLERATED = 0.07
"""By how much worse a mean may be, as a share of the old baseline; also its largest relative error."""
LEAST = 4
"""Nights, of seven, without which there is no baseline."""

Status = Literal["better", "same", "worse, tolerated", "kept", "too few", "new", "skipped"]


@dataclass(frozen=True)
class Proposal:
    """``change``: of the mean against the old baseline, as a share. None: there was none."""

    mean: float | None
    new: float | None
    change: float | None
    status: Status
    why: str = ""


def propose(
    old: float | None, values: Sequence[float], *, sign: int, smallest: float, skip: str = ""
) -> Proposal:
    """``values``: one a night. ``sign``: +1 where larger is worse. ``smallest``: the smallest relevant
    effect, as a share. ``skip``: why there is no baseline of these nights."""
    count = len(values)
    mean = fsum(values) / count if values else None
    change = mean / old - 1 if mean is not None and old else None
    if skip:
        return Proposal(mean, old, change, "skipped", skip)
    if mean is None or count < LEAST:
        return Proposal(mean, old, change, "too few", f"{count} of {DAYS} nights, {LEAST} needed")
    if stdev(values) / sqrt(count) > TOLERATED * abs(mean):
        why = f"the nights are not one level: {min(values):.6g} to {max(values):.6g}"
        return Proposal(mean, old, change, "skipped" if old is None else "kept", why)
    if change is None:
        return Proposal(mean, mean, None, "new")
    if sign * change > TOLERATED:
        why = f"worse by {abs(change):.1%}: a regression is not absorbed"
        return Proposal(mean, old, change, "kept", why)
    if abs(change) < smallest:
        return Proposal(mean, mean, change, "same")
    return Proposal(mean, mean, change, "better" if sign * change < 0 else "worse, tolerated")
