"""The ranking of an alert's suspects as JSON and as a report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from perfbisect.common.quantities import probability
from perfbisect.jobs.documents import Document
from perfbisect.model.commit_details import RequestPhase, Suspect
from perfbisect.report.document import (
    Block,
    Command,
    Inline,
    Paragraph,
    Report,
    Section,
    Verdict,
    code,
    make_table,
)
from perfbisect.series.alerts import Probability


class SuspectsDocument(Document):
    """The commits that could be behind an alert, best first, and the command that settles it.

    ``p_outside_window``: the probability that none of them is the cause. ``blast_radius``: what only the
    affected cells have. ``attributed``: the revert by which the series recovered. ``note``: what is unknown.
    """

    alert: str
    suspects: tuple[Suspect, ...]
    p_outside_window: Probability = 0.0
    blast_radius: str = ""
    attributed: str = ""
    bisect: str = ""
    note: str = ""


class TrackSuspectsDocument(SuspectsDocument):
    """JSON of ``track suspects``: the likeliest of ``of`` commits; ``what`` describes the change.

    ``phase``: of a request, that was said to have moved; empty if none was.
    """

    schema_: Literal["perfbisect.track-suspects/2"] = Field(
        default="perfbisect.track-suspects/2", alias="schema"
    )
    of: int
    what: str = ""
    phase: RequestPhase | Literal[""] = ""


def suspects_report(document: TrackSuspectsDocument) -> Report:
    """Report of ``track suspects``: the ranking, its evidence and the bisection that confirms it."""
    blocks: list[Block] = [Paragraph(text) for text in (document.what, document.blast_radius) if text]
    if document.attributed:
        first = code(document.suspects[0].sha[:12])
        blocks.append(Paragraph(("attributed by revert to ", first, f": {document.attributed}")))
    suspects = (
        (probability(suspect.p), code(suspect.sha[:12]), suspect.date[:16], code(suspect.subject))
        for suspect in document.suspects
    )
    outside = f"P(none of them: another repository, the machine) {probability(document.p_outside_window)}"
    blocks += [make_table(("P*", "commit", "date", "subject"), suspects), Paragraph(outside)]
    if left := document.of - len(document.suspects):
        blocks.append(Paragraph(f"{left} more commits are less likely than these"))
    evidence = (row for suspect in document.suspects for row in _evidence_rows(suspect))
    sections = (
        Section("Evidence", (make_table(("commit", "odds*", "evidence"), evidence),)),
        Section("Next", (Paragraph(document.note), Command(document.bisect, "to settle it"))),
    )
    verdict = Verdict(f"{document.of} commits in its window")
    return Report(f"Suspects of {document.alert}", verdict, tuple(blocks), sections)


def _evidence_rows(suspect: Suspect) -> Iterator[tuple[Inline, ...]]:
    """A row for each factor that changes the odds (``×100``, ``÷12``); the commit stands in its first row."""
    sha: Inline = code(suspect.sha[:12])
    for factor in suspect.evidence:
        if abs(factor.weight - 1) > 1e-9:
            odds = f"×{factor.weight:.3g}" if factor.weight >= 1 else f"÷{1 / factor.weight:.3g}"
            yield sha, odds, factor.words
            sha = ""
