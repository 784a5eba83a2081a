"""The tables of reported results and their version.

Files and builds are what was ingested: they are kept whole. Points and rejections follow from them and can be
made again.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

from perfbisect.errors import MachineError, UsageError

FILE = "series.sqlite"
VERSION = 3
"""Version of the tables: SQLite's ``user_version``, 0 in an empty file."""

_TABLES = """
CREATE TABLE builds (
  id INTEGER PRIMARY KEY,
  source TEXT NOT NULL, pipeline TEXT NOT NULL, name TEXT NOT NULL,
  "commit" TEXT NOT NULL, branch TEXT NOT NULL, fixed TEXT NOT NULL,
  state TEXT NOT NULL, url TEXT NOT NULL, message TEXT NOT NULL,
  whole INTEGER NOT NULL, unsorted INTEGER NOT NULL,
  UNIQUE (pipeline, name)
);
CREATE TABLE files (
  id INTEGER PRIMARY KEY,
  build INTEGER NOT NULL REFERENCES builds(id),
  name TEXT NOT NULL, digest TEXT NOT NULL, place TEXT NOT NULL, zone TEXT NOT NULL,
  facts TEXT NOT NULL, content BLOB NOT NULL, beside BLOB NOT NULL,
  UNIQUE (build, name)
);
CREATE INDEX files_digest ON files (digest);
CREATE TABLE places (
  path TEXT PRIMARY KEY, size INTEGER NOT NULL, version TEXT NOT NULL,
  file INTEGER NOT NULL REFERENCES files(id)
) WITHOUT ROWID;
CREATE TABLE points (
  id INTEGER PRIMARY KEY,
  build INTEGER NOT NULL REFERENCES builds(id),
  cell TEXT NOT NULL, night TEXT NOT NULL, began TEXT NOT NULL, ended TEXT NOT NULL,
  start TEXT NOT NULL, raw TEXT NOT NULL, record INTEGER NOT NULL,
  workload TEXT NOT NULL, metrics TEXT NOT NULL, covariates TEXT NOT NULL
);
CREATE INDEX points_cell ON points (cell, began);
CREATE INDEX points_build ON points (build);
CREATE TABLE rejections (
  id INTEGER PRIMARY KEY,
  build INTEGER NOT NULL REFERENCES builds(id),
  fate TEXT NOT NULL, reason TEXT NOT NULL, raw TEXT NOT NULL, record INTEGER NOT NULL,
  cell TEXT NOT NULL, night TEXT NOT NULL
);
CREATE INDEX rejections_build ON rejections (build);
CREATE TABLE logs (
  build INTEGER NOT NULL REFERENCES builds(id), job TEXT NOT NULL, content BLOB NOT NULL,
  PRIMARY KEY (build, job)
) WITHOUT ROWID;
CREATE TABLE alerts (
  id TEXT PRIMARY KEY,
  begun_after INTEGER NOT NULL, begun_by INTEGER NOT NULL,
  state TEXT NOT NULL, why TEXT NOT NULL, by_rule INTEGER NOT NULL,
  seen TEXT NOT NULL, alert TEXT NOT NULL
) WITHOUT ROWID;
"""


class _Connection(sqlite3.Connection):
    """Writes text that is no UTF-8 (a file's name, half a character in a result) as its escape."""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        return super().execute(sql, tuple(map(_writable, parameters)))

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        return super().executemany(sql, (tuple(map(_writable, row)) for row in parameters))


def _writable(value: object) -> Any:
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def open_store(path: Path) -> sqlite3.Connection:
    """Open the store at ``path``, creating it where there is none.

    Raises:
        UsageError: it is no store of ours, or of another version.
        MachineError: the disk failed, or another process held the store for longer than half a minute.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path, timeout=30.0, isolation_level=None, factory=_Connection)
        connection.execute("PRAGMA foreign_keys = ON")
        version = _version(connection)
        if version == 0 and connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise UsageError(f"{path} is a database, and no store of perfbisect", next_step="move it away")
        if version not in (0, VERSION):
            raise UsageError(
                f"the store was written by another perfbisect: version {version}, this one reads {VERSION}",
                where=path,
                next_step="use the perfbisect that wrote it, or move it away and ingest again",
            )
        connection.execute("PRAGMA journal_mode = WAL")
        if version == 0:
            _create_tables(connection)
    except sqlite3.DatabaseError as error:
        raise failed(path, error) from error
    except OSError as error:
        raise MachineError(f"the store cannot be opened: {error.strerror or error}", where=path) from error
    return connection


def _create_tables(connection: sqlite3.Connection) -> None:
    """Create all tables in one transaction, unless another process did so in the meantime."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _version(connection) == 0:
            # Statement by statement: executescript would end the transaction.
            for statement in _TABLES.split(";\n"):
                if statement.strip():
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def failed(path: Path, error: sqlite3.DatabaseError) -> UsageError | MachineError:
    """What a failure of the database is to the user."""
    if isinstance(error, sqlite3.OperationalError):
        return MachineError(f"the store cannot be used: {error}", where=path)
    return UsageError(
        f"{path} is no store of perfbisect, or damaged: {error}",
        next_step="move it away and ingest again: points come back, what was said of alerts does not",
    )
