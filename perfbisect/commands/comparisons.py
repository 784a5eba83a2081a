"""Runs and comparisons: from what was typed to a plan, and from plans to jobs and their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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
from perfbisect.errors import UsageError
from perfbisect.experiments.compare import COMPARE, ComparePlan, CompareResult
from perfbisect.experiments.dry_run import (
    ComparePlanDocument,
    compare_plan_document,
    plan_commands,
    plan_lines,
    run_plan_document,
)
from perfbisect.experiments.measure import SidePlan, exit_code
from perfbisect.experiments.run import RUN
from perfbisect.experiments.setup import MeasurementSetup, build_compare_plan, build_run_plan
from perfbisect.experiments.several import sweep_report, sweep_result
from perfbisect.jobs.estimates import earlier_attempts
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
    shown = run_plan_document(plan, setup, earlier_attempts(workspace.jobs, plan.digest))
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
    shown = compare_plan_document(plan, setup, earlier_attempts(workspace.jobs, cell.digest))
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
    result = measure(workspace, wiring.new_job(workspace), COMPARE, planned, request.measuring)
    return job_result(COMPARE, result)


def run_comparisons(
    workspace: Workspace,
    requests: Sequence[CompareRequest],
    conclude: Callable[[list[CompareResult]], CommandResult],
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
    conclude: Callable[[list[CompareResult]], CommandResult],
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

    def conclude(comparisons: list[CompareResult]) -> CommandResult:
        result = sweep_result(comparisons)
        code = max(exit_code(comparison.outcome) for comparison in comparisons)
        return report_result(result, sweep_report(result), code)

    cells = ladder_cells(workspace, request.cell)
    return run_comparisons(workspace, [replace(request, cell=cell) for cell in cells], conclude)
