"""The plan of ``perfbisect bisect --find failure``, and what it will probably take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from perfbisect.bisect.plan import RangePlan
from perfbisect.bisect.result import PositionDocument, RangeDocument, position_documents, skip_documents
from perfbisect.jobs.commands import commands_document
from perfbisect.jobs.documents import (
    CommandsDocument,
    DryRunDocument,
    LongDocument,
    cell_document,
    metric_document,
)
from perfbisect.jobs.plans import plan_cell
from perfbisect.model.cell import ExpectedAnswer
from perfbisect.report.template import render_report
from perfbisect.report.terminal import section_lines

AROUND = 4
"""Launches of a search beside those that halve its range: both ends, then both sides of the result."""


class FailurePlan(RangePlan):
    """A search for the change since which the engine fails: the good end serves, the bad one does not."""

    noun: ClassVar[str] = "search for a failure"
    verb: Literal["failure"] = "failure"

    def document(self, basis: str) -> FailurePlanDocument:
        """What will be done. ``basis``: of the plan's costs, in words."""
        cell, (good, bad) = plan_cell(self), self.ends
        testable = sum(not position.skip for position in self.positions)
        launches = AROUND + math.ceil(math.log2(max(1, testable - 1)))
        builds = sum(not position.cached for position in self.positions if not position.skip)
        each = self.costs.launch + self.costs.run
        minutes = launches * each + min(launches - 2, builds) * self.costs.build
        return FailurePlanDocument(
            cell=cell_document(cell, self.ref),
            metric=metric_document(self.ref, self.smallest_effect),
            repository=self.setting.repository,
            environment=self.setting.environment,
            client=self.setting.instrument,
            good=good,
            bad=bad,
            changes=len(self.changes),
            positions=position_documents(self),
            skips=skip_documents(self),
            runs_per_launch=1,
            expected_answer=cell.expected_answer,
            budget_minutes=self.budget,
            launches=launches,
            minutes=minutes,
            minutes_basis=basis,
            commands=commands_document(cell, self.setting, bad, None),
            notes=self.notes,
        )


class FailurePlanDocument(RangeDocument, DryRunDocument, LongDocument):
    """What will be done: ``perfbisect bisect --find failure --dry-run``.

    ``launches``: where every position can be judged; ``minutes``: what these take at most.
    """

    shown: ClassVar[Mapping[str, int]] = {"positions": 30, "skips": 10}
    schema_: Literal["perfbisect.failure-plan/1"] = Field(default="perfbisect.failure-plan/1", alias="schema")
    expected_answer: ExpectedAnswer | None = None
    positions: tuple[PositionDocument, ...]
    launches: int
    minutes: float
    minutes_basis: str
    commands: CommandsDocument

    @property
    def lines(self) -> list[str]:
        """The plan for a terminal."""
        report = render_report("bisect/templates/failure.plan.jinja", {"plan": self})
        return [text for section in report.sections for text in section_lines(section)]
