"""The store's tables: created whole or not at all; files of others are refused."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from perfbisect.errors import MachineError, UsageError
from perfbisect.series import store
from perfbisect.series.store import VERSION, open_store


def tables(path: Path) -> set[str]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {row[0] for row in rows}


def version(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def test_a_new_store_has_this_version(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "series.sqlite"
    open_store(path).close()
    assert version(path) == VERSION
    assert {"builds", "files", "points", "rejections", "logs", "alerts"} <= tables(path)
    with contextlib.closing(open_store(path)) as connection:
        assert connection.execute("SELECT count(*) FROM builds").fetchall() == [(0,)]


def test_tables_are_created_all_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "series.sqlite"
    whole = store._TABLES
    monkeypatch.setattr(store, "_TABLES", whole + "CREATE TABLE builds (x);\n")
    with pytest.raises(MachineError, match="already exists"):
        open_store(path)
    assert version(path) == 0
    assert tables(path) == set()
    monkeypatch.setattr(store, "_TABLES", whole)
    open_store(path).close()
    assert version(path) == VERSION


@pytest.mark.parametrize("other", [VERSION - 1, VERSION + 1])
def test_a_store_of_another_version_is_not_touched(tmp_path: Path, other: int) -> None:
    path = tmp_path / "series.sqlite"
    open_store(path).close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {other}")
    before = path.read_bytes()
    with pytest.raises(UsageError, match=f"another perfbisect: version {other}, this one reads {VERSION}"):
        open_store(path)
    assert path.read_bytes() == before


def test_what_is_no_store_of_ours_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "series.sqlite"
    path.write_text("this is no database, whatever its name says" * 40)
    with pytest.raises(UsageError, match="is no store"):
        open_store(path)
    other = tmp_path / "other.sqlite"
    with contextlib.closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE somebody (x)")
    with pytest.raises(UsageError, match="no store of perfbisect"):
        open_store(other)
    assert tables(other) == {"somebody"}


def test_a_folder_that_cannot_be_made_is_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="cannot be opened"):
        open_store(tmp_path / "file" / "series.sqlite")
