"""What ``track detect`` found, for a person: events first, the newest on top, then what was judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from perfbisect.common.numbers import number, percent
from perfbisect.common.text import code, line
from perfbisect.model.metric import row
from perfbisect.report.markdown_text import prose, table
from perfbisect.series.alerts import Alert, ReportRow, leading_alert, weight
from perfbisect.series.documents import (
    BaselineDocument,
    TrackDetectDocument,
    TrackIngestDocument,
    TrackRebaselineDocument,
    TrackReportDocument,
    TrackStateDocument,
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
    for place, trend in enumerate(document.tables):
        if place:
            yield ""
        yield from _table(trend)
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


_LISTED = 10
"""Changes that are no alerts, shown one by one."""


def detect_lines(document: TrackDetectDocument, *, everything: bool = False) -> Iterator[str]:
    """Events with something new in full; what was told before in one line each, unless ``everything``."""
    shown = False
    for event, alerts in events(document.alerts):
        if everything or any(alert.is_news for alert in alerts):
            yield from _event(event, alerts)
            shown = True
    if not shown:
        yield f"nothing new up to the night of {document.until}"
    yield from _before(document, everything)
    for one in document.together:
        yield (
            f"  after {one.after}, by {one.by}: {len(one.series)} series of {len(one.servers)} servers moved "
            f"together, none for certain by itself (p {one.p:.1g}): {line(', '.join(one.series[:3]))}"
        )
    yield from _listed(document)
    for mark in document.boundaries:
        yield f"  {mark.night}  {mark.kind} changed, {mark.series} series begin anew: {line(mark.what)}"
    yield from _census(document)
    first = next((a for a in document.alerts if a.state == "open" and a.cause == "product"), None)
    if first is not None:
        yield f"next: perfbisect track suspects {leading_alert(document.alerts, first.event).id} --repo PATH"


def events(alerts: Sequence[Alert]) -> list[tuple[str, list[Alert]]]:
    """Alerts by event: those of the product first, the newest of either first."""
    ordered = sorted(alerts, key=lambda a: a.event, reverse=True)
    ordered.sort(key=lambda a: (a.cause != "product", -int(a.event[:8])))
    return [(event, list(group)) for event, group in groupby(ordered, key=lambda a: a.event)]


def effect_words(alert: Alert) -> str:
    """The size of a change."""
    return size_words(alert.effect)


def size_words(effect: float) -> str:
    """``+12.3 %``, or ``x 24`` where it is more than threefold."""
    return f"x {number(1 + effect, 3)}" if effect > 2 else percent(effect)


def _event(event: str, alerts: Sequence[Alert]) -> Iterator[str]:
    first = leading_alert(alerts, event)
    cells = len({alert.cell for alert in alerts})
    shapes = "/".join(
        dict.fromkeys(alert.shape for alert in sorted(alerts, key=lambda alert: alert.size, reverse=True))
    )
    yield f"{first.first[:10]}  {first.cause}, {shapes}: {len(alerts)} alerts of {cells} cells  ({event})"
    for words in first.evidence[:3]:
        yield f"  {line(words)}"
    rows = []
    for _, group in groupby(sorted(alerts, key=lambda a: a.cell), key=lambda a: a.cell):
        of = list(group)
        one = max(of, key=weight)
        marks = [
            "" if one.worse else "better", "" if one.now == "still there" else one.now, _state(one),
            f"and {len(of) - 1} more metrics" if len(of) > 1 else "",
        ]  # fmt: skip
        low, high = one.interval
        between = (
            f"{percent(low)} to {percent(high)}"
            if one.effect <= 2
            else f"x {number(1 + low, 3)} to {number(1 + high, 3)}"
        )
        rows.append(
            (
                one.id,
                one.cell,
                one.metric,
                effect_words(one),
                between,
                f"{one.nights} night" + "s" * (one.nights > 1),
                ", ".join(filter(None, marks)),
            )
        )
    yield from (f"  {text}" for text in columns(rows, right=(3,)))
    yield ""


def _state(alert: Alert) -> str:
    if alert.state == "open":
        return "" if alert.new else f"told as {alert.was}" if alert.was else "told before"
    return f"{alert.state}: {alert.why}" if alert.why else alert.state


def _before(document: TrackDetectDocument, everything: bool) -> Iterator[str]:
    if not everything:
        over = 0
        for event, alerts in events(document.alerts):
            if any(alert.is_news for alert in alerts):
                continue
            if all((a.recovered and not a.came_back) or a.state == "closed" for a in alerts):
                over += 1
                continue
            states = Counter("open" if a.state == "open" else a.state for a in alerts)
            told = ", ".join(f"{count} {state}" for state, count in states.items())
            back = sum(alert.came_back for alert in alerts)
            yield f"told before: {event}, {told}" + (f"; {back} recovered since" if back else "")
        if over:
            yield f"told before, and over or closed: {over} event{'s' * (over > 1)} (--all)"
    for gone in document.gone:
        if gone.new or everything:
            what = f"{gone.id} {line(gone.cell)} {line(gone.metric)}"
            yield f"not found any more: {what}, found last on {gone.seen[:10]}"
    older = sum(not gone.new for gone in document.gone)
    if older and not everything:
        yield f"not found any more, and told before: {older} (--all)"


def _listed(document: TrackDetectDocument) -> Iterator[str]:
    shown = [one for one in document.listed if one.kind != "told by the median"]
    if shown:
        yield f"{len(shown)} changes are no alerts:"
    for one in sorted(shown, key=lambda one: one.first)[-_LISTED:]:
        yield f"  {one.first}  {line(one.cell)} {line(one.metric)} {percent(one.effect)}: {line(one.why)}"
    if len(shown) > _LISTED:
        yield f"  and {len(shown) - _LISTED} earlier ones (--json)"


def _census(document: TrackDetectDocument) -> Iterator[str]:
    census = document.census
    for family in census.families:
        yield (
            f"{family.judged} series of {family.name} judged, {family.alarmed} alarmed: at most "
            f"{document.fdr * 100:g} % of those by chance"
        )
    short = [one for one in census.series if one.smallest is not None]
    if short:
        steps, nights = (sorted(x) for x in zip(*((s.smallest or 0.0, s.nights) for s in short), strict=True))
        half = len(short) // 2
        yield (
            f"steps that would be seen: in half of the series of "
            f"{percent(steps[half], signed=False)} or less; "
            f"half of them have {nights[half]} nights or fewer"
        )
    refused = Counter(one.why for one in census.series if one.why)
    left = {**census.not_judged, **refused}
    if left:
        yield f"not judged: {'; '.join(f'{count} {line(why)}' for why, count in left.items())}"
    if census.builds_not_of_main:
        yield f"{census.builds_not_of_main} builds are not of main and were left out"


def state_lines(document: TrackStateDocument) -> Iterator[str]:
    """What was said of an alert, or of those of an event."""
    more = f" and {document.alerts - 1} more" if document.alerts > 1 else ""
    who = f"{document.id} {line(document.cell)} {line(document.metric)}{more}"
    yield f"{who}: {document.state}, was {document.before}"


_TEMPLATES = Path(__file__).parents[1] / "report" / "templates"

HEAD = (
    *("Source", "Model", "Hardware", "Type", "Config", "Test", "Metric", "latest", "baseline", "vs baseline"),
    *("Status", "Days failing", "Alert"),
)
"""The columns of the nightlies' own reports, and which alert a row is."""

RULE = (
    "An issue is what the product made worse, by more than 10 % for at least three days; what has no known "
    "cause is none. The baseline is the level before the change, not a file's."
)


def nightly_markdown(document: TrackReportDocument) -> str:
    """To paste into an issue. Everything that others wrote stands in code spans."""
    parts = [
        f"## Nightly of {document.night}",
        _about(document, code),
        house_table(document.rows) if document.rows else "Nothing is at another level than before.",
        RULE if document.rows else "",
        *(_nightly_report_event(name, alerts) for name, alerts in _told(document)),
        *_rest(document),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def house_table(rows: Iterable[ReportRow]) -> str:
    """The table in which the nightlies are reported."""
    return table(HEAD, (tuple(code(x) if x else "" for x in _cells(row)) for row in rows))


def nightly_html(document: TrackReportDocument) -> str:
    """One page without scripts; it loads nothing."""
    # Slow to import, and only this form needs it.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined)
    told = [
        (
            name,
            leading_alert(alerts, name),
            [line(words, 400) for words in leading_alert(alerts, name).evidence],
            alerts,
        )
        for name, alerts in _told(document)
    ]
    return environment.get_template("nightly.html.jinja").render(
        night=document.night,
        about=_about(document, line),
        head=HEAD,
        rows=[[line(x) for x in _cells(row)] for row in document.rows],
        rule=RULE,
        events=[(line(name), _summary(first, alerts), words) for name, first, words, alerts in told],
        rest=list(_rest(document)),
    )


def _about(document: TrackReportDocument, shown: Callable[[str], str]) -> str:
    commit = f", commit {shown(document.commit[:12])}" if document.commit else ", its commit is not said"
    engine = f", engine {shown(document.engine)}" if document.engine else ""
    return f"Build {shown(document.build)}{commit}{engine}; {document.quiet} series show nothing."


def _cells(row: ReportRow) -> tuple[str, ...]:
    return (
        row.source, row.model, row.hardware, row.type, row.config, row.test, row.metric,
        f"{number(row.latest)} {row.unit}", f"{number(row.baseline)} {row.unit}", size_words(row.change),
        row.status, str(row.days), row.alert,
    )  # fmt: skip


def _nightly_report_event(name: str, alerts: list[Alert]) -> str:
    first = leading_alert(alerts, name)
    evidence = "\n".join(f"- {prose(words)}" for words in first.evidence)
    return f"**{prose(_summary(first, alerts))}** ({code(name)})\n\n{evidence}"


def _summary(first: Alert, alerts: list[Alert]) -> str:
    cells = len({alert.cell for alert in alerts})
    what = f"{first.first[:10]}: {first.cause}, {first.shape}, {effect_words(first)} of {first.metric}"
    others = f" in {first.cell}" + (f" and {cells - 1} other cells" if cells > 1 else "")
    over = sum(alert.recovered for alert in alerts)
    back = (
        f", {over} of {len(alerts)} alerts recovered"
        if 0 < over < len(alerts)
        else ", recovered" * (over > 0)
    )
    said = f", {first.state}: {first.why}" if first.state != "open" else ""
    return what + others + back + said


def _told(document: TrackReportDocument) -> list[tuple[str, list[Alert]]]:
    """The events that are not closed."""
    found = events(document.detect.alerts)
    return [(name, alerts) for name, alerts in found if any(alert.state != "closed" for alert in alerts)]


def _rest(document: TrackReportDocument) -> Iterator[str]:
    closed = len(events(document.detect.alerts)) - len(_told(document))
    if closed:
        yield f"Closed and not told again: {closed} events."
    for family in document.detect.census.families:
        yield (
            f"{family.judged} series of {family.name} were judged, {family.alarmed} alarmed, at most "
            f"{document.detect.fdr * 100:g} % of those by chance."
        )
