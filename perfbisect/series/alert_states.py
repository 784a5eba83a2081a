"""``track ack``, ``close`` and ``reopen``, and the marks of alerts in the table of nights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from pydantic import Field

from perfbisect.errors import UsageError
from perfbisect.jobs.documents import Document
from perfbisect.report.document import Paragraph, Report, Verdict
from perfbisect.series.alerts import Alert, State
from perfbisect.series.report import size_text
from perfbisect.series.series import CellSeries
from perfbisect.series.store import SeriesStore


class TrackStateDocument(Document):
    """JSON of ``track ack``, ``close`` and ``reopen``; of an event, that of its first alert.

    ``alerts``: how many were changed.
    """

    schema_: Literal["perfbisect.track-state/1"] = Field(default="perfbisect.track-state/1", alias="schema")
    id: str
    cell: str
    metric: str
    state: State
    before: State
    why: str
    alerts: int = 1


def set_state(store: SeriesStore, name: str, state: State, reason: str) -> TrackStateDocument:
    if not reason.strip():
        raise UsageError("--reason is empty", next_step='such as --reason "issue 2711"')
    alerts = [record.alert for record in store.alerts.find(name)]
    with store.transaction():
        for alert in alerts:
            store.alerts.mark(alert.id, state, reason.strip())
    return TrackStateDocument(
        id=alerts[0].id if len(alerts) == 1 else name,
        cell=alerts[0].cell,
        metric=alerts[0].metric,
        state=state,
        before=alerts[0].state,
        why=reason.strip(),
        alerts=len(alerts),
    )


def state_report(document: TrackStateDocument) -> Report:
    more = f" and {document.alerts - 1} more" if document.alerts > 1 else ""
    alert = f"{document.id} {document.cell} {document.metric}{more}"
    change = Paragraph(f"{alert}: {document.state}, was {document.before}")
    return Report("Alert state", Verdict(document.state), (change,))


def alert_marks(store: SeriesStore) -> Callable[[CellSeries], Mapping[int, str]]:
    """Marks of the nights at which alerts began, for the table of nights."""
    alerts = {
        (record.alert.cell, record.alert.metric, record.alert.first): record.alert
        for record in store.alerts.all()
    }

    def marks_of(series: CellSeries) -> dict[int, str]:
        return {
            place: _mark_text(alert)
            for place, point in enumerate(series.points)
            if (alert := alerts.get((*series.key, point.began)))
        }

    return marks_of


def _mark_text(alert: Alert) -> str:
    state = "" if alert.state == "open" else f", {alert.state}"
    return f"{size_text(alert.effect)} {alert.shape}, {alert.cause}{state} ({alert.id})"
