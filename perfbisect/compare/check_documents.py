"""What ``perfbisect check`` hands out as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from perfbisect.compare.documents import CompareDocument
from perfbisect.jobs.documents import (
    CellDocument,
    ChangeDocument,
    CommandsDocument,
    Document,
    LaunchDocument,
    LongDocument,
    MetricDocument,
    MinutesDocument,
)

CheckWord = Literal["passed", "failed", "inconclusive"]
How = Literal["rev", "baseline", "ends", "values"]


class RecordedDocument(Document):
    """A level that was measured before: whose, when, in which job, with how many launches."""

    job: str
    change: ChangeDocument
    days: str
    launches: int
    value: float | None


class GuardLevelDocument(Document):
    """A guard against the baseline: worse by more than its smallest effect, not so, or not told."""

    name: str
    display: str
    unit: str
    word: Literal["beyond", "within", "inconclusive"]
    value: float | None


class CheckedDocument(LongDocument):
    """How a check ended, or how far it is.

    ``effect`` with its 95 % interval is the change against what it was held against: B / A - 1, of shares
    B - A; of ``ends`` and ``values`` against the line between them. ``limit``: the share by which it may be
    worse. ``comparison``: of a check against a revision, all of it; ``launches`` are then in there.
    """

    shown: ClassVar[Mapping[str, int]] = {"launches": -4}
    schema_: Literal["perfbisect.check/1"] = Field(default="perfbisect.check/1", alias="schema")
    job: str
    finished: bool
    word: CheckWord
    how: How
    limit: float
    sentences: tuple[str, ...]
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
    told: tuple[str, ...] = ()
    folder: str
    comparison: CompareDocument | None = None

    def brief(self) -> CheckedDocument:
        short = super().brief()
        whole = self.comparison
        return short if whole is None else short.model_copy(update={"comparison": whole.brief()})


class CheckPlanDocument(Document):
    """What a check against a level will measure: ``perfbisect check --dry-run``."""

    schema_: Literal["perfbisect.check-plan/1"] = Field(default="perfbisect.check-plan/1", alias="schema")
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
    told: tuple[str, ...]


class BaselineDocument(Document):
    """``perfbisect check --save-baseline``: what was measured and where it was written."""

    schema_: Literal["perfbisect.check-baseline/1"] = Field(
        default="perfbisect.check-baseline/1", alias="schema"
    )
    file: str
    recorded: RecordedDocument
    metric: MetricDocument
    cell: CellDocument
    folder: str
