"""What a comparison will probably take: from the noise that earlier launches showed. No verdict uses it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from perfbisect.compare.plan import ComparePlan
from perfbisect.jobs.estimates import learnt_noise
from perfbisect.model.attempt import Attempt
from perfbisect.stats import ab_test


@dataclass(frozen=True)
class Foreseen:
    """``blocks`` as likely as not enough, None: more than there are; ``told``: what it rests on."""

    blocks: int | None
    told: str


def foresee(plan: ComparePlan, earlier: Sequence[Attempt]) -> Foreseen:
    """From the noise of earlier launches of the cell."""
    learnt = learnt_noise(earlier, plan.ref)
    noise = math.hypot(learnt.launches, learnt.runs / math.sqrt(plan.runs))
    bounds = " (a claim's own bounds may take more)" if plan.expect else ""
    return Foreseen(
        ab_test.foreseen(plan.question(), noise), f"if nothing changed{bounds}; noise: {learnt.told}"
    )
