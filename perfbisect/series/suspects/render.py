"""The ranking of an alert's suspects: as JSON, as lines for a terminal, as Markdown."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from perfbisect.common.numbers import probability
from perfbisect.common.text import block, code, line
from perfbisect.model.commit_details import Factor, Ranking
from perfbisect.report.markdown_text import prose, table
from perfbisect.series.documents import FactorDocument, SuspectDocument, SuspectsDocument

_NEUTRAL = 1e-9


class TrackSuspectsDocument(SuspectsDocument):
    """What ``track suspects`` prints: the likeliest commits of an alert's window, of ``of`` all together.
    ``what``: what moved, by how much and since when, in words."""

    schema_: Literal["perfbisect.track-suspects/1"] = Field(
        default="perfbisect.track-suspects/1", alias="schema"
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
        elsewhere=ranking.elsewhere,
        radius=ranking.radius,
        attributed=ranking.attributed.words if ranking.attributed else "",
        bisect=bisect,
        note=note,
    )


def _factor(factor: Factor) -> FactorDocument:
    return FactorDocument(name=factor.name, weight=factor.weight, words=factor.words)


def suspects_lines(document: TrackSuspectsDocument) -> list[str]:
    """For a terminal: each suspect with the evidence that moved it, then the command."""
    out = [line(f"{document.alert}: {document.what}", 400)] if document.what else []
    out += [_head(document)]
    out += [f"  {line(document.radius, 400)}"] if document.radius else []
    for suspect in document.suspects:
        who = f"{suspect.sha[:12]}  {suspect.date[:16]}  {line(suspect.subject, 90)}"
        out += ["", f"{probability(suspect.p):>6}  {who}".rstrip()]
        out += [f"        {_by(x.weight):>7}  {line(x.words, 400)}" for x in _moving(suspect)]
    out += ["", f"{probability(document.elsewhere):>6}  none of them: another repository, the machine"]
    out += _rest(document)
    out += [f"note: {line(document.note, 400)}"] if document.note else []
    out += ["", "to settle it:", f"  {line(document.bisect, 2000)}"] if document.bisect else []
    return out


def suspects_markdown(document: TrackSuspectsDocument) -> str:
    """To paste into an issue. Everything that others wrote stands in code spans."""
    rows = (
        (
            probability(x.p),
            code(x.sha[:12]),
            code(x.subject) if x.subject else "",
            x.date[:10],
            "<br>".join(f"{_by(f.weight)} {prose(f.words)}" for f in _moving(x)),
        )
        for x in document.suspects
    )
    parts = [
        f"## Suspects of {prose(document.alert)}",
        prose(document.what),
        prose(_head(document)),
        prose(document.radius),
        table(("p", "commit", "subject", "date", "evidence"), rows),
        f"None of them: {probability(document.elsewhere)}.",
        *_rest(document),
        prose(document.note),
        f"To settle it by measurement:\n\n{block(document.bisect, 'sh')}" if document.bisect else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(document: TrackSuspectsDocument) -> str:
    if document.attributed:
        return f"attributed by revert to {document.suspects[0].sha[:12]}: {document.attributed}"
    return f"{document.of} commits in its window"


def _rest(document: TrackSuspectsDocument) -> list[str]:
    left = document.of - len(document.suspects)
    return [f"{left} more commits are less likely than these"] if left else []


def _moving(suspect: SuspectDocument) -> tuple[FactorDocument, ...]:
    """The evidence that says anything, for or against."""
    return tuple(factor for factor in suspect.evidence if abs(factor.weight - 1) > _NEUTRAL)


def _by(weight: float) -> str:
    """``×100``, ``÷12``."""
    return f"×{weight:.3g}" if weight >= 1 else f"÷{1 / weight:.3g}"
