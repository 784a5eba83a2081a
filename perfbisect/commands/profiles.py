"""From a finished job to profile launches of its sides: ``perfbisect explain JOB --profile``."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from perfbisect.changes.git import Repository
from perfbisect.commands import wiring
from perfbisect.commands.options import JobOptions
from perfbisect.commands.output import CommandResult
from perfbisect.commands.session import PlannedJob, job_result, measure, plan_job_slots
from perfbisect.commands.workspace import Workspace, with_objects
from perfbisect.common.quantities import minutes
from perfbisect.errors import UsageError
from perfbisect.explain.profile_job import MOST_LAUNCHES, PROFILE, ProfilePlan
from perfbisect.explain.sides import measured_sides
from perfbisect.jobs.documents import ChangeDocument, Document, cell_document, change_document
from perfbisect.jobs.estimates import earlier_attempts, learnt_costs
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import read
from perfbisect.jobs.plans import plan_cell
from perfbisect.measure.profiling import ProfileLimits, find_py_spy, sampling_problem
from perfbisect.report.sections import workload_section
from perfbisect.report.terminal import section_lines


@dataclass(frozen=True)
class ProfileRequest:
    """``explain JOB --profile`` as it was typed; ``launches`` of each side, ``budget`` in minutes."""

    working: JobOptions
    launches: int = MOST_LAUNCHES
    budget: float | None = None
    dry_run: bool = False


class ProfilePlanDocument(Document):
    """The plan of a profile."""

    schema_: Literal["perfbisect.profile-plan/1"] = Field(default="perfbisect.profile-plan/1", alias="schema")
    source: str
    a: ChangeDocument
    b: ChangeDocument
    launches: int
    minutes: float
    notes: tuple[str, ...]


def profile_sides(workspace: Workspace, job: Job, request: ProfileRequest) -> CommandResult:
    """Profile the sides of a job, or show what would be done."""
    planned = plan_profile(workspace, job, request)
    if request.dry_run:
        return planned.show()
    return job_result(
        PROFILE, measure(workspace, wiring.new_job(workspace), PROFILE, planned, request.working)
    )


def plan_profile(
    workspace: Workspace, job: Job, request: ProfileRequest
) -> PlannedJob[ProfilePlan, ProfilePlanDocument]:
    """Plan a profile, with nothing started.

    Raises:
        UsageError: the job compared no two sides, or measures on a fleet.
    """
    sides = measured_sides(job, read(job.journal).events)
    setting = sides.plan.setting.model_copy(update={"typed": shlex.join(["perfbisect", *sys.argv[1:]])})
    if setting.fleet:
        raise UsageError(
            f"job {job.id} measures on a fleet: recordings of other machines are not brought here",
            next_step="compare the two changes on this machine, and explain that job",
        )
    cell = plan_cell(sides.plan)
    builder = wiring.build_builder(workspace, setting)
    builder.prepare((sides.a.change, sides.b.change))
    planned = plan_job_slots(workspace, cell, 1, setting, dry=request.dry_run)
    problem = sampling_problem(find_py_spy(), is_root=os.geteuid() == 0)
    notes = (*planned.notes, *((f"no stacks: {problem}; see perfbisect doctor",) if problem else ()))
    objects = ""
    if setting.repository:
        repository = with_objects(Repository.open(setting.repository), Path(setting.cache))
        objects = str(repository.objects or "")
    plan = ProfilePlan(
        cell=sides.plan.cell,
        digest=sides.plan.digest,
        setting=setting,
        metric=sides.plan.metric,
        min_effect=sides.plan.min_effect,
        source=job.id,
        a=sides.a,
        b=sides.b,
        is_slower=sides.is_slower,
        launches=request.launches,
        budget=wiring.budget_minutes(workspace, request.budget),
        objects=objects,
        notes=notes,
    )
    earlier = earlier_attempts(workspace.jobs, cell.digest)
    costs, limits = learnt_costs(earlier, wiring.costs(setting.environment)), ProfileLimits()
    each = costs.launch + (limits.windows * limits.window + limits.trace) / 60
    shown = ProfilePlanDocument(
        source=job.id,
        a=change_document(sides.a.change),
        b=change_document(sides.b.change),
        launches=2 * plan.launches,
        minutes=2 * plan.launches * each,
        notes=notes,
    )
    lines = section_lines(workload_section(cell_document(cell, plan.ref)))
    lines += [
        f"A {sides.a.name}, B {sides.b.name} of job {job.id}",
        f"{shown.launches} profile launches, about {minutes(shown.minutes)}; they are no measurements",
        *(f"note: {note}" for note in notes),
    ]
    return PlannedJob(plan, builder, planned.slots, shown, lines)
