"""What a bisection will probably take, and what it can see: told before anything starts."""

from __future__ import annotations

import math

from perfbisect.jobs.bisect_plan import BisectPlan
from perfbisect.jobs.learnt import Noise
from perfbisect.render.documents import ExpectedDocument

SIDES = (2, 4, 10)
_SEEN = 1.96 + 0.84
"""Standard errors of a difference that is seen at 5 % in four cases of five."""


def expected(plan: BisectPlan, noise: Noise) -> ExpectedDocument:
    """Launches and minutes, from a large step to one near the noise; the step that launches resolve."""
    testable = sum(not position.skip for position in plan.positions)
    unbuilt = sum(not (position.skip or position.cached) for position in plan.positions)
    low = 4 + math.ceil(math.log2(max(2, testable - 1)))
    high = 3 * low
    runs = min(2, plan.max_runs)
    each = plan.costs.launch + runs * plan.costs.run
    builds = min(unbuilt, low) * plan.costs.build
    error = math.sqrt(noise.launches**2 + noise.runs**2 / runs)
    return ExpectedDocument(
        launches_low=low,
        launches_high=high,
        minutes_low=low * each + builds,
        minutes_high=high * each + min(unbuilt, high) * plan.costs.build,
        resolves=tuple((k, math.expm1(_SEEN * error * math.sqrt(2 / k))) for k in SIDES),
        noise=noise.told,
    )
