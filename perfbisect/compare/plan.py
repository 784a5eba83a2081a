"""Plans of comparisons, checks and runs: enough to resume a job from its journal alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from perfbisect.compare import claims
from perfbisect.compare.baseline import RecordedLevel
from perfbisect.errors import UsageError
from perfbisect.jobs.estimates import learnt_noise
from perfbisect.jobs.measurement import PlanPart
from perfbisect.jobs.plans import JobPlan, plan_cell
from perfbisect.model.attempt import Attempt
from perfbisect.model.cell import Cell, apply_variant
from perfbisect.model.change import Change
from perfbisect.model.metric import MetricRef
from perfbisect.stats import ab_test
from perfbisect.stats.threshold import Threshold, threshold_above, threshold_between
from perfbisect.stats.two_sample import Scale

BLOCKS = 10
"""Blocks of four launches at most."""


class SidePlan(PlanPart):
    """One side: what was typed, the change that is built, the variant as which it is served."""

    text: str
    change: Change
    variant: str = ""

    @property
    def name(self) -> str:
        """As a table shows it."""
        return self.change.short + (f"+{self.variant}" if self.variant else "")


class MeasuringPlan(JobPlan):
    """What comparisons, checks and runs have in common. ``runs``: of each launch."""

    runs: int
    notes: tuple[str, ...] = ()


class RunPlan(MeasuringPlan):
    """``perfbisect run``: launches of one change."""

    noun: ClassVar[str] = "run"
    verb: Literal["run"] = "run"
    change: Change
    launches: int


class ComparePlan(MeasuringPlan):
    """``perfbisect compare``: two sides of one workload. ``cell``: before variants; budget in minutes."""

    noun: ClassVar[str] = "comparison"
    verb: Literal["compare"] = "compare"
    a: SidePlan
    b: SidePlan
    blocks: int
    budget: float
    seed: int
    min_effect: float | None = None
    """The smallest relevant effect, where it is not the metric's own."""
    expect: str = ""
    """The change of the metric that a claim speaks of; empty where nothing was claimed."""
    watch: tuple[str, ...] = ()
    """Guards besides the cell's own."""
    max_regression: float | None = None
    """Of a check: the share by which B may be worse than A, and no more."""

    @property
    def expected(self) -> claims.EffectRange | None:
        """The effects that the claim or the check allows; None where nothing was claimed."""
        if self.max_regression is not None:
            return claims.no_worse(self.max_regression, self.ref.metric.sign)
        return claims.parse_change(self.expect) if self.expect else None

    @property
    def sides(self) -> tuple[SidePlan, SidePlan]:
        return self.a, self.b

    def question(self, metric: MetricRef | None = None) -> ab_test.AbTest:
        """The question for a metric, by default the one that is judged."""
        ref = metric or self.ref
        row = ref.metric
        own = self.min_effect if ref == self.ref else None
        return ab_test.AbTest(
            sign=row.sign,
            min_effect=own or row.smallest_effect,
            blocks=self.blocks,
            seed=self.seed,
            absolute=row.absolute,
        )


class CheckPlan(MeasuringPlan):
    """``perfbisect check`` of one change against a level. ``cell``: as it is served; budget in minutes.

    ``how`` says where the level is from: a ``baseline`` (``recorded`` has it, ``max_regression`` the share by
    which the change may be worse), two ``ends`` (``recorded`` has the good and the bad one; the threshold is
    halfway between them), or two ``values`` of the metric.
    """

    noun: ClassVar[str] = "check"
    verb: Literal["check"] = "check"
    change: Change
    how: Literal["baseline", "ends", "values"]
    recorded: tuple[RecordedLevel, ...] = ()
    values: tuple[float, float] | None = None
    """The good and the bad value."""
    max_regression: float = 0.0
    launches: int
    """At most."""
    budget: float

    @property
    def threshold(self) -> Threshold:
        """The level that the change must not exceed.

        :raises ValueError: the recorded levels are none, or the bad one is not the worse.
        """
        scale = Scale.of(self.ref.metric)
        if self.values is not None:
            good, bad = (scale.level((value,)) for value in self.values)
            if bad <= good:
                raise ValueError("the bad value is not the worse one")
            return Threshold(0.5 * (good + bad))
        levels = [[scale.level(v) for v in level.values(self.ref)] for level in self.recorded]
        if self.how == "ends":
            return threshold_between(levels[0], levels[1])
        return threshold_above(levels[0], scale.worse_by(self.max_regression))

    def guard_threshold(self, guard: MetricRef) -> Threshold | None:
        """Where a guard is worse than the baseline by its smallest effect; None if the baseline lacks it.

        :raises ValueError: a value of which no level can be made.
        """
        scale = Scale.of(guard.metric)
        try:
            levels = [scale.level(v) for v in self.recorded[0].values(guard)]
        except KeyError:
            return None
        return threshold_above(levels, scale.worse_by(guard.metric.smallest_effect))


def served_cells(plan: ComparePlan) -> tuple[Cell, Cell]:
    """The cell as each side serves it, with the digest that both had.

    :raises UsageError: this version of perfbisect reads another workload from it.
    """
    cell = plan_cell(plan)
    sides = [apply_variant(cell, side.variant) if side.variant else cell for side in plan.sides]
    for side in sides:
        if side.digest != plan.digest:
            raise UsageError(
                f"the job's cell has the digest {side.digest} here and had {plan.digest} when the job began",
                next_step="resume with the version of perfbisect that began it, or start a new job",
            )
    return sides[0], sides[1]


@dataclass(frozen=True)
class Forecast:
    """``blocks`` that are as likely as not enough, None: more than there are; ``basis``: assumptions."""

    blocks: int | None
    basis: str


def forecast(plan: ComparePlan, earlier: Sequence[Attempt]) -> Forecast:
    """What a comparison will probably take, from the noise of earlier launches. No verdict uses it."""
    learnt = learnt_noise(earlier, plan.ref)
    noise = math.hypot(learnt.launches, learnt.runs / math.sqrt(plan.runs))
    bounds = " (a claim's own bounds may take more)" if plan.expect else ""
    return Forecast(
        ab_test.forecast_blocks(plan.question(), noise), f"if nothing changed{bounds}; noise: {learnt.source}"
    )
