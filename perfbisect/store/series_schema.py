"""The tables of reported results, their version, and how a store of an older version becomes this one.

Files and builds are what was brought in: they are kept whole. Points and rejections follow from them and can
be made again. Before a store is changed it is copied to ``series.sqlite.v<version>.bak`` beside it.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from perfbisect.errors import MachineError, UsageError

Migration = Callable[[sqlite3.Connection], None]

FILE = "series.sqlite"

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
"""

_LOGS = """
CREATE TABLE logs (
  build INTEGER NOT NULL REFERENCES builds(id), job TEXT NOT NULL, content BLOB NOT NULL,
  PRIMARY KEY (build, job)
) WITHOUT ROWID;
"""


_ALERTS = """
CREATE TABLE alerts (
  id TEXT PRIMARY KEY,
  begun_after INTEGER NOT NULL, begun_by INTEGER NOT NULL,
  state TEXT NOT NULL, why TEXT NOT NULL, by_rule INTEGER NOT NULL,
  seen TEXT NOT NULL, alert TEXT NOT NULL
) WITHOUT ROWID;
"""


def _tables(connection: sqlite3.Connection) -> None:
    _run(connection, _TABLES)


def _logs(connection: sqlite3.Connection) -> None:
    """Version 2: the ends of the jobs' logs."""
    _run(connection, _LOGS)


def _alerts(connection: sqlite3.Connection) -> None:
    """Version 3: the alerts that were reported, and what was said of them."""
    _run(connection, _ALERTS)


MIGRATIONS: tuple[Migration, ...] = (_tables, _logs, _alerts)
"""``MIGRATIONS[n]`` takes a store of version n to n + 1; an empty one has version 0."""


class _Connection(sqlite3.Connection):
    """Writes text that is no UTF-8 (a file's name, half a character in a result) as its escape."""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        return super().execute(sql, tuple(map(_writable, parameters)))

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        return super().executemany(sql, (tuple(map(_writable, row)) for row in parameters))


def _writable(value: object) -> Any:
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def open_store(path: Path, migrations: Sequence[Migration] = MIGRATIONS) -> sqlite3.Connection:
    """The store at ``path``, made where there is none, brought to this version where it is older.

    :raises UsageError: it is no store of ours, or a later perfbisect wrote it.
    :raises MachineError: the disk, or another process holds it for longer than half a minute.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path, timeout=30.0, isolation_level=None, factory=_Connection)
        connection.execute("PRAGMA foreign_keys = ON")
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if version == 0 and connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise UsageError(f"{path} is a database, and no store of perfbisect", next_step="move it away")
        if version > len(migrations):
            raise UsageError(
                f"the store was written by a later perfbisect: version {version}, this one knows "
                f"{len(migrations)}",
                where=path,
                next_step="upgrade perfbisect",
            )
        connection.execute("PRAGMA journal_mode = WAL")
        if version < len(migrations):
            _migrate(connection, path, migrations)
    except sqlite3.DatabaseError as error:
        raise failed(path, error) from error
    except OSError as error:
        raise MachineError(f"the store cannot be opened: {error.strerror or error}", where=path) from error
    return connection


def _migrate(connection: sqlite3.Connection, path: Path, migrations: Sequence[Migration]) -> None:
    """One transaction for all steps: another process that opens the store finds it old or new."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if version:
            _back_up(path, path.with_name(f"{path.name}.v{version}.bak"))
        for migrate in migrations[version:]:
            migrate(connection)
        connection.execute(f"PRAGMA user_version = {len(migrations)}")
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _back_up(path: Path, target: Path) -> None:
    """A whole copy, with what is only in the write-ahead log; one that is there already is kept."""
    if target.exists():
        return
    staging = target.with_name(f".{target.name}")
    staging.unlink(missing_ok=True)
    with (
        contextlib.closing(sqlite3.connect(path, timeout=30.0)) as source,
        contextlib.closing(sqlite3.connect(staging)) as copy,
    ):
        source.backup(copy)
    staging.replace(target)


def _run(connection: sqlite3.Connection, script: str) -> None:
    """Statement by statement: ``executescript`` would end the transaction."""
    for statement in script.split(";\n"):
        if statement.strip():
            connection.execute(statement)


def failed(path: Path, error: sqlite3.DatabaseError) -> UsageError | MachineError:
    """What a failure of the database is to the user."""
    if isinstance(error, sqlite3.OperationalError):
        return MachineError(f"the store cannot be used: {error}", where=path)
    return UsageError(
        f"{path} is no store of perfbisect, or damaged: {error}",
        next_step="move it away and ingest again: points come back, what was said of alerts does not",
    )
