"""The store's tables: made, brought up to date with a copy first, refused."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from perfbisect.errors import MachineError, UsageError
from perfbisect.store.series_schema import MIGRATIONS, open_store


def tables(path: Path) -> set[str]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {row[0] for row in rows}


def version(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def older(path: Path) -> None:
    """A store of version 1, with a build in it."""
    with contextlib.closing(open_store(path, MIGRATIONS[:1])) as connection:
        connection.execute(
            "INSERT INTO builds VALUES (1, 'kanban', 'p', '6433', '', '', '', '', '', '', 0, 0)"
        )


def test_a_new_store_has_this_version(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "series.sqlite"
    open_store(path).close()
    assert version(path) == len(MIGRATIONS)
    assert {"builds", "files", "points", "rejections", "logs"} <= tables(path)
    assert list(path.parent.glob("*.bak")) == []


def test_an_older_store_is_copied_first_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "series.sqlite"
    older(path)
    assert "logs" not in tables(path)
    with contextlib.closing(open_store(path)) as connection:
        assert connection.execute("SELECT name FROM builds").fetchall() == [("6433",)]
    assert version(path) == len(MIGRATIONS)
    assert "logs" in tables(path)
    backup = tmp_path / "series.sqlite.v1.bak"
    assert version(backup) == 1
    assert "logs" not in tables(backup)
    with contextlib.closing(sqlite3.connect(backup)) as connection:
        assert connection.execute("SELECT name FROM builds").fetchall() == [("6433",)]


def test_a_migration_that_fails_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "series.sqlite"
    older(path)

    def half(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE half (x)")
        raise sqlite3.OperationalError("disk is full")

    with pytest.raises(MachineError, match="disk is full"):
        open_store(path, (MIGRATIONS[0], half))
    assert version(path) == 1
    assert "half" not in tables(path)
    open_store(path).close()
    assert version(path) == len(MIGRATIONS)


def test_a_later_store_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "series.sqlite"
    open_store(path, (*MIGRATIONS, lambda connection: None)).close()  # noqa: ARG005
    with pytest.raises(UsageError, match="a later perfbisect") as caught:
        open_store(path)
    assert caught.value.next_step == "upgrade perfbisect"
    assert version(path) == len(MIGRATIONS) + 1


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
