"""What a comparison will probably take: from the noise that earlier launches showed. No verdict uses it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from perfbisect.core import compare
from perfbisect.core.attempt import Attempt
from perfbisect.jobs.compare_plan import ComparePlan
from perfbisect.jobs.expect import learnt_noise
from perfbisect.jobs.imports import Imported
from perfbisect.jobs.sides import SIDES

_LEAST = 3
"""Degrees of freedom from which on imported launches tell their noise themselves."""


@dataclass(frozen=True)
class Foreseen:
    """``blocks`` as likely as not enough, None: more than there are; ``told``: what it rests on."""

    blocks: int | None
    told: str


def foresee(plan: ComparePlan, imported: Sequence[Imported], earlier: Sequence[Attempt]) -> Foreseen:
    """From the imported launches of the sides; else from the noise of earlier launches of the cell."""
    levels = {side: _levels(plan, [x.attempt for x in imported if x.side == side]) for side in SIDES}
    free = sum(max(0, len(known) - 1) for known in levels.values())
    if free >= _LEAST:
        squares = sum((x - fmean(known)) ** 2 for known in levels.values() for x in known)
        noise = math.sqrt(squares / free)
        count = sum(map(len, levels.values()))
        told = f"{noise * 100:.1f} % between launches of a side, from {count} imported ones"
    else:
        learnt = learnt_noise(earlier, plan.ref)
        noise, told = math.hypot(learnt.launches, learnt.runs / math.sqrt(plan.runs)), learnt.told
    step = fmean(levels["b"]) - fmean(levels["a"]) if all(levels.values()) else 0.0
    what = f"at {math.expm1(step) * 100:+.1f} % as they have it" if step else "if nothing changed"
    what += " (a claim's own bounds may take more)" if plan.expect else ""
    return Foreseen(compare.foreseen(plan.question(), noise, step), f"{what}; noise: {told}")


def _levels(plan: ComparePlan, attempts: Sequence[Attempt]) -> list[float]:
    """Log values of the launches that report the headline."""
    found = []
    for attempt in attempts:
        try:
            found.append(attempt.log_value(plan.ref))
        except (KeyError, ValueError):
            continue
    return found
