"""Comparisons: from what was typed to a plan, and from plans to jobs and their documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeVar

from perfbisect.cells.loading import load_cells
from perfbisect.changes.syntax import parse_change_text
from perfbisect.commands import changes, ranges, wiring
from perfbisect.commands.measurement import build_setup, measure, plan_fields
from perfbisect.commands.options import JobOptions, MeasureOptions
from perfbisect.commands.output import UNDONE, print_document, progress_printer
from perfbisect.commands.session import print_result, record_exit, recording_error
from perfbisect.commands.workspace import Workspace
from perfbisect.compare.documents import (
    CompareDocument,
    ComparePlanDocument,
    SweepDocument,
    VerifyDocument,
    side_document,
)
from perfbisect.compare.job import COMPARE, exit_code
from perfbisect.compare.plan import (
    ComparePlan,
    MeasurementSetup,
    SidePlan,
    build_compare_plan,
    forecast_blocks,
    served_cells,
)
from perfbisect.compare.report import plan_lines, result_lines
from perfbisect.errors import EXIT_OK, UsageError
from perfbisect.jobs.commands import commands_document
from perfbisect.jobs.documents import Document
from perfbisect.jobs.estimates import earlier_attempts
from perfbisect.jobs.folders import Job
from perfbisect.model.cell import Cell, apply_variant


@dataclass(frozen=True)
class CompareRequest:
    """A comparison as it was typed; ``min_effect`` in per cent, ``max_regression`` a share, of a check."""

    cell: str | None
    a: str | None
    b: str
    blocks: int
    budget: float | None
    seed: int
    measuring: MeasureOptions
    min_effect: float | None = None
    expect: str = ""
    """The change that a claim speaks of."""
    watch: tuple[str, ...] = ()
    """Guards besides the cell's own."""
    max_regression: float | None = None
    dry_run: bool = False


@dataclass(frozen=True)
class PlannedComparison:
    """A comparison with nothing started; ``shown``: its plan for the user."""

    setup: MeasurementSetup
    plan: ComparePlan
    shown: ComparePlanDocument


def build_plan(workspace: Workspace, request: CompareRequest) -> PlannedComparison:
    """Plan a comparison.

    Raises:
        UsageError: something that was typed is wrong, or both sides are the same.
        BuildError: a side cannot be built.
    """
    measuring, min_effect = request.measuring, request.min_effect
    if min_effect is not None and not 0 < min_effect < 100:
        raise UsageError(f"--min-effect {min_effect:g} is no share in per cent, between 0 and 100")
    cell = wiring.resolve_cell(workspace, request.cell, None)
    wiring.require_workload(cell, measuring.expect_workload)
    a, b = resolve_sides(workspace, cell, request)
    setup = build_setup(workspace, cell, b.typed, (a.change, b.change), measuring, dry_run=request.dry_run)
    plan = build_compare_plan(
        setup,
        a=a,
        b=b,
        deploy=ranges.deploy_blob_reader(workspace),
        blocks=request.blocks,
        budget=ranges.budget_minutes(workspace, request.budget),
        seed=request.seed,
        min_effect=None if min_effect is None else min_effect / 100,
        expect=request.expect,
        watch=request.watch,
        max_regression=request.max_regression,
    )
    earlier = earlier_attempts(workspace.jobs, cell.digest)
    blocks, forecast_from = forecast_blocks(plan, earlier)
    shown = ComparePlanDocument(
        **plan_fields(plan, cell, earlier),
        a=side_document(a),
        b=side_document(b),
        smallest_effect=plan.question().min_effect,
        forecast_blocks=blocks,
        forecast_from=forecast_from,
        commands=tuple(
            commands_document(served, plan.setting, side.change, None)
            for served, side in zip(served_cells(plan), plan.sides, strict=True)
        ),
    )
    return PlannedComparison(setup, plan, shown)


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


def run_comparison(workspace: Workspace, request: CompareRequest, heading: str = "") -> int:
    """Plan, measure and print a comparison, or show its plan under a heading; return the exit code."""
    planned, measuring = build_plan(workspace, request), request.measuring
    if request.dry_run:
        return _show_plans((planned,), measuring, heading)
    if heading:
        progress_printer(measuring)(heading)
    job = wiring.new_job(workspace)
    document = measure_comparison(workspace, planned, measuring, job)
    return print_result(document, result_lines(document), exit_code(document), measuring, job)


_Document = TypeVar("_Document", bound=Document)


def run_comparisons(
    workspace: Workspace,
    requests: Sequence[CompareRequest],
    conclude: Callable[[list[CompareDocument]], tuple[VerifyDocument | SweepDocument, int]],
) -> int:
    """Plan, measure and print comparisons as one document, or show their plans; return the exit code."""
    planned, measuring = [build_plan(workspace, request) for request in requests], requests[0].measuring
    if requests[0].dry_run:
        return _show_plans(planned, measuring)
    document, code, first = measure_comparisons(workspace, planned, measuring, conclude)
    return print_result(document, result_lines(document), code, measuring, first)


def _show_plans(planned: Sequence[PlannedComparison], measuring: MeasureOptions, heading: str = "") -> int:
    first, *others = (comparison.shown for comparison in planned)
    shown = first.model_copy(update={"others": tuple(others)})
    lines = [*((heading, "") if heading else ()), *plan_lines(shown), UNDONE]
    print_document(shown, lines, as_json=measuring.as_json, full=measuring.full)
    return EXIT_OK


def measure_comparisons(
    workspace: Workspace,
    planned: Sequence[PlannedComparison],
    working: JobOptions,
    conclude: Callable[[list[CompareDocument]], tuple[_Document, int]],
) -> tuple[_Document, int, Job]:
    """Measure comparisons one after another, each in a job of its own.

    Returns the document and the exit code of ``conclude``, and the first job. That one is held until the last
    has ended, and keeps the result, so that waiting for it is waiting for all.
    """
    first = wiring.new_job(workspace)
    with first.held(), recording_error(first):
        comparisons = [measure_comparison(workspace, planned[0], working, first, held=True)]
        comparisons += [
            measure_comparison(workspace, further, working, wiring.new_job(workspace))
            for further in planned[1:]
        ]
        document, code = conclude(comparisons)
        record_exit(first, code, document)
    return document, code, first


def measure_comparison(
    workspace: Workspace, planned: PlannedComparison, working: JobOptions, job: Job, *, held: bool = False
) -> CompareDocument:
    """Measure a comparison in a new job. ``held``: this process has the job already."""
    setup, lines = planned.setup, plan_lines(planned.shown)
    return measure(
        workspace, job, COMPARE, planned.plan, setup.builder, setup.slots, working, lines, held=held
    )


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


def sweep_loads(workspace: Workspace, request: CompareRequest) -> int:
    """Compare under every load of a ladder; return the worst exit code."""

    def conclude(comparisons: list[CompareDocument]) -> tuple[SweepDocument, int]:
        return sweep_document(comparisons), max(map(exit_code, comparisons))

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
    return SweepDocument(signature=", ".join(parts), cells=tuple(comparisons))
