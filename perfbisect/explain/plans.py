"""From a job with two sides to the plans of the jobs that say why one is slower."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from pydantic import Field

from perfbisect.bisect.bisection import read_bisection
from perfbisect.bisect.plan import BisectPlan
from perfbisect.changes.hunk_groups import group_hunks
from perfbisect.changes.hunks import hunk_patch, read_diff
from perfbisect.changes.revert import ConflictError
from perfbisect.commands import changes, setups
from perfbisect.commands.experiments import experiment_of
from perfbisect.commands.session import PlannedJob
from perfbisect.commands.slots import find_slots
from perfbisect.commands.workspace import Workspace, repository_of
from perfbisect.errors import UsageError
from perfbisect.experiments.compare import ComparePlan, read_comparison
from perfbisect.experiments.dry_run import LaunchPlanDocument
from perfbisect.experiments.measure import SidePlan
from perfbisect.explain.failure import FailureExplanation, explain_failure
from perfbisect.explain.hunk_plan import (
    HunksPlan,
    HunksPlanDocument,
    make_hunks_plan,
)
from perfbisect.explain.profile_job import MOST_LAUNCHES, ProfilePlan
from perfbisect.explain.report import ExplainDocument, explain_bisection, explain_comparison
from perfbisect.jobs.documents import cell_document, metric_document
from perfbisect.jobs.estimates import earlier_attempts, learnt_noise
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import JournalEvent, read, replaying
from perfbisect.jobs.plans import JobPlan, find_plan, plan_cell, plan_data
from perfbisect.jobs.requests import RequestRecord
from perfbisect.measure.profiling import ProfileLimits, find_py_spy, sampling_problem
from perfbisect.model.change import Change
from perfbisect.report.sections import workload_section
from perfbisect.report.template import render_report, render_sentences
from perfbisect.report.terminal import section_lines


@dataclass(frozen=True)
class MeasuredSides:
    """A and B of a comparison, or the change before the culprit and the culprit.

    ``effect``: of B against A, None where none was shown; ``is_slower``: whether B was shown to be.
    """

    plan: JobPlan
    a: SidePlan
    b: SidePlan
    effect: float | None
    is_slower: bool
    finished: bool


def measured_sides(job: Job, events: tuple[JournalEvent, ...]) -> MeasuredSides:
    """The sides of a comparison, finished or not, or of a bisection that named its culprit.

    Raises:
        UsageError: the job has none.
    """
    if (compared := find_plan(events, ComparePlan)) is not None:
        if compared.side_clients:
            raise UsageError(
                f"job {job.id} compares clients: nothing of the server explains their difference",
                next_step=f"perfbisect report {job.id} has what differs between the clients",
            )
        told = read_comparison(job, events)
        row = told.headline
        effect = row.effect if row.verdict in ("regression", "improvement") else None
        is_slower = row.verdict == "regression"
        return MeasuredSides(compared, compared.a, compared.b, effect, is_slower, told.finished)
    if find_plan(events, BisectPlan) is None:
        raise UsageError(
            f"job {job.id} is neither a bisection nor a comparison: it has no two sides",
            next_step="perfbisect status lists the jobs",
        )
    result = read_bisection(job, events)
    outcome, plan = result.outcome, result.plan
    if outcome is None or not result.found or outcome.confirmed is None or len(outcome.culprits) != 1:
        word, verb = ("names no single culprit", "report") if outcome else ("is not finished", "resume")
        raise UsageError(
            f"job {job.id} {word}: there are no two sides", next_step=f"perfbisect {verb} {job.id}"
        )
    (culprit,) = outcome.culprits
    before, after = (plan.positions[index].change for index in (culprit - 1, culprit))
    shown = outcome.confirmed.effect
    return MeasuredSides(
        plan,
        SidePlan(typed=before.short, change=before),
        SidePlan(typed=after.short, change=after),
        shown,
        is_slower=shown * plan.ref.metric.sign > 0,
        finished=True,
    )


_EXPLAINED: Final[Mapping[str, Callable[[Any], ExplainDocument | FailureExplanation]]] = {
    "bisect": explain_bisection,
    "compare": explain_comparison,
    "failure": explain_failure,
}


def explain_launches(job: Job) -> ExplainDocument | FailureExplanation:
    """What the launches of a job say, finished or not.

    Raises:
        UsageError: the job has no two sides.
    """
    events = read(job.journal).events
    kind = experiment_of(events)
    explained = _EXPLAINED.get(str(plan_data(events).get("verb")))
    if explained is None:
        raise UsageError(
            f"job {job.id} is a {kind.plan.noun}: it has no two sides to explain",
            next_step="perfbisect compare CELL --a REV --b REV",
        )
    with replaying(job.journal):
        return explained(kind.result(job, events))


class ProfilePlanDocument(LaunchPlanDocument):
    """The plan of a profile."""

    schema_: Literal["perfbisect.profile-plan/3"] = Field(default="perfbisect.profile-plan/3", alias="schema")
    source: str
    a: Change
    b: Change


def plan_profile(
    workspace: Workspace,
    job: Job,
    record: RequestRecord,
    *,
    launches: int = MOST_LAUNCHES,
    budget: float,
    dry_run: bool = False,
) -> PlannedJob[ProfilePlan, ProfilePlanDocument]:
    """Plan profile launches of the sides of a job, with nothing started; ``launches`` of each side.

    Raises:
        UsageError: the job compared no two sides, or measures on a fleet.
    """
    with replaying(job.journal):
        sides = measured_sides(job, read(job.journal).events)
    setting = sides.plan.setting.model_copy(update={"request": record})
    if setting.fleet:
        raise UsageError(
            f"job {job.id} measures on a fleet: recordings of other machines are not brought here",
            next_step="compare the two changes on this machine, and explain that job",
        )
    cell, repository = plan_cell(sides.plan), repository_of(setting)
    builder = setups.build_builder(workspace, setting, is_plan=dry_run)
    builder.prepare((sides.a.change, sides.b.change))
    found = find_slots(workspace, cell, setting, dry_run=dry_run)
    problem = sampling_problem(find_py_spy(), is_root=os.geteuid() == 0)
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
        launches=launches,
        budget=budget,
        objects=str(repository.objects or "") if repository else "",
        notes=(
            *found.notes,
            *render_sentences("explain/templates/plan_notes.jinja", {"no_stacks": problem}),
        ),
    )
    earlier = earlier_attempts(workspace.jobs, cell.digest)
    limits = ProfileLimits()
    each = earlier.costs.launch + (limits.windows * limits.window + limits.trace) / 60
    metric = metric_document(plan.ref, plan.smallest_effect)
    shown = ProfilePlanDocument(
        source=job.id,
        a=sides.a.change,
        b=sides.b.change,
        cell=cell_document(cell, plan.ref),
        metric=metric,
        metrics=(metric,),
        environment=setting.environment,
        client=setting.instrument,
        runs_per_launch=1,
        most_launches=2 * plan.launches,
        minutes_low=2 * each,
        minutes_high=2 * plan.launches * each,
        budget_minutes=budget,
        minutes_basis=earlier.basis,
        notes=plan.notes,
    )
    values = {"plan": shown, "a": sides.a.name, "b": sides.b.name}
    lines = [
        *section_lines(workload_section(shown.cell)),
        *render_sentences("explain/templates/profile.plan.jinja", values),
    ]
    return PlannedJob(plan, builder, found.slots, shown, lines)


def plan_hunks(
    workspace: Workspace,
    job: Job,
    record: RequestRecord,
    *,
    min_effect: float | None,
    budget: float,
    dry_run: bool,
) -> PlannedJob[HunksPlan, HunksPlanDocument]:
    """Plan a search of the hunks of a job's culprit, with nothing started.

    Raises:
        UsageError: the job names no commit, or nothing of that can be taken back.
    """
    with replaying(job.journal):
        sides = measured_step(job, read(job.journal).events)
    source, culprit, effect = sides.plan, sides.b.change, sides.effect
    cell = source.cells[1] if isinstance(source, ComparePlan) else plan_cell(source)
    setting = source.setting.model_copy(update={"request": record})
    repository = repository_of(setting)
    if repository is None:
        raise UsageError(f"job {job.id} has no repository: there is no diff to split")
    builder = setups.build_builder(workspace, setting, is_plan=dry_run)
    builder.prepare((culprit,))
    try:
        diff = read_diff(repository, culprit)
    except ConflictError as error:
        raise UsageError(error.message) from None
    groups, left_out = group_hunks(diff)
    if not groups:
        raise UsageError(f"{culprit.short} changes nothing but tests, documentation and comments")
    found = find_slots(workspace, cell, setting, dry_run=dry_run)
    assert effect is not None
    earlier = earlier_attempts(workspace.jobs, cell.digest)
    plan = make_hunks_plan(
        source=job.id,
        culprit=culprit,
        diff=diff,
        groups=groups,
        left_out=left_out,
        cell=cell,
        setting=setting,
        metric=source.ref,
        builder=builder,
        revert=changes.hunk_reverter(builder, repository),
        patch_of=partial(hunk_patch, repository),
        min_effect=min_effect or source.min_effect,
        step=effect,
        slower=effect * source.ref.metric.sign > 0,
        costs=earlier.costs,
        budget=budget,
        notes=found.notes,
    )
    noise = learnt_noise(earlier.of_cell, source.ref, has_devices=cell.gpus > 0)
    shown = HunksPlanDocument.of(plan, noise, basis=earlier.basis)
    report = render_report("explain/templates/hunks.plan.jinja", {"plan": shown})
    lines = [text for section in report.sections for text in section_lines(section)]
    return PlannedJob(plan, builder, found.slots, shown, lines)


def measured_step(job: Job, events: tuple[JournalEvent, ...]) -> MeasuredSides:
    """The sides of a finished job with an effect: of a culprit, or of a commit compared with its parent.

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
    if isinstance(sides.plan, ComparePlan):
        repository = repository_of(sides.plan.setting)
        parents = repository.records("-1", culprit.source)[0].parents if repository else ()
        if sides.a.change.source != next(iter(parents), "") or sides.a.variant != sides.b.variant:
            raise UsageError(
                f"job {job.id} compares no commit with its parent: "
                "the difference is not the diff of one commit",
                next_step=f"perfbisect compare ... --a {culprit.short}^ --b {culprit.short}",
            )
    return sides
