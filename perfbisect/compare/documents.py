"""What ``perfbisect compare`` and ``perfbisect verify`` hand out as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

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

Word = Literal["regression", "improvement", "same", "inconclusive"]
Settled = Literal["holds", "refuted", "inconclusive"]


class SideDocument(Document):
    """One side: as it was typed, the change that was built, the variant as which it was served."""

    typed: str
    name: str
    change: ChangeDocument
    variant: str


class ComparedDocument(Document):
    """One metric: the levels of both sides, and B / A - 1 of them (of shares B - A) with its interval.

    ``word`` of a metric that was not asked for is read beside many others: a hint, no verdict. ``note``: why
    it is ``same`` where no run of either side differed from another.
    """

    name: str
    display: str
    unit: str
    headline: bool
    guard: bool
    absolute: bool
    word: Word
    left: float
    right: float
    effect: float
    low: float
    high: float
    note: str = ""


class CompareDocument(LongDocument):
    """How a comparison ended, or how far it is."""

    shown: ClassVar[Mapping[str, int]] = {"launches": -4}
    schema_: Literal["perfbisect.compare/1"] = Field(default="perfbisect.compare/1", alias="schema")
    job: str
    finished: bool
    word: Word
    headline: Word
    """The headline's own word; ``word`` is ``regression`` too where a guard moved for the worse."""
    expected: str = ""
    claim: Settled | None = None
    """Whether what was claimed (``expected``) holds; a guard that moved for the worse refutes it."""
    limit: float | None = None
    """Of a check: by which share B may be worse; ``claim`` says whether it is not."""
    sentences: tuple[str, ...]
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
    metrics: tuple[ComparedDocument, ...]
    cell: CellDocument
    repository: str
    environment: str
    client: str
    launches: tuple[LaunchDocument, ...]
    minutes: MinutesDocument
    reproduce: tuple[CommandsDocument, ...]
    versions: dict[str, Any]
    told: tuple[str, ...]
    folder: str


class ComparePlanDocument(Document):
    """What will be measured: ``perfbisect compare --dry-run``.

    ``others``: the comparisons beside the first, of a sweep or of a claim with several cells.
    """

    schema_: Literal["perfbisect.compare-plan/1"] = Field(default="perfbisect.compare-plan/1", alias="schema")
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
    foreseen_blocks: int | None
    """Blocks that will as likely as not be enough; None: more than there are."""
    foreseen_from: str
    commands: tuple[CommandsDocument, ...]
    told: tuple[str, ...]
    others: tuple[ComparePlanDocument, ...] = ()


class VerifyDocument(Document):
    """``perfbisect verify``: a claim, its source, and the comparison of each of its cells.

    It holds where it holds in every cell, and is refuted where it is in one.
    """

    schema_: Literal["perfbisect.verify/1"] = Field(default="perfbisect.verify/1", alias="schema")
    claim: str
    source: str
    expected: str
    metric: str
    word: Settled
    cells: tuple[CompareDocument, ...]

    def brief(self) -> VerifyDocument:
        return self.model_copy(update={"cells": tuple(cell.brief() for cell in self.cells)})


class SweepDocument(Document):
    """``perfbisect compare --sweep``: one comparison a load, and its signature in words."""

    schema_: Literal["perfbisect.sweep/1"] = Field(default="perfbisect.sweep/1", alias="schema")
    signature: str
    cells: tuple[CompareDocument, ...]

    def brief(self) -> SweepDocument:
        return self.model_copy(update={"cells": tuple(cell.brief() for cell in self.cells)})
