"""A plan as a document, and what earlier jobs taught about the cell."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

from perfbisect.bisect.documents import ExpectedDocument, PlanDocument, SkipDocument, position_document
from perfbisect.bisect.plan import BisectPlan
from perfbisect.bisect.revert import BLOCKS
from perfbisect.environments.base import Builder
from perfbisect.errors import MachineError
from perfbisect.jobs.commands import commands_document
from perfbisect.jobs.documents import cell_document, change_document, metric_document
from perfbisect.jobs.estimates import Noise
from perfbisect.jobs.plans import plan_cell

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
        noise=noise.source,
    )


def plan_document(plan: BisectPlan, noise: Noise) -> PlanDocument:
    """What will be done, what it will take, and with which commands."""
    cell, ends = plan_cell(plan), (plan.positions[0].changes[0], plan.positions[-1].changes[-1])
    good, bad = ends if plan.extras.direction == "regression" else (ends[1], ends[0])
    return PlanDocument(
        cell=cell_document(cell, plan.ref),
        metric=metric_document(plan.ref),
        repository=plan.setting.repository,
        environment=plan.setting.environment,
        client=plan.setting.instrument,
        good=change_document(good),
        bad=change_document(bad),
        changes=sum(len(position.changes) for position in plan.positions),
        positions=tuple(position_document(i, p) for i, p in enumerate(plan.positions)),
        skips=tuple(
            SkipDocument(change=change_document(p.change), reason=p.skip, known="before")
            for p in plan.positions
            if p.skip
        ),
        runs_per_launch=plan.max_runs,
        budget_minutes=plan.budget,
        expected=expected(plan, noise),
        commands=commands_document(cell, plan.setting, good, None),
        notes=(*plan.notes, *_extra_costs(plan)),
    )


def check_disk(shown: PlanDocument, plan: BisectPlan, builder: Builder) -> PlanDocument:
    """The plan, with what building will take of the disk.

    :raises MachineError: there is not room for the environments of the shortest search.
    """
    missing = [p.change for p in plan.positions if not (p.skip or p.cached)]
    whole = builder.disk(missing)
    cache = Path(plan.setting.cache or ".")
    if not missing or not whole:
        return shown
    there = next(path for path in (cache, *cache.parents) if path.exists())
    free, each = shutil.disk_usage(there).free, whole / len(missing)
    low, high = (
        each * min(len(missing), count)
        for count in (shown.expected.launches_low, shown.expected.launches_high)
    )
    if low > free:
        raise MachineError(
            f"the environments need at least {_size(low)} of disk and {_size(free)} are free",
            where=cache,
            next_step="perfbisect env gc, or set PERFBISECT_CACHE to a larger disk",
        )
    note = f"disk: about {_size(low)} to {_size(high)} for environments, {_size(free)} free"
    return shown.model_copy(update={"notes": (*shown.notes, note)})


def _size(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.0f} MB"


def _extra_costs(plan: BisectPlan) -> tuple[str, ...]:
    """What is asked beyond the one step, and what that costs at least and at most."""
    told, extras = [], plan.extras
    each = plan.costs.launch + min(2, plan.max_runs) * plan.costs.run
    if extras.direction == "improvement":
        told.append("the later end is taken to be the better one: the change that made it better is named")
    if extras.all_steps:
        told.append(
            f"every step is named: each further one takes about as long as the first but for the ends, and "
            f"the search of what is left some {2 * each:.0f} minutes"
        )
    if extras.confirm_revert:
        blocks = (4 * each, 4 * BLOCKS * each)
        told.append(
            f"the later end is measured without the culprit: 4 to {4 * BLOCKS} launches more, "
            f"{blocks[0]:.0f} to {blocks[1]:.0f} minutes"
        )
    if plan.aside is not None:
        first, fork = plan.positions[0].change.short, plan.aside.fork.short
        told.append(
            f"{first} is no ancestor of the later end: it is measured as it is, then {fork}, where the lines "
            f"part (one launch); {len(plan.aside.own)} commits are on its own line"
        )
    if extras.weights:
        told.append(f"weighed by {extras.weights}: where the change is looked for first, at most 10 : 1")
    if extras.workers > 1:
        told.append(f"{extras.workers} launches at once: the minutes are those of all slots together")
    return tuple(told)
