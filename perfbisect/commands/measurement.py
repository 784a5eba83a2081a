"""Launches of one change from options, and a job from its plan to its report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from perfbisect.commands import changes, ranges, wiring
from perfbisect.commands.invocation import JobOptions, MeasureOptions
from perfbisect.commands.output import progress_printer
from perfbisect.commands.session import open_session, plan_writer, run_job, slots_for
from perfbisect.commands.workspace import Workspace
from perfbisect.environments.base import Builder, Environment
from perfbisect.jobs.folders import Job
from perfbisect.jobs.kind import DocumentT, JobKind
from perfbisect.jobs.measurement import MeasurementConfig, resolve_metric
from perfbisect.jobs.plans import PlanT
from perfbisect.machine.slots import Slot
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from perfbisect.model.metric import MetricRef


@dataclass(frozen=True)
class ChangeRequest:
    """Launches of one change to be measured: everything but the plan of the job."""

    cell: Cell
    change: Change
    metric: MetricRef
    setting: MeasurementConfig
    builder: Builder
    slots: tuple[Slot, ...]
    notes: tuple[str, ...]


def build_change_request(
    here: Workspace,
    cell_name: str | None,
    at: str,
    measuring: MeasureOptions,
    *,
    exclude_newer: str | None = None,
) -> ChangeRequest:
    """Launches of one change, with nothing started. ``exclude_newer``: the day where none was given.

    :raises UsageError: something that was typed is wrong.
    """
    cell = wiring.resolve_cell(here, cell_name, measuring.variant)
    metric = resolve_metric(cell, here.setting("metric", measuring.metric))
    change, environment = changes.resolve_change(here, at), changes.environment_spec(here, measuring.env, at)
    setting = wiring.build_config(
        here,
        environment=environment,
        client=measuring.client,
        constraints=measuring.constraints,
        exclude_newer=measuring.exclude_newer,
        needs_repository=change.kind == "commit",
    )
    if exclude_newer is not None and measuring.exclude_newer is None:
        setting = setting.model_copy(update={"exclude_newer": exclude_newer})
    slots = slots_for(cell, 1, wiring.machine_name(here))
    return ChangeRequest(
        cell=cell,
        change=change,
        metric=metric,
        setting=setting,
        builder=wiring.build_builder(here, setting),
        slots=slots,
        notes=(*ranges.repository_notes(here, setting), *ranges.slot_notes(slots)),
    )


def measure(
    here: Workspace,
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
    """Runs a new job to its report; ``lines``: its plan. Raises what the job raises."""
    say = progress_printer(working)
    for text in (*lines, f"job {job.id}", ""):
        say(text)
    with open_session(job, slots, working, begin=plan_writer(job, plan), held=held) as session:
        return run_job(here, session, kind, plan, builder, before)
