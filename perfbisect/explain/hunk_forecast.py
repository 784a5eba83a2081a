"""What a search of hunks will probably do and cost: ``perfbisect explain JOB --hunks --dry-run``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

from pydantic import Field

from perfbisect.bisect.decision.confirm import PAIRS
from perfbisect.bisect.decision.endpoints import MAX_ROUNDS
from perfbisect.common.quantities import minutes, percent
from perfbisect.explain.hunk_plan import HunksPlan
from perfbisect.explain.hunk_search import forecast_launches
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
from perfbisect.report.document import Items, KeyValues, Section, code, make_table
from perfbisect.report.sections import change_text
from perfbisect.report.terminal import section_lines

RUNS = 2
"""Runs of a launch that a forecast takes."""


class PlannedGroupDocument(Document):
    """A group of hunks. ``build_minutes``: of the culprit without it; None: not known."""

    number: int
    label: str
    lines: int
    build_minutes: float | None


class HunksPlanDocument(LongDocument):
    """What will be done. ``launches``: as likely as not enough; None: the step is too small, or not known."""

    shown: ClassVar[Mapping[str, int]] = {"groups": 20, "excluded": 10}
    schema_: Literal["perfbisect.hunks-plan/2"] = Field(default="perfbisect.hunks-plan/2", alias="schema")
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
    minutes_basis: str
    """Where the minutes of a launch come from."""
    noise: str
    notes: tuple[str, ...]


def hunks_plan_document(plan: HunksPlan, noise: Noise, *, basis: str) -> HunksPlanDocument:
    """The forecast of a plan; ``noise``: of earlier launches of the cell; ``basis``: of its costs."""
    runs, groups = min(RUNS, plan.max_runs), len(plan.groups)
    each = plan.costs.launch + runs * plan.costs.run
    known = [group.minutes for group in plan.groups if group.minutes is not None]
    builds = (2 + math.ceil(math.log2(groups))) * max(known, default=plan.costs.build)
    launches = None
    if plan.step is not None and not plan.ref.metric.absolute:
        spread = math.hypot(noise.launches, noise.runs / math.sqrt(runs))
        launches = forecast_launches(groups, abs(math.log1p(plan.step)), spread)
    most = 2 * MAX_ROUNDS + 3 * PAIRS + 4 * groups.bit_length()
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
        runs_per_launch=plan.max_runs,
        launches=launches,
        most_launches=most,
        minutes_low=min(plan.budget, builds + (launches or most) * each),
        minutes_high=min(plan.budget, 2 * builds + most * each),
        budget_minutes=plan.budget,
        minutes_basis=basis,
        noise=noise.source,
        notes=plan.notes,
    )


def hunks_plan_lines(document: HunksPlanDocument) -> list[str]:
    """The plan for people."""
    return [text for section in _sections(document) for text in section_lines(section)]


def _sections(document: HunksPlanDocument) -> Iterator[Section]:
    step = f", a step of {percent(document.step)}" if document.step is not None else ""
    low, high = minutes(document.minutes_low), minutes(document.minutes_high)
    expected = f"about {document.launches} launches, {low} to {high}"
    if document.launches is None:
        expected = (
            f"at most {document.most_launches} launches, {high}: the step is too small for this noise, or is "
            "not known"
        )
    rows = (
        ("culprit", change_text(document.culprit)),
        ("of", f"job {document.source}, {document.metric.display}{step}"),
        ("environment", code(document.environment)),
        ("expected", f"{expected}; budget {minutes(document.budget_minutes)}"),
        ("minutes", f"of a launch: {document.minutes_basis}"),
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
