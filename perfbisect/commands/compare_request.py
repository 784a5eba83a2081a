"""From options to what is measured: a comparison, or launches of one change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfbisect.bisect.estimates import earlier_attempts
from perfbisect.changes.syntax import parse_change_text
from perfbisect.commands import changes, plan_notes, ranges, wiring
from perfbisect.commands.invocation import Measuring
from perfbisect.commands.session import foreseen_slots, slots_for
from perfbisect.commands.workspace import Place
from perfbisect.compare.documents import ComparePlanDocument, side_document
from perfbisect.compare.job import make_compare_plan
from perfbisect.compare.plan import ComparePlan, Forecast, SidePlan, forecast, served_cells
from perfbisect.environments.base import Builder
from perfbisect.errors import UsageError
from perfbisect.jobs.capabilities import metric_of
from perfbisect.jobs.documents import cell_document, commands_document, metric_document
from perfbisect.jobs.estimates import learnt_costs
from perfbisect.jobs.settings import Setting
from perfbisect.machine.slots import Slot
from perfbisect.model.cell import Cell, apply_variant
from perfbisect.model.change import Change
from perfbisect.model.costs import Costs
from perfbisect.model.metric import MetricRef


@dataclass(frozen=True)
class TypedContest:
    """The options of ``perfbisect compare`` as they were typed."""

    cell: str | None
    a: str | None
    b: str
    min_effect: float | None
    blocks: int
    budget: float | None
    seed: int
    measuring: Measuring
    expect: str = ""
    """The change that a claim speaks of."""
    watch: tuple[str, ...] = ()
    """Guards besides the cell's own, which the client reports."""
    max_regression: float | None = None
    """Of a check: the share by which B may be worse."""
    dry: bool = False
    """Whether the plan is only shown."""


@dataclass(frozen=True)
class Contest:
    """A comparison to be measured; ``minutes``: what a launch is expected to take."""

    cell: Cell
    plan: ComparePlan
    builder: Builder
    slots: tuple[Slot, ...]
    minutes: float
    forecast: Forecast


def contest(here: Place, typed: TypedContest) -> Contest:
    """The plan of a comparison, with nothing started.

    :raises UsageError: something that was typed is wrong, or both sides are the same.
    :raises BuildError: a side cannot be built.
    """
    cell, measuring = wiring.the_cell(here, typed.cell, None), typed.measuring
    a, b = sides(here, cell, typed.a, typed.b, here.setting("variant", measuring.variant))
    judged = metric_of(cell, here.setting("metric", measuring.metric))
    if typed.min_effect is not None and not 0 < typed.min_effect < 100:
        raise UsageError(f"--min-effect {typed.min_effect:g} is no share in per cent, between 0 and 100")
    environment = changes.environment_of(here, measuring.env, typed.b)
    setting = wiring.the_setting(
        here,
        environment=environment,
        client=measuring.client,
        constraints=measuring.constraints,
        exclude_newer=measuring.exclude_newer,
        needs_repository=any(side.change.kind == "commit" for side in (a, b)),
    )
    builder = wiring.builder_of(here, setting)
    slots, of_slots = foreseen_slots(cell, 1, wiring.the_machine(here), dry=typed.dry)
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
        deploy=ranges.deploy(here),
        notes=(*plan_notes.repository_notes(here, setting), *of_slots),
    )
    earlier = earlier_attempts(here.jobs, cell.digest)
    costs = learnt_costs(earlier, ranges.costs(environment))
    minutes = costs.launch + plan.runs * costs.run
    return Contest(cell, plan, builder, slots, minutes, forecast(plan, earlier))


def sides(here: Place, cell: Cell, a: str | None, b: str, variant: str | None) -> tuple[SidePlan, SidePlan]:
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


def _side(here: Place, cell: Cell, typed: str, variant: str | None) -> SidePlan:
    text = parse_change_text(typed)
    chosen = text.variant or variant or ""
    if chosen:
        apply_variant(cell, chosen)
    change = changes.change_of(here, replace(text, variant=""))
    return SidePlan(text=typed, change=change, variant=chosen)


def planned(asked: Contest) -> ComparePlanDocument:
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


def planned_all(asked: Sequence[Contest]) -> ComparePlanDocument:
    """Several comparisons in one document: the first, with the others in it."""
    first, *others = map(planned, asked)
    return first.model_copy(update={"others": tuple(others)})


@dataclass(frozen=True)
class ChangeRequest:
    """Launches of one change to be measured: everything but the plan of the job."""

    cell: Cell
    change: Change
    metric: MetricRef
    setting: Setting
    builder: Builder
    slots: tuple[Slot, ...]
    notes: tuple[str, ...]
    costs: Costs

    def launch_minutes(self, runs: int) -> float:
        """What a launch with so many runs is expected to take."""
        return self.costs.launch + runs * self.costs.run


def build_change_request(
    here: Place, cell_name: str | None, at: str, measuring: Measuring, *, exclude_newer: str | None = None
) -> ChangeRequest:
    """Launches of one change, with nothing started. ``exclude_newer``: the day where none was given.

    :raises UsageError: something that was typed is wrong.
    """
    cell = wiring.the_cell(here, cell_name, measuring.variant)
    metric = metric_of(cell, here.setting("metric", measuring.metric))
    change, environment = changes.the_change(here, at), changes.environment_of(here, measuring.env, at)
    setting = wiring.the_setting(
        here,
        environment=environment,
        client=measuring.client,
        constraints=measuring.constraints,
        exclude_newer=measuring.exclude_newer,
        needs_repository=change.kind == "commit",
    )
    if exclude_newer is not None and measuring.exclude_newer is None:
        setting = setting.model_copy(update={"exclude_newer": exclude_newer})
    slots = slots_for(cell, 1, wiring.the_machine(here))
    return ChangeRequest(
        cell=cell,
        change=change,
        metric=metric,
        setting=setting,
        builder=wiring.builder_of(here, setting),
        slots=slots,
        notes=(*plan_notes.repository_notes(here, setting), *plan_notes.slot_notes(slots)),
        costs=learnt_costs(earlier_attempts(here.jobs, cell.digest), ranges.costs(environment)),
    )
