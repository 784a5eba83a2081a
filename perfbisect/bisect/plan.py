"""The plan of ``perfbisect bisect``: the positions of its range, and what is asked of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, ClassVar, Literal

from perfbisect.bisect.decision.model import Plan
from perfbisect.bisect.positions import Position, find_positions, pin_notes
from perfbisect.cells.deploy import DeployText, deploy_changes
from perfbisect.changes.history import Branch
from perfbisect.environments.base import Builder
from perfbisect.errors import BuildError, UsageError
from perfbisect.jobs.measurement import MeasurementConfig, runs_per_launch
from perfbisect.jobs.plans import JobPlan, cell_data
from perfbisect.model.attempt import Costs
from perfbisect.model.cell import Cell
from perfbisect.model.change import History
from perfbisect.model.metric import MetricRef

Direction = Literal["regression", "improvement"]


def end_names(direction: Direction) -> tuple[str, str]:
    """What the user calls the earlier and the later end."""
    return ("good", "bad") if direction == "regression" else ("bad", "good")


class BisectPlan(JobPlan):
    """Position 0 is the earlier end, the last one the later; budget and costs are in minutes."""

    noun: ClassVar[str] = "bisection"
    verb: Literal["bisect"] = "bisect"
    positions: tuple[Position, ...]
    budget: float
    max_runs: int
    costs: Costs
    seed: int = 0
    notes: tuple[str, ...] = ()
    direction: Direction = "regression"
    """Whether the later end is worse or better."""
    all_steps: bool = False
    confirm_revert: bool = False
    """Measure the later end against itself without the culprit."""
    workers: int = 1
    """Concurrent launches, as typed."""
    weights: str = ""
    """The file of ``--weights``."""
    prior: tuple[float, ...] | None = None
    """Weights of the positions, from that file."""
    branch: Branch | None = None
    """Of a good end that is no ancestor of bad."""

    @property
    def merge_base(self) -> int | None:
        """The position of the commit where good's branch begins."""
        if self.branch is None:
            return None
        fork = self.branch.fork.id
        return next((i for i, position in enumerate(self.positions) if position.change.id == fork), None)

    @property
    def last(self) -> int:
        return len(self.positions) - 1

    def end_name(self, index: int) -> str:
        """What the user calls the end at a position."""
        return end_names(self.direction)[index > 0]

    @property
    def search(self) -> Plan:
        """The plan of the search."""
        metric = self.ref.metric
        return Plan(
            n=self.last,
            sign=metric.sign if self.direction == "regression" else -metric.sign,
            min_effect=metric.smallest_effect,
            costs=self.costs,
            skips=frozenset(i for i, position in enumerate(self.positions) if position.skip),
            cached=frozenset(i for i, position in enumerate(self.positions) if position.cached),
            budget=self.budget,
            max_runs=self.max_runs,
            seed=self.seed,
            prior=self.prior,
            all_steps=self.all_steps,
        )


def make_plan(
    *,
    cell: Cell,
    history: History,
    builder: Builder,
    metric: MetricRef,
    setting: MeasurementConfig,
    costs: Costs | None = None,
    notes: Sequence[str] = (),
    deploy: DeployText | None = None,
    weigh: Callable[[Sequence[Position]], tuple[float, ...]] | None = None,
    **options: Any,
) -> BisectPlan:
    """Merge neighbours with one environment and skip what cannot be built; ``options``: more of the plan.

    Raises:
        UsageError: nothing in the range changes the environment, or --env is wrong.
        BuildError: an end of the range cannot be built.
    """
    builder.prepare(history.changes)
    deploys = deploy_changes(cell, history.changes, deploy)
    positions = find_positions(history.changes, builder, deploys)
    plan = BisectPlan(
        cell=cell_data(cell),
        digest=cell.digest,
        setting=setting,
        metric=str(metric),
        positions=positions,
        max_runs=runs_per_launch(cell),
        costs=_with_build_minutes(costs or Costs(), positions, builder),
        notes=(
            *notes,
            *(
                f"{change.short} changes the deploy YAML that the cell takes from the change: a suspect"
                for change in history.changes
                if change.id in deploys
            ),
            *pin_notes(positions),
            *builder.notes(),
        ),
        prior=weigh(positions) if weigh is not None else None,
        **options,
    )
    for index in (0, plan.last):
        end, position = plan.end_name(index), positions[index]
        if position.skip:
            raise BuildError(
                f"the {end} end {position.change.short} cannot be built: {position.skip}",
                next_step=f"choose another --{end}, or another --env",
            )
    if not plan.last:
        raise UsageError(
            f"nothing between {history.good.short} and {history.bad.short} changes what runs: "
            f"all {len(history.changes)} changes have one and the same environment",
            next_step="widen the range, or choose an --env that the difference enters",
        )
    return plan


def _with_build_minutes(costs: Costs, positions: Sequence[Position], builder: Builder) -> Costs:
    known = [builder.minutes(p.change) for p in positions if not (p.skip or p.cached)]
    minutes = [value for value in known if value is not None]
    return replace(costs, build=median(minutes)) if minutes else costs
