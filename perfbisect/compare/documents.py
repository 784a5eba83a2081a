"""JSON documents of ``compare``, ``verify``, ``check`` and ``run``, made of their results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, ClassVar, Literal

from pydantic import Field

from perfbisect.compare.baseline import RecordedLevel
from perfbisect.compare.claims import Settled
from perfbisect.compare.plan import (
    CheckPlan,
    ComparePlan,
    MetricVerdict,
    RunPlan,
    SidePlan,
    attempts_of,
    combine_words,
)
from perfbisect.compare.result import JobResult, MeasurementPlanT, read_result
from perfbisect.compare.summary import check_summary, compare_summary, next_command, recorded_value
from perfbisect.errors import UsageError
from perfbisect.fleet.forecast import MachineForecastDocument
from perfbisect.jobs.commands import commands_document
from perfbisect.jobs.documents import (
    CellDocument,
    ChangeDocument,
    CommandsDocument,
    Document,
    MeasuredDocument,
    MetricDocument,
    change_document,
    log_differences,
    measured_fields,
    metric_document,
    reported_value,
    spread,
)
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import JournalEvent
from perfbisect.model.attempt import Attempt, key
from perfbisect.model.metric import MetricRef, parse_metric
from perfbisect.report.phases import PhasesDocument, phases_document
from perfbisect.stats.ab_test import Word

CheckWord = Literal["passed", "failed", "inconclusive"]


class VerdictDocument(MeasuredDocument):
    """A verdict in sentences, the next command, and the effect with its 95 % interval, None before one."""

    finished: bool
    folder: str
    summary: tuple[str, ...]
    next: str
    effect: float | None
    low: float | None
    high: float | None
    metric: MetricDocument


class SideDocument(Document):
    """One side: as it was typed, the change that was built, the variant as which it was served."""

    typed: str
    name: str
    change: ChangeDocument
    variant: str


class MetricRow(Document):
    """A metric of a document."""

    name: str
    display: str
    unit: str


class MetricComparisonDocument(MetricRow):
    """One metric: the levels of both sides, and B / A - 1 of them (of shares B - A) with its interval.

    ``judged``: named with --metric, or the headline; the verdict of any other is one of many: a hint.
    ``claim``: of a judged one whether it is within a limit or as was claimed. ``note``: why it is ``same``
    where no run of either side differed from another.
    """

    headline: bool
    judged: bool
    guard: bool
    absolute: bool
    verdict: Word
    claim: Settled | None
    left: float
    right: float
    effect: float
    low: float
    high: float
    note: str = ""


class CompareDocument(VerdictDocument):
    """How a comparison ended, or how far it is: all judged metrics together, and the first (``metric``)."""

    schema_: Literal["perfbisect.compare/3"] = Field(default="perfbisect.compare/3", alias="schema")
    verdict: Word
    headline: Word
    """The verdict on ``metric`` alone; ``verdict`` is that on all judged metrics and guards."""
    expected: str = ""
    claim: Settled | None = None
    """Whether what was claimed (``expected``) holds; a guard that failed refutes it."""
    limit: float | None = None
    """Of a check: by which share B may be worse; ``claim`` says whether it is not."""
    smallest_effect: float
    launches_a_side: int
    needed_blocks: int
    a: SideDocument
    b: SideDocument
    metrics: tuple[MetricComparisonDocument, ...]
    repository: str
    environment: str
    client: str
    reproduce: tuple[CommandsDocument, ...]
    log_differences: tuple[tuple[str, str, str], ...] = ()
    """What the engines' logs say differently: fact, A, B."""
    phases: PhasesDocument | None = None
    """None for launches without counters."""

    @property
    def by_guard(self) -> bool:
        """Whether a guard made the verdict what it is."""
        return self.verdict != combine_words(row.verdict for row in self.metrics if row.judged)


class LaunchPlanDocument(Document):
    """What a plan of launches will measure, and how long that takes."""

    schema_: str = Field(alias="schema")
    cell: CellDocument
    metric: MetricDocument
    metrics: tuple[MetricDocument, ...]
    """All that are judged."""
    environment: str
    client: str
    runs_per_launch: int
    most_launches: int
    minutes_low: float
    minutes_high: float
    budget_minutes: float
    minutes_basis: str
    """Where the minutes of a launch come from."""
    machines: tuple[MachineForecastDocument, ...] = ()
    """Of a fleet, in their turns; empty: this one. Launches are made one at a time."""
    notes: tuple[str, ...]


class RunPlanDocument(LaunchPlanDocument):
    """What will be measured: ``perfbisect run --dry-run``."""

    schema_: Literal["perfbisect.run-plan/2"] = Field(default="perfbisect.run-plan/2", alias="schema")
    change: ChangeDocument
    commands: CommandsDocument


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


class ComparisonsDocument(Document):
    """Several comparisons; ``job`` and ``next`` are those of the comparison that decides."""

    schema_: str = Field(alias="schema")
    job: str
    summary: tuple[str, ...]
    next: str
    cells: tuple[CompareDocument, ...]

    def brief(self) -> ComparisonsDocument:
        return self.model_copy(update={"cells": tuple(cell.brief() for cell in self.cells)})


class VerifyDocument(ComparisonsDocument):
    """``perfbisect verify``: a claim, its source, and the comparison of each of its cells.

    It holds where it holds in every cell, and is refuted where it is in one.
    """

    schema_: Literal["perfbisect.verify/3"] = Field(default="perfbisect.verify/3", alias="schema")
    claim: str
    source: str
    expected: str
    metric: str
    verdict: Settled


class SweepDocument(ComparisonsDocument):
    """``perfbisect compare --sweep``: one comparison a load, and its signature in words."""

    schema_: Literal["perfbisect.sweep/3"] = Field(default="perfbisect.sweep/3", alias="schema")
    signature: str


def summary_fields(
    headline: str, cells: Sequence[CompareDocument], deciding: CompareDocument
) -> dict[str, Any]:
    """The fields of several comparisons; ``deciding``: the one that made the verdict what it is."""
    rows = (f"{cell.cell.name}: {cell.summary[0]}" for cell in cells if cell.summary)
    return {
        "job": deciding.job,
        "summary": (headline, *rows),
        "next": deciding.next,
        "cells": tuple(cells),
    }


class RecordedDocument(Document):
    """A level that was measured before: whose, when, in which job, with how many launches."""

    job: str
    change: ChangeDocument
    days: str
    launches: int
    value: float | None


class GuardLevelDocument(MetricRow):
    """A guard against the baseline: worse by more than its smallest effect, not so, or not known yet."""

    verdict: Literal["beyond", "within", "inconclusive"]
    value: float | None


class MetricCheckDocument(MetricRow):
    """A metric of a check, as the check has it of its first."""

    verdict: CheckWord
    value: float | None
    line: float | None
    effect: float | None
    low: float | None
    high: float | None


class CheckDocument(VerdictDocument):
    """How a check ended, or how far it is.

    The effect is that of the change against its reference: B / A - 1, of shares B - A; of ``ends`` and
    ``values`` against the threshold between them. ``limit``: the share by which it may be worse.
    ``comparison``: of a check against a revision, all of it; ``launches`` are then in there.
    """

    schema_: Literal["perfbisect.check/3"] = Field(default="perfbisect.check/3", alias="schema")
    verdict: CheckWord
    how: Literal["rev", "baseline", "ends", "values"]
    limit: float
    value: float | None
    """The level of the change, in the metric's unit."""
    line: float | None
    """The level from which on it is too bad."""
    metrics: tuple[MetricCheckDocument, ...] = ()
    """All that are judged; empty before the first verdict."""
    change: ChangeDocument
    recorded: tuple[RecordedDocument, ...] = ()
    guards: tuple[GuardLevelDocument, ...] = ()
    reproduce: CommandsDocument | None = None
    comparison: CompareDocument | None = None

    def brief(self) -> CheckDocument:
        short = super().brief()
        whole = self.comparison
        return short if whole is None else short.model_copy(update={"comparison": whole.brief()})


class CheckPlanDocument(LaunchPlanDocument):
    """What a check against a level will measure: ``perfbisect check --dry-run``."""

    schema_: Literal["perfbisect.check-plan/3"] = Field(default="perfbisect.check-plan/3", alias="schema")
    change: ChangeDocument
    how: Literal["baseline", "ends", "values", "save"]
    limit: float = 0.0
    line: float | None = None
    """The level from which on the change is too bad; None where a baseline is measured."""
    recorded: tuple[RecordedDocument, ...] = ()
    commands: CommandsDocument


class SavedBaselineDocument(Document):
    """``perfbisect check --save-baseline``: what was measured and where it was written."""

    schema_: Literal["perfbisect.check-baseline/2"] = Field(
        default="perfbisect.check-baseline/2", alias="schema"
    )
    file: str
    recorded: RecordedDocument
    metric: MetricDocument
    cell: CellDocument
    folder: str


class RunMetricDocument(MetricRow):
    """One metric over the launches: the value of each."""

    median: float
    low: float
    high: float
    launches: tuple[float, ...]
    within: float | None
    """Robust coefficient of variation over a run's requests, median over runs; None without requests."""


class RunDocument(MeasuredDocument):
    """What ``perfbisect run`` measured."""

    shown: ClassVar[Mapping[str, int]] = {"launches": -8}
    schema_: Literal["perfbisect.run/3"] = Field(default="perfbisect.run/3", alias="schema")
    finished: bool
    folder: str
    change: ChangeDocument
    headline: MetricDocument
    metrics: tuple[RunMetricDocument, ...]
    environment: str
    client: str
    reproduce: CommandsDocument


def side_document(side: SidePlan) -> SideDocument:
    return SideDocument.model_validate(side, from_attributes=True)


def recorded_document(level: RecordedLevel, metric: MetricRef) -> RecordedDocument:
    return RecordedDocument(
        job=level.job,
        change=change_document(level.change),
        days=level.days,
        launches=len(level.attempts),
        value=recorded_value(level, metric),
    )


def run_document(job: Job, events: Sequence[JournalEvent]) -> RunDocument:
    """What was measured so far; a UsageError says why the journal holds no run."""
    result = read_result(job, events, RunPlan)
    plan, attempts = result.plan, attempts_of(result.measured, 0)
    names = dict.fromkeys([key(plan.ref), *(n for a in attempts for r in a.runs for n in sorted(r.values))])
    metrics = (_run_metric(attempts, name) for name in names)
    return RunDocument(
        **_job_fields(result),
        change=change_document(plan.change),
        headline=metric_document(plan.ref),
        environment=plan.setting.environment,
        client=plan.setting.instrument,
        metrics=tuple(metric for metric in metrics if metric is not None),
        reproduce=_commands(result, 0),
    )


def compare_document(job: Job, events: Sequence[JournalEvent]) -> CompareDocument:
    """How a comparison ended, or how far it is; a UsageError says why the journal holds none."""
    result = read_result(job, events, ComparePlan)
    plan, verdict = result.plan, result.verdict
    combined = combine_words(row.word for row in result.verdicts)
    is_claimed = plan.expected(plan.ref) is not None
    sides = attempts_of(result.measured, 0), attempts_of(result.measured, 1)
    return CompareDocument(
        **_job_fields(result),
        **_effect_fields(result),
        verdict="regression" if result.guard_failed else combined,
        headline=verdict.word,
        expected=plan.expect,
        claim=result.claim if is_claimed else None,
        limit=plan.max_regression,
        summary=tuple(compare_summary(result)),
        smallest_effect=plan.smallest_effect,
        launches_a_side=verdict.launches // 2,
        needed_blocks=(verdict.needed or 0) // plan.launches_per_look,
        a=side_document(plan.a),
        b=side_document(plan.b),
        metrics=tuple(
            _comparison_row(
                row,
                headline=row is verdict,
                judged=row in result.verdicts,
                guard=row.metric in result.guards,
                claim=plan.claim(row) if is_claimed and row in result.verdicts else None,
            )
            for row in result.metrics
        ),
        repository=plan.setting.repository,
        environment=plan.setting.environment,
        client=plan.setting.instrument,
        reproduce=(_commands(result, 0), _commands(result, 1)),
        log_differences=log_differences(*sides),
        phases=phases_document((plan.a.name, plan.b.name), sides, is_blocked=True),
    )


_CHECK_WORDS: dict[Settled | None, CheckWord] = {"refuted": "failed", "holds": "passed"}
"""What was claimed of nothing worse than the limit -> verdict of a check; else it is inconclusive."""


def check_word(claim: Settled | None) -> CheckWord:
    """The verdict of a check about nothing worse than its limit."""
    return _CHECK_WORDS.get(claim, "inconclusive")


def check_document(job: Job, events: Sequence[JournalEvent]) -> CheckDocument:
    """How a check ended, or how far it is; a UsageError says why the journal holds none."""
    result = read_result(job, events, CheckPlan)
    plan, verdict = result.plan, result.verdict
    return CheckDocument(
        **_job_fields(result),
        **_effect_fields(result),
        verdict=check_word(result.claim),
        how=plan.how,
        limit=plan.max_regression,
        summary=tuple(check_summary(result)),
        value=_number(verdict.b),
        line=verdict.a,
        metrics=tuple(_check_row(row, check_word(plan.claim(row))) for row in result.verdicts),
        change=change_document(plan.change),
        recorded=tuple(recorded_document(level, plan.ref) for level in plan.recorded),
        guards=tuple(
            GuardLevelDocument(**_metric_fields(x.metric), verdict=x.word, value=_number(x.b))
            for x in result.guards.values()
            if x is not None
        ),
        reproduce=_commands(result, 0),
    )


def check_of_comparison(document: CompareDocument) -> CheckDocument:
    """A comparison under a limit as the check that asked for it."""
    limit = document.limit or 0.0
    metrics = tuple(_check_row_of_comparison(row, limit) for row in document.metrics if row.judged)
    first = metrics[0] if metrics else None
    shared = VerdictDocument.model_fields.keys() - {"schema_", "left_out", "launches", "versions"}
    return CheckDocument(
        **{name: getattr(document, name) for name in shared},
        verdict=check_word(document.claim),
        how="rev",
        limit=limit,
        value=first.value if first else None,
        line=first.line if first else None,
        metrics=metrics,
        change=document.b.change,
        comparison=document,
    )


def _job_fields(result: JobResult[MeasurementPlanT]) -> dict[str, Any]:
    """The fields that all documents have."""
    shared = measured_fields(
        result.job,
        result.plan,
        result.cells[0],
        result.launches,
        lambda launch: result.plan.sides[launch.position].change,
        result.minutes_saved,
    )
    return {**shared, "finished": result.finished, "folder": str(result.job.path)}


def _effect_fields(result: JobResult[Any]) -> dict[str, Any]:
    verdict = result.verdict
    return {
        "metric": metric_document(verdict.metric, result.plan.smallest_effect),
        "effect": _number(verdict.effect),
        "low": _number(verdict.low),
        "high": _number(verdict.high),
        "next": next_command(result),
    }


def _commands(result: JobResult[MeasurementPlanT], position: int) -> CommandsDocument:
    """The commands of the last launch of a side."""
    attempts = attempts_of(result.measured, position)
    change, last = result.plan.sides[position].change, attempts[-1] if attempts else None
    return commands_document(result.cells[position], result.plan.setting, change, last)


def _metric_fields(metric: MetricRef) -> dict[str, Any]:
    document = metric_document(metric)
    return {"name": document.name, "display": document.display, "unit": document.unit}


def _run_metric(attempts: Sequence[Attempt], name: str) -> RunMetricDocument | None:
    try:
        metric = parse_metric(name)
    except UsageError:
        return None
    values = [v for v in (reported_value(a, metric) for a in attempts) if v is not None]
    if not values:
        return None
    within = [s for s in (spread(a, metric) for a in attempts) if s is not None]
    return RunMetricDocument(
        **_metric_fields(metric) | {"name": name},
        median=median(values),
        low=min(values),
        high=max(values),
        launches=tuple(values),
        within=median(within) if within and metric.statistic in ("", "median") else None,
    )


def _comparison_row(row: MetricVerdict, **roles: Any) -> MetricComparisonDocument:
    return MetricComparisonDocument(
        **_metric_fields(row.metric),
        **roles,
        absolute=row.metric.metric.absolute,
        verdict=row.word,
        left=row.a,
        right=row.b,
        effect=row.effect,
        low=row.low,
        high=row.high,
        note=row.note,
    )


def _check_row(row: MetricVerdict, verdict: CheckWord) -> MetricCheckDocument:
    return MetricCheckDocument(
        **_metric_fields(row.metric),
        verdict=verdict,
        value=_number(row.b),
        line=_number(row.a),
        effect=_number(row.effect),
        low=_number(row.low),
        high=_number(row.high),
    )


def _check_row_of_comparison(row: MetricComparisonDocument, limit: float) -> MetricCheckDocument:
    worse = limit * parse_metric(row.name).metric.sign
    return MetricCheckDocument(
        **{name: getattr(row, name) for name in ("name", "display", "unit", "effect", "low", "high")},
        verdict=check_word(row.claim),
        value=row.right,
        line=row.left + worse if row.absolute else row.left * (1 + worse),
    )


def _number(value: float) -> float | None:
    """A number as a document has it: None where there is none yet."""
    return None if math.isnan(value) else value
