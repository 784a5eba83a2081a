"""Comparisons: their sides, the cells of a ladder, and from plans to jobs and their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perfbisect.cells.loading import load_cells
from perfbisect.commands.options import JobOptions
from perfbisect.commands.output import CommandResult, plan_result
from perfbisect.commands.session import (
    PlannedJob,
    measure,
    record_exit,
    recording_error,
)
from perfbisect.commands.workspace import Workspace
from perfbisect.common.quantities import minutes
from perfbisect.errors import UsageError
from perfbisect.experiments.compare import COMPARE, ComparePlan, CompareResult
from perfbisect.experiments.dry_run import (
    ComparePlanDocument,
)

PlannedComparison = PlannedJob[ComparePlan, ComparePlanDocument]


def run_comparisons(
    workspace: Workspace,
    planned: Sequence[PlannedComparison],
    working: JobOptions,
    conclude: Callable[[list[CompareResult]], CommandResult],
    *,
    dry_run: bool,
) -> CommandResult:
    """Measure comparisons one after another, each in a job of its own, with one result; or show their plans.

    The first job is held until the last has ended, and keeps the result: waiting for it is waiting for all.
    """
    if dry_run:
        return show_plans(planned)
    first = workspace.new_job()
    with first.held(), recording_error(first):
        comparisons = [measure(workspace, first, COMPARE, planned[0], working, held=True)]
        comparisons += [
            measure(workspace, workspace.new_job(), COMPARE, further, working) for further in planned[1:]
        ]
        result = conclude(comparisons)
        record_exit(first, result.exit_code, result.document)
    return result


def show_plans(planned: Sequence[PlannedComparison], heading: str = "") -> CommandResult:
    """What a dry run of comparisons prints."""
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


def ladder_cells(name: str | None) -> tuple[str, ...]:
    """The cells of a ladder by name, in the order of the file."""
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
