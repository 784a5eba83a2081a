"""Plans with nothing started: what will be measured, and what it will take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from perfbisect.experiments.baseline import ReportedLevel
from perfbisect.experiments.check import CheckPlan, RecordedDocument, recorded_document
from perfbisect.experiments.compare import ComparePlan
from perfbisect.experiments.measure import MeasurementPlan, SideDocument
from perfbisect.experiments.run import RunPlan
from perfbisect.experiments.setup import MeasurementSetup
from perfbisect.jobs.commands import commands_document
from perfbisect.jobs.documents import (
    CommandsDocument,
    DryRunDocument,
    MetricDocument,
    cell_document,
    metric_document,
)
from perfbisect.jobs.estimates import learnt_noise
from perfbisect.jobs.machines import MachineForecastDocument, forecast_machine, machine_rows
from perfbisect.jobs.plans import plan_cell
from perfbisect.model.attempt import Attempt
from perfbisect.model.change import Change
from perfbisect.report.sections import command_lines
from perfbisect.report.template import render_report
from perfbisect.report.terminal import section_lines
from perfbisect.stats import ab_test, threshold
from perfbisect.stats.two_sample import LaunchNoise, Scale


class LaunchPlanDocument(DryRunDocument):
    """What a plan of launches will measure, and how long that takes."""

    metrics: tuple[MetricDocument, ...]
    """All that are judged."""
    most_launches: int
    minutes_low: float
    minutes_high: float
    minutes_basis: str
    """Where the minutes of a launch come from."""
    known_noise: Mapping[str, LaunchNoise] = Field(default_factory=dict)
    """What verdicts take earlier launches' word for, by metric."""
    machines: tuple[MachineForecastDocument, ...] = ()
    """Of a fleet, in their turns; empty: this one. Launches are made one at a time."""


class ComparePlanDocument(LaunchPlanDocument):
    """What will be measured: ``perfbisect compare --dry-run``.

    ``others``: the comparisons beside the first, of a sweep or a claim with several cells; ``all_minutes``:
    the fewest and most of all together.
    """

    schema_: Literal["perfbisect.compare-plan/3"] = Field(default="perfbisect.compare-plan/3", alias="schema")
    a: SideDocument
    b: SideDocument
    smallest_effect: float
    forecast_blocks: int | None
    """Blocks that will as likely as not be enough; None: more than there are."""
    forecast_from: str
    commands: tuple[CommandsDocument, ...]
    others: tuple[ComparePlanDocument, ...] = ()
    all_minutes: tuple[float, float] | None = None

    @property
    def command_texts(self) -> list[str]:
        """The exact commands of both sides, once where they are the same."""
        a, b = self.commands
        if (a.serve, a.bench) == (b.serve, b.bench):
            return command_lines(a)
        return command_lines(a, " of a") + command_lines(b, " of b")


class ChangePlanDocument(LaunchPlanDocument):
    """What will be measured of one change: ``run --dry-run``, ``check --dry-run``.

    ``how``: a ``run``, a check against a ``baseline`` or two ``values``, or a baseline to ``save``.
    ``limit``, ``recorded``, ``reported``: of a check.
    """

    schema_: Literal["perfbisect.change-plan/1"] = Field(default="perfbisect.change-plan/1", alias="schema")
    change: Change
    how: Literal["run", "baseline", "values", "save"]
    limit: float = 0.0
    line: float | None = None
    """The level from which on the change is too bad; None where nothing is judged."""
    recorded: tuple[RecordedDocument, ...] = ()
    reported: ReportedLevel | None = None
    commands: CommandsDocument


def _plan_fields(plan: MeasurementPlan, setup: MeasurementSetup, turns: int = 1) -> dict[str, Any]:
    """The fields of every plan's document; the minutes are learnt from earlier launches and builds.

    ``turns``: those that the machines of a fleet take; without a budget every launch is made.
    """
    costs, builds = setup.earlier.costs, setup.builder.price(plan.changes)
    each = costs.launch + plan.runs * costs.run
    most = plan.max_launches * each
    low, high = (most, most) if plan.budget is None else (plan.per_look * each, min(plan.budget, most))
    names = list(dict.fromkeys(slot.machine for slot in setup.placed.slots))
    used = [machine for name in names for machine in setup.placed.machines if machine.name == name][:turns]
    needed = {setup.builder.key(side.change) for side in plan.sides} if used else set()
    return {
        "cell": cell_document(setup.cell, plan.ref),
        "metric": metric_document(plan.ref, plan.smallest_effect),
        "metrics": tuple(metric_document(ref, plan.smallest_effect_of(ref)) for ref in plan.refs),
        "environment": plan.setting.environment,
        "client": plan.setting.instrument,
        "runs_per_launch": plan.runs,
        "most_launches": plan.max_launches,
        "minutes_low": low + builds.minutes,
        "minutes_high": high + builds.minutes,
        "budget_minutes": most if plan.budget is None else plan.budget,
        "machines": tuple(
            forecast_machine(
                machine,
                0.0 if number else low,
                high * len(range(number, turns, len(used))) / turns,
                gpus=setup.cell.gpus,
                needed=needed,
            )
            for number, machine in enumerate(used)
        ),
        "minutes_basis": setup.earlier.basis,
        "known_noise": plan.noise,
        "notes": (*plan.notes, *builds.notes()),
    }


def change_plan_document(
    plan: RunPlan | CheckPlan,
    setup: MeasurementSetup,
    how: Literal["run", "save"] = "run",
) -> ChangePlanDocument:
    """What a run or a check will measure; ``how``: of a run, which may be that of a baseline."""
    judged: dict[str, Any] = {"how": how}
    if isinstance(plan, CheckPlan):
        judged = {
            "how": plan.how,
            "limit": plan.max_regression,
            "line": Scale.of(plan.ref.metric).value(plan.threshold(plan.ref).at),
            "recorded": tuple(recorded_document(level, plan.ref) for level in plan.recorded),
            "reported": plan.reported,
        }
    return ChangePlanDocument(
        **_plan_fields(plan, setup),
        change=plan.change,
        commands=commands_document(setup.cell, plan.setting, plan.change, None),
        **judged,
    )


def compare_plan_document(plan: ComparePlan, setup: MeasurementSetup) -> ComparePlanDocument:
    """What ``perfbisect compare`` will measure."""
    blocks, forecast_from = forecast_blocks(plan, setup.earlier.of_cell)
    return ComparePlanDocument(
        **_plan_fields(plan, setup, turns=plan.blocks) | {"client": plan.instrument},
        a=SideDocument.model_validate(plan.a, from_attributes=True),
        b=SideDocument.model_validate(plan.b, from_attributes=True),
        smallest_effect=plan.smallest_effect,
        forecast_blocks=blocks,
        forecast_from=forecast_from,
        commands=tuple(
            commands_document(served, plan.setting, side.change, None)
            for served, side in zip(plan.cells, plan.sides, strict=True)
        ),
    )


def forecast_blocks(plan: ComparePlan, earlier: Sequence[Attempt]) -> tuple[int | None, str]:
    """Blocks that are as likely as not enough (None: more than there are), and what is assumed.

    The noise is that of earlier launches.
    """
    blocks: list[int | None] = []
    for metric in plan.refs:
        learnt = learnt_noise(earlier, metric, has_devices=plan_cell(plan).gpus > 0)
        noise = math.hypot(learnt.launches, learnt.runs / math.sqrt(plan.runs))
        blocks.append(ab_test.forecast_blocks(plan.question(metric, len(plan.refs)), noise))
    bounds = " (a claim's own bounds may take more)" if plan.expect else ""
    known = [count for count in blocks if count is not None]
    enough = max(known) if len(known) == len(blocks) else None
    return enough, f"if nothing changed{bounds}; noise: {learnt.source}"


def plan_lines(plan: LaunchPlanDocument) -> list[str]:
    """What will be measured, and what it will take, on a terminal."""
    values = {
        "plan": plan,
        "machines": list(machine_rows(plan.machines)),
        "block": ab_test.BLOCK_SIZE,
        "step": threshold.STEP,
    }
    name = "compare" if isinstance(plan, ComparePlanDocument) else "change"
    report = render_report(f"experiments/templates/{name}.plan.jinja", values)
    return [text for section in report.sections for text in section_lines(section)]
