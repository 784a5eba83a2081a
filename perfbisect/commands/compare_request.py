"""From options to the plan of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfbisect.changes.syntax import parse_change_text
from perfbisect.commands import changes, ranges, wiring
from perfbisect.commands.invocation import MeasureOptions
from perfbisect.commands.session import forecast_slots
from perfbisect.commands.workspace import Workspace
from perfbisect.compare.documents import ComparePlanDocument, side_document
from perfbisect.compare.job import make_compare_plan
from perfbisect.compare.plan import ComparePlan, Forecast, SidePlan, forecast, served_cells
from perfbisect.environments.base import Builder
from perfbisect.errors import UsageError
from perfbisect.jobs.commands import commands_document
from perfbisect.jobs.documents import cell_document, metric_document
from perfbisect.jobs.estimates import earlier_attempts, learnt_costs
from perfbisect.jobs.measurement import resolve_metric
from perfbisect.machine.slots import Slot
from perfbisect.model.cell import Cell, apply_variant


@dataclass(frozen=True)
class CompareOptions:
    """The options of ``perfbisect compare`` as they were typed."""

    cell: str | None
    a: str | None
    b: str
    min_effect: float | None
    blocks: int
    budget: float | None
    seed: int
    measuring: MeasureOptions
    expect: str = ""
    """The change that a claim speaks of."""
    watch: tuple[str, ...] = ()
    """Guards besides the cell's own, which the client reports."""
    max_regression: float | None = None
    """Of a check: the share by which B may be worse."""
    dry: bool = False
    """Whether the plan is only shown."""


@dataclass(frozen=True)
class CompareRequest:
    """A comparison to be measured; ``minutes``: what a launch is expected to take."""

    cell: Cell
    plan: ComparePlan
    builder: Builder
    slots: tuple[Slot, ...]
    minutes: float
    forecast: Forecast


def build_compare_request(here: Workspace, typed: CompareOptions) -> CompareRequest:
    """The plan of a comparison, with nothing started.

    :raises UsageError: something that was typed is wrong, or both sides are the same.
    :raises BuildError: a side cannot be built.
    """
    cell, measuring = wiring.resolve_cell(here, typed.cell, None), typed.measuring
    a, b = sides(here, cell, typed.a, typed.b, here.setting("variant", measuring.variant))
    judged = resolve_metric(cell, here.setting("metric", measuring.metric))
    if typed.min_effect is not None and not 0 < typed.min_effect < 100:
        raise UsageError(f"--min-effect {typed.min_effect:g} is no share in per cent, between 0 and 100")
    environment = changes.environment_spec(here, measuring.env, typed.b)
    setting = wiring.build_config(
        here,
        environment=environment,
        client=measuring.client,
        constraints=measuring.constraints,
        exclude_newer=measuring.exclude_newer,
        needs_repository=any(side.change.kind == "commit" for side in (a, b)),
    )
    builder = wiring.build_builder(here, setting)
    slots, of_slots = forecast_slots(cell, 1, wiring.machine_name(here), dry=typed.dry)
    plan = make_compare_plan(
        cell=cell,
        a=a,
        b=b,
        builder=builder,
        metric=judged,
        setting=setting,
        budget=ranges.budget_minutes(here, typed.budget),
        blocks=typed.blocks,
        seed=typed.seed,
        min_effect=None if typed.min_effect is None else typed.min_effect / 100,
        expect=typed.expect,
        watch=typed.watch,
        max_regression=typed.max_regression,
        deploy=ranges.deploy_blob_reader(here),
        notes=(*ranges.repository_notes(here, setting), *of_slots),
    )
    earlier = earlier_attempts(here.jobs, cell.digest)
    costs = learnt_costs(earlier, ranges.costs(environment))
    minutes = costs.launch + plan.runs * costs.run
    return CompareRequest(cell, plan, builder, slots, minutes, forecast(plan, earlier))


def sides(
    here: Workspace, cell: Cell, a: str | None, b: str, variant: str | None
) -> tuple[SidePlan, SidePlan]:
    """Both sides as they were typed; ``variant`` is that of sides that name none.

    :raises UsageError: a change or a variant that is none, or A is missing.
    """
    if a is None:
        number = parse_change_text(b).pull
        if number is None:
            raise UsageError("--a is missing: the change to compare with", next_step=f"--a REV --b {b}")
        base = changes.base_of_pull(here.needed_repository(), number)
        left = SidePlan(text=f"merge base of pr/{number}", change=base, variant=variant or "")
    else:
        left = _side(here, cell, a, variant)
    return left, _side(here, cell, b, variant)


def _side(here: Workspace, cell: Cell, typed: str, variant: str | None) -> SidePlan:
    text = parse_change_text(typed)
    chosen = text.variant or variant or ""
    if chosen:
        apply_variant(cell, chosen)
    change = changes.resolve_change_text(here, replace(text, variant=""))
    return SidePlan(text=typed, change=change, variant=chosen)


def plan_document(asked: CompareRequest) -> ComparePlanDocument:
    """What will be measured, as it is shown before anything starts."""
    plan, cell = asked.plan, asked.cell
    launches = 4 * plan.blocks
    return ComparePlanDocument(
        cell=cell_document(cell, plan.ref),
        metric=metric_document(plan.ref),
        a=side_document(plan.a),
        b=side_document(plan.b),
        environment=plan.setting.environment,
        client=plan.setting.instrument,
        smallest_effect=plan.question().min_effect,
        runs_per_launch=plan.runs,
        most_launches=launches,
        minutes_low=4 * asked.minutes,
        minutes_high=min(plan.budget, launches * asked.minutes),
        budget_minutes=plan.budget,
        forecast_blocks=asked.forecast.blocks,
        forecast_from=asked.forecast.basis,
        commands=tuple(
            commands_document(served, plan.setting, side.change, None)
            for served, side in zip(served_cells(plan), plan.sides, strict=True)
        ),
        notes=plan.notes,
    )


def plans_document(asked: Sequence[CompareRequest]) -> ComparePlanDocument:
    """Several comparisons in one document: the first, with the others in it."""
    first, *others = map(plan_document, asked)
    return first.model_copy(update={"others": tuple(others)})
