"""From a finished job to the search of its culprit's hunks: ``perfbisect explain JOB --hunks``."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from perfbisect.changes.git import Repository
from perfbisect.changes.hunk_groups import group_hunks
from perfbisect.changes.hunks import hunk_patch, read_diff
from perfbisect.changes.revert import ConflictError
from perfbisect.commands import changes, wiring
from perfbisect.commands.options import JobOptions
from perfbisect.commands.output import CommandResult
from perfbisect.commands.session import PlannedJob, job_result, measure, plan_job_slots
from perfbisect.commands.workspace import Workspace, with_objects
from perfbisect.compare.plan import ComparePlan, served_cells
from perfbisect.errors import UsageError
from perfbisect.explain.hunk_forecast import HunksPlanDocument, hunks_plan_document, hunks_plan_lines
from perfbisect.explain.hunk_job import HUNKS
from perfbisect.explain.hunk_plan import HunksPlan, make_hunks_plan
from perfbisect.explain.sides import measured_sides
from perfbisect.jobs.estimates import earlier_attempts, learnt_costs, learnt_noise
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import JournalEvent, read
from perfbisect.jobs.plans import JobPlan, find_plan, plan_cell
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change


@dataclass(frozen=True)
class HunksRequest:
    """``explain JOB --hunks`` as it was typed; ``min_effect`` is a share, ``budget`` in minutes."""

    working: JobOptions
    min_effect: float | None = None
    budget: float | None = None
    seed: int = 0
    dry_run: bool = False


@dataclass(frozen=True)
class MeasuredStep:
    """A step that a job named: of a commit against its parent, with the effect that it measured."""

    plan: JobPlan
    cell: Cell
    culprit: Change
    effect: float


def search_hunks(workspace: Workspace, job: Job, request: HunksRequest) -> CommandResult:
    """Search the hunks of a job's culprit, or show what would be done."""
    planned = plan_hunks(workspace, job, request)
    if request.dry_run:
        return planned.show()
    return job_result(HUNKS, measure(workspace, wiring.new_job(workspace), HUNKS, planned, request.working))


def plan_hunks(
    workspace: Workspace, job: Job, request: HunksRequest
) -> PlannedJob[HunksPlan, HunksPlanDocument]:
    """Plan a search of hunks, with nothing started.

    Raises:
        UsageError: the job names no commit, or nothing of that can be taken back.
    """
    step = measured_step(job, read(job.journal).events)
    metric = step.plan.ref
    typed = shlex.join(["perfbisect", *sys.argv[1:]])
    setting = step.plan.setting.model_copy(update={"typed": typed})
    if not setting.repository:
        raise UsageError(f"job {job.id} has no repository: there is no diff to split")
    repository = with_objects(Repository.open(Path(setting.repository)), Path(setting.cache))
    builder = wiring.build_builder(workspace, setting)
    builder.prepare((step.culprit,))
    revert = changes.hunk_reverter(builder, setting)
    assert revert is not None
    try:
        diff = read_diff(repository, step.culprit)
    except ConflictError as error:
        raise UsageError(error.message) from None
    groups, left_out = group_hunks(diff)
    if not groups:
        raise UsageError(f"{step.culprit.short} changes nothing but tests, documentation and comments")
    planned = plan_job_slots(workspace, step.cell, 1, setting, dry=request.dry_run)
    plan = make_hunks_plan(
        source=job.id,
        culprit=step.culprit,
        diff=diff,
        groups=groups,
        left_out=left_out,
        cell=step.cell,
        setting=setting,
        metric=metric,
        builder=builder,
        revert=revert,
        patch_of=lambda commit, change: _patch_text(hunk_patch(repository, commit, change)),
        min_effect=request.min_effect or step.plan.min_effect,
        step=step.effect,
        slower=step.effect * metric.metric.sign > 0,
        budget=wiring.budget_minutes(workspace, request.budget),
        seed=request.seed,
        notes=planned.notes,
    )
    earlier = earlier_attempts(workspace.jobs, step.cell.digest)
    costs = learnt_costs(earlier, wiring.costs(setting.environment))
    shown = hunks_plan_document(plan, learnt_noise(earlier, metric), costs)
    return PlannedJob(plan, builder, planned.slots, shown, hunks_plan_lines(shown))


def _patch_text(patch: bytes) -> str:
    """The patch; empty if a journal cannot hold it, since it is of another encoding."""
    try:
        return patch.decode()
    except UnicodeDecodeError:
        return ""


def measured_step(job: Job, events: tuple[JournalEvent, ...]) -> MeasuredStep:
    """The step of a finished job: of a bisection with a culprit, or of a commit compared with its parent.

    Raises:
        UsageError: there is none.
    """
    sides = measured_sides(job, events)
    culprit = sides.b.change
    if not sides.finished or sides.effect is None:
        word, verb = ("shows no difference", "report") if sides.finished else ("is not finished", "resume")
        raise UsageError(
            f"job {job.id} {word}: there is no step to search", next_step=f"perfbisect {verb} {job.id}"
        )
    if culprit.kind != "commit":
        raise UsageError(
            f"the culprit of job {job.id} is the release {culprit.short}: it has no diff here",
            next_step="bisect the commits between the releases",
        )
    plan = find_plan(events, ComparePlan)
    if plan is None:
        return MeasuredStep(sides.plan, plan_cell(sides.plan), culprit, sides.effect)
    _require_parent(job, plan)
    return MeasuredStep(plan, served_cells(plan)[1], culprit, sides.effect)


def _require_parent(job: Job, plan: ComparePlan) -> None:
    """:raises UsageError: the sides are no commit and its parent."""
    culprit = plan.b.change
    repository = with_objects(Repository.open(Path(plan.setting.repository)), Path(plan.setting.cache))
    parents = repository.records("-1", culprit.source)[0].parents
    if plan.a.change.source != next(iter(parents), "") or plan.a.variant != plan.b.variant:
        raise UsageError(
            f"job {job.id} compares no commit with its parent: the difference is not the diff of one commit",
            next_step=f"perfbisect compare ... --a {culprit.short}^ --b {culprit.short}",
        )
