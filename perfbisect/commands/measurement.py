"""From options to what a job measures with, and from a plan to its report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from perfbisect.commands import changes, ranges, wiring
from perfbisect.commands.options import JobOptions, MeasureOptions
from perfbisect.commands.output import progress_printer
from perfbisect.commands.session import forecast_slots, open_session, plan_writer, run_job
from perfbisect.commands.workspace import Workspace
from perfbisect.compare.plan import MeasurementPlan, MeasurementSetup
from perfbisect.environments.base import Builder, Environment
from perfbisect.jobs.documents import cell_document, metric_document
from perfbisect.jobs.estimates import learnt_costs
from perfbisect.jobs.folders import Job
from perfbisect.jobs.kind import DocumentT, JobKind
from perfbisect.jobs.measurement import resolve_metric
from perfbisect.jobs.plans import PlanT
from perfbisect.machine.slots import Slot
from perfbisect.model.attempt import Attempt
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change


def build_setup(
    workspace: Workspace,
    cell: Cell,
    newest: str,
    measured: Sequence[Change],
    measuring: MeasureOptions,
    *,
    dry_run: bool = False,
    exclude_newer: str | None = None,
) -> MeasurementSetup:
    """What changes of a cell are measured with; nothing is started.

    ``newest``: the newest of them as it was typed; ``exclude_newer``: the day where none was given.
    """
    metric = resolve_metric(cell, workspace.setting("metric", measuring.metric))
    setting = wiring.build_config(
        workspace,
        environment=changes.environment_spec(workspace, measuring.env, newest),
        client=measuring.client,
        constraints=measuring.constraints,
        exclude_newer=measuring.exclude_newer,
        needs_repository=any(change.kind == "commit" for change in measured),
    )
    if exclude_newer is not None and measuring.exclude_newer is None:
        setting = setting.model_copy(update={"exclude_newer": exclude_newer})
    slots, slot_notes = forecast_slots(cell, 1, wiring.machine_name(workspace), dry=dry_run)
    return MeasurementSetup(
        cell=cell,
        metric=metric,
        setting=setting,
        builder=wiring.build_builder(workspace, setting),
        slots=slots,
        notes=(*ranges.repository_notes(workspace, setting), *slot_notes),
    )


def build_change_setup(
    workspace: Workspace,
    cell: str | None,
    at: str,
    measuring: MeasureOptions,
    *,
    exclude_newer: str | None = None,
) -> tuple[MeasurementSetup, Change]:
    """What one change is measured with, and the change."""
    change = changes.resolve_change(workspace, at)
    resolved = wiring.resolve_cell(workspace, cell, measuring.variant)
    wiring.require_workload(resolved, measuring.expect_workload)
    return build_setup(workspace, resolved, at, (change,), measuring, exclude_newer=exclude_newer), change


def plan_fields(plan: MeasurementPlan, cell: Cell, earlier: Sequence[Attempt]) -> dict[str, Any]:
    """The fields of a plan's document; the minutes are learnt from earlier launches of the cell."""
    costs = learnt_costs(earlier, ranges.costs(plan.setting.environment))
    each = costs.launch + plan.runs * costs.run
    most = plan.max_launches * each
    return {
        "cell": cell_document(cell, plan.ref),
        "metric": metric_document(plan.ref),
        "environment": plan.setting.environment,
        "client": plan.setting.instrument,
        "runs_per_launch": plan.runs,
        "most_launches": plan.max_launches,
        "minutes_low": most if plan.budget is None else plan.launches_per_look * each,
        "minutes_high": most if plan.budget is None else min(plan.budget, most),
        "budget_minutes": most if plan.budget is None else plan.budget,
        "notes": plan.notes,
    }


def measure(
    workspace: Workspace,
    job: Job,
    kind: JobKind[PlanT, DocumentT],
    plan: PlanT,
    builder: Builder,
    slots: tuple[Slot, ...],
    working: JobOptions,
    lines: Iterable[str],
    *,
    held: bool = False,
    before: Callable[[Environment | None], None] = lambda _: None,
) -> DocumentT:
    """Run a new job to its report; ``lines``: its plan, printed first."""
    print_line = progress_printer(working)
    for text in (*lines, f"job {job.id}", ""):
        print_line(text)
    with open_session(job, slots, working, begin=plan_writer(job, plan), held=held) as session:
        return run_job(workspace, session, kind, plan, builder, before)
