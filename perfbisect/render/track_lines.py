"""The documents of ``perfbisect track`` for a person: tables of aligned columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfbisect.core.metric import row
from perfbisect.render.numbers import number, percent
from perfbisect.render.safe import line
from perfbisect.render.track_documents import (
    BaselineDocument,
    TrackIngestDocument,
    TrackRebaselineDocument,
    TrackTrendDocument,
    TrendDocument,
)


def columns(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Rows as lines, their columns aligned; ``right``: the places of columns of numbers."""
    shown = [[line(cell) for cell in one] for one in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(one, widths, strict=True))
        ).rstrip()
        for one in shown
    ]


def ingest_lines(document: TrackIngestDocument) -> Iterator[str]:
    """What was brought in, and what was no point."""
    told = [
        f"{count} {word}"
        for count, word in (
            (document.new, "new"),
            (document.changed, "changed"),
            (document.elsewhere, "known from elsewhere"),
            (document.unchanged, "unchanged"),
        )
        if count
    ]
    yield f"{document.builds} builds, {sum(_files(document))} files: {', '.join(told) or 'none'}"
    if document.points or document.rejected:
        yield f"{document.points} points; the store has {document.cells} cells ({line(document.store)})"
    for fate in document.rejected:
        yield f"  no point, {fate.count} {fate.fate}: {line(fate.reason)} ({line(fate.file)})"
    if document.builds_not_of_main:
        yield f"  {document.builds_not_of_main} builds are not of main"
    if document.builds_of_unknown_branch:
        yield f"  {document.builds_of_unknown_branch} builds do not say their branch: not known to be of main"
    yield (
        "next: perfbisect track detect"
        if document.cells
        else "next: perfbisect track ingest of another place"
    )


def trend_lines(document: TrackTrendDocument) -> Iterator[str]:
    """The tables, or the list of cells."""
    for place, table in enumerate(document.tables):
        if place:
            yield ""
        yield from _table(table)
    if document.cells:
        head = ("cell", "metric", "nights", "last", "value", "unit", "change", "")
        rows = [
            (
                c.cell, c.metric, str(c.nights), c.last, number(c.value), c.unit, _change(c.metric, c.change),
                "; ".join(c.marks),
            )
            for c in document.cells
        ]  # fmt: skip
        yield from columns([head, *rows], right=(2, 4, 6))
    if document.unknown_branch:
        mark = "?: " if document.tables else ""
        yield f"{mark}{document.unknown_branch} builds do not say their branch: not known to be of main"


def _table(table: TrendDocument) -> Iterator[str]:
    metric = table.metric
    better = "neither more nor less is better" if table.neutral else f"{metric.direction} is better"
    yield f"{line(table.cell)}: {metric.name} in {metric.unit}, {better}"
    head = ("date (UTC)", "build", "commit", "value", "change", "")
    rows = [
        (
            (r.began or r.night)[:16].replace("T", " "), r.build + ("?" if r.main is None else ""),
            r.commit[:12] or "-", number(r.value),
            _change(table.metric.name, r.change), "; ".join(r.marks),
        )
        for r in table.rows
    ]  # fmt: skip
    yield from columns([head, *rows], right=(3, 4))
    if table.lacking:
        yield f"{table.lacking} of {len(table.rows)} points do not report {table.metric.name}"


def rebaseline_lines(document: TrackRebaselineDocument) -> Iterator[str]:
    """The table that the maintainers put into a rebaseline pull request."""
    yield f"Means of {document.first} to {document.last}"
    head = ("cell", "metric", "old", "mean", "new", "change", "n", "status")
    rows = [
        (
            r.cell, r.name, number(r.old, 6), number(r.mean, 6), number(r.new, 6),
            "-" if r.change is None else percent(r.change), str(r.n),
            _status(r),
        )
        for r in document.rows
    ]  # fmt: skip
    yield from columns([head, *rows], right=(2, 3, 4, 5, 6))


def _status(row: BaselineDocument) -> str:
    """The status, why, and which nights are not in the mean."""
    notes = [row.why] if row.why else []
    if row.left_out:
        notes.append(f"without {', '.join(night[5:] for night in row.left_out)}")
    return f"{row.status} ({'; '.join(notes)})" if notes else row.status


def _files(document: TrackIngestDocument) -> tuple[int, ...]:
    return document.new, document.changed, document.unchanged, document.elsewhere


def _change(metric: str, value: float | None) -> str:
    if value is None:
        return "-"
    if row(metric.partition(":")[0]).absolute:
        return f"{value:+.3g}"
    return percent(value)
