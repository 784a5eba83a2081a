"""Reported alerts in the store, and their state as people and nightlies set it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pydantic import Field, TypeAdapter

from perfbisect.errors import UsageError
from perfbisect.jobs.documents import Document
from perfbisect.report.document import Paragraph, Report, Verdict
from perfbisect.series.alerts import Alert, AlertRecord, State
from perfbisect.series.report import size_text
from perfbisect.series.series import CellSeries

if TYPE_CHECKING:
    from perfbisect.series.store import SeriesStore

_ALERT = TypeAdapter(Alert)
_COLUMNS = "id, begun_after, begun_by, state, why, by_rule, seen, alert"


class AlertTable:
    """The alerts of a store."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def all(self) -> tuple[AlertRecord, ...]:
        """Every alert that was ever reported, by name, in its state of today."""
        rows = self._db.execute(f"SELECT {_COLUMNS} FROM alerts ORDER BY id")
        return tuple(
            AlertRecord(
                replace(_ALERT.validate_json(alert), state=state, why=why, new=False),
                (begun_after, begun_by),
                seen,
                bool(by_rule),
            )
            for _, begun_after, begun_by, state, why, by_rule, seen, alert in rows
        )

    def get(self, name: str) -> AlertRecord:
        """The alert of a name, or of the beginning of one.

        :raises UsageError: there is none, or there are several.
        """
        records = [record for record in self.all() if record.alert.id.startswith(name)] if name else []
        exact = [record for record in records if record.alert.id == name] or records
        if len(exact) == 1:
            return exact[0]
        if exact:
            some = ", ".join(record.alert.id for record in exact[:5])
            raise UsageError(f"{len(exact)} alerts begin with {name!r}: {some}", next_step="a longer name")
        raise UsageError(f"no alert {name!r} was told", next_step="perfbisect track detect")

    def of_name(self, name: str) -> tuple[AlertRecord, ...]:
        """All alerts of an event, or the one of a name.

        :raises UsageError: there is none, or there are several alerts whose names begin so.
        """
        of_event = tuple(record for record in self.all() if record.alert.event == name)
        return of_event or (self.get(name),)

    def keep(self, records: Iterable[AlertRecord]) -> None:
        """Writes down what was found; the state of a known alert stays as it is in the table."""
        self._db.executemany(
            f"INSERT INTO alerts ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET begun_after = excluded.begun_after,"
            " begun_by = excluded.begun_by, seen = excluded.seen, alert = excluded.alert",
            [
                (
                    record.alert.id,
                    *record.begun,
                    record.alert.state,
                    record.alert.why,
                    record.by_rule,
                    record.seen,
                    _ALERT.dump_json(record.alert).decode(),
                )
                for record in records
            ],
        )

    def mark(self, name: str, state: State, why: str, *, by_rule: bool = False) -> None:
        """Sets the state of an alert."""
        self._db.execute(
            "UPDATE alerts SET state = ?, why = ?, by_rule = ? WHERE id = ?", (state, why, by_rule, name)
        )


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
    """Sets the state of an alert, or of all alerts of an event.

    :raises UsageError: there is no such alert, or no reason is given.
    """
    if not reason.strip():
        raise UsageError("--reason is empty", next_step='such as --reason "issue 2711"')
    among = store.alerts.of_name(name)
    with store.transaction():
        for record in among:
            store.alerts.mark(record.alert.id, state, reason.strip())
    first = among[0].alert
    return TrackStateDocument(
        id=first.id if len(among) == 1 else name,
        cell=first.cell,
        metric=first.metric,
        state=state,
        before=first.state,
        why=reason.strip(),
        alerts=len(among),
    )


def alert_marks(store: SeriesStore) -> Callable[[CellSeries], Mapping[int, str]]:
    """Marks of the nights at which alerts began, for the table of nights."""
    by_series: dict[tuple[str, str], list[Alert]] = {}
    for record in store.alerts.all():
        by_series.setdefault((record.alert.cell, record.alert.metric), []).append(record.alert)

    def of(series: CellSeries) -> dict[int, str]:
        found = {alert.first: alert for alert in by_series.get(series.key, [])}
        return {
            place: _mark_text(found[point.began])
            for place, point in enumerate(series.points)
            if point.began in found
        }

    return of


def _mark_text(alert: Alert) -> str:
    state = "" if alert.state == "open" else f", {alert.state}"
    return f"{size_text(alert.effect)} {alert.shape}, {alert.cause}{state} ({alert.id})"


def state_report(document: TrackStateDocument) -> Report:
    """Report of ``track ack``, ``close`` and ``reopen``."""
    more = f" and {document.alerts - 1} more" if document.alerts > 1 else ""
    alert = f"{document.id} {document.cell} {document.metric}{more}"
    change = Paragraph(f"{alert}: {document.state}, was {document.before}")
    return Report("Alert state", Verdict(document.state), (change,))
