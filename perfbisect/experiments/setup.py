"""What is measured with what, and plans of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from perfbisect.cells.deploy import DeployText, deploy_changes
from perfbisect.environments.base import Builder
from perfbisect.errors import BuildError, UsageError
from perfbisect.experiments.baseline import (
    RecordedLevel,
    ReportedLevel,
    require_same_machine,
    require_same_workload,
)
from perfbisect.experiments.check import CheckPlan
from perfbisect.experiments.compare import SIDES, ComparePlan
from perfbisect.experiments.measure import RUNS, SidePlan
from perfbisect.experiments.run import RunPlan
from perfbisect.jobs.estimates import EarlierAttempts, learnt_noise
from perfbisect.jobs.machines import JobSlots
from perfbisect.jobs.plans import MeasurementConfig, cell_data, runs_per_launch
from perfbisect.model.cell import SERVER_SIDE, Cell
from perfbisect.model.change import Change
from perfbisect.model.metric import MetricRef
from perfbisect.stats import ab_test, threshold


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
    metrics: tuple[MetricRef, ...]
    """The metrics that are judged, that of the job first."""
    setting: MeasurementConfig
    builder: Builder
    placed: JobSlots = field(default_factory=JobSlots)
    """Empty: not known."""
    earlier: EarlierAttempts = field(default_factory=EarlierAttempts)
    notes: tuple[str, ...] = ()
    """Of the whole plan, those on its slots among them."""

    @property
    def metric(self) -> MetricRef:
        return self.metrics[0]

    def fields(self) -> dict[str, Any]:
        """The fields of a plan."""
        first, *further = map(str, self.metrics)
        return {
            "cell": cell_data(self.cell),
            "digest": self.cell.digest,
            "setting": self.setting,
            "metric": first,
            "further": tuple(further),
            "notes": self.notes,
        }

    def known_noise(self, runs: int) -> dict[str, Any]:
        """The fields of a plan on the noise of a launch of so many runs, as earlier launches have it."""
        kind = next((x.provenance.machine_class for x in reversed(self.earlier.of_cell)), "")
        alike = [x for x in self.earlier.of_cell if x.provenance.machine_class == kind]
        found = {str(metric): learnt_noise(alike, metric).of_launch(runs) for metric in self.metrics}
        return {"noise": {name: noise for name, noise in found.items() if noise}, "noise_machine": kind}

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
    reported: ReportedLevel | None = None,
    values: tuple[float, float] | None = None,
    max_regression: float = 0.0,
    launches: int,
    budget: float,
    machine_class: str | None = None,
) -> CheckPlan:
    """Plan a check against a recorded or reported level, or two values."""
    setup.builder.prepare([change])
    setup.require_buildable(change, change.short, next_step="choose another --env or --at")
    for level in recorded:
        require_same_workload(level, setup.cell, setup.metrics)
        require_same_machine(level, machine_class=machine_class)
    # The second run of a launch has a bias of its own, so launches are as long as the recorded ones.
    recorded_runs = [len(attempt.runs) for level in recorded for attempt in level.attempts]
    runs = min(recorded_runs, default=min(RUNS, runs_per_launch(setup.cell, setup.metrics)))
    plan = CheckPlan(
        **setup.fields(),
        **setup.known_noise(runs),
        change=change,
        how="values" if values else "baseline",
        recorded=recorded,
        reported=reported,
        values=values,
        max_regression=max_regression,
        launches=launches,
        runs=runs,
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
    runs = min(RUNS, runs_per_launch(setup.cell, setup.metrics))
    plan = ComparePlan(**setup.fields(), **setup.known_noise(runs), a=a, b=b, runs=runs, **options)
    left, right = plan.cells
    # Equal environments are one change only where the server gets the same arguments and stages.
    served_alike = all(getattr(left, field) == getattr(right, field) for field in SERVER_SIDE)
    one_yaml = not deploy_changes(setup.cell, changes, deploy)
    if served_alike and one_yaml and not plan.side_clients and builder.key(a.change) == builder.key(b.change):
        variants = "one variant" if a.variant == b.variant else f"{a.name} and {b.name} are served alike"
        raise NothingDiffersError(
            f"{a.typed} and {b.typed} are the same: one environment, {variants}",
            next_step="name two changes, or a variant of one: --b REV+VARIANT",
        )
    return plan
