"""JSON documents of ``compare``, ``verify``, ``check`` and ``run``."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any, ClassVar, Literal

from pydantic import Field

from perfbisect.compare.baseline import RecordedLevel
from perfbisect.compare.claims import Settled
from perfbisect.compare.plan import SidePlan
from perfbisect.jobs.documents import (
    CellDocument,
    ChangeDocument,
    CommandsDocument,
    Document,
    LaunchDocument,
    LongDocument,
    MetricDocument,
    MinutesDocument,
    change_document,
)
from perfbisect.model.metric import MetricRef
from perfbisect.stats.ab_test import Word
from perfbisect.stats.two_sample import Scale

CheckWord = Literal["passed", "failed", "inconclusive"]
How = Literal["rev", "baseline", "ends", "values"]


class SideDocument(Document):
    """One side: as it was typed, the change that was built, the variant as which it was served."""

    typed: str
    name: str
    change: ChangeDocument
    variant: str


class MetricComparisonDocument(Document):
    """One metric: the levels of both sides, and B / A - 1 of them (of shares B - A) with its interval.

    ``verdict`` of a metric that was not asked for is one of many: a hint. ``note``: why it is ``same`` where
    no run of either side differed from another.
    """

    name: str
    display: str
    unit: str
    headline: bool
    guard: bool
    absolute: bool
    verdict: Word
    left: float
    right: float
    effect: float
    low: float
    high: float
    note: str = ""


class CompareDocument(LongDocument):
    """How a comparison ended, or how far it is."""

    shown: ClassVar[Mapping[str, int]] = {"launches": -4}
    schema_: Literal["perfbisect.compare/2"] = Field(default="perfbisect.compare/2", alias="schema")
    job: str
    finished: bool
    verdict: Word
    headline: Word
    """The headline's own verdict; ``verdict`` is ``regression`` too where a guard failed."""
    expected: str = ""
    claim: Settled | None = None
    """Whether what was claimed (``expected``) holds; a guard that failed refutes it."""
    limit: float | None = None
    """Of a check: by which share B may be worse; ``claim`` says whether it is not."""
    summary: tuple[str, ...]
    next: str
    effect: float | None
    low: float | None
    high: float | None
    smallest_effect: float
    launches_a_side: int
    needed_blocks: int
    a: SideDocument
    b: SideDocument
    metric: MetricDocument
    metrics: tuple[MetricComparisonDocument, ...]
    cell: CellDocument
    repository: str
    environment: str
    client: str
    launches: tuple[LaunchDocument, ...]
    minutes: MinutesDocument
    reproduce: tuple[CommandsDocument, ...]
    versions: dict[str, Any]
    notes: tuple[str, ...]
    folder: str


class ComparePlanDocument(Document):
    """What will be measured: ``perfbisect compare --dry-run``.

    ``others``: the comparisons beside the first, of a sweep or of a claim with several cells.
    """

    schema_: Literal["perfbisect.compare-plan/2"] = Field(default="perfbisect.compare-plan/2", alias="schema")
    cell: CellDocument
    metric: MetricDocument
    a: SideDocument
    b: SideDocument
    environment: str
    client: str
    smallest_effect: float
    runs_per_launch: int
    most_launches: int
    minutes_low: float
    minutes_high: float
    budget_minutes: float
    forecast_blocks: int | None
    """Blocks that will as likely as not be enough; None: more than there are."""
    forecast_from: str
    commands: tuple[CommandsDocument, ...]
    notes: tuple[str, ...]
    others: tuple[ComparePlanDocument, ...] = ()


class VerifyDocument(Document):
    """``perfbisect verify``: a claim, its source, and the comparison of each of its cells.

    It holds where it holds in every cell, and is refuted where it is in one.
    """

    schema_: Literal["perfbisect.verify/2"] = Field(default="perfbisect.verify/2", alias="schema")
    claim: str
    source: str
    expected: str
    metric: str
    verdict: Settled
    cells: tuple[CompareDocument, ...]

    def brief(self) -> VerifyDocument:
        return self.model_copy(update={"cells": tuple(cell.brief() for cell in self.cells)})


class SweepDocument(Document):
    """``perfbisect compare --sweep``: one comparison a load, and its signature in words."""

    schema_: Literal["perfbisect.sweep/2"] = Field(default="perfbisect.sweep/2", alias="schema")
    signature: str
    cells: tuple[CompareDocument, ...]

    def brief(self) -> SweepDocument:
        return self.model_copy(update={"cells": tuple(cell.brief() for cell in self.cells)})


class RecordedDocument(Document):
    """A level that was measured before: whose, when, in which job, with how many launches."""

    job: str
    change: ChangeDocument
    days: str
    launches: int
    value: float | None


class GuardLevelDocument(Document):
    """A guard against the baseline: worse by more than its smallest effect, not so, or not known yet."""

    name: str
    display: str
    unit: str
    verdict: Literal["beyond", "within", "inconclusive"]
    value: float | None


class CheckDocument(LongDocument):
    """How a check ended, or how far it is.

    ``effect`` with its 95 % interval is the change against its reference: B / A - 1, of shares B - A; of
    ``ends`` and ``values`` against the threshold between them. ``limit``: the share by which it may be worse.
    ``comparison``: of a check against a revision, all of it; ``launches`` are then in there.
    """

    shown: ClassVar[Mapping[str, int]] = {"launches": -4}
    schema_: Literal["perfbisect.check/2"] = Field(default="perfbisect.check/2", alias="schema")
    job: str
    finished: bool
    verdict: CheckWord
    how: How
    limit: float
    summary: tuple[str, ...]
    next: str
    effect: float | None
    low: float | None
    high: float | None
    value: float | None
    """The level of the change, in the metric's unit."""
    line: float | None
    """The level from which on it is too bad."""
    change: ChangeDocument
    metric: MetricDocument
    cell: CellDocument
    recorded: tuple[RecordedDocument, ...] = ()
    guards: tuple[GuardLevelDocument, ...] = ()
    launches: tuple[LaunchDocument, ...] = ()
    minutes: MinutesDocument
    reproduce: CommandsDocument | None = None
    versions: dict[str, Any] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()
    folder: str
    comparison: CompareDocument | None = None

    def brief(self) -> CheckDocument:
        short = super().brief()
        whole = self.comparison
        return short if whole is None else short.model_copy(update={"comparison": whole.brief()})


class CheckPlanDocument(Document):
    """What a check against a level will measure: ``perfbisect check --dry-run``."""

    schema_: Literal["perfbisect.check-plan/2"] = Field(default="perfbisect.check-plan/2", alias="schema")
    cell: CellDocument
    metric: MetricDocument
    change: ChangeDocument
    how: Literal["baseline", "ends", "values", "save"]
    limit: float = 0.0
    line: float | None = None
    """The level from which on the change is too bad; None where a baseline is measured."""
    recorded: tuple[RecordedDocument, ...] = ()
    environment: str
    client: str
    runs_per_launch: int
    most_launches: int
    minutes_low: float
    minutes_high: float
    budget_minutes: float
    commands: CommandsDocument
    notes: tuple[str, ...]


class SavedBaselineDocument(Document):
    """``perfbisect check --save-baseline``: what was measured and where it was written."""

    schema_: Literal["perfbisect.check-baseline/1"] = Field(
        default="perfbisect.check-baseline/1", alias="schema"
    )
    file: str
    recorded: RecordedDocument
    metric: MetricDocument
    cell: CellDocument
    folder: str


class RunMetricDocument(Document):
    """One metric over the launches: the value of each."""

    name: str
    display: str
    unit: str
    median: float
    low: float
    high: float
    launches: tuple[float, ...]
    within: float | None
    """Robust coefficient of variation over a run's requests, median over runs; None without requests."""


class RunDocument(LongDocument):
    """What ``perfbisect run`` measured."""

    shown: ClassVar[Mapping[str, int]] = {"launches": -8}
    schema_: Literal["perfbisect.run/2"] = Field(default="perfbisect.run/2", alias="schema")
    job: str
    finished: bool
    change: ChangeDocument
    cell: CellDocument
    headline: MetricDocument
    metrics: tuple[RunMetricDocument, ...]
    environment: str
    client: str
    launches: tuple[LaunchDocument, ...]
    minutes: MinutesDocument
    reproduce: CommandsDocument
    versions: dict[str, Any]
    notes: tuple[str, ...]
    folder: str


def side_document(side: SidePlan) -> SideDocument:
    """A side as documents have it."""
    return SideDocument(
        typed=side.text, name=side.name, change=change_document(side.change), variant=side.variant
    )


def recorded_document(level: RecordedLevel, metric: MetricRef) -> RecordedDocument:
    """A recorded level as documents have it."""
    scale = Scale.of(metric.metric)
    levels = [scale.level(values) for values in level.values(metric)]
    return RecordedDocument(
        job=level.job,
        change=change_document(level.change),
        days=level.days,
        launches=len(levels),
        value=scale.value(median(levels)),
    )
