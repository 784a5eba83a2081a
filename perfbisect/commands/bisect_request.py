"""From ``perfbisect bisect`` as typed to its plan."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from perfbisect.bisect.forecast import PlanDocument, plan_document, plan_lines
from perfbisect.bisect.plan import BisectPlan, Direction, Position, end_names, make_plan
from perfbisect.changes import priors
from perfbisect.changes.history import Branch, commit_history, list_releases, release_history
from perfbisect.changes.syntax import parse_change_text
from perfbisect.commands import changes, wiring
from perfbisect.commands.options import MeasureOptions
from perfbisect.commands.session import PlannedJob, build_setup
from perfbisect.commands.slots import reason_not_prebuilding
from perfbisect.commands.workspace import Workspace
from perfbisect.errors import MachineError, RevisionError, UsageError
from perfbisect.jobs.estimates import earlier_attempts, learnt_noise
from perfbisect.model.change import History
from perfbisect.report.sections import command_lines

_MODIFIED = re.compile(r"\+(?:patch|revert|pip):")

_SLOW_BUILD_MIN = 0.5
"""Minutes of a build from which on it matters whether it is waited for."""


@dataclass(frozen=True)
class BisectRequest:
    """``perfbisect bisect`` as it was typed."""

    cell: str | None
    good: str
    bad: str
    measuring: MeasureOptions
    releases: str | None = None
    versions: str | None = None
    direction: Direction = "regression"
    all_steps: bool = False
    confirm_revert: bool = False
    weights: Path | None = None
    min_effect: float | None = None
    """A share."""
    budget: float | None = None
    seed: int = 0
    workers: int = 1
    dry_run: bool = False


PlannedBisection = PlannedJob[BisectPlan, PlanDocument]


def build_plan(workspace: Workspace, request: BisectRequest) -> PlannedBisection:
    """Plan a bisection, with nothing started."""
    measuring = request.measuring
    cell = wiring.resolve_cell(workspace, request.cell, measuring.variant)
    wiring.require_workload(cell, measuring.expect_workload)
    unlisted: tuple[str, ...] = ()
    try:
        commits, branch = resolve_range(workspace, request)
    except MachineError as error:
        if not (request.dry_run and request.releases):
            raise
        unlisted = (f"the releases between the ends are not known: {error.message}",)
        ends = (end.removeprefix(f"{request.releases}==") for end in (request.good, request.bad))
        commits, branch = resolve_range(workspace, replace(request, versions=",".join(ends)))
    newest = f"{request.releases}=={request.bad}" if request.releases else "HEAD"
    setup = build_setup(
        workspace,
        cell,
        newest,
        commits.changes,
        measuring,
        workers=request.workers,
        dry_run=request.dry_run,
    )
    earlier = earlier_attempts(workspace.jobs, cell.digest)
    plan = make_plan(
        cell=cell,
        history=commits,
        builder=setup.builder,
        metric=setup.metric,
        setting=setup.setting,
        costs=earlier.costs,
        notes=(*unlisted, *setup.notes),
        deploy=workspace.repository.tree_id if workspace.repository else None,
        weigh=position_weigher(workspace, request.weights)
        if request.weights and not request.releases
        else None,
        min_effect=request.min_effect,
        budget=wiring.budget_minutes(workspace, request.budget),
        seed=request.seed,
        direction=request.direction,
        all_steps=request.all_steps,
        confirm_revert=request.confirm_revert,
        workers=len(setup.slots) or request.workers,
        weights=str(request.weights or ""),
        branch=branch,
    )
    why_not = reason_not_prebuilding(setup.slots) if setup.slots else ""
    if why_not and plan.costs.build > _SLOW_BUILD_MIN:
        note = f"the next environment is not built beside a running attempt: {why_not}"
        plan = plan.model_copy(update={"notes": (*plan.notes, note)})
    shown = plan_document(
        plan, learnt_noise(earlier.of_cell, setup.metric), setup.builder, setup.machines, basis=earlier.basis
    )
    lines, commands = plan_lines(shown), command_lines(shown.commands)
    return PlannedJob(plan, setup.builder, setup.slots, shown, lines, commands)


def resolve_range(workspace: Workspace, request: BisectRequest) -> tuple[History, Branch | None]:
    """The changes from the earlier end to the later, and the branch of an earlier end beside the line."""
    names = end_names(request.direction)
    ends = {name: _resolve_end(workspace, request, name) for name in ("good", "bad")}
    first, last = (ends[name] for name in names)
    try:
        if request.releases:
            listed = tuple(part.strip() for part in (request.versions or "").split(",") if part.strip())
            known = listed or list_releases(request.releases)
            return release_history(request.releases, known, first, last, names), None
        return commit_history(workspace.needed_repository(), first, last, names)
    except RevisionError as error:
        if request.direction == "regression":
            raise
        raise RevisionError(
            f"{error.message} (with --direction improvement the bad end is the earlier)",
            where=error.where,
            next_step=error.next_step,
        ) from error


def _resolve_end(workspace: Workspace, request: BisectRequest, name: str) -> str:
    """An end as it is: a revision, a release, or the head of a pull request."""
    end: str = getattr(request, name)
    if request.releases and not _MODIFIED.search(end):
        return end
    repository = None if request.releases else workspace.needed_repository()
    if repository is not None:
        with suppress(RevisionError):
            repository.resolve(end)
            return end
    text = parse_change_text(end)
    if end == text.base:
        if repository is not None and text.pull is not None:
            return changes.resolve_pull(repository, text.pull).id
        return end
    modification = end[len(text.base) :]
    package = f"{request.releases}==" if request.releases else ""
    instead = f"perfbisect compare CELL --a {package}{text.base} --b {package}{end}"
    if modification == f"+{text.variant}":
        instead = f"--{name} {text.base} --variant {text.variant}, on all sides; or: {instead}"
    elif text.pips:
        instead = f"--{name} {text.base} --constraints FILE pins {text.pips[0]} on all sides; or: {instead}"
    raise UsageError(
        f"--{name} {end!r}: an end of a bisection is a commit or a release as it is: {modification} would be "
        "done to it and to none of the changes between",
        next_step=instead,
    )


def position_weigher(workspace: Workspace, path: Path) -> Callable[[Sequence[Position]], tuple[float, ...]]:
    """Prior weights of positions, by touched files or by commit, from a file."""
    commits = priors.load_commit_weights(path)
    if commits is not None:
        return lambda positions: priors.position_weights(
            [[change.source for change in position.changes] for position in positions], commits
        )
    rules, repository = priors.load_weights(path), workspace.needed_repository()

    def weigh(positions: Sequence[Position]) -> tuple[float, ...]:
        files = repository.files_of(change.id for position in positions for change in position.changes)
        touched = [
            tuple(name for change in position.changes for name in files.get(change.id, ()))
            for position in positions
        ]
        return priors.weights(touched, rules)

    return weigh
