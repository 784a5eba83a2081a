"""The JSON of ``perfbisect nightly``: one night, from the commit that it measured to whom it told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import ClassVar, Literal

from pydantic import Field

from perfbisect.jobs.documents import ChangeDocument, Document, LongDocument
from perfbisect.model.change import Change
from perfbisect.model.commit_details import CauseWord
from perfbisect.nightly.model import (
    AlertChange,
    BisectionOutcome,
    BisectionState,
    Night,
    NightAlert,
    NightBisection,
    NightCell,
    NightStep,
)
from perfbisect.series.alerts import ReportRow, State
from perfbisect.series.detection.model import FEWEST, Shape


class NightAlertDocument(Document):
    """An alert that the night opened, updated or closed.

    ``first``: when the first result that shows it was measured; ``effect``: relative to the level before.
    ``counts``: it is by the rules of the configuration a finding: those that are not are listed only.
    """

    id: str
    event: str
    change: AlertChange
    state: State
    cell: str
    metric: str
    shape: Shape
    cause: CauseWord
    effect: float
    first: str
    nights: int
    worse: bool
    recovered: bool
    counts: bool
    why: str = ""
    evidence: tuple[str, ...] = ()


class NightBisectionDocument(Document):
    """What was done to name the commit behind an event, by which of its alerts.

    ``why``: the rule that decided. ``job``: the bisection, ``outcome`` its word; ``culprit`` with its
    ``probability`` where one is named. ``minutes``: measured, of ``budget``.
    """

    event: str
    alert: str
    cell: str
    metric: str
    state: BisectionState
    why: str
    good: str = ""
    bad: str = ""
    commits: int = 0
    job: str = ""
    outcome: BisectionOutcome | Literal[""] = ""
    culprit: ChangeDocument | None = None
    probability: float = 0.0
    sentences: tuple[str, ...] = ()
    minutes: float = 0.0
    budget: float = 0.0
    report: str = ""
    exit_code: int = 0


class NightlyDocument(LongDocument):
    """``perfbisect nightly``: how a night ended, or with ``--dry-run`` what it would do.

    ``night`` names it (its folder in the state folder), ``name`` the nightly. ``began`` and ``ended``: ISO
    8601 in UTC, ``ended`` empty while it is not over. ``commit`` is what was measured, ``branch`` the
    revision as the configuration says it. ``engine_version``, ``hardware``: as the launches told them, empty
    where none did. ``order``: the names of the cells in the order of the first launches, drawn by ``seed``.
    ``minutes``: of measuring, bisections included. ``rows``: the night's table, what is at another level than
    before. ``files``: what was written, by kind. ``exit_code``: of the worst finding; ``next``: the command
    that comes next.
    """

    shown: ClassVar[Mapping[str, int]] = {"alerts": 20, "bisections": 20, "rows": 20}
    schema_: Literal["perfbisect.nightly/1"] = Field(default="perfbisect.nightly/1", alias="schema")
    name: str
    night: str
    dry_run: bool
    began: str
    ended: str
    commit: ChangeDocument
    branch: str
    repository: str
    environment: str
    client: str
    machine: str
    hardware: str
    engine_version: str
    seed: int
    budget_minutes: float
    minutes: float
    order: tuple[str, ...]
    cells: tuple[NightCell, ...]
    alerts: tuple[NightAlertDocument, ...]
    bisections: tuple[NightBisectionDocument, ...]
    rows: tuple[ReportRow, ...]
    steps: tuple[NightStep, ...]
    files: dict[str, str]
    told: tuple[str, ...]
    exit_code: int
    next: str
    folder: str


def night_document(night: Night) -> NightlyDocument:
    """The public JSON of a night."""
    same = {field.name for field in fields(Night)} & set(NightlyDocument.model_fields)
    different = ("night", "commit", "alerts", "bisections", "told", "files", "exit_code")
    return NightlyDocument(
        **{name: getattr(night, name) for name in same if name not in different},
        night=night.id,
        commit=_change(night.commit),
        alerts=tuple(_alert(one) for one in night.alerts),
        bisections=tuple(_bisection(one) for one in night.bisections),
        files=dict(night.files),
        told=(*night.notes, *_unjudged(night.cells)),
        exit_code=night.exit_code,
    )


def _change(change: Change) -> ChangeDocument:
    return ChangeDocument(
        id=change.id, short=change.short, subject=change.subject, date=change.date, author=change.author
    )


def _alert(one: NightAlert) -> NightAlertDocument:
    alert = one.alert
    return NightAlertDocument(
        id=alert.id,
        event=alert.event,
        change=one.change,
        state=alert.state,
        cell=alert.cell,
        metric=alert.metric,
        shape=alert.shape,
        cause=alert.cause,
        effect=alert.effect,
        first=alert.first,
        nights=alert.nights,
        worse=alert.worse,
        recovered=alert.recovered,
        counts=one.counts,
        why=alert.why,
        evidence=alert.evidence,
    )


def _bisection(one: NightBisection) -> NightBisectionDocument:
    known = {field.name: getattr(one, field.name) for field in fields(one)}
    culprit = None if one.culprit is None else _change(one.culprit)
    return NightBisectionDocument(**{**known, "culprit": culprit})


def _unjudged(cells: Sequence[NightCell]) -> Iterator[str]:
    """A note on the cells with too few nights."""
    few = {cell.name: cell.too_few_nights for cell in cells if cell.too_few_nights is not None}
    if not few:
        return
    had = sorted(set(few.values()))
    have = f"{had[0]}" if len(had) == 1 else f"{had[0]} to {had[-1]}"
    who = next(iter(few)) if len(few) == 1 else f"{len(few)} cells"
    yield (
        f"not judged yet: {who}, with {have} of the {FEWEST} nights before which no change can be told; "
        "several runs of one day are one night"
    )


class NightlyInitDocument(Document):
    """``perfbisect nightly --init``: the file that was written."""

    schema_: Literal["perfbisect.nightly-init/1"] = Field(default="perfbisect.nightly-init/1", alias="schema")
    file: str
    repository: str
    branch: str
    content: str
    next: str
