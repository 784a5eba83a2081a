"""Several comparisons with one result: a claim, and a sweep over loads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, ClassVar, Literal

from pydantic import Field

from perfbisect.experiments.claims import Claim, Settled, combine_claims
from perfbisect.experiments.compare import CompareResult
from perfbisect.jobs.documents import ConclusionDocument
from perfbisect.report.document import Report
from perfbisect.report.template import render_report


def summary_fields(headline: str, cells: Sequence[CompareResult], deciding: CompareResult) -> dict[str, Any]:
    """The fields of several comparisons; ``deciding``: the one that made the verdict what it is."""
    rows = (f"{cell.cell.name}: {cell.summary[0]}" for cell in cells if cell.summary)
    return {
        "job": deciding.job,
        "summary": (headline, *rows),
        "next": deciding.next,
        "cells": tuple(cells),
    }


class ComparisonsResult(ConclusionDocument):
    """Several comparisons; ``job`` and ``next`` are those of the comparison that decides."""

    template: ClassVar[str]
    schema_: str = Field(alias="schema")
    cells: tuple[CompareResult, ...]

    def report(self) -> Report:
        return render_report(f"experiments/templates/{self.template}.md.jinja", {"r": self})

    def brief(self) -> ComparisonsResult:
        return self.model_copy(update={"cells": tuple(cell.brief() for cell in self.cells)})


class VerifyResult(ComparisonsResult):
    """``perfbisect verify``: a claim, its source, and the comparison of each of its cells.

    It holds where it holds in every cell, and is refuted where it is in one.
    """

    template: ClassVar[str] = "verify"
    schema_: Literal["perfbisect.verify/6"] = Field(default="perfbisect.verify/6", alias="schema")
    claim: str
    source: str
    expected: str
    metric: str
    verdict: Settled

    @classmethod
    def of(cls, claim: Claim, comparisons: Sequence[CompareResult]) -> VerifyResult:
        """The result of a claim's comparisons; one cell refutes it."""
        verdict = combine_claims((result.claim for result in comparisons), is_refuted=False)
        deciding = next((result for result in comparisons if result.claim == verdict), comparisons[0])
        headline = f"{claim.claim} ({claim.expect.metric} {claim.expect.change}): {verdict}"
        return cls(
            claim=claim.claim,
            source=claim.source,
            expected=claim.expect.change,
            metric=claim.expect.metric,
            verdict=verdict,
            **summary_fields(headline, comparisons, deciding),
        )


class SweepResult(ComparisonsResult):
    """``perfbisect compare --sweep``: one comparison a load, and its signature in words."""

    template: ClassVar[str] = "sweep"
    schema_: Literal["perfbisect.sweep/6"] = Field(default="perfbisect.sweep/6", alias="schema")
    signature: str

    @classmethod
    def of(cls, comparisons: Sequence[CompareResult]) -> SweepResult:
        """The comparisons with their signature: ``c1 same, c8 to c64 regression``."""
        loads = [(x.cell.name.partition("@")[2].partition("-n")[0], x.verdict) for x in comparisons]
        parts = []
        for verdict, group in groupby(loads, key=lambda pair: pair[1]):
            names = [name for name, _ in group]
            span = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
            parts.append(f"{span} {verdict}")
        signature = ", ".join(parts)
        order = ("regression", "inconclusive", "improvement", "same")
        deciding = min(comparisons, key=lambda result: order.index(result.verdict))
        return cls(signature=signature, **summary_fields(signature, comparisons, deciding))
