"""The plan of ``perfbisect bisect``: positions of the range, budget, and what is asked beyond one step."""

from __future__ import annotations

from typing import ClassVar, Literal

from perfbisect.bisect.decision import decide
from perfbisect.jobs.measurement import PlanPart
from perfbisect.jobs.plans import JobPlan
from perfbisect.model.attempt import Costs
from perfbisect.model.change import Change


class Position(PlanPart):
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


class Aside(PlanPart):
    """Of a good end that is no ancestor of the bad one: where the two lines part, and good's own commits.

    ``fork`` is the last commit on bad's line of first parents that good contains; ``own`` what good has and
    the fork lacks, oldest first; ``shared`` the ids of those of which bad has an equal patch.
    """

    fork: Change
    own: tuple[Change, ...]
    shared: tuple[str, ...] = ()


class Extras(PlanPart):
    """What a bisection is asked beyond the one step."""

    direction: Literal["regression", "improvement"] = "regression"
    """Whether the later end is worse or better."""
    all_steps: bool = False
    """Every step of the range, not the first alone."""
    confirm_revert: bool = False
    """The later end against itself less the culprit, once there is one."""
    workers: int = 1
    """Launches at once, as they were asked for."""
    weights: str = ""
    """The file of ``--weights``."""


class BisectPlan(JobPlan):
    """``perfbisect bisect``: position 0 is the earlier end, the last the later; budget, costs in minutes.

    The earlier end is the good one, but where the change that made it better is asked for.
    """

    noun: ClassVar[str] = "bisection"
    verb: Literal["bisect"] = "bisect"
    positions: tuple[Position, ...]
    budget: float
    seed: int
    max_runs: int
    costs: Costs
    notes: tuple[str, ...] = ()
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
    def last(self) -> int:
        return len(self.positions) - 1

    @property
    def question(self) -> decide.Plan:
        """The question as the core takes it."""
        metric = self.ref.metric
        return decide.Plan(
            n=self.last,
            sign=metric.sign if self.extras.direction == "regression" else -metric.sign,
            min_effect=metric.smallest_effect,
            costs=self.costs,
            skips=frozenset(i for i, position in enumerate(self.positions) if position.skip),
            cached=frozenset(i for i, position in enumerate(self.positions) if position.cached),
            budget=self.budget,
            max_runs=self.max_runs,
            seed=self.seed,
            prior=self.prior,
            all_steps=self.extras.all_steps,
        )
