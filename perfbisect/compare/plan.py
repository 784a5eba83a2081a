"""The question of a comparison as data: enough to go on with it from its journal alone."""

from __future__ import annotations

from typing import ClassVar, Literal

from perfbisect.compare import claims
from perfbisect.errors import UsageError
from perfbisect.jobs.plans import JobPlan, cell_of
from perfbisect.jobs.settings import Data
from perfbisect.model.cell import Cell, apply_variant
from perfbisect.model.change import Change
from perfbisect.model.metric import MetricRef
from perfbisect.stats import ab_test

BLOCKS = 10
"""Blocks of four launches at most."""


class SidePlan(Data):
    """One side: what was typed, the change that is built, the variant as which it is served."""

    text: str
    change: Change
    variant: str = ""

    @property
    def name(self) -> str:
        """As a table shows it."""
        return self.change.short + (f"+{self.variant}" if self.variant else "")


class ComparePlan(JobPlan):
    """``perfbisect compare``: two sides of one workload. ``cell``: before variants; budget in minutes."""

    noun: ClassVar[str] = "comparison"
    verb: Literal["compare"] = "compare"
    a: SidePlan
    b: SidePlan
    blocks: int
    runs: int
    budget: float
    seed: int
    min_effect: float | None = None
    """The smallest effect worth telling, where it is not the metric's own."""
    expect: str = ""
    """The change of the metric that a claim speaks of; empty where nothing was claimed."""
    watch: tuple[str, ...] = ()
    """Guards besides the cell's own."""
    fail_over: float | None = None
    """Of a check: the share by which B may be worse than A, and no more."""
    told: tuple[str, ...] = ()

    @property
    def expected(self) -> claims.Change | None:
        """The effects that the claim or the check allows; None where nothing was claimed."""
        if self.fail_over is not None:
            return claims.no_worse(self.fail_over, self.ref.metric.sign)
        return claims.parse_change(self.expect) if self.expect else None

    @property
    def sides(self) -> tuple[SidePlan, SidePlan]:
        return self.a, self.b

    def question(self, metric: MetricRef | None = None) -> ab_test.Question:
        """The question for a metric, by default the one that is judged."""
        asked = metric or self.ref
        row = asked.metric
        own = self.min_effect if asked == self.ref else None
        return ab_test.Question(
            sign=row.sign,
            min_effect=own or row.smallest_effect,
            blocks=self.blocks,
            seed=self.seed,
            absolute=row.absolute,
        )


def cells_of(plan: ComparePlan) -> tuple[Cell, Cell]:
    """The cell as each side serves it, with the digest that both had.

    :raises UsageError: this version of perfbisect reads another workload from it.
    """
    cell = cell_of(plan)
    sides = [apply_variant(cell, side.variant) if side.variant else cell for side in plan.sides]
    for side in sides:
        if side.digest != plan.digest:
            raise UsageError(
                f"the job's cell has the digest {side.digest} here and had {plan.digest} when the job began",
                next_step="go on with the version of perfbisect that began it, or start a new job",
            )
    return sides[0], sides[1]
