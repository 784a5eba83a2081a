"""What a search of hunks will probably do and cost: ``perfbisect explain JOB --hunks --dry-run``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

from pydantic import Field

from perfbisect.common.quantities import minutes, percent
from perfbisect.explain.hunk_plan import HunksPlan
from perfbisect.explain.hunk_search import NAMING_BLOCKS, SCREENING_BLOCKS, forecast_launches
from perfbisect.jobs.documents import (
    CellDocument,
    ChangeDocument,
    Document,
    LongDocument,
    MetricDocument,
    cell_document,
    change_document,
    metric_document,
)
from perfbisect.jobs.estimates import Noise
from perfbisect.jobs.plans import plan_cell
from perfbisect.model.attempt import Costs
from perfbisect.report.document import Items, KeyValues, Section, code, make_table
from perfbisect.report.sections import change_text
from perfbisect.report.terminal import section_lines
from perfbisect.stats.ab_test import BLOCK_SIZE


class PlannedGroupDocument(Document):
    """A group of hunks. ``build_minutes``: of the culprit without it; None: not known."""

    number: int
    label: str
    lines: int
    build_minutes: float | None


class HunksPlanDocument(LongDocument):
    """What will be done. ``launches``: as likely as not enough; None: the step is too small for the noise."""

    shown: ClassVar[Mapping[str, int]] = {"groups": 20, "excluded": 10}
    schema_: Literal["perfbisect.hunks-plan/1"] = Field(default="perfbisect.hunks-plan/1", alias="schema")
    source: str
    culprit: ChangeDocument
    parent: str
    cell: CellDocument
    metric: MetricDocument
    environment: str
    step: float | None
    groups: tuple[PlannedGroupDocument, ...]
    excluded: tuple[str, ...]
    runs_per_launch: int
    launches: int | None
    most_launches: int
    minutes_low: float
    minutes_high: float
    budget_minutes: float
    noise: str
    notes: tuple[str, ...]


def hunks_plan_document(plan: HunksPlan, noise: Noise, costs: Costs) -> HunksPlanDocument:
    """The forecast of a plan; ``noise`` and ``costs`` are those of earlier launches of the cell."""
    each = costs.launch + plan.runs * costs.run
    asked = 2 + (math.ceil(math.log2(len(plan.groups))) if len(plan.groups) > 1 else 0)
    known = [group.minutes for group in plan.groups if group.minutes is not None]
    builds = asked * max(known, default=costs.build)
    launches = None
    if plan.step is not None:
        step = abs(plan.step) if plan.ref.metric.absolute else abs(math.log1p(plan.step))
        spread = math.hypot(noise.launches, noise.runs / math.sqrt(plan.runs))
        launches = forecast_launches(plan.search, step, spread)
    most = BLOCK_SIZE * (2 * (asked - 2) * SCREENING_BLOCKS + SCREENING_BLOCKS + NAMING_BLOCKS)
    return HunksPlanDocument(
        source=plan.source,
        culprit=change_document(plan.culprit),
        parent=plan.parent,
        cell=cell_document(plan_cell(plan), plan.ref),
        metric=metric_document(plan.ref, plan.smallest_effect),
        environment=plan.setting.environment,
        step=plan.step,
        groups=tuple(
            PlannedGroupDocument(
                number=number,
                label=group.label,
                lines=sum(len(hunk.removed) + len(hunk.added) + hunk.more for hunk in group.hunks),
                build_minutes=group.minutes,
            )
            for number, group in enumerate(plan.groups, 1)
        ),
        excluded=plan.left_out,
        runs_per_launch=plan.runs,
        launches=launches,
        most_launches=most,
        minutes_low=min(plan.budget, builds + (launches or most) * each),
        minutes_high=min(plan.budget, 2 * builds + most * each),
        budget_minutes=plan.budget,
        noise=noise.source,
        notes=plan.notes,
    )


def hunks_plan_lines(document: HunksPlanDocument) -> list[str]:
    """The plan for people."""
    return [text for section in _sections(document) for text in section_lines(section)]


def _sections(document: HunksPlanDocument) -> Iterator[Section]:
    step = f", a step of {percent(document.step)}" if document.step is not None else ""
    expected = "the step is too small for this noise: the search will probably end without a name"
    if document.launches is not None:
        low, high = minutes(document.minutes_low), minutes(document.minutes_high)
        expected = f"about {document.launches} launches, {low} to {high}"
    rows = (
        ("culprit", change_text(document.culprit)),
        ("of", f"job {document.source}, {document.metric.display}{step}"),
        ("environment", code(document.environment)),
        ("expected", f"{expected}; budget {minutes(document.budget_minutes)}"),
        ("noise", document.noise),
    )
    yield Section("Which hunk carries the step", (KeyValues(rows),))
    table = [
        (
            str(group.number),
            code(group.label),
            str(group.lines),
            "-" if group.build_minutes is None else minutes(group.build_minutes),
        )
        for group in document.groups
    ]
    yield Section("Groups of hunks", (make_table(("#*", "where", "lines*", "build*"), table),))
    if document.excluded:
        yield Section("Left out", (Items(tuple(code(text) for text in document.excluded)),))
    if document.notes:
        yield Section("Notes", (Items(document.notes),))
