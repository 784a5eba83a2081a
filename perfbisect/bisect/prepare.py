"""History and environments -> the plan of a bisection: what is one step, and what cannot be measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

from perfbisect.bisect import rebase
from perfbisect.bisect.plan import Aside, BisectPlan, Extras, Position
from perfbisect.cells.deploy import DeployText, deploy_changes
from perfbisect.environments.base import Builder, group_of
from perfbisect.errors import BuildError, UsageError
from perfbisect.jobs.measurement import MeasurementConfig, runs_per_launch
from perfbisect.jobs.plans import cell_data
from perfbisect.model.attempt import Costs
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change, History
from perfbisect.model.metric import MetricRef

Weigh = Callable[[Sequence[Position]], tuple[float, ...]]
"""Positions -> prior weights of them."""


def make_plan(
    *,
    cell: Cell,
    history: History,
    builder: Builder,
    metric: MetricRef,
    setting: MeasurementConfig,
    budget: float,
    seed: int = 0,
    costs: Costs | None = None,
    notes: Sequence[str] = (),
    deploy: DeployText | None = None,
    extras: Extras | None = None,
    aside: Aside | None = None,
    weigh: Weigh | None = None,
) -> BisectPlan:
    """The plan: neighbours with one environment merged, what cannot be built skipped.

    ``aside``: of a good end that is no ancestor of bad. ``weigh``: prior weights of the positions.

    :raises UsageError: nothing in the range changes the environment, or --env is wrong.
    :raises BuildError: an end of the range cannot be built.
    """
    extras = extras or Extras()
    builder.prepare(history.changes)
    positions, suspects = _positions(history.changes, builder, deploy_changes(cell, history.changes, deploy))
    names = ("good", "bad") if extras.direction == "regression" else ("bad", "good")
    for position, end in zip((positions[0], positions[-1]), names, strict=True):
        if position.skip:
            raise BuildError(
                f"the {end} end {position.change.short} cannot be built: {position.skip}",
                next_step=f"choose another --{end}, or another --env",
            )
    if len(positions) == 1:
        raise UsageError(
            f"nothing between {history.good.short} and {history.bad.short} changes what runs: "
            f"all {len(history.changes)} changes have one and the same environment",
            next_step="widen the range, or choose an --env that the difference enters",
        )
    return BisectPlan(
        cell=cell_data(cell),
        digest=cell.digest,
        setting=setting,
        metric=str(metric),
        positions=positions,
        budget=budget,
        seed=seed,
        max_runs=runs_per_launch(cell),
        costs=priced(costs or Costs(), positions, builder),
        notes=(*notes, *suspects, *rebase.pin_notes(positions), *builder.notes()),
        extras=extras,
        prior=weigh(positions) if weigh is not None else None,
        aside=aside,
    )


def priced(costs: Costs, positions: Sequence[Position], builder: Builder) -> Costs:
    """The costs with the build's as the builder knows it: the median of what is not there yet."""
    known = [builder.minutes(p.change) for p in positions if not (p.skip or p.cached)]
    minutes = [value for value in known if value is not None]
    return replace(costs, build=median(minutes)) if minutes else costs


def _positions(
    changes: Sequence[Change], builder: Builder, differing: frozenset[str]
) -> tuple[tuple[Position, ...], tuple[str, ...]]:
    positions: list[Position] = []
    suspects: list[str] = []
    before = ""
    for change in changes:
        refusal = builder.refuses(change)
        if refusal is not None and refusal.error:
            raise UsageError(refusal.reason, next_step="mend --env")
        if refusal is not None:
            group = group_of(builder, change)
            positions.append(Position(changes=(change,), skip=refusal.reason, group=group))
            before = ""
            continue
        identity = builder.key(change)
        if identity == before and change.id not in differing:
            last = positions[-1]
            positions[-1] = last.model_copy(update={"changes": (*last.changes, change)})
            continue
        before = identity
        suspect = "the cell's deploy YAML differs here" if change.id in differing else ""
        if suspect:
            suspects.append(
                f"{change.short} changes the deploy YAML that the cell takes from the change: a suspect"
            )
        positions.append(
            Position(
                changes=(change,),
                cached=builder.cached(change),
                suspect=suspect,
                group=group_of(builder, change),
            )
        )
    return tuple(positions), tuple(suspects)
