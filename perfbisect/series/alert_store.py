"""The table of reported alerts, with what people and nightlies said of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import replace

from pydantic import TypeAdapter

from perfbisect.errors import UsageError
from perfbisect.series.alerts import Alert, AlertRecord, State

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
