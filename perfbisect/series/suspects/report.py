"""The ranking of an alert's suspects as JSON and as a report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from perfbisect.common.numbers import probability
from perfbisect.jobs.documents import Document
from perfbisect.model.commit_details import Factor, Ranking
from perfbisect.report.document import (
    Block,
    Column,
    Command,
    Inline,
    Paragraph,
    Report,
    Section,
    Table,
    Verdict,
    code,
)
from perfbisect.series.alerts import Probability, Real

_NEUTRAL = 1e-9


class FactorDocument(Document):
    """One piece of evidence for or against a commit: by how much it multiplies its odds."""

    name: str
    weight: Real
    words: str


class SuspectDocument(Document):
    """A commit of an alert's window. ``evidence``: what its probability is a product of."""

    sha: str
    subject: str
    date: str
    p: Probability
    evidence: tuple[FactorDocument, ...]


class SuspectsDocument(Document):
    """The commits that could be behind an alert, best first, and the command that settles it.

    ``p_outside_window``: the probability that none of them is the cause. ``blast_radius``: what only the
    affected cells have. ``attributed``: the revert by which the series recovered. ``note``: what is unknown.
    """

    alert: str
    suspects: tuple[SuspectDocument, ...]
    p_outside_window: Probability = 0.0
    blast_radius: str = ""
    attributed: str = ""
    bisect: str = ""
    note: str = ""


class TrackSuspectsDocument(SuspectsDocument):
    """JSON of ``track suspects``: the likeliest of ``of`` commits; ``what`` describes the change."""

    schema_: Literal["perfbisect.track-suspects/2"] = Field(
        default="perfbisect.track-suspects/2", alias="schema"
    )
    of: int
    what: str = ""


def suspects_document(
    alert: str, ranking: Ranking, *, top: int = 20, bisect: str = "", note: str = "", what: str = ""
) -> TrackSuspectsDocument:
    """A ranking as a document, cut after the ``top`` likeliest."""
    return TrackSuspectsDocument(
        alert=alert,
        what=what,
        of=len(ranking.suspects),
        suspects=tuple(
            SuspectDocument(
                sha=suspect.commit.sha,
                subject=suspect.commit.subject,
                date=suspect.commit.date,
                p=suspect.p,
                evidence=tuple(_factor(factor) for factor in suspect.evidence),
            )
            for suspect in ranking.suspects[:top]
        ),
        p_outside_window=ranking.p_outside_window,
        blast_radius=ranking.blast_radius,
        attributed=ranking.attributed.words if ranking.attributed else "",
        bisect=bisect,
        note=note,
    )


def _factor(factor: Factor) -> FactorDocument:
    return FactorDocument(name=factor.name, weight=factor.weight, words=factor.words)


def suspects_report(document: TrackSuspectsDocument) -> Report:
    """Report of ``track suspects``: the ranking, its evidence and the bisection that confirms it."""
    summary = [Paragraph(text) for text in (document.what, document.blast_radius) if text]
    if document.attributed:
        first = code(document.suspects[0].sha[:12])
        summary.append(Paragraph(("attributed by revert to ", first, f": {document.attributed}")))
    outside = f"P(none of them: another repository, the machine) {probability(document.p_outside_window)}"
    left = document.of - len(document.suspects)
    more = [f"{left} more commits are less likely than these"] if left else []
    ranking: tuple[Block, ...] = (_suspect_table(document), *map(Paragraph, (outside, *more)))
    sections = [Section("Evidence", (Table(_EVIDENCE, tuple(_evidence_rows(document))),))]
    if document.note or document.bisect:
        notes = [Paragraph(document.note)] if document.note else []
        commands = [Command(document.bisect, "to settle it")] if document.bisect else []
        sections.append(Section("Next", (*notes, *commands)))
    verdict = Verdict(f"{document.of} commits in its window")
    return Report(f"Suspects of {document.alert}", verdict, (*summary, *ranking), tuple(sections))


_EVIDENCE = (Column("commit"), Column("odds", numeric=True), Column("evidence"))


def _suspect_table(document: TrackSuspectsDocument) -> Table:
    columns = (Column("P", numeric=True), Column("commit"), Column("date"), Column("subject"))
    rows = tuple(
        (probability(x.p), code(x.sha[:12]), x.date[:16], code(x.subject)) for x in document.suspects
    )
    return Table(columns, rows)


def _evidence_rows(document: TrackSuspectsDocument) -> Iterator[tuple[Inline, ...]]:
    """A row for each factor that changes the odds; the commit stands in its first row."""
    for suspect in document.suspects:
        factors = [factor for factor in suspect.evidence if abs(factor.weight - 1) > _NEUTRAL]
        for index, factor in enumerate(factors):
            sha: Inline = "" if index else code(suspect.sha[:12])
            yield sha, _factor_text(factor.weight), factor.words


def _factor_text(weight: float) -> str:
    """``×100``, ``÷12``."""
    return f"×{weight:.3g}" if weight >= 1 else f"÷{1 / weight:.3g}"
