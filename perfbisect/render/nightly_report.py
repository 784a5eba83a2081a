"""The nightly report: Markdown for an issue, or one page of HTML that opens from disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from perfbisect.core.alert import Alert, ReportRow, leading_alert
from perfbisect.render.detect_documents import TrackReportDocument
from perfbisect.render.detect_lines import effect_words, events, size_words
from perfbisect.render.markdown import prose, table
from perfbisect.render.numbers import number
from perfbisect.render.safe import code, line

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
        *(_event(name, alerts) for name, alerts in _told(document)),
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


def _event(name: str, alerts: list[Alert]) -> str:
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
