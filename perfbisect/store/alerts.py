"""The alerts that were told, with what people said of them: names stay when they are found again."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from perfbisect.errors import UsageError

State = Literal["open", "acknowledged", "closed"]


@dataclass(frozen=True)
class Told:
    """An alert as it was last told.

    ``begun_after``, ``begun_by``: days since 1970-01-01, after the one and by the other it began.
    ``by_rule``: a nightly's rule set the state, and no person. ``told``: when it was told first, ``seen``
    when it was found last; ISO 8601 in UTC. ``document``: what was told, JSON.
    """

    id: str
    cell: str
    metric: str
    way: int
    begun_after: int
    begun_by: int
    state: State
    why: str
    by_rule: bool
    told: str
    seen: str
    document: str


class AlertTable:
    """The alerts of a store."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def all(self) -> tuple[Told, ...]:
        """Every alert that was ever told, by name."""
        rows = self._db.execute(f"SELECT {_COLUMNS} FROM alerts ORDER BY id")
        return tuple(replace(Told(*row), by_rule=bool(row[_BY_RULE])) for row in rows)

    def get(self, name: str) -> Told:
        """The alert of a name, or of the beginning of one.

        :raises UsageError: there is none, or there are several.
        """
        found = [one for one in self.all() if one.id.startswith(name)] if name else []
        exact = [one for one in found if one.id == name] or found
        if len(exact) == 1:
            return exact[0]
        if exact:
            some = ", ".join(one.id for one in exact[:5])
            raise UsageError(f"{len(exact)} alerts begin with {name!r}: {some}", next_step="a longer name")
        raise UsageError(f"no alert {name!r} was told", next_step="perfbisect track detect")

    def keep(self, alerts: Sequence[Told], seen: str) -> None:
        """Writes down what was found; of one that is known its state and first telling stay."""
        self._db.executemany(
            f"INSERT INTO alerts ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET begun_after = excluded.begun_after,"
            " begun_by = excluded.begun_by, seen = excluded.seen, document = excluded.document",
            [
                (
                    a.id, a.cell, a.metric, a.way, a.begun_after, a.begun_by, a.state, a.why, a.by_rule,
                    a.told, seen, a.document,
                )
                for a in alerts
            ],
        )  # fmt: skip

    def mark(self, name: str, state: State, why: str, *, by_rule: bool = False) -> None:
        """Sets the state of an alert: a person's word, or that of a nightly's rule."""
        self._db.execute(
            "UPDATE alerts SET state = ?, why = ?, by_rule = ? WHERE id = ?", (state, why, by_rule, name)
        )


_COLUMNS = "id, cell, metric, way, begun_after, begun_by, state, why, by_rule, told, seen, document"
_BY_RULE = _COLUMNS.split(", ").index("by_rule")
