"""The store of results made elsewhere: what was brought in, the points made of it, and what was no point.

The raw files are kept (compressed, without long lists of single requests), so that a checkout may go and
points can be made again. Everything is safe to do twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from perfbisect.errors import MachineError, UsageError
from perfbisect.series.alert_store import AlertTable
from perfbisect.series.points import Build, FileLocation, Point, RejectedResult, Workload

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


_LONG = 64
_LARGE = 256 * 1024
"""Of a file of more characters, lists of more items than ``_LONG`` are not kept: the file itself has them."""

_BUILD = tuple(field.name for field in fields(Build))
_COLUMNS = ", ".join(f'b."{name}"' for name in _BUILD)

Kept = Literal["new", "changed", "unchanged", "duplicate"]


@dataclass(frozen=True)
class FileRow:
    """A file as it is kept. ``zone``: a name, empty where its times say theirs."""

    id: int
    name: str
    place: str
    zone: str
    text: str
    beside: str
    facts: Mapping[str, Any]


class SeriesStore:
    """The store in a state folder. Close it, or use it in a ``with`` block."""

    def __init__(self, path: Path) -> None:
        """:raises UsageError, MachineError: see ``open_store``."""
        self.path = path
        self._db = open_store(path)
        self.alerts = AlertTable(self._db)

    @classmethod
    def of(cls, state: Path) -> SeriesStore:
        """The store of a state folder, made where there is none."""
        return cls(state / "track" / FILE)

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> SeriesStore:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """:raises UsageError, MachineError: the database failed in the block."""
        self.close()
        if isinstance(error, sqlite3.DatabaseError):
            raise failed(self.path, error) from error

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All of the block, or nothing of it.

        :raises MachineError: the disk, or another process that does not let go.
        """
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
        except sqlite3.OperationalError as error:
            raise MachineError(
                f"the store cannot be written: {error}; nothing of it was changed", where=self.path
            ) from error

    def keep_build(self, build: Build, *, whole: bool = False, logs: Mapping[str, str] | None = None) -> int:
        """Writes down a build; what another source left open is filled in. Returns its number here."""
        row = self._db.execute(
            f"SELECT b.id, b.whole, {_COLUMNS} FROM builds b WHERE pipeline = ? AND name = ?",
            (build.pipeline, build.name),
        ).fetchone()
        if row is None:
            marks = ", ".join("?" * len(_BUILD))
            names = ", ".join(f'"{name}"' for name in _BUILD)
            cursor = self._db.execute(
                f"INSERT INTO builds ({names}, whole, unsorted) VALUES ({marks}, ?, 1)",
                (*(getattr(build, name) for name in _BUILD), whole),
            )
            number = int(cursor.lastrowid or 0)
        else:
            number, before = int(row[0]), dict(zip(_BUILD, row[2:], strict=True))
            now = {name: getattr(build, name) or before[name] for name in _BUILD} | {
                "source": before["source"]
            }
            if now != before or (whole and not row[1]):
                told = ", ".join(f'"{name}" = ?' for name in _BUILD)
                self._db.execute(
                    f"UPDATE builds SET {told}, whole = max(whole, ?), unsorted = 1 WHERE id = ?",
                    (*(now[name] for name in _BUILD), whole, number),
                )
        for job, text in (logs or {}).items():
            self._db.execute("INSERT OR REPLACE INTO logs VALUES (?, ?, ?)", (number, job, _packed(text)))
        return number

    def known(self) -> dict[str, tuple[int, str]]:
        """Place -> size and version of every file that was read."""
        found = self._db.execute("SELECT path, size, version FROM places")
        return {path: (size, version) for path, size, version in found}

    def whole_builds(self) -> frozenset[str]:
        """Keys of the builds that had ended when everything of them was read."""
        rows = self._db.execute("SELECT pipeline, name FROM builds WHERE whole")
        return frozenset(f"{pipeline}#{name}" for pipeline, name in rows)

    def keep_file(
        self,
        build: int,
        *,
        name: str,
        place: str,
        size: int,
        version: str,
        text: str,
        document: object,
        beside: str = "",
        zone: str = "",
        facts: Mapping[str, Any] | None = None,
    ) -> Kept:
        """Writes down a file of a build; its text is ``text``, and ``document`` what JSON it is, or None.

        ``duplicate``: the same content under the same name of the build was read from another place.

        :raises UsageError: the build has this name twice with different content, in two places.
        """
        digest = _digest(text, document, beside)
        row = self._db.execute(
            "SELECT id, digest, place FROM files WHERE build = ? AND name = ?", (build, name)
        ).fetchone()
        if row is not None and row[1] == digest:
            self._place(place, size, version, row[0])
            return self._told_more(row[0], build, place == row[2], zone, facts or {})
        if row is not None and row[2] != place and _exists(row[2]):
            raise UsageError(
                f"one build has {name} twice, with different content: from {row[2]}, and now from {place}",
                where=place,
                next_step="remove the one that is wrong, or ingest it with another --state",
            )
        told = (
            digest, place, zone, json.dumps(dict(facts or {}), sort_keys=True),
            _packed(_without_lists(text, document)), _packed(beside),
        )  # fmt: skip
        if row is None:
            cursor = self._db.execute(
                "INSERT INTO files (digest, place, zone, facts, content, beside, build, name)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (*told, build, name),
            )
            number = int(cursor.lastrowid or 0)
        else:
            number = int(row[0])
            self._db.execute(
                "UPDATE files SET digest = ?, place = ?, zone = ?, facts = ?, content = ?, beside = ? "
                "WHERE id = ?",
                (*told, number),
            )
            # Where its old content lies too, it may be a point there now.
            self._unsorted(row[1])
        self._place(place, size, version, number)
        self._db.execute("UPDATE builds SET unsorted = 1 WHERE id = ?", (build,))
        self._unsorted(digest)
        return "new" if row is None else "changed"

    def unsorted(self) -> list[tuple[int, Build]]:
        """Builds of which something is new since their points were made."""
        rows = self._db.execute(f"SELECT b.id, {_COLUMNS} FROM builds b WHERE unsorted ORDER BY b.id")
        return [(row[0], Build(*row[1:])) for row in rows]

    def files(self, build: int) -> list[FileRow]:
        """The files of a build, by name."""
        rows = self._db.execute(
            "SELECT id, name, place, zone, content, beside, facts FROM files WHERE build = ? ORDER BY name",
            (build,),
        )
        return [
            FileRow(r[0], r[1], r[2], r[3], _unpacked(r[4]), _unpacked(r[5]), json.loads(r[6])) for r in rows
        ]

    def same(self, build: int) -> dict[int, dict[FileLocation, tuple[int, str]]]:
        """For each file of a build whose content lies elsewhere too: all its places, with the number and the
        path or address of the file there."""
        rows = self._db.execute(
            "SELECT f.id, g.id, b.pipeline || '#' || b.name, g.name, g.place, b.source, b.name FROM files f"
            " JOIN files g ON g.digest = f.digest JOIN builds b ON b.id = g.build WHERE f.build = ?",
            (build,),
        )
        found: dict[int, dict[FileLocation, tuple[int, str]]] = {}
        for file, other, key, name, path, source, number in rows:
            place = FileLocation(key, name, numbered=source in ("kanban", "buildkite") and number.isdigit())
            found.setdefault(file, {})[place] = (other, path)
        return {file: places for file, places in found.items() if len(places) > 1}

    def sorted_build(self, build: int, points: Iterable[Point], rejected: Iterable[RejectedResult]) -> None:
        """Replaces what was made of a build."""
        self._db.execute("DELETE FROM points WHERE build = ?", (build,))
        self._db.execute("DELETE FROM rejections WHERE build = ?", (build,))
        self._db.executemany(
            "INSERT INTO points (build, cell, night, began, ended, start, raw, record, workload, metrics, "
            "covariates) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                (build, p.cell, p.night, p.began, p.ended, p.start, p.raw, p.record, _workload(p.workload),
                 json.dumps(dict(p.values)), json.dumps(dict(p.covariates)))
                for p in points
            ),
        )  # fmt: skip
        self._db.executemany(
            "INSERT INTO rejections (build, fate, reason, raw, record, cell, night) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            ((build, r.fate, r.reason, r.raw, r.record, r.cell, r.night) for r in rejected),
        )
        self._db.execute("UPDATE builds SET unsorted = 0 WHERE id = ?", (build,))

    def cells(self) -> tuple[str, ...]:
        """The names of the cells that have points, sorted."""
        return tuple(row[0] for row in self._db.execute("SELECT DISTINCT cell FROM points ORDER BY cell"))

    def points(self, cells: Sequence[str] = (), *, since: str = "") -> tuple[Point, ...]:
        """The points of these cells (none named: of all), by cell and time; from the night ``since`` on."""
        rows = self._db.execute(
            "SELECT p.workload, p.began, p.ended, p.metrics, p.covariates, p.night, p.start, p.raw, p.record,"
            f" b.id, {_COLUMNS} FROM points p JOIN builds b ON b.id = p.build"
            f" WHERE p.night >= ?{_among(cells)} ORDER BY p.cell, p.began, p.raw, p.record",
            (since, *cells),
        )
        builds: dict[int, Build] = {}
        found = []
        for row in rows:
            build = builds.setdefault(row[9], Build(*row[10:]))
            found.append(
                Point(
                    build,
                    _of_workload(row[0]),
                    row[1],
                    row[2],
                    json.loads(row[3]),
                    json.loads(row[4]),
                    *row[5:9],
                )
            )
        return tuple(found)

    def rejections(self, cells: Sequence[str] = (), *, since: str = "") -> tuple[RejectedResult, ...]:
        """What is no point, by night and file."""
        rows = self._db.execute(
            f"SELECT p.fate, p.reason, p.raw, p.record, p.cell, p.night, {_COLUMNS} FROM rejections p"
            f" JOIN builds b ON b.id = p.build WHERE p.night >= ?{_among(cells)}"
            " ORDER BY p.night, p.raw, p.record",
            (since, *cells),
        )
        return tuple(RejectedResult(Build(*row[6:]), *row[:6]) for row in rows)

    def builds(self) -> tuple[Build, ...]:
        """Every build, in the order in which they were first seen."""
        return tuple(
            Build(*row) for row in self._db.execute(f"SELECT {_COLUMNS} FROM builds b ORDER BY b.id")
        )

    def raw(self, place: str) -> str:
        """The text of a file as it is kept. :raises UsageError: none was read from there."""
        row = self._db.execute("SELECT content FROM files WHERE place = ?", (place,)).fetchone()
        if row is None:
            raise UsageError(f"no file was ingested from {place}")
        return _unpacked(row[0])

    def log(self, build: Build, job: str) -> str:
        """The end of a job's log; empty where it is not kept."""
        row = self._db.execute(
            "SELECT l.content FROM logs l JOIN builds b ON b.id = l.build"
            " WHERE b.pipeline = ? AND b.name = ? AND l.job = ?",
            (build.pipeline, build.name, job),
        ).fetchone()
        return _unpacked(row[0]) if row else ""

    def _told_more(self, file: int, build: int, here: bool, zone: str, facts: Mapping[str, Any]) -> Kept:
        """A file that is kept, read once more: what is said of it now and was not before."""
        before, kept_zone = self._db.execute("SELECT facts, zone FROM files WHERE id = ?", (file,)).fetchone()
        now = json.loads(before) | dict(facts)
        if now != json.loads(before) or (zone and zone != kept_zone):
            self._db.execute(
                "UPDATE files SET facts = ?, zone = ? WHERE id = ?",
                (json.dumps(now, sort_keys=True), zone or kept_zone, file),
            )
            self._db.execute("UPDATE builds SET unsorted = 1 WHERE id = ?", (build,))
        return "unchanged" if here else "duplicate"

    def _place(self, place: str, size: int, version: str, file: int) -> None:
        self._db.execute("INSERT OR REPLACE INTO places VALUES (?, ?, ?, ?)", (place, size, version, file))

    def _unsorted(self, digest: str) -> None:
        self._db.execute(
            "UPDATE builds SET unsorted = 1 WHERE id IN (SELECT build FROM files WHERE digest = ?)", (digest,)
        )


def _among(cells: Sequence[str]) -> str:
    return f" AND p.cell IN ({', '.join('?' * len(cells))})" if cells else ""


def _digest(text: str, document: object, beside: str) -> str:
    """Of the content, however it is laid out; of text that is no JSON of its characters."""
    told = text if document is None else json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{told}\0{beside}".encode("utf-8", "replace")).hexdigest()


def _without_lists(text: str, document: object) -> str:
    if len(text) <= _LARGE or not isinstance(document, dict):
        return text
    return json.dumps({k: v for k, v in document.items() if not (isinstance(v, list) and len(v) > _LONG)})


def _packed(text: str) -> bytes:
    return zlib.compress(text.encode("utf-8", "replace"), 1)


def _unpacked(content: bytes) -> str:
    return zlib.decompress(content).decode("utf-8")


def _workload(workload: Workload) -> str:
    told = {name: getattr(workload, name) for name in Workload.__dataclass_fields__}
    told["rate"] = None if math.isinf(workload.rate) else workload.rate
    return json.dumps(told)


def _of_workload(text: str) -> Workload:
    told = json.loads(text)
    told["rate"] = math.inf if told["rate"] is None else told["rate"]
    return Workload(**told)


def _exists(place: str) -> bool:
    return "://" in place or Path(place).exists()
