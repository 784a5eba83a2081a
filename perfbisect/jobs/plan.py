"""The question of a job as data: enough to go on with it from its journal alone, without arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ValidationError

from perfbisect.core import bisect as core
from perfbisect.core.cell import Cell
from perfbisect.core.change import Change
from perfbisect.core.metric import MetricRef, parse_metric
from perfbisect.errors import UsageError
from perfbisect.jobs.check_plan import CheckPlan
from perfbisect.jobs.compare_plan import ComparePlan
from perfbisect.jobs.setting import Data, Setting
from perfbisect.store.events import Event


class Position(Data):
    """A step of the range: changes with identical environments, oldest first; ``skip``: why not testable."""

    changes: tuple[Change, ...]
    skip: str = ""
    cached: bool = False
    suspect: str = ""
    """What else the first change brings that the environment does not show: a deploy YAML that differs."""
    group: str = ""
    """What it stands on, where that moves within a range: ``vllm v0.21.0``."""

    @property
    def change(self) -> Change:
        """The one that is measured: the first, which brought the difference."""
        return self.changes[0]


class Aside(Data):
    """Of a good end that is no ancestor of the bad one: where the two lines part, and good's own commits.

    ``fork`` is the last commit on bad's line of first parents that good contains; ``own`` what good has and
    the fork lacks, oldest first; ``shared`` the ids of those of which bad has an equal patch.
    """

    fork: Change
    own: tuple[Change, ...]
    shared: tuple[str, ...] = ()


class RunPlan(Data):
    """``perfbisect run``: launches of one change."""

    verb: Literal["run"] = "run"
    cell: dict[str, Any]
    digest: str
    setting: Setting
    metric: str
    change: Change
    launches: int
    runs: int
    told: tuple[str, ...] = ()


class Extras(Data):
    """What a bisection is asked beyond the one step."""

    find: Literal["regression", "fix"] = "regression"
    """Whether the later end is the worse one, or the better."""
    every: bool = False
    """Every step of the range, not the first alone."""
    confirm_revert: bool = False
    """The later end against itself less the culprit, once there is one."""
    workers: int = 1
    """Launches at once, as they were asked for."""
    weights: str = ""
    """The file of ``--weights``."""


class BisectPlan(Data):
    """``perfbisect bisect``: position 0 is the earlier end, the last the later; budget, costs in minutes.

    The earlier end is the good one, but where the change that made it better is asked for.
    """

    verb: Literal["bisect"] = "bisect"
    cell: dict[str, Any]
    digest: str
    setting: Setting
    metric: str
    positions: tuple[Position, ...]
    budget: float
    seed: int
    max_runs: int
    costs: core.Costs
    told: tuple[str, ...] = ()
    extras: Extras = Extras()
    prior: tuple[float, ...] | None = None
    """Weights over the positions, from ``--weights``."""
    aside: Aside | None = None

    @property
    def merge_base(self) -> int | None:
        """The position that begins with the merge base, where good is no ancestor of bad."""
        if self.aside is None:
            return None
        fork = self.aside.fork.id
        return next((i for i, p in enumerate(self.positions) if p.changes[0].id == fork), None)

    @property
    def ref(self) -> MetricRef:
        return parse_metric(self.metric)

    @property
    def last(self) -> int:
        return len(self.positions) - 1

    @property
    def question(self) -> core.Plan:
        """The question as the core takes it."""
        metric = self.ref.metric
        return core.Plan(
            n=self.last,
            sign=metric.sign if self.extras.find == "regression" else -metric.sign,
            min_effect=metric.smallest_effect,
            costs=self.costs,
            skips=frozenset(i for i, position in enumerate(self.positions) if position.skip),
            cached=frozenset(i for i, position in enumerate(self.positions) if position.cached),
            budget=self.budget,
            max_runs=self.max_runs,
            seed=self.seed,
            prior=self.prior,
            every=self.extras.every,
        )


JobPlan = RunPlan | BisectPlan | ComparePlan | CheckPlan

__all__ = [
    "Aside",
    "BisectPlan",
    "CheckPlan",
    "ComparePlan",
    "Extras",
    "JobPlan",
    "Position",
    "RunPlan",
    "Setting",
]


def cell_data(cell: Cell) -> dict[str, Any]:
    """A cell as JSON values, with what its files held when it was read."""
    data: dict[str, Any] = cell.model_dump(mode="json", by_alias=True)
    return data


def cell_of(plan: JobPlan) -> Cell:
    """The cell of a plan, with the digest it had.

    :raises UsageError: this version of perfbisect reads another workload from it.
    """
    try:
        cell = Cell.model_validate_json(json.dumps(plan.cell))
    except ValidationError as error:
        raise UsageError(f"the job's cell cannot be read: {error}", next_step="start a new job") from error
    if cell.digest != plan.digest:
        raise UsageError(
            f"the job's cell has the digest {cell.digest} here and had {plan.digest} when the job began",
            next_step="go on with the version of perfbisect that began it, or start a new job",
        )
    return cell


def plan_of(events: tuple[Event, ...]) -> JobPlan:
    """The plan in a journal: the last one, where a larger budget was asked for later.

    :raises UsageError: there is none, or it is not one that can be read.
    """
    data: Mapping[str, Any] | None = next((e.data for e in reversed(events) if e.kind == "plan"), None)
    if data is None:
        raise UsageError(
            "the journal has no plan: the job ended before anything began", next_step="start a new job"
        )
    kinds: dict[str, type[JobPlan]] = {"run": RunPlan, "compare": ComparePlan, "check": CheckPlan}
    kind = kinds.get(str(data.get("verb")), BisectPlan)
    try:
        return kind.model_validate_json(json.dumps(data))
    except ValidationError as error:
        raise UsageError(f"the job's plan cannot be read: {error}", next_step="start a new job") from error
