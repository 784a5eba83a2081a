"""Plans of runs, checks and comparisons: enough to decide, resume and report a job from its journal alone."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, ClassVar, Literal, NamedTuple, get_args

from pydantic import FiniteFloat

from perfbisect.cells.deploy import DeployText, deploy_changes
from perfbisect.compare.baseline import RecordedLevel, require_same_machine, require_same_workload
from perfbisect.compare.claims import EffectRange, Settled, no_worse, parse_change
from perfbisect.environments.base import Builder
from perfbisect.errors import BuildError, UsageError
from perfbisect.fleet.bundle import MachineDocument
from perfbisect.fleet.forecast import MachineForecastDocument, forecast_machine
from perfbisect.jobs.estimates import learnt_noise
from perfbisect.jobs.plans import (
    BudgetedPlan,
    MeasurementConfig,
    PlanPart,
    cell_data,
    guard_metrics,
    plan_cell,
    runs_per_launch,
)
from perfbisect.jobs.replay import LaunchRecord, require_comparable
from perfbisect.machine.slots import Slot
from perfbisect.model.attempt import Attempt, Purpose
from perfbisect.model.cell import SERVER_SIDE, Cell, apply_variant
from perfbisect.model.change import Change
from perfbisect.model.metric import MetricRef, parse_metric
from perfbisect.stats import ab_test, threshold
from perfbisect.stats.two_sample import Scale

SIDES: tuple[ab_test.Side, ab_test.Side] = ("a", "b")
"""Position 0 and 1 of a comparison."""

RUNS = 2
"""Runs a launch, where the engine can empty its caches between them: the second is nearly free."""


class MeasuredLaunch(NamedTuple):
    """A launch that gave values; ``position``: of its side."""

    position: int
    attempt: Attempt


def measured_launches(launches: Iterable[LaunchRecord]) -> tuple[MeasuredLaunch, ...]:
    """The launches that gave values, in order."""
    return tuple(
        MeasuredLaunch(launch.position, launch.attempt)
        for launch in launches
        if launch.end == "finished" and launch.attempt is not None and launch.purpose != "profile"
    )


def attempts_of(measured: Iterable[MeasuredLaunch], position: int) -> tuple[Attempt, ...]:
    """The attempts of one side."""
    return tuple(launch.attempt for launch in measured if launch.position == position)


def shared_metrics(measured: Sequence[MeasuredLaunch]) -> tuple[str, ...]:
    """Names that every run of every launch reports, in the order of the first."""
    runs = [run.values for launch in measured for run in launch.attempt.runs]
    return tuple(name for name in runs[0] if all(name in run for run in runs)) if runs else ()


VerdictWord = Literal["regression", "beyond", "inconclusive", "improvement", "same", "within"]


def combine_words(words: Iterable[VerdictWord]) -> VerdictWord:
    """The verdict on several metrics: the worst; no good one stands while a metric is open."""
    return min(words, key=get_args(VerdictWord).index, default="inconclusive")


@dataclass(frozen=True)
class MetricVerdict:
    """A metric of B against A, or of a change (b) against a threshold (a); nan before the first verdict.

    ``effect``: B / A - 1 (of shares B - A) with its interval; of a check that against the recorded level.
    ``needed``: launches that a verdict takes; 0: unknown or settled, None: no number of launches is enough.
    """

    metric: MetricRef
    word: VerdictWord
    effect: float
    low: float
    high: float
    a: float
    b: float
    launches: int
    needed: int | None = 0
    note: str = ""


class SidePlan(PlanPart):
    """One side: what was typed, the change that is built, the variant as which it is served."""

    typed: str
    change: Change
    variant: str = ""

    @property
    def name(self) -> str:
        return self.change.short + (f"+{self.variant}" if self.variant else "")


class MeasurementPlan(BudgetedPlan):
    """Launches of the sides in turn, ``runs`` each, until the verdict stands; budget in minutes."""

    purpose: ClassVar[Purpose] = "run"
    launches_per_look: ClassVar[int] = 1
    advice: ClassVar[str] = "read the log; choose another --at or --env"

    runs: int
    further: tuple[str, ...] = ()
    """Metrics that are judged too, besides ``metric``."""

    @property
    def refs(self) -> tuple[MetricRef, ...]:
        """All metrics that are judged."""
        return self.ref, *map(parse_metric, self.further)

    @property
    @abstractmethod
    def sides(self) -> tuple[SidePlan, ...]: ...

    @property
    def changes(self) -> tuple[Change, ...]:
        return tuple(side.change for side in self.sides)

    @property
    @abstractmethod
    def max_launches(self) -> int: ...

    def position(self, count: int) -> int:
        """The side of the launch after so many."""
        return count % len(self.sides)

    def reason(self, count: int) -> str:
        """Why there is a launch after so many."""
        return f"launch {count + 1} of {self.max_launches}"

    def side_name(self, position: int) -> str:
        """Names a side in error messages."""
        return f"change {self.sides[position].name}"

    def guards(self, cell: Cell) -> tuple[MetricRef, ...]:
        """Metrics that must not get worse."""
        del cell
        return ()

    def require_admissible(self, attempt: Attempt, launches: Sequence[LaunchRecord]) -> None:
        """Raise an error if a launch cannot be compared with the others."""

    def judge_all(self, measured: Sequence[MeasuredLaunch]) -> tuple[MetricVerdict, ...]:
        """The verdict on each metric that is judged; raises what :meth:`judge` raises."""
        refs = self.refs
        return tuple(self.judge(measured, ref, len(refs)) for ref in refs)

    def judge(self, measured: Sequence[MeasuredLaunch], metric: MetricRef, tests: int) -> MetricVerdict:
        """The verdict on a metric; ``tests`` share its error.

        Raises:
            KeyError: the metric was not reported.
            ValueError: a value has no level.
        """
        del tests
        nan = math.nan
        return MetricVerdict(metric, "inconclusive", nan, nan, nan, nan, nan, len(measured))

    def claim(self, verdict: MetricVerdict) -> Settled:
        """Whether nothing got worse, or what was claimed holds."""
        return CLAIMS[verdict.word]


class ChangePlan(MeasurementPlan):
    """Launches of one change; ``launches``: at most."""

    change: Change
    launches: int

    @property
    def sides(self) -> tuple[SidePlan, ...]:
        return (SidePlan(typed=self.change.short, change=self.change),)

    @property
    def max_launches(self) -> int:
        return self.launches


class RunPlan(ChangePlan):
    """``perfbisect run``: launches of one change."""

    noun: ClassVar[str] = "run"
    verb: Literal["run"] = "run"


class CheckPlan(ChangePlan):
    """``perfbisect check`` of one change against recorded launches or values.

    ``how``: against a ``baseline`` (``recorded``) with the share by which the change may be worse, or against
    the middle of two ``ends`` (``recorded``: good, bad) or of two ``values`` (good, bad).
    """

    noun: ClassVar[str] = "check"
    launches_per_look: ClassVar[int] = threshold.STEP
    verb: Literal["check"] = "check"
    how: Literal["baseline", "ends", "values"]
    recorded: tuple[RecordedLevel, ...] = ()
    values: tuple[float, float] | None = None
    max_regression: float = 0.0
    budget: FiniteFloat

    def reason(self, count: int) -> str:
        return f"{super().reason(count)} at most"

    def guards(self, cell: Cell) -> tuple[MetricRef, ...]:
        return guard_metrics(cell) if self.how == "baseline" else ()

    def threshold(self, metric: MetricRef) -> threshold.Threshold:
        """The level that the change must not exceed; of a guard its smallest effect above the baseline.

        Raises:
            KeyError: the baseline lacks the metric.
            ValueError: the recorded levels are none, or the bad one is not the worse.
        """
        scale = Scale.of(metric.metric)
        if self.values is not None:
            good, bad = (scale.level((value,)) for value in self.values)
            if bad <= good:
                raise ValueError("the bad value is not the worse one")
            return threshold.Threshold(0.5 * (good + bad))
        levels = [[scale.level(v) for v in level.values(metric)] for level in self.recorded]
        if self.how == "ends":
            return threshold.threshold_between(levels[0], levels[1])
        return threshold.threshold_above(levels[0], scale.worse_by(self._limit(metric)))

    def judge(self, measured: Sequence[MeasuredLaunch], metric: MetricRef, tests: int) -> MetricVerdict:
        scale, limit = Scale.of(metric.metric), self.threshold(metric)
        levels = [scale.level(launch.attempt.values(metric)) for launch in measured]
        if metric in self.refs:
            judged = threshold.judge_threshold(limit, levels, self.launches, error=threshold.ERROR / tests)
        else:
            beyond = ab_test.DIFFERENT / tests
            judged = threshold.judge_threshold(limit, levels, self.launches, beyond_error=beyond)
        room = scale.worse_by(self._limit(metric))
        effect, *ends = (scale.effect(over + room) for over in (judged.over, judged.low, judged.high))
        if not math.isnan(judged.over):
            value = scale.value(limit.at + judged.over)
            value = max(0.0, value) if scale.absolute else value
        else:
            value = scale.value(median(levels)) if levels else math.nan
        return MetricVerdict(
            metric, judged.word, effect, min(ends), max(ends), scale.value(limit.at), value, len(levels),
            judged.needed,
        )  # fmt: skip

    def _limit(self, metric: MetricRef) -> float:
        return self.max_regression if metric in self.refs else metric.metric.smallest_effect

    def require_admissible(self, attempt: Attempt, launches: Sequence[LaunchRecord]) -> None:
        for ref in self.refs:
            require_comparable(attempt, launches, ref, "measure all of a check")
        here = attempt.provenance
        for level in self.recorded:
            client = (here.client_digest, here.client_era)
            require_same_machine(level, machine_class=here.machine_class, client=client)


CLAIMS: dict[str, Settled] = {
    "improvement": "holds",
    "same": "holds",
    "within": "holds",
    "regression": "refuted",
    "beyond": "refuted",
    "inconclusive": "inconclusive",
}
"""What a verdict means for the claim that nothing got worse."""


def combine_claims(claims: Iterable[Settled]) -> Settled:
    """Refuted if one is, and holds only if all hold."""
    words = set(claims)
    return "refuted" if "refuted" in words else "holds" if words == {"holds"} else "inconclusive"


class ComparePlan(MeasurementPlan):
    """``perfbisect compare``: two sides of one workload. ``cell``: before variants."""

    noun: ClassVar[str] = "comparison"
    purpose: ClassVar[Purpose] = "confirm"
    launches_per_look: ClassVar[int] = ab_test.BLOCK_SIZE
    advice: ClassVar[str] = "name another change"
    verb: Literal["compare"] = "compare"
    a: SidePlan
    b: SidePlan
    blocks: int
    budget: FiniteFloat
    seed: int = 0
    expect: str = ""
    """The change of the metric that is claimed; empty where nothing is."""
    watch: tuple[str, ...] = ()
    """Guards besides the cell's own."""
    max_regression: float | None = None
    """Of a check: the share by which B may be worse than A."""

    def expected(self, metric: MetricRef) -> EffectRange | None:
        """The effects of a metric that the claim or the check allows; None where nothing was claimed."""
        if self.max_regression is not None:
            return no_worse(self.max_regression, metric.metric.sign)
        return parse_change(self.expect) if self.expect else None

    @property
    def sides(self) -> tuple[SidePlan, ...]:
        return self.a, self.b

    @property
    def max_launches(self) -> int:
        return ab_test.BLOCK_SIZE * self.blocks

    def question(self, metric: MetricRef, tests: int) -> ab_test.AbTest:
        """The test of a metric, as one of so many.

        Of several metrics all must be the same, which needs no correction, or one of them different. Under a
        limit both verdicts rest on the interval, so that the intervals hold together.
        """
        row, is_judged = metric.metric, metric in self.refs
        limited = is_judged and self.max_regression is not None
        return ab_test.AbTest(
            sign=row.sign,
            min_effect=self.smallest_effect_of(metric) if is_judged else row.smallest_effect,
            blocks=self.blocks,
            seed=self.seed,
            absolute=row.absolute,
            tests=tests,
            missed=ab_test.MISSED / tests if limited else ab_test.MISSED,
        )

    def position(self, count: int) -> int:
        return SIDES.index(ab_test.side_of_launch(self.question(self.ref, 1), count))

    def reason(self, count: int) -> str:
        return f"{SIDES[self.position(count)].upper()}, block {count // ab_test.BLOCK_SIZE + 1}"

    def side_name(self, position: int) -> str:
        return f"side {SIDES[position]} ({self.sides[position].typed})"

    def guards(self, cell: Cell) -> tuple[MetricRef, ...]:
        found = dict.fromkeys((*guard_metrics(cell), *map(parse_metric, self.watch)))
        return tuple(guard for guard in found if guard != self.ref)

    def judge(self, measured: Sequence[MeasuredLaunch], metric: MetricRef, tests: int) -> MetricVerdict:
        launches = [ab_test.AbLaunch(SIDES[x.position], x.attempt.values(metric)) for x in measured]
        judged = ab_test.judge_blocks(self.question(metric, tests), launches)
        return MetricVerdict(
            metric, judged.word, judged.effect, judged.low, judged.high, judged.a, judged.b, judged.launches,
            judged.needed * ab_test.BLOCK_SIZE,
        )  # fmt: skip

    def require_admissible(self, attempt: Attempt, launches: Sequence[LaunchRecord]) -> None:
        for ref in self.refs:
            require_comparable(attempt, launches, ref, "measure both sides")

    def claim(self, verdict: MetricVerdict) -> Settled:
        expected = self.expected(verdict.metric)
        return expected.settles(verdict.low, verdict.high) if expected else super().claim(verdict)


def served_cells(plan: MeasurementPlan) -> tuple[Cell, ...]:
    """The cell as each side serves it."""
    cell = plan_cell(plan)
    return tuple(apply_variant(cell, side.variant) if side.variant else cell for side in plan.sides)


class SideRefusedError(BuildError):
    """A side cannot be built, as is known before anything is started; ``side`` is ``a`` or ``b``."""

    def __init__(self, side: ab_test.Side, message: str, *, next_step: str) -> None:
        super().__init__(message, next_step=next_step)
        self.side = side


class NothingDiffersError(UsageError):
    """Both sides are one environment, served alike: there is nothing to compare."""


@dataclass(frozen=True)
class MeasurementSetup:
    """What a plan measures, and with what."""

    cell: Cell
    metric: MetricRef
    setting: MeasurementConfig
    builder: Builder
    slots: tuple[Slot, ...] = ()
    machines: tuple[MachineDocument, ...] = ()
    """Of a fleet, on which the slots are."""
    machine_class: str = ""
    """Of the slots; empty: not known."""
    notes: tuple[str, ...] = ()
    further: tuple[MetricRef, ...] = ()

    def fields(self) -> dict[str, Any]:
        """The fields of a plan."""
        return {
            "cell": cell_data(self.cell),
            "digest": self.cell.digest,
            "setting": self.setting,
            "metric": str(self.metric),
            "further": tuple(map(str, self.further)),
            "notes": self.notes,
        }

    def require_buildable(
        self, change: Change, name: str, *, next_step: str, side: ab_test.Side = "b"
    ) -> None:
        """Require that the builder can build a change; ``name``: of the change in the message."""
        refusal = self.builder.refuses(change)
        if refusal is None:
            return
        if refusal.error:
            raise UsageError(refusal.reason, next_step="correct --env")
        raise SideRefusedError(side, f"{name} cannot be built: {refusal.reason}", next_step=next_step)


def build_run_plan(setup: MeasurementSetup, *, change: Change, launches: int, runs: int) -> RunPlan:
    """Plan launches of one change."""
    setup.require_buildable(change, change.short, next_step="choose another --env or --at")
    if runs > 1 and runs_per_launch(setup.cell) == 1:
        raise UsageError(
            f"cell {setup.cell.name}: the engine's caches cannot be emptied between runs, "
            "so a launch has one run",
            next_step="ask for more launches instead: --launches",
        )
    return RunPlan(**setup.fields(), change=change, launches=launches, runs=runs)


def build_check_plan(
    setup: MeasurementSetup,
    *,
    change: Change,
    recorded: tuple[RecordedLevel, ...] = (),
    values: tuple[float, float] | None = None,
    max_regression: float = 0.0,
    launches: int,
    budget: float,
    machine_class: str | None = None,
) -> CheckPlan:
    """Plan a check against a recorded level, two recorded ends, or two values."""
    setup.builder.prepare([change])
    setup.require_buildable(change, change.short, next_step="choose another --env or --at")
    for level in recorded:
        require_same_workload(level, setup.cell, (setup.metric, *setup.further))
        require_same_machine(level, machine_class=machine_class)
    # The second run of a launch has a bias of its own, so launches are as long as the recorded ones.
    recorded_runs = [len(attempt.runs) for level in recorded for attempt in level.attempts]
    plan = CheckPlan(
        **setup.fields(),
        change=change,
        how="values" if values else "ends" if len(recorded) > 1 else "baseline",
        recorded=recorded,
        values=values,
        max_regression=max_regression,
        launches=launches,
        runs=min(recorded_runs, default=min(RUNS, runs_per_launch(setup.cell))),
        budget=budget,
    )
    if launches < threshold.STEP:
        raise UsageError(f"--launches {launches} is too few for a verdict: at least {threshold.STEP}")
    try:
        for metric in plan.refs:
            plan.threshold(metric)
    except ValueError as error:
        raise UsageError(f"there is no threshold to check {change.short} against: {error}") from None
    return plan


def build_compare_plan(
    setup: MeasurementSetup, *, a: SidePlan, b: SidePlan, deploy: DeployText | None = None, **options: Any
) -> ComparePlan:
    """Plan a comparison; ``deploy`` reads deploy YAML of a change, ``options`` are fields of the plan.

    Raises:
        NothingDiffersError: both sides are the same.
        UsageError: --env is wrong.
        SideRefusedError: a side cannot be built.
    """
    builder, changes = setup.builder, (a.change, b.change)
    builder.prepare(changes)
    for side, planned in zip(SIDES, (a, b), strict=True):
        advice = f"choose another --{side}, or another --env"
        setup.require_buildable(planned.change, f"--{side} {planned.typed}", next_step=advice, side=side)
    plan = ComparePlan(**setup.fields(), a=a, b=b, runs=min(RUNS, runs_per_launch(setup.cell)), **options)
    left, right = served_cells(plan)
    served_alike = all(getattr(left, field) == getattr(right, field) for field in SERVER_SIDE)
    one_yaml = not deploy_changes(setup.cell, changes, deploy)
    if served_alike and one_yaml and builder.key(a.change) == builder.key(b.change):
        variants = "one variant" if a.variant == b.variant else f"{a.name} and {b.name} are served alike"
        raise NothingDiffersError(
            f"{a.typed} and {b.typed} are the same: one environment, {variants}",
            next_step="name two changes, or a variant of one: --b REV+VARIANT",
        )
    return plan


def forecast_blocks(plan: ComparePlan, earlier: Sequence[Attempt]) -> tuple[int | None, str]:
    """Blocks that are as likely as not enough (None: more than there are), and what is assumed.

    The noise is that of earlier launches; no verdict uses it.
    """
    blocks: list[int | None] = []
    for metric in plan.refs:
        learnt = learnt_noise(earlier, metric)
        noise = math.hypot(learnt.launches, learnt.runs / math.sqrt(plan.runs))
        blocks.append(ab_test.forecast_blocks(plan.question(metric, len(plan.refs)), noise))
    bounds = " (a claim's own bounds may take more)" if plan.expect else ""
    known = [count for count in blocks if count is not None]
    enough = max(known) if len(known) == len(blocks) else None
    return enough, f"if nothing changed{bounds}; noise: {learnt.source}"


def forecast_machines(
    plan: MeasurementPlan, setup: MeasurementSetup, low: float, high: float
) -> tuple[MachineForecastDocument, ...]:
    """What machines of a fleet do of so many minutes: blocks of a comparison in turn, else the first all."""
    turns = plan.blocks if isinstance(plan, ComparePlan) else 1
    names = list(dict.fromkeys(slot.machine for slot in setup.slots))
    used = [machine for name in names for machine in setup.machines if machine.name == name][:turns]
    needed = {setup.builder.key(side.change) for side in plan.sides} if used else set()
    return tuple(
        forecast_machine(
            machine,
            0.0 if number else low,
            high * len(range(number, turns, len(used))) / turns,
            gpus=setup.cell.gpus,
            needed=needed,
        )
        for number, machine in enumerate(used)
    )
