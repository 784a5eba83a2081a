"""The report of a night, and its public JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import ClassVar, Literal

from pydantic import Field

from perfbisect.common.numbers import minutes, probability, with_unit
from perfbisect.jobs.documents import ChangeDocument, Document, LongDocument, change_document
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
from perfbisect.report.document import (
    Block,
    Column,
    Command,
    Inline,
    Items,
    KeyValues,
    Paragraph,
    Report,
    Section,
    Table,
    Tone,
    Verdict,
    code,
)
from perfbisect.series.alerts import ReportRow, State
from perfbisect.series.detection.model import FEWEST, Shape
from perfbisect.series.nightly_report import RULE, issue_table
from perfbisect.series.report import size_text

_MAX_EVIDENCE = 3
_CHANGE_ORDER: tuple[AlertChange, ...] = ("opened", "reopened", "closed", "updated")
_CELL_COLUMNS = (
    Column("Cell"),
    Column("State"),
    Column("Metric"),
    Column("Value", numeric=True),
    Column("Launches", numeric=True),
    Column("Minutes", numeric=True),
    Column("Note"),
)


def night_report(night: Night, *, paths: bool = False) -> Report:
    """Describe a night, findings first; of a dry run, its plan. ``paths``: list the local files."""
    sections = (
        Section("Notes", (Items(night_notes(night)),) if night_notes(night) else ()),
        Section("Alerts", tuple(_alert_blocks(night))),
        Section("Commits", tuple(_bisection_blocks(night))),
        Section("Series at a new level", _level_blocks(night.rows), detail=True),
        Section("Failures", _failure_blocks(night)),
        Section("Cells", (Table(_CELL_COLUMNS, tuple(_cell_row(cell) for cell in _in_order(night))),)),
        Section("Files", _file_blocks(night) if paths else ()),
        Section("Next", (Command(night.next, "run"),) if night.next else ()),
    )
    return Report(
        title=f"Nightly {night.name} of {night.began[:10]}",
        verdict=night_verdict(night),
        blocks=(KeyValues(tuple(_facts(night))),),
        sections=tuple(section for section in sections if section.blocks),
    )


def night_verdict(night: Night) -> Verdict:
    """The outcome in a few words: findings, failures, and findings of earlier nights that remain."""
    if night.dry_run:
        return Verdict("dry run, nothing was started")
    tone: Tone = "bad" if night.regressions else "open" if night.failed() or night.exit_code else "good"
    remaining = {
        change.alert.event for change in night.alerts if change.change == "updated" and change.counts
    }
    words = ", ".join(_news(night))
    if not words:
        measured = [cell for cell in night.cells if cell.state == "measured"]
        is_blind = measured and all(cell.too_few_nights is not None for cell in measured)
        words = "too few nights to judge" if is_blind else "nothing new"
    if remaining:
        words += f"; {_count(len(remaining), 'finding')} of earlier nights remaining"
    return Verdict(words, tone)


def night_notes(night: Night) -> tuple[str, ...]:
    """What qualifies the results, such as series that are too short to judge."""
    nights = {cell.name: cell.too_few_nights for cell in night.cells if cell.too_few_nights is not None}
    if not nights:
        return night.notes
    low, high = min(nights.values()), max(nights.values())
    return (
        *night.notes,
        f"not judged yet: {next(iter(nights)) if len(nights) == 1 else f'{len(nights)} cells'}, with "
        f"{low if low == high else f'{low} to {high}'} of the {FEWEST} nights that detection needs; "
        "runs of one day count as one night",
    )


def _news(night: Night) -> Iterator[str]:
    new = [change.alert for change in night.alerts if change.counts and change.is_new]
    regressions = len({alert.event for alert in new if alert.worse})
    improvements = len({alert.event for alert in new if not alert.worse})
    culprits = sum(bisection.culprit is not None for bisection in night.bisections)
    resolved = len(
        {change.alert.event for change in night.alerts if change.change == "closed" and change.alert.worse}
    )
    failed_cells = sum(cell.state == "failed" for cell in night.cells)
    failed_steps = [step.name for step in night.steps if step.state == "failed"]
    if regressions:
        yield _count(regressions, "regression")
    if improvements:
        yield _count(improvements, "improvement")
    if culprits:
        yield f"{_count(culprits, 'commit')} named"
    if resolved:
        yield f"{_count(resolved, 'regression')} resolved"
    if failed_cells:
        yield f"{_count(failed_cells, 'cell')} failed"
    if failed_steps:
        yield f"{' and '.join(failed_steps)} failed"


def _facts(night: Night) -> Iterator[tuple[str, Inline]]:
    states = Counter(cell.state for cell in night.cells)
    estimated = "about " if night.dry_run else ""
    rows = {
        "nightly": night.name,
        "commit": f"{night.commit.short} {night.commit.subject}".strip(),
        "branch": night.branch,
        "engine": night.engine_version,
        "hardware": night.hardware,
        "cells": ", ".join(f"{count} {state}" for state, count in states.items()),
        "time": f"{estimated}{minutes(night.minutes)} of {minutes(night.budget_minutes)}",
        "began": night.began[:19],
        "seed": str(night.seed),
    }
    return ((name, code(value)) for name, value in rows.items() if value)


def _alert_blocks(night: Night) -> Iterator[Block]:
    """Each event once, by its largest finding: new ones first."""
    events: dict[tuple[str, AlertChange], list[NightAlert]] = {}
    for change in night.alerts:
        events.setdefault((change.alert.event, change.change), []).append(change)
    ordered = [sorted(changes, key=_rank) for changes in events.values()]
    for changes in sorted(ordered, key=lambda c: (_CHANGE_ORDER.index(c[0].change), _rank(c[0]))):
        yield Paragraph(_alert_text(changes))
        evidence = changes[0].alert.evidence[:_MAX_EVIDENCE]
        if evidence and changes[0].change != "updated":
            yield Items(evidence)


def _rank(change: NightAlert) -> tuple[bool, bool, float, str]:
    size = abs(math.log1p(max(change.alert.effect, -0.999999)))
    return not change.counts, not change.alert.worse, -size, change.alert.id


def _alert_text(changes: Sequence[NightAlert]) -> Inline:
    change, alert = changes[0], changes[0].alert
    marks = [f"since {alert.first[:10]}", f"{alert.cause}, {alert.shape}"]
    if len(changes) > 1:
        cells = len({other.alert.cell for other in changes})
        others = _count(len(changes) - 1, "more series")
        marks.append(f"{others}, {cells} cells in all" if cells > 1 else others)
    if alert.recovered:
        marks.append("recovered")
    if change.is_new and not change.counts:
        marks.append("no finding by the rules")
    state = "remaining" if change.change == "updated" else change.change
    return (
        f"{state}: {size_text(alert.effect)} of ",
        code(alert.metric),
        " in ",
        code(alert.cell),
        f", {'worse' if alert.worse else 'better'}; {'; '.join(marks)} (",
        code(alert.event),
        ")",
    )


def _bisection_blocks(night: Night) -> Iterator[Block]:
    for bisection in night.bisections:
        culprit = bisection.culprit
        if culprit is None:
            yield Paragraph((code(bisection.event), f": {bisection.state}: {bisection.why}"))
        else:
            name = f"{culprit.short} {culprit.subject}".strip()
            chance = f" (probability {probability(bisection.probability)}; {bisection.why})"
            yield Paragraph((code(bisection.event), ": ", code(name), chance))
        details: list[Inline] = list(bisection.summary[:_MAX_EVIDENCE])
        if bisection.good and bisection.bad:
            window = ("good ", code(bisection.good[:12]), ", bad ", code(bisection.bad[:12]))
            count = f", {_count(bisection.commits, 'commit')}"
            details.append((*window, count, *((", job ", code(bisection.job)) if bisection.job else ())))
        if details:
            yield Items(tuple(details))


def _level_blocks(rows: Sequence[ReportRow]) -> tuple[Block, ...]:
    return (issue_table(rows), Paragraph(RULE, quiet=True)) if rows else ()


def _failure_blocks(night: Night) -> tuple[Block, ...]:
    failed = night.failed()
    return (Items(tuple((code(name), ": ", code(reason)) for name, reason in failed)),) if failed else ()


def _in_order(night: Night) -> list[NightCell]:
    """Cells by their first launch, then those without one."""
    position = {name: index for index, name in enumerate(night.order)}
    return sorted(night.cells, key=lambda cell: (position.get(cell.name, len(position)), cell.name))


def _cell_row(cell: NightCell) -> tuple[Inline, ...]:
    is_planned = cell.state == "planned"
    return (
        code(cell.name),
        cell.state,
        cell.metric,
        "" if cell.value is None else with_unit(cell.value, cell.unit),
        str(cell.wanted) if is_planned else f"{cell.launches} of {cell.wanted}",
        f"{cell.expected if is_planned else cell.minutes:.1f}",
        code(cell.forecast_basis if is_planned else cell.reason),
    )


def _file_blocks(night: Night) -> tuple[Block, ...]:
    rows = tuple((kind, code(path)) for kind, path in night.files.items())
    return (KeyValues(rows),) if rows else ()


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 or noun.endswith('s') else 's'}"


class NightAlertDocument(Document):
    """An alert that the night opened, updated or closed.

    ``first``: time of the first result that shows it; ``effect``: relative to the level before; ``counts``:
    whether it is a finding by the rules of the configuration.
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
    """How the night determined the commit behind an event.

    ``alert`` represents the event; ``why``: the deciding rule. ``job``: the bisection with its ``outcome``;
    ``culprit`` with its ``probability`` if there is one. ``minutes``: measured, of ``budget``.
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
    summary: tuple[str, ...] = ()
    minutes: float = 0.0
    budget: float = 0.0
    report: str = ""
    exit_code: int = 0


class NightlyDocument(LongDocument):
    """``perfbisect nightly``: the result of a night, or with ``--dry-run`` its plan.

    ``night``: its folder in the state folder; ``name``: the nightly. ``began``, ``ended``: ISO 8601 in UTC,
    ``ended`` empty until it is over. ``commit``: what was measured; ``branch``: as configured.
    ``engine_version``, ``hardware``: as the launches report them. ``order``: cells by their first launch,
    shuffled by ``seed``. ``minutes``: measuring time, bisections included. ``rows``: series at a new level.
    ``files``: path by kind. ``exit_code``: of the worst finding; ``next``: the next command.
    """

    shown: ClassVar[Mapping[str, int]] = {"alerts": 20, "bisections": 20, "rows": 20}
    schema_: Literal["perfbisect.nightly/2"] = Field(default="perfbisect.nightly/2", alias="schema")
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
    notes: tuple[str, ...]
    exit_code: int
    next: str
    folder: str


def night_document(night: Night) -> NightlyDocument:
    """Convert a night to its public JSON."""
    converted = {
        "night": night.id,
        "commit": change_document(night.commit),
        "alerts": tuple(_alert_document(change) for change in night.alerts),
        "bisections": tuple(_bisection_document(bisection) for bisection in night.bisections),
        "files": dict(night.files),
        "notes": night_notes(night),
        "exit_code": night.exit_code,
    }
    same = {field.name for field in fields(Night)} & set(NightlyDocument.model_fields) - set(converted)
    return NightlyDocument(**{name: getattr(night, name) for name in same}, **converted)


def _alert_document(change: NightAlert) -> NightAlertDocument:
    names = set(NightAlertDocument.model_fields) - {"change", "counts"}
    values = {name: getattr(change.alert, name) for name in names}
    return NightAlertDocument(**values, change=change.change, counts=change.counts)


def _bisection_document(bisection: NightBisection) -> NightBisectionDocument:
    values = {field.name: getattr(bisection, field.name) for field in fields(bisection)}
    values["culprit"] = bisection.culprit and change_document(bisection.culprit)
    return NightBisectionDocument(**values)
