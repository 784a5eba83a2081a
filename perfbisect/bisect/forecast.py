"""What a bisection will do and cost: ``perfbisect bisect --dry-run``."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from perfbisect.bisect.decision.state import WORKERS
from perfbisect.bisect.plan import BisectPlan
from perfbisect.bisect.result import (
    PositionDocument,
    RangeDocument,
    position_documents,
    skip_documents,
)
from perfbisect.bisect.revert import MAX_BLOCKS
from perfbisect.environments.base import Builder
from perfbisect.errors import MachineError
from perfbisect.jobs.commands import commands_document
from perfbisect.jobs.documents import (
    CommandsDocument,
    Document,
    DryRunDocument,
    LongDocument,
    cell_document,
    metric_document,
)
from perfbisect.jobs.estimates import Noise
from perfbisect.jobs.machines import MachineDocument, MachineForecastDocument, forecast_machine, machine_rows
from perfbisect.jobs.plans import plan_cell
from perfbisect.model.change import Change
from perfbisect.report.template import render_report, render_sentences
from perfbisect.report.terminal import section_lines
from perfbisect.stats.ab_test import BLOCK_SIZE

_SIDES = (2, 4, 10)
"""Launches a side for which the resolved step is shown."""

_POWER = 1.96 + 0.84
"""Standard errors of a difference that is seen at 5 % in four cases of five."""

_CHANGES = 3
"""Changes of one position that a brief plan names."""

_EXACT_LAUNCHES = 2
"""Of the ends of an exact metric, and as many of its pair."""

_AB_LAUNCHES = 4
"""Of an A/B that decides early."""


class ExpectedDocument(Document):
    """What a bisection will probably take and what it can see."""

    launches_low: int
    launches_high: int
    minutes_low: float
    minutes_high: float
    minutes_basis: str
    """Where the minutes of a launch come from."""
    resolves: tuple[tuple[int, float], ...]
    """Launches a side, and the relative step that so many can tell from nothing."""
    noise: str
    """Which noise is assumed, in words."""

    @property
    def bounds(self) -> tuple[tuple[int, float], tuple[int, float]]:
        """Launches and minutes: the least, and the most."""
        return (self.launches_low, self.minutes_low), (self.launches_high, self.minutes_high)


class PlanDocument(RangeDocument, DryRunDocument, LongDocument):
    """What will be done: ``perfbisect bisect --dry-run``."""

    shown: ClassVar[Mapping[str, int]] = {"positions": 30, "skips": 10}
    schema_: Literal["perfbisect.plan/3"] = Field(default="perfbisect.plan/3", alias="schema")
    positions: tuple[PositionDocument, ...]
    expected: ExpectedDocument
    machines: tuple[MachineForecastDocument, ...] = ()
    """Of a fleet; empty: this one."""
    wall_minutes: tuple[float, float] | None = None
    """Low and high, where several slots measure at once."""
    commands: CommandsDocument

    def brief(self) -> PlanDocument:
        """With the first changes of a position that has many, and how the rest is seen."""
        brief = super().brief()
        changes = sum(max(0, len(position.changes) - _CHANGES) for position in brief.positions)
        positions = tuple(
            position.model_copy(update={"changes": position.changes[:_CHANGES]})
            for position in brief.positions
        )
        left = {**brief.left_out, **({"positions.changes": changes} if changes else {})}
        notes = brief.notes
        if left:
            missing = ", ".join(f"{count} of {name}" for name, count in left.items())
            notes = (*notes, f"left out here: {missing}; --full brings them")
        return brief.model_copy(update={"positions": positions, "left_out": left, "notes": notes})


def plan_document(
    plan: BisectPlan,
    noise: Noise,
    builder: Builder | None = None,
    machines: Sequence[MachineDocument] = (),
    *,
    basis: str,
) -> PlanDocument:
    """What will be done, what it will take, and with which commands; ``builder`` tells what of the disk.

    ``machines``: of the fleet on which the plan's slots are. ``basis``: of the plan's costs, in words.

    Raises:
        MachineError: there is no room for the environments of the shortest search.
    """
    cell, expected = plan_cell(plan), forecast(plan, noise, builder, basis=basis)
    good, bad = plan.ends
    # The A/B is made on one slot; everything else is shared by as many as a search can use.
    pairs, at_once = _AB_LAUNCHES * _launch_minutes(plan), min(plan.workers, WORKERS)
    shortest, longest = (pairs + max(0.0, spent - pairs) / at_once for _, spent in expected.bounds)
    needed = {builder.key(p.change) for p in plan.positions if not p.skip} if builder and machines else set()
    low, high = (spent - _build_minutes(plan, count, builder) for count, spent in expected.bounds)
    slots = sum(len(machine.slots) for machine in machines)
    return PlanDocument(
        cell=cell_document(cell, plan.ref),
        metric=metric_document(plan.ref, plan.smallest_effect),
        repository=plan.setting.repository,
        environment=plan.setting.environment,
        client=plan.setting.instrument,
        good=good,
        bad=bad,
        changes=sum(len(position.changes) for position in plan.positions),
        positions=position_documents(plan),
        skips=skip_documents(plan),
        runs_per_launch=plan.max_runs,
        budget_minutes=plan.budget,
        expected=expected,
        machines=tuple(
            forecast_machine(machine, low * share, high * share, gpus=cell.gpus, needed=needed)
            for machine in machines
            for share in (len(machine.slots) / slots,)
        ),
        wall_minutes=(shortest, longest) if plan.workers > 1 else None,
        commands=commands_document(cell, plan.setting, good, None),
        notes=(*plan.notes, *_notes(plan, expected, builder)),
    )


def forecast(
    plan: BisectPlan, noise: Noise, builder: Builder | None = None, *, basis: str = ""
) -> ExpectedDocument:
    """Launches and minutes, from a large step to one near the noise; the step that launches resolve.

    ``builder``: prices the likely builds; by default they have the plan's price of a build.
    """
    testable = sum(not position.skip for position in plan.positions)
    # Each slot measures both ends before it takes part.
    low = 2 * max(2, plan.workers) + math.ceil(math.log2(max(2, testable - 1)))
    high = 3 * low
    if plan.search.exact:
        low = high = 2 * _EXACT_LAUNCHES + math.ceil(math.log2(max(2, testable - 1)))
    runs, each = min(2, plan.max_runs), _launch_minutes(plan)
    least = low * each + _build_minutes(plan, low, builder)
    most = high * each + _build_minutes(plan, high, builder)
    error = math.sqrt(noise.launches**2 + noise.runs**2 / runs)
    return ExpectedDocument(
        launches_low=low,
        launches_high=high,
        minutes_low=least,
        minutes_high=max(least, min(most, plan.budget)),
        minutes_basis=basis,
        resolves=((1, plan.smallest_effect),)
        if plan.search.exact
        else tuple((k, math.expm1(_POWER * error * math.sqrt(2 / k))) for k in _SIDES),
        noise="launches of one build agree" if plan.search.exact else noise.source,
    )


def _likely_builds(plan: BisectPlan, launches: int) -> list[Change]:
    """Changes that so many launches may build: a search spreads them, so that their bases are apart, too."""
    missing = [p.change for p in plan.positions if not (p.skip or p.cached)]
    return missing[:: max(1, len(missing) // launches)][:launches]


def _build_minutes(plan: BisectPlan, launches: int, builder: Builder | None) -> float:
    builds = _likely_builds(plan, launches)
    return builder.price(builds).minutes if builder else len(builds) * plan.costs.build


def _launch_minutes(plan: BisectPlan) -> float:
    return plan.costs.launch + min(2, plan.max_runs) * plan.costs.run


def _size(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.0f} MB"


def _notes(plan: BisectPlan, expected: ExpectedDocument, builder: Builder | None) -> tuple[str, ...]:
    """What is asked beyond the one step, what that costs, and the disk that it takes."""
    low, high = (builder.disk(_likely_builds(plan, n)) if builder else 0 for n, _ in expected.bounds)
    sizes: list[str] = []
    if low and high:
        cache = Path(plan.setting.cache or ".")
        # The cache is made at first use: its file system is that of the parent.
        free = shutil.disk_usage(next(path for path in (cache, *cache.parents) if path.exists())).free
        sizes = [_size(count) for count in (low, high, free)]
        if low > free:
            raise MachineError(
                f"the environments need at least {sizes[0]} of disk and {sizes[-1]} are free",
                where=cache,
                next_step="perfbisect env gc, or set PERFBISECT_CACHE to a larger disk",
            )
    values = {
        "plan": plan,
        "expected": expected,
        "each": _launch_minutes(plan),
        "least": BLOCK_SIZE,
        "most": BLOCK_SIZE * MAX_BLOCKS,
        "disk": sizes,
    }
    return render_sentences("bisect/templates/plan_notes.jinja", values)


def plan_lines(plan: PlanDocument) -> list[str]:
    """The plan for a terminal."""
    values = {"plan": plan, "machines": list(machine_rows(plan.machines))}
    report = render_report("bisect/templates/plan.md.jinja", values)
    return [text for section in report.sections for text in section_lines(section)]
