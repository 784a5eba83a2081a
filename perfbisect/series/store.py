"""The store of series: raw result files, the points made of them, rejected results, alerts, and detections.

Raw files are kept compressed and without long lists of single requests, so that points can be made again
when a checkout is gone. Every operation is idempotent.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from sys import intern
from typing import Any, Literal

import numpy as np
import scipy
from pydantic import TypeAdapter

from perfbisect.common.json_text import WRONG_SHAPE
from perfbisect.common.text import hint
from perfbisect.errors import MachineError, UsageError
from perfbisect.model.commit_details import Evidence
from perfbisect.model.environment import environment_of
from perfbisect.resources import sources_digest
from perfbisect.series.alerts import Alert, State, find_alerts
from perfbisect.series.detection.model import ChangePoint, JudgedSeries, SeriesValues, Test, judge_series
from perfbisect.series.points import Build, Point, RawFile, RejectedResult, Workload
from perfbisect.series.series import cell_of_series, machine_series
from perfbisect.series.sources import journals
from perfbisect.series.sources.base import parse_json

FILE = "series.sqlite"
VERSION = 7
"""Version of the tables: SQLite's ``user_version``, 0 in an empty file."""

_TABLES = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS builds (
  id INTEGER PRIMARY KEY,
  key TEXT NOT NULL UNIQUE, is_numbered INTEGER NOT NULL, build TEXT NOT NULL,
  is_whole INTEGER NOT NULL, is_changed INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS files (
  id INTEGER PRIMARY KEY,
  build INTEGER NOT NULL REFERENCES builds(id),
  name TEXT NOT NULL, place TEXT NOT NULL, digest TEXT NOT NULL, file BLOB NOT NULL,
  UNIQUE (build, name)
);
CREATE INDEX IF NOT EXISTS files_digest ON files (digest);
CREATE TABLE IF NOT EXISTS versions (place TEXT PRIMARY KEY, version TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS results (
  id INTEGER PRIMARY KEY,
  build INTEGER NOT NULL REFERENCES builds(id),
  cell TEXT NOT NULL, night TEXT NOT NULL, is_point INTEGER NOT NULL, result TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS results_cell ON results (is_point, cell, night);
CREATE INDEX IF NOT EXISTS results_build ON results (build);
CREATE TABLE IF NOT EXISTS alerts (
  id TEXT PRIMARY KEY,
  state TEXT NOT NULL, why TEXT NOT NULL, by_rule INTEGER NOT NULL, alert TEXT NOT NULL
) WITHOUT ROWID;
PRAGMA user_version = {VERSION};
COMMIT;
"""

_MEMORY_TABLES = {
    "judged": ("key BLOB PRIMARY KEY", "judged BLOB NOT NULL", "evidence BLOB NOT NULL"),
    "detections": ("key TEXT PRIMARY KEY", "outcome TEXT NOT NULL"),
}
"""Columns of each table of what is remembered, the key first."""

_JUDGED = TypeAdapter(tuple[tuple[ChangePoint, ...], dict[Test, float], float])
"""All of a judged series but its evidence, which is an array."""

_LONG = 64
_LARGE = 256 * 1024
"""Of a file of more characters, lists of more items than ``_LONG`` are not kept."""

FileState = Literal["new", "changed", "unchanged", "duplicate"]


class _Connection(sqlite3.Connection):
    """Writes text that is no UTF-8 (a file's name, half a character in a result) as its escape."""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        return super().execute(
            sql,
            tuple(
                value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
                for value in parameters
            ),
        )


def open_store(path: Path) -> sqlite3.Connection:
    """Open the store, or create it; another process may do so at the same time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # isolation_level None: transactions are begun by hand, IMMEDIATE, so that two writers wait and none
        # deadlocks.
        connection = sqlite3.connect(path, timeout=30.0, isolation_level=None, factory=_Connection)
        connection.execute("PRAGMA foreign_keys = ON")
        # 0 also in an empty file and in a database of another program.
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if version == 0 and connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise UsageError(f"{path} is a database, and no store of perfbisect", next_step="move it away")
        if version not in (0, VERSION):
            raise UsageError(
                f"the store was written by another perfbisect: version {version}, this one reads {VERSION}",
                where=path,
                next_step="use the perfbisect that wrote it, or move it away and ingest again",
            )
        # Readers such as the dashboard go on while a night is ingested.
        connection.execute("PRAGMA journal_mode = WAL")
        if version == 0:
            with connection:
                connection.executescript(_TABLES)
        # A table of what is remembered with the columns of another perfbisect is made anew.
        stale = dict(_MEMORY_TABLES)
        for table, columns in _MEMORY_TABLES.items():
            found = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
            if found == [column.partition(" ")[0] for column in columns]:
                del stale[table]
        # Other processes read the store: only one that has something to change takes its lock.
        if stale:
            connection.execute("BEGIN IMMEDIATE")
        with connection:
            for table, columns in stale.items():
                connection.execute(f"DROP TABLE IF EXISTS {table}")
                connection.execute(f"CREATE TABLE {table} ({', '.join(columns)}) WITHOUT ROWID")
    except sqlite3.DatabaseError as error:
        raise _database_error(path, error) from error
    except OSError as error:
        raise MachineError(f"the store cannot be opened: {error.strerror or error}", where=path) from error
    return connection


def _database_error(path: Path, error: sqlite3.DatabaseError) -> UsageError | MachineError:
    if isinstance(error, sqlite3.OperationalError):
        return MachineError(f"the store cannot be used: {error}", where=path)
    return UsageError(
        f"{path} is no store of perfbisect, or damaged: {error}",
        next_step="move it away and ingest again: points come back, what was said of alerts does not",
    )


class SeriesStore:
    """The store in a state folder. Close it, or use it in a ``with`` block."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._db = open_store(path)
        self.alerts = AlertTable(self._db)
        self.memory = DetectionMemory(self._db)

    @classmethod
    def of(cls, state: Path) -> SeriesStore:
        """The store of a state folder; creates it if there is none."""
        return cls(state / "track" / FILE)

    @staticmethod
    def exists(state: Path) -> bool:
        return (state / "track" / FILE).exists()

    def __enter__(self) -> SeriesStore:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._db.close()
        if isinstance(error, sqlite3.DatabaseError):
            raise _database_error(self.path, error) from error

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All of the block, or nothing of it."""
        try:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                yield
        except sqlite3.OperationalError as error:
            raise MachineError(
                f"the store cannot be written: {error}; nothing of it was changed", where=self.path
            ) from error

    def keep_build(self, build: Build, *, whole: bool = False) -> int:
        """Write a build and return its number; what another source did not know is filled in."""
        row = self._db.execute(
            "SELECT id, is_whole, build FROM builds WHERE key = ?", (build.key,)
        ).fetchone()
        if row is None:
            cursor = self._db.execute(
                "INSERT INTO builds (key, is_numbered, build, is_whole, is_changed) VALUES (?, ?, ?, ?, 1)",
                (build.key, build.is_numbered, json.dumps(asdict(build)), whole),
            )
            return int(cursor.lastrowid or 0)
        number, was_whole, before = row[0], row[1], _build(row[2])
        # The kanban and Buildkite describe the same builds: what one does not know never erases what the
        # other said.
        stated = {name: value for name, value in asdict(build).items() if value and name != "source"}
        merged = replace(before, **stated)
        if merged != before or (whole and not was_whole):
            self._db.execute(
                "UPDATE builds SET build = ?, is_whole = max(is_whole, ?), is_changed = 1 WHERE id = ?",
                (json.dumps(asdict(merged)), whole, number),
            )
        return int(number)

    def versions(self) -> dict[str, str]:
        """Place -> version of every file that was read."""
        return dict(self._db.execute("SELECT place, version FROM versions").fetchall())

    def whole_builds(self) -> frozenset[str]:
        """Keys of the builds that had ended when everything of them was read."""
        return frozenset(row[0] for row in self._db.execute("SELECT key FROM builds WHERE is_whole"))

    def keep_file(self, build: int, file: RawFile, version: str) -> FileState:
        """Write a file of a build; ``duplicate``: it was read from another place before."""
        row = self._db.execute(
            "SELECT digest, file FROM files WHERE build = ? AND name = ?", (build, file.name)
        ).fetchone()
        kept_digest, kept = (row[0], _unpacked(row[1])) if row else ("", None)
        document = parse_json(file.text)
        digest = _digest(file, document)
        # After a checkout was moved the old place is gone: then the new content counts.
        is_elsewhere = kept is not None and kept.place != file.place
        if (
            kept
            and kept_digest != digest
            and is_elsewhere
            and ("://" in kept.place or Path(kept.place).exists())
        ):
            raise UsageError(
                f"one build has {file.name} twice, with different content: from {kept.place}, and now from "
                f"{file.place}",
                where=file.place,
                next_step="remove the one that is wrong, or ingest it with another --state",
            )
        self._db.execute("INSERT OR REPLACE INTO versions VALUES (?, ?)", (file.place, version))
        if kept and kept_digest == digest:
            merged = replace(kept, zone=file.zone or kept.zone, facts={**kept.facts, **file.facts})
            if merged != kept:
                self._write_file(build, merged, digest)
                self._db.execute("UPDATE builds SET is_changed = 1 WHERE id = ?", (build,))
            return "unchanged" if file.place == kept.place else "duplicate"
        if kept:
            # Where its old content lies too, it may be a point there now.
            self._mark_changed(kept_digest)
        text = file.text
        if len(text) > _LARGE and isinstance(document, dict):
            short = {k: v for k, v in document.items() if not (isinstance(v, list) and len(v) > _LONG)}
            text = json.dumps(short)
        self._write_file(build, replace(file, text=text), digest)
        self._mark_changed(digest)
        return "changed" if kept else "new"

    def _write_file(self, build: int, file: RawFile, digest: str) -> None:
        self._db.execute(
            "INSERT INTO files (build, name, place, digest, file) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (build, name) DO UPDATE SET"
            " place = excluded.place, digest = excluded.digest, file = excluded.file",
            (build, file.name, file.place, digest, zlib.compress(json.dumps(asdict(file)).encode(), 1)),
        )

    def _mark_changed(self, digest: str) -> None:
        self._db.execute(
            "UPDATE builds SET is_changed = 1 WHERE id IN (SELECT build FROM files WHERE digest = ?)",
            (digest,),
        )

    def changed_builds(self) -> list[tuple[int, Build]]:
        """Builds of which something is new since their results were made."""
        rows = self._db.execute("SELECT id, build FROM builds WHERE is_changed ORDER BY id")
        return [(number, _build(text)) for number, text in rows]

    def files(self, build: int) -> list[RawFile]:
        """The files of a build, by name. Of equal files that in a numbered build counts, else by build."""
        rows = self._db.execute(
            "SELECT f.file, CASE WHEN f.id = c.id THEN '' ELSE c.place END FROM files f JOIN files c"
            " ON c.id = (SELECT g.id FROM files g JOIN builds b ON b.id = g.build WHERE g.digest = f.digest"
            "  ORDER BY b.is_numbered DESC, b.key, g.name LIMIT 1)"
            " WHERE f.build = ? ORDER BY f.name",
            (build,),
        )
        return [replace(_unpacked(content), duplicate_of=duplicate_of) for content, duplicate_of in rows]

    def replace_results(
        self, build: int, points: Iterable[Point], rejected: Iterable[RejectedResult]
    ) -> None:
        """Replace what was made of a build."""
        self._db.execute("DELETE FROM results WHERE build = ?", (build,))
        results: list[Point | RejectedResult] = [*points, *rejected]
        for result in results:
            fields = asdict(result)
            del fields["build"]  # It is stored once for all of its results.
            self._db.execute(
                "INSERT INTO results (build, cell, night, is_point, result) VALUES (?, ?, ?, ?, ?)",
                (build, result.cell, result.night, isinstance(result, Point), json.dumps(fields)),
            )
        self._db.execute("UPDATE builds SET is_changed = 0 WHERE id = ?", (build,))

    def cells(self) -> tuple[str, ...]:
        """The names of the cells that have points, sorted."""
        rows = self._db.execute("SELECT DISTINCT cell FROM results WHERE is_point ORDER BY cell")
        return tuple(row[0] for row in rows)

    def points(self, cells: Sequence[str] = (), *, since: str = "") -> tuple[Point, ...]:
        """The points of these cells (none named: of all), by cell and time; from the night ``since`` on."""
        return tuple(chain.from_iterable(self.points_by_cell(cells, since=since)))

    def points_by_cell(self, cells: Sequence[str] = (), *, since: str = "") -> Iterator[list[Point]]:
        """As :meth:`points`, of one cell after the other; only those of one are in memory."""
        points = (_point(build, fields) for build, fields in self._results(True, cells, since))
        for _, of_cell in groupby(points, key=lambda point: point.cell):
            yield sorted(of_cell, key=lambda point: point.order)

    def rejections(self, cells: Sequence[str] = (), *, since: str = "") -> tuple[RejectedResult, ...]:
        """What is no point, by night and file."""
        rejected = [
            RejectedResult(build, **{**fields, "why": Evidence(**fields["why"])})
            for build, fields in self._results(False, cells, since)
        ]
        return tuple(sorted(rejected, key=lambda result: (result.night, result.raw, result.record)))

    def _results(
        self, is_point: bool, cells: Sequence[str], since: str
    ) -> Iterator[tuple[Build, dict[str, Any]]]:
        builds = {number: _build(text) for number, text in self._db.execute("SELECT id, build FROM builds")}
        among = f" AND cell IN ({', '.join('?' * len(cells))})" if cells else ""
        rows = self._db.execute(
            f"SELECT cell, build, result FROM results WHERE is_point = ? AND night >= ?{among} ORDER BY cell",
            (is_point, since, *cells),
        )
        for _, group in groupby(rows, key=itemgetter(0)):
            numbers, texts = zip(*((number, text) for _, number, text in group), strict=True)
            # Parsed together, the results of a cell share the names of their fields.
            for number, fields in zip(numbers, json.loads(f"[{','.join(texts)}]"), strict=True):
                yield builds[number], fields

    def environment(self, point: Point) -> dict[str, str]:
        """What a point ran in: of a launch of ours by its raw file, elsewhere by its covariates."""
        if point.build.source == journals.SOURCE:
            rows = self._db.execute(
                "SELECT f.file FROM files f JOIN builds b ON b.id = f.build WHERE b.key = ?",
                (point.build.key,),
            )
            for document in (parse_json(_unpacked(row[0]).text) for row in rows):
                with contextlib.suppress(*WRONG_SHAPE):
                    published = journals.read_published(document)
                    found = [published.attempt] if published else []
                    if isinstance(document, Mapping) and document.get("schema") == journals.SCHEMA:
                        found = [attempt for attempt, _ in journals.read_attempts(document) if attempt]
                    for attempt in found:
                        if journals.server_start(attempt) == point.start:
                            return environment_of(attempt.provenance)
        names = ("engine", "torch", "image", "hardware", "host", "client", "server")
        return {name: str(point.covariates[name]) for name in names if point.covariates.get(name)}

    def builds(self) -> tuple[Build, ...]:
        """Every build, in the order in which they were first stored."""
        return tuple(_build(row[0]) for row in self._db.execute("SELECT build FROM builds ORDER BY id"))

    def machine_series(
        self, names: Sequence[str] = (), *, since: str = ""
    ) -> Iterator[tuple[str, tuple[Point, ...]]]:
        """The points of each machine series of these cells or series, by default of all."""
        existing = set(self.cells())
        series = {name for name in names if name not in existing and cell_of_series(name) in existing}
        cells = self.match_cells([name for name in names if name not in series])
        if series:
            available = [name for name, _ in self._machine_series((*cells, *map(cell_of_series, series)))]
            missing = sorted(series - set(available))
            if missing:
                raise UsageError(f"no series of {missing[0]!r}; there are: {', '.join(available)}")
        # Of all nights: the first of them decide the names.
        for name, points in self._machine_series((*cells, *map(cell_of_series, series))):
            own = tuple(point for point in points if point.night >= since)
            if own and (not series or name in series or points[0].cell in cells):
                yield name, own

    def _machine_series(self, cells: Sequence[str]) -> Iterator[tuple[str, tuple[Point, ...]]]:
        return chain.from_iterable(map(machine_series, self.points_by_cell(cells)))

    def match_cells(self, names: Sequence[str]) -> tuple[str, ...]:
        """The cells of these names, or beginnings of names up to one of ``/@-``."""
        cells = self.cells()
        if not cells:
            raise UsageError("the store has no points", next_step="perfbisect track ingest PATH")
        matched: list[str] = []
        for name in names:
            found = [cell for cell in cells if cell == name] or [
                cell
                for cell in cells
                if name and cell.startswith(name) and {name[-1], cell[len(name)]} & set("/@-")
            ]
            if not found:
                raise UsageError(
                    f"no cell {name!r} among the {len(cells)} in the store{hint(name, cells, 0.3)}",
                    next_step="perfbisect track show, without a cell, lists them",
                )
            matched += found
        return tuple(dict.fromkeys(matched))


@cache
def code_digest() -> str:
    """Of the code that judges series, with the libraries that it computes with."""
    return f"{sources_digest()} numpy {np.__version__} scipy {scipy.__version__}"


class DetectionMemory:
    """Series as they were judged, and the last detection of a whole store; only ``keep_...`` write.

    Derived data, which may be lost at any time: an entry is kept under a digest of all that it was computed
    from: values, labels, settings and code.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        self._judged: dict[bytes, JudgedSeries | None] = {}
        """Of every series that was asked for: as judged now, None where it was remembered."""

    def judge(self, series: SeriesValues, fdr: float) -> JudgedSeries:
        """As :func:`judge_series`; remembered where nothing of it has changed."""
        # The key has values, labels, rate and code, so that an entry is never stale.
        key = self._key(series, fdr)
        row = self._db.execute("SELECT judged, evidence FROM judged WHERE key = ?", (key,)).fetchone()
        if row is None:
            judged = self._judged[key] = judge_series(series, fdr)
            return judged
        self._judged[key] = None
        return JudgedSeries(*_JUDGED.validate_json(row[0]), np.frombuffer(row[1]))

    def keep_judged(self) -> None:
        """Remember the series that were asked for, and no others; in a transaction of the store."""
        # Only what this detection asked for is kept: entries of older code or values would grow without
        # end.
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
        """Digest of every result of the store, rejected ones too, and of what they are judged with."""
        digest = hashlib.sha256(repr((code_digest(), sorted(settings.items()))).encode())
        for query in (
            "SELECT id, build FROM builds ORDER BY id",
            "SELECT build, result FROM results ORDER BY id",
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


_ALERT = TypeAdapter(Alert)


class AlertTable:
    """The reported alerts of a store, with their state as people and nightlies set it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def all(self) -> tuple[Alert, ...]:
        """Every alert that was ever reported, by name."""
        rows = self._db.execute("SELECT state, why, by_rule, alert FROM alerts ORDER BY id")
        return tuple(
            replace(_ALERT.validate_json(text), state=state, why=why, by_rule=bool(by_rule), new=False)
            for state, why, by_rule, text in rows
        )

    def find(self, name: str) -> tuple[Alert, ...]:
        """As :func:`find_alerts`. :raises UsageError: there is none, or several begin with the name."""
        matches = find_alerts(self.all(), name)
        if not matches:
            raise UsageError(f"no alert {name!r} was reported", next_step="perfbisect track detect")
        return matches

    def keep(self, alerts: Iterable[Alert]) -> None:
        """Write alerts; the state of a known alert stays as it is in the table."""
        for alert in alerts:
            self._db.execute(
                "INSERT INTO alerts (id, state, why, by_rule, alert) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT (id) DO UPDATE SET alert = excluded.alert",
                (alert.id, alert.state, alert.why, alert.by_rule, _ALERT.dump_json(alert).decode()),
            )

    def mark(self, name: str, state: State, why: str, *, by_rule: bool = False) -> None:
        self._db.execute(
            "UPDATE alerts SET state = ?, why = ?, by_rule = ? WHERE id = ?", (state, why, by_rule, name)
        )


def _point(build: Build, fields: dict[str, Any]) -> Point:
    """A point of its stored fields; texts that many points have are shared, which is most of their size."""
    workload = Workload(**_with_shared_texts(fields.pop("workload")))
    covariates = _with_shared_texts(fields.pop("covariates"))
    return Point(build=build, workload=workload, covariates=covariates, **_with_shared_texts(fields))


def _with_shared_texts(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: intern(value) if type(value) is str else value for name, value in fields.items()}


def _build(text: str) -> Build:
    return Build(**json.loads(text))


def _digest(file: RawFile, document: object) -> str:
    """Of the content, however it is laid out; of text that is no JSON of its characters."""
    # The same result may be in several places, with another layout of its JSON.
    content = file.text if document is None else json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{content}\0{file.beside}".encode("utf-8", "replace")).hexdigest()


def _unpacked(content: bytes) -> RawFile:
    return RawFile(**json.loads(zlib.decompress(content)))
