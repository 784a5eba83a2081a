"""What a store remembers of earlier detections: derived data, which may be lost at any time.

An entry is kept under a digest of all that it was computed from: values, labels, settings and code.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Mapping
from functools import cache

import numpy as np
import scipy
from pydantic import TypeAdapter

from perfbisect.resources import sources_digest
from perfbisect.series.detection.model import ChangePoint, JudgedSeries, SeriesValues, Test, judge_series

_TABLES = {
    "judged": ("key BLOB PRIMARY KEY", "judged BLOB NOT NULL", "evidence BLOB NOT NULL"),
    "detections": ("key TEXT PRIMARY KEY", "outcome TEXT NOT NULL"),
}
"""Columns of each table, the key first."""

_JUDGED = TypeAdapter(tuple[tuple[ChangePoint, ...], dict[Test, float], float])
"""All of a judged series but its evidence, which is an array."""


@cache
def code_digest() -> str:
    """Of the code that judges series, with the libraries that it computes with."""
    return f"{sources_digest()} numpy {np.__version__} scipy {scipy.__version__}"


def prepare(connection: sqlite3.Connection) -> None:
    """Make the tables; one with the columns of another perfbisect is made anew: it can be lost."""
    stale = {table: columns for table, columns in _TABLES.items() if not _has(connection, table, columns)}
    if stale:
        connection.execute("BEGIN IMMEDIATE")
    with connection:
        for table, columns in stale.items():
            connection.execute(f"DROP TABLE IF EXISTS {table}")
            connection.execute(f"CREATE TABLE {table} ({', '.join(columns)}) WITHOUT ROWID")


def _has(connection: sqlite3.Connection, table: str, columns: tuple[str, ...]) -> bool:
    found = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
    return found == [column.partition(" ")[0] for column in columns]


class DetectionMemory:
    """Series as they were judged, and the last detection of a whole store; only ``keep_...`` write."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        self._judged: dict[bytes, JudgedSeries | None] = {}
        """Of every series that was asked for: as judged now, None where it was remembered."""

    def judge(self, series: SeriesValues, fdr: float) -> JudgedSeries:
        """As :func:`judge_series`; remembered where nothing of it has changed."""
        key = self._key(series, fdr)
        row = self._db.execute("SELECT judged, evidence FROM judged WHERE key = ?", (key,)).fetchone()
        if row is None:
            judged = self._judged[key] = judge_series(series, fdr)
            return judged
        self._judged[key] = None
        return JudgedSeries(*_JUDGED.validate_json(row[0]), np.frombuffer(row[1]))

    def keep_judged(self) -> None:
        """Remember the series that were asked for, and no others; in a transaction of the store."""
        known = {row[0] for row in self._db.execute("SELECT key FROM judged")} if self._judged else set()
        for key in known - set(self._judged):
            self._db.execute("DELETE FROM judged WHERE key = ?", (key,))
        for key, judged in self._judged.items():
            if judged is not None:
                text = _JUDGED.dump_json((judged.points, dict(judged.p), judged.smallest))
                row = (key, text, np.asarray(judged.evidence, float).tobytes())
                self._db.execute("INSERT OR REPLACE INTO judged VALUES (?, ?, ?)", row)
        self._judged.clear()

    def key_of_store(self, settings: Mapping[str, object]) -> str:
        """Digest of every point of the store and of what they are judged with."""
        digest = hashlib.sha256(repr((code_digest(), sorted(settings.items()))).encode())
        for query in (
            "SELECT id, build FROM builds ORDER BY id",
            "SELECT build, result FROM results WHERE is_point ORDER BY id",
        ):
            for number, text in self._db.execute(query):
                digest.update(f"{number} {text}\n".encode())
        return digest.hexdigest()

    def outcome(self, key: str) -> str | None:
        """The outcome of the last detection, if it was of the same points and settings."""
        row = self._db.execute("SELECT outcome FROM detections WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def keep_outcome(self, key: str, outcome: str) -> None:
        """Remember the outcome of a detection instead of that of an earlier one; in a transaction."""
        self._db.execute("DELETE FROM detections")
        self._db.execute("INSERT INTO detections VALUES (?, ?)", (key, outcome))

    def _key(self, series: SeriesValues, fdr: float) -> bytes:
        values, nights = np.array(series.values, float), np.array(series.nights, np.int64)
        labels = (series.key, series.sign, series.min_effect, series.group, series.absolute, series.machines)
        digest = hashlib.sha256(repr((code_digest(), fdr, len(values), labels)).encode())
        digest.update(values.tobytes() + nights.tobytes())
        return digest.digest()
