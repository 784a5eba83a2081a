"""Runs and comparisons: from what was typed to a plan, and from plans to jobs and their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from perfbisect.cells.loading import load_cells
from perfbisect.changes.syntax import parse_change_text
from perfbisect.commands import changes, wiring
from perfbisect.commands.options import JobOptions, MeasureOptions
from perfbisect.commands.output import CommandResult, plan_result, progress_printer, report_result
from perfbisect.commands.session import (
    PlannedJob,
    build_setup,
    job_result,
    measure,
    record_exit,
    recording_error,
    run_planned,
)
from perfbisect.commands.workspace import Workspace
from perfbisect.common.quantities import minutes
from perfbisect.compare.documents import (
    CompareDocument,
    ComparePlanDocument,
    RunPlanDocument,
    SweepDocument,
    side_document,
    summary_fields,
)
from perfbisect.compare.job import COMPARE, RUN, exit_code
from perfbisect.compare.plan import (
    ChangePlan,
    ComparePlan,
    MeasurementPlan,
    MeasurementSetup,
    SidePlan,
    build_compare_plan,
    build_run_plan,
    forecast_blocks,
    forecast_machines,
    served_cells,
)
from perfbisect.compare.report import plan_commands, plan_lines, sweep_report
from perfbisect.errors import UsageError
from perfbisect.jobs.commands import commands_document
from perfbisect.jobs.documents import cell_document, change_document, metric_document
from perfbisect.jobs.estimates import EarlierAttempts, earlier_attempts
from perfbisect.model.cell import Cell, apply_variant
from perfbisect.model.change import Change
from perfbisect.report.sections import command_lines


def build_change_setup(
    workspace: Workspace, cell: str | None, at: str, measuring: MeasureOptions, *, dry_run: bool = False
) -> tuple[MeasurementSetup, Change]:
    """What one change is measured with, and the change."""
    change = changes.resolve_change(workspace, at)
    resolved = wiring.resolve_cell(workspace, cell, measuring.variant)
    wiring.require_workload(resolved, measuring.expect_workload)
    return build_setup(workspace, resolved, at, (change,), measuring, dry_run=dry_run), change


def plan_fields(plan: MeasurementPlan, setup: MeasurementSetup, earlier: EarlierAttempts) -> dict[str, Any]:
    """The fields of every plan's document; the minutes are learnt from earlier launches and builds."""
    costs, builds = earlier.costs, setup.builder.price(plan.changes)
    each = costs.launch + plan.runs * costs.run
    most = plan.max_launches * each
    low, high = (
        (most, most) if plan.budget is None else (plan.launches_per_look * each, min(plan.budget, most))
    )
    return {
        "cell": cell_document(setup.cell, plan.ref),
        "metric": metric_document(plan.ref, plan.smallest_effect),
        "metrics": tuple(metric_document(ref, plan.smallest_effect_of(ref)) for ref in plan.refs),
        "environment": plan.setting.environment,
        "client": plan.setting.instrument,
        "runs_per_launch": plan.runs,
        "most_launches": plan.max_launches,
        "minutes_low": low + builds.minutes,
        "minutes_high": high + builds.minutes,
        "budget_minutes": most if plan.budget is None else plan.budget,
        "machines": forecast_machines(plan, setup, low, high),
        "minutes_basis": earlier.basis,
        "notes": (*plan.notes, *builds.notes()),
    }


def change_plan_fields(workspace: Workspace, plan: ChangePlan, setup: MeasurementSetup) -> dict[str, Any]:
    """The fields of the document of a plan that launches one change."""
    return {
        **plan_fields(plan, setup, earlier_attempts(workspace.jobs, plan.digest)),
        "change": change_document(plan.change),
        "commands": commands_document(setup.cell, plan.setting, plan.change, None),
    }


def measure_change(
    workspace: Workspace,
    cell: str | None,
    at: str,
    launches: int,
    runs: int,
    measuring: MeasureOptions,
    *,
    dry_run: bool,
) -> CommandResult:
    """Measure one change, or show what that takes: ``perfbisect run``."""
    setup, change = build_change_setup(workspace, cell, at, measuring, dry_run=dry_run)
    plan = build_run_plan(setup, change=change, launches=launches, runs=runs)
    shown = RunPlanDocument(**change_plan_fields(workspace, plan, setup))
    lines, commands = plan_lines(shown), command_lines(shown.commands)
    planned = PlannedJob(plan, setup.builder, setup.slots, shown, lines, commands)
    return run_planned(workspace, RUN, planned, measuring, dry_run=dry_run)


@dataclass(frozen=True)
class CompareRequest:
    """A comparison as it was typed; ``min_effect`` and ``max_regression``, of a check, are shares."""

    measuring: MeasureOptions
    cell: str | None = None
    a: str | None = None
    b: str = ""
    blocks: int = 10
    budget: float | None = None
    seed: int = 0
    min_effect: float | None = None
    expect: str = ""
    """The change that a claim speaks of."""
    watch: tuple[str, ...] = ()
    """Guards besides the cell's own."""
    max_regression: float | None = None
    dry_run: bool = False


PlannedComparison = PlannedJob[ComparePlan, ComparePlanDocument]


def plan_comparison(workspace: Workspace, request: CompareRequest) -> PlannedComparison:
    """Plan a comparison."""
    measuring = request.measuring
    cell = wiring.resolve_cell(workspace, request.cell, None)
    wiring.require_workload(cell, measuring.expect_workload)
    a, b = resolve_sides(workspace, cell, request)
    setup = build_setup(
        workspace,
        cell,
        b.typed,
        (a.change, b.change),
        measuring,
        served=[apply_variant(cell, side.variant) if side.variant else cell for side in (a, b)],
        dry_run=request.dry_run,
        claimed=bool(request.expect),
    )
    plan = build_compare_plan(
        setup,
        a=a,
        b=b,
        deploy=workspace.repository.tree_id if workspace.repository else None,
        blocks=request.blocks,
        budget=wiring.budget_minutes(workspace, request.budget),
        seed=request.seed,
        min_effect=request.min_effect,
        expect=request.expect,
        watch=request.watch,
        max_regression=request.max_regression,
    )
    earlier = earlier_attempts(workspace.jobs, cell.digest)
    blocks, forecast_from = forecast_blocks(plan, earlier.of_cell)
    shown = ComparePlanDocument(
        **plan_fields(plan, setup, earlier),
        a=side_document(a),
        b=side_document(b),
        smallest_effect=plan.smallest_effect,
        forecast_blocks=blocks,
        forecast_from=forecast_from,
        commands=tuple(
            commands_document(served, plan.setting, side.change, None)
            for served, side in zip(served_cells(plan), plan.sides, strict=True)
        ),
    )
    return PlannedJob(plan, setup.builder, setup.slots, shown, plan_lines(shown), plan_commands(shown))


def resolve_sides(workspace: Workspace, cell: Cell, request: CompareRequest) -> tuple[SidePlan, SidePlan]:
    """Both sides; without A that is the merge base of a pull request B."""
    variant = workspace.setting("variant", request.measuring.variant) or ""
    b = _resolve_side(workspace, cell, request.b, variant)
    if request.a is not None:
        return _resolve_side(workspace, cell, request.a, variant), b
    number = parse_change_text(request.b).pull
    if number is None:
        raise UsageError("--a is missing: the change to compare with", next_step=f"--a REV --b {request.b}")
    base = changes.base_of_pull(workspace.needed_repository(), number)
    return SidePlan(typed=f"merge base of pr/{number}", change=base, variant=variant), b


def _resolve_side(workspace: Workspace, cell: Cell, typed: str, variant: str) -> SidePlan:
    text = parse_change_text(typed)
    variant = text.variant or variant
    if variant:
        apply_variant(cell, variant)
    change = changes.resolve_change_text(workspace, replace(text, variant=""))
    return SidePlan(typed=typed, change=change, variant=variant)


def run_comparison(workspace: Workspace, request: CompareRequest, heading: str = "") -> CommandResult:
    """Plan and measure a comparison, or show its plan under a heading."""
    planned = plan_comparison(workspace, request)
    if request.dry_run:
        return _show_plans([planned], heading)
    if heading:
        progress_printer(request.measuring)(heading)
    document = measure(workspace, wiring.new_job(workspace), COMPARE, planned, request.measuring)
    return job_result(COMPARE, document)


def run_comparisons(
    workspace: Workspace,
    requests: Sequence[CompareRequest],
    conclude: Callable[[list[CompareDocument]], CommandResult],
) -> CommandResult:
    """Plan and measure comparisons with one result, or show their plans."""
    planned = [plan_comparison(workspace, request) for request in requests]
    if requests[0].dry_run:
        return _show_plans(planned)
    return measure_comparisons(workspace, planned, requests[0].measuring, conclude)


def _show_plans(planned: Sequence[PlannedComparison], heading: str = "") -> CommandResult:
    plans = [comparison.shown for comparison in planned]
    lines = [heading] if heading else []
    for comparison in planned:
        lines += ["", *comparison.lines] if lines else comparison.lines
        lines += comparison.commands
    # What the first comparison builds is there for the others.
    built = sum(other.builder.price(other.plan.changes).minutes for other in planned[1:])
    low, high = sum(plan.minutes_low for plan in plans), sum(plan.minutes_high for plan in plans)
    low, high = low - built, high - built
    if len(plans) > 1:
        lines += ["", f"All {len(plans)} comparisons: {minutes(low)} to {minutes(high)}"]
    document = plans[0].model_copy(update={"others": tuple(plans[1:]), "all_minutes": (low, high)})
    return plan_result(document, lines, can_start=all(comparison.slots for comparison in planned))


def measure_comparisons(
    workspace: Workspace,
    planned: Sequence[PlannedComparison],
    working: JobOptions,
    conclude: Callable[[list[CompareDocument]], CommandResult],
) -> CommandResult:
    """Measure comparisons one after another, each in a job of its own.

    The first is held until the last has ended, and keeps the result: waiting for it is waiting for all.
    """
    first = wiring.new_job(workspace)
    with first.held(), recording_error(first):
        comparisons = [measure(workspace, first, COMPARE, planned[0], working, held=True)]
        comparisons += [
            measure(workspace, wiring.new_job(workspace), COMPARE, further, working)
            for further in planned[1:]
        ]
        result = conclude(comparisons)
        record_exit(first, result.exit_code, result.document)
    return result


def ladder_cells(workspace: Workspace, typed: str | None) -> tuple[str, ...]:
    """The cells of a ladder by name, in the order of the file."""
    name = workspace.setting("cell", typed)
    if name is None:
        raise UsageError("no cell was named", next_step="perfbisect cells list")
    cells = load_cells(name)
    if len(cells) < 2:
        raise UsageError(
            f"{name} has one load: there is nothing to sweep over",
            next_step="make max_concurrency and num_prompts paired lists in the cell file",
        )
    suffixes = [cell.name.partition("@")[2] for cell in cells]
    return tuple(f"{name}@{suffix}" for suffix in suffixes)


def sweep_loads(workspace: Workspace, request: CompareRequest) -> CommandResult:
    """Compare under every load of a ladder; the exit code is the worst."""

    def conclude(comparisons: list[CompareDocument]) -> CommandResult:
        document = sweep_document(comparisons)
        return report_result(document, sweep_report(document), max(map(exit_code, comparisons)))

    cells = ladder_cells(workspace, request.cell)
    return run_comparisons(workspace, [replace(request, cell=cell) for cell in cells], conclude)


def sweep_document(comparisons: Sequence[CompareDocument]) -> SweepDocument:
    """The comparisons with their signature: ``c1 same, c8 to c64 regression``."""
    loads = [(doc.cell.name.partition("@")[2].partition("-n")[0], doc.verdict) for doc in comparisons]
    parts = []
    for verdict, group in groupby(loads, key=lambda pair: pair[1]):
        names = [name for name, _ in group]
        span = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        parts.append(f"{span} {verdict}")
    signature = ", ".join(parts)
    order = ("regression", "inconclusive", "improvement", "same")
    deciding = min(comparisons, key=lambda document: order.index(document.verdict))
    return SweepDocument(signature=signature, **summary_fields(signature, comparisons, deciding))
