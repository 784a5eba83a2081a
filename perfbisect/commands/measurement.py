"""Launches of one change from options, and a job from its plan to its report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from perfbisect.commands import changes, plan_notes, wiring
from perfbisect.commands.execution import beginning, carry_out
from perfbisect.commands.invocation import Measuring, Working
from perfbisect.commands.output import teller
from perfbisect.commands.session import at_work, slots_for
from perfbisect.commands.workspace import Place
from perfbisect.environments.base import Builder, Environment
from perfbisect.jobs.capabilities import metric_of
from perfbisect.jobs.folders import Job
from perfbisect.jobs.kind import DocumentT, JobKind
from perfbisect.jobs.plans import PlanT
from perfbisect.jobs.settings import Setting
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
    setting: Setting
    builder: Builder
    slots: tuple[Slot, ...]
    notes: tuple[str, ...]


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
    )


def measure(
    here: Place,
    job: Job,
    kind: JobKind[PlanT, DocumentT],
    plan: PlanT,
    builder: Builder,
    slots: tuple[Slot, ...],
    working: Working,
    lines: Iterable[str],
    *,
    held: bool = False,
    before: Callable[[Environment | None], None] = lambda _: None,
) -> DocumentT:
    """Runs a new job to its report; ``lines``: its plan. Raises what the job raises."""
    say = teller(working)
    with at_work(job, slots, working, begin=beginning(job, plan), held=held) as desk:
        for text in (*lines, f"job {job.id}", ""):
            say(text)
        return carry_out(here, desk, kind, plan, builder, before)
