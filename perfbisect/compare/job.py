"""Comparisons and checks: the plan, and launches until the verdict stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perfbisect.cells.deploy import DeployText, deploy_changes
from perfbisect.compare.baseline import (
    RecordedLevel,
    record_level,
    require_enough,
    require_same_machine,
    require_same_workload,
)
from perfbisect.compare.documents import CheckDocument, CompareDocument
from perfbisect.compare.launches import (
    RUNS,
    SIDES,
    OneChange,
    attempts_of,
    in_turn,
    measure_launches,
    observations,
    require_buildable,
    require_shared_metrics,
)
from perfbisect.compare.metrics import has_open_guard
from perfbisect.compare.plan import CheckPlan, ComparePlan, RunPlan, SidePlan, served_cells
from perfbisect.compare.results import (
    check_document,
    compare_document,
    guards_of,
    judge_check,
    judge_check_guards,
)
from perfbisect.environments.base import Builder
from perfbisect.errors import UsageError
from perfbisect.jobs.events import LaunchEnded
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import read
from perfbisect.jobs.measurement import MeasurementConfig, runs_per_launch
from perfbisect.jobs.plans import cell_data, find_plan, plan_cell, plan_data, require_plan
from perfbisect.jobs.replay import LaunchRecord, launches, require_comparable
from perfbisect.jobs.runner import JobContext, LaunchRequest
from perfbisect.jobs.sequential import fits_budget, launch_ended
from perfbisect.model.attempt import Attempt
from perfbisect.model.cell import SERVER_SIDE, Cell
from perfbisect.model.change import Change
from perfbisect.model.metric import MetricRef
from perfbisect.stats import ab_test, threshold


class NothingDiffersError(UsageError):
    """Both sides are one environment, served alike: there is nothing to compare."""


def make_compare_plan(
    *,
    cell: Cell,
    a: SidePlan,
    b: SidePlan,
    builder: Builder,
    metric: MetricRef,
    setting: MeasurementConfig,
    budget: float,
    blocks: int,
    deploy: DeployText | None = None,
    **options: Any,
) -> ComparePlan:
    """The plan of a comparison. ``deploy``: reads the deploy YAML that a cell takes from the change;
    ``options``: further fields of the plan.

    :raises NothingDiffersError: both sides are the same.
    :raises UsageError: --env is wrong.
    :raises SideRefusedError: a side cannot be built.
    """
    builder.prepare([a.change, b.change])
    for side, plan_of_side in zip(SIDES, (a, b), strict=True):
        name, advice = f"--{side} {plan_of_side.text}", f"choose another --{side}, or another --env"
        require_buildable(builder, plan_of_side.change, name, next_step=advice, side=side)
    plan = ComparePlan(
        cell=cell_data(cell),
        digest=cell.digest,
        setting=setting,
        metric=str(metric),
        a=a,
        b=b,
        blocks=blocks,
        runs=min(RUNS, runs_per_launch(cell)),
        budget=budget,
        **{"seed": 0, **options},
    )
    one_yaml = not deploy_changes(cell, (a.change, b.change), deploy)
    if _served_alike(*served_cells(plan)) and one_yaml and builder.key(a.change) == builder.key(b.change):
        variants = "one variant" if a.variant == b.variant else f"{a.name} and {b.name} are served alike"
        raise NothingDiffersError(
            f"{a.text} and {b.text} are the same: one environment, {variants}",
            next_step="name two changes, or a variant of one: --b REV+VARIANT",
        )
    return plan


def _served_alike(a: Cell, b: Cell) -> bool:
    return all(getattr(a, field) == getattr(b, field) for field in SERVER_SIDE)


@dataclass(frozen=True)
class CheckLevel:
    """What a change is checked against: a ``baseline`` with the share by which it may be worse, two ``ends``,
    or a good and a bad value."""

    baseline: RecordedLevel | None = None
    max_regression: float = 0.0
    ends: tuple[RecordedLevel, RecordedLevel] | None = None
    values: tuple[float, float] | None = None

    @property
    def recorded(self) -> tuple[RecordedLevel, ...]:
        return self.ends or ((self.baseline,) if self.baseline else ())


def make_check_plan(
    *,
    cell: Cell,
    change: Change,
    level: CheckLevel,
    builder: Builder,
    metric: MetricRef,
    setting: MeasurementConfig,
    launches: int,
    budget: float,
    machine_class: str | None = None,
    notes: Sequence[str] = (),
) -> CheckPlan:
    """The plan of a check against a level; ``machine_class``: that of this machine.

    :raises UsageError: the level is of another workload or machine, or is none; or --env is wrong.
    :raises SideRefusedError: the change cannot be built.
    """
    builder.prepare([change])
    require_buildable(builder, change, change.short, next_step="choose another --env or --at")
    for recorded in level.recorded:
        require_same_workload(recorded, cell, metric)
        require_same_machine(recorded, machine_class=machine_class)
    recorded_runs = [len(attempt.runs) for recorded in level.recorded for attempt in recorded.launches]
    plan = CheckPlan(
        cell=cell_data(cell),
        digest=cell.digest,
        setting=setting,
        metric=str(metric),
        change=change,
        how="values" if level.values else "ends" if level.ends else "baseline",
        recorded=level.recorded,
        values=level.values,
        max_regression=level.max_regression,
        launches=launches,
        # The second run of a launch has a bias of its own, so launches are as long as the recorded ones.
        runs=min(recorded_runs, default=min(RUNS, runs_per_launch(cell))),
        budget=budget,
        notes=tuple(notes),
    )
    if launches < threshold.STEP:
        raise UsageError(f"--launches {launches} is too few for a verdict: at least {threshold.STEP}")
    try:
        _ = plan.threshold
    except ValueError as error:
        raise UsageError(f"there is no threshold to check {change.short} against: {error}") from None
    return plan


def compare(job: Job, tools: JobContext) -> CompareDocument:
    """Goes on with a comparison, new or resumed, until its verdict. Hold the job meanwhile.

    Raises what :func:`perfbisect.compare.launches.measure_launches` does.
    """

    def conclude(plan: ComparePlan, seen: Sequence[LaunchRecord]) -> dict[str, object]:
        verdict = ab_test.judge_blocks(plan.question(), observations(in_turn(seen), plan.ref))
        return {"verdict": verdict.word, "launches": verdict.launches}

    def blocks(plan: ComparePlan, _: Cell) -> _Blocks:
        return _Blocks(plan, served_cells(plan))

    return compare_document(job, measure_launches(job, tools, ComparePlan, blocks, conclude))


def check(job: Job, tools: JobContext) -> CheckDocument:
    """Goes on with a check against a level, new or resumed, until its verdict. Hold the job meanwhile.

    Raises what :func:`perfbisect.compare.launches.measure_launches` does.
    """

    def conclude(plan: CheckPlan, seen: Sequence[LaunchRecord]) -> dict[str, object]:
        verdict = judge_check(plan, in_turn(seen))
        return {"verdict": verdict.word, "launches": verdict.launches}

    def pairs(plan: CheckPlan, cell: Cell) -> _Pairs:
        return _Pairs(plan, cell, plan.budget)

    return check_document(job, measure_launches(job, tools, CheckPlan, pairs, conclude))


@dataclass(frozen=True)
class _Blocks:
    """The sides in turn, block after block."""

    plan: ComparePlan
    cells: tuple[Cell, Cell]
    advice: str = "name another change"

    def next(self, seen: Sequence[LaunchRecord]) -> LaunchRequest | str:
        plan, measured = self.plan, observations(in_turn(seen), self.plan.ref)
        side, why = _next_side(plan, measured), ""
        if side is None and self._waits_for_guards(seen, measured):
            side, why = ab_test.side_of_launch(plan.question(), len(measured)), ", for the guards"
        if side is None or not fits_budget(seen, plan.budget):
            return ""
        position = SIDES.index(side)
        why = f"{side.upper()}, block {len(measured) // ab_test.BLOCK_SIZE + 1}{why}"
        return LaunchRequest(position, plan.sides[position].change, "confirm", plan.runs, why)

    def _waits_for_guards(self, seen: Sequence[LaunchRecord], measured: Sequence[ab_test.AbLaunch]) -> bool:
        """True if the verdict is good news that a guard has not confirmed, and there are blocks left."""
        plan = self.plan
        if len(measured) >= ab_test.BLOCK_SIZE * plan.blocks:
            return False
        verdict, expected = ab_test.judge_blocks(plan.question(), measured), plan.expected
        good = (
            expected.settles(verdict.low, verdict.high) == "holds"
            if expected
            else verdict.word in ("improvement", "same")
        )
        return good and has_open_guard(plan, in_turn(seen), guards_of(plan, self.cells[0]))

    def cell(self, order: LaunchRequest) -> Cell:
        return self.cells[order.position]

    def name(self, order: LaunchRequest) -> str:
        return f"side {SIDES[order.position]} ({self.plan.sides[order.position].text})"

    def admit(self, attempt: Attempt, seen: Sequence[LaunchRecord]) -> None:
        require_shared_metrics(seen)
        require_comparable(attempt, seen, self.plan.ref, "measure both sides")

    def told(self, ended: LaunchRecord, seen: Sequence[LaunchRecord], order: LaunchRequest) -> LaunchEnded:
        return launch_ended(ended, seen, order, self.plan.ref, self.plan.budget)


def _next_side(plan: ComparePlan, measured: Sequence[ab_test.AbLaunch]) -> ab_test.Side | None:
    """The side of the next launch; None where the verdict stands, or the claim is settled."""
    question, expected = plan.question(), plan.expected
    if expected is None:
        return ab_test.next_side(question, measured)
    if len(measured) % ab_test.BLOCK_SIZE == 0:
        verdict = ab_test.judge_blocks(question, measured)
        settled = expected.settles(verdict.low, verdict.high) != "inconclusive"
        if settled or len(measured) >= ab_test.BLOCK_SIZE * plan.blocks:
            return None
    return ab_test.side_of_launch(question, len(measured))


@dataclass(frozen=True)
class _Pairs(OneChange):
    """Launches of one change, judged after every second one."""

    def next(self, seen: Sequence[LaunchRecord]) -> LaunchRequest | str:
        plan, measured = self._check, in_turn(seen)
        if len(measured) % threshold.STEP == 0 and self._is_settled(measured):
            return ""
        if not fits_budget(seen, plan.budget):
            return ""
        why = f"launch {len(measured) + 1} of {plan.launches} at most"
        return LaunchRequest(0, plan.change, "run", plan.runs, why)

    def _is_settled(self, measured: Sequence[LaunchRecord]) -> bool:
        """True if the verdict stands, good news by its guards as well, or there are no launches left."""
        plan = self._check
        verdict = judge_check(plan, measured)
        if verdict.word == "within" and len(measured) + threshold.STEP <= plan.launches:
            guards = judge_check_guards(plan, self.served, measured)
            return all(guard.word != "inconclusive" for _, guard in guards)
        return verdict.settled

    def admit(self, attempt: Attempt, seen: Sequence[LaunchRecord]) -> None:
        require_comparable(attempt, seen, self.plan.ref, "measure all of a check")
        origin = attempt.provenance
        client = (origin.client_digest, origin.client_era)
        for level in self._check.recorded:
            require_same_machine(level, machine_class=origin.machine_class, client=client)

    @property
    def _check(self) -> CheckPlan:
        assert isinstance(self.plan, CheckPlan)
        return self.plan


def level_of_job(job: Job) -> RecordedLevel:
    """The level that a ``run`` or a ``check`` measured.

    :raises UsageError: it measured several changes, or its journal cannot be read.
    """
    events = read(job.journal).events
    plan = find_plan(events, RunPlan) or find_plan(events, CheckPlan)
    if plan is None:
        verb = plan_data(events).get("verb")
        raise UsageError(
            f"job {job.id} is a {verb}: it measured several changes, and a baseline is of one",
            next_step="name a job of perfbisect run or check, or a file of --save-baseline",
        )
    measured = [x.attempt for x in in_turn(launches(events)) if x.attempt is not None]
    level = record_level(job.id, plan, plan.change, plan_cell(plan), measured)
    require_enough(level, f"job {job.id}")
    return level


def levels_of_comparison(job: Job) -> tuple[RecordedLevel, RecordedLevel]:
    """Both sides of a comparison, with as many launches each.

    :raises UsageError: the job is none, or its journal cannot be read.
    """
    events = read(job.journal).events
    plan = require_plan(job, events, ComparePlan)
    seen, cells = launches(events), served_cells(plan)
    sides = (attempts_of(seen, "a"), attempts_of(seen, "b"))
    count = min(map(len, sides))
    good, bad = (
        record_level(job.id, plan, side.change, cell, attempts[:count])
        for side, cell, attempts in zip(plan.sides, cells, sides, strict=True)
    )
    return good, bad
