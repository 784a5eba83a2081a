"""The store: what is kept, once, and given back; tables are created whole, files of others are refused."""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfbisect.errors import MachineError, UsageError
from perfbisect.model.commit_details import Evidence
from perfbisect.series import store as store_module
from perfbisect.series.alerts import AlertPlace
from perfbisect.series.points import Build, Point, RawFile, RejectedResult, Workload, message_of
from perfbisect.series.store import VERSION, SeriesStore, open_store
from tests.series.made_alert import made_alert

BUILD = Build("kanban", "org/pipe", "6433")
FILE = RawFile("x.json", "/there/x.json", '{"a": 1}')


def keep(store: SeriesStore, build: Build = BUILD, version: str = "1", **changed: Any) -> str:
    with store.transaction():
        return store.keep_file(store.keep_build(build), replace(FILE, **changed), version)


def admit_all(store: SeriesStore) -> set[str]:
    """Clear the changes; return the builds that had some."""
    changed = store.changed_builds()
    with store.transaction():
        for number, _ in changed:
            store.replace_results(number, (), ())
    return {build.name for _, build in changed}


def tables(path: Path) -> set[str]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {row[0] for row in rows}


def version(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def test_tables_are_created_all_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "series.sqlite"
    broken_tables = store_module._TABLES.replace("PRAGMA", "CREATE TABLE builds (x);\nPRAGMA")
    with monkeypatch.context() as broken:
        broken.setattr(store_module, "_TABLES", broken_tables)
        with pytest.raises(MachineError, match="already exists"):
            open_store(path)
    assert (version(path), tables(path)) == (0, set())
    open_store(path).close()
    assert version(path) == VERSION
    with contextlib.closing(open_store(path)) as connection:
        assert connection.execute("SELECT count(*) FROM builds").fetchall() == [(0,)]


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


def test_other_databases_and_unusable_folders_are_refused(tmp_path: Path) -> None:
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
    with pytest.raises(MachineError, match="cannot be opened"):
        open_store(path / "series.sqlite")


def test_a_damaged_store_fails_where_it_shows(tmp_path: Path) -> None:
    """Its first page is whole, so it opens; a page of its tables is not."""
    with SeriesStore.of(tmp_path) as opened:
        for number in range(200):
            keep(opened, replace(BUILD, name=str(number), url="x" * 200))
        path = opened.path
    content = bytearray(path.read_bytes())
    content[4096 * 8 :] = b"\xff" * (len(content) - 4096 * 8)
    path.write_bytes(content)
    with (
        pytest.raises(UsageError, match=r"series.sqlite is no store of perfbisect, or damaged") as caught,
        SeriesStore.of(tmp_path) as opened,
    ):
        opened.builds()
    assert "ingest again" in caught.value.next


def test_a_transaction_is_all_or_nothing(store: SeriesStore) -> None:
    with pytest.raises(RuntimeError), store.transaction():
        store.keep_build(BUILD)
        raise RuntimeError
    assert store.builds() == ()
    with SeriesStore(store.path) as other:
        other._db.execute("PRAGMA busy_timeout = 1")
        with store.transaction(), pytest.raises(MachineError, match="nothing of it was changed"):
            other.transaction().__enter__()


def test_results_come_back_as_they_were(store: SeriesStore) -> None:
    point = Point(
        build=BUILD,
        workload=Workload("omni", "random", 4, prompts=40, digest="d"),
        began="2026-04-12T19:00:00Z",
        ended="2026-04-12T19:02:00Z",
        values={"ttft:median": 12.5},
        covariates={"input_tokens": 100.0, "warmups": None, "baseline": {"median_ttft_ms": 11}},
        night="2026-04-12",
        start="s",
        raw="/there/x.json",
        record=3,
    )
    rated = replace(point, workload=Workload("omni", "mm", None, 0.5, 40, only_text=True), night="2026-04-11")
    why = message_of("3 of 40 failed")
    rejected = RejectedResult(BUILD, "failed", why, "/there/y.json", 1, "omni", "2026-04-12")
    for _ in range(2):
        with store.transaction():
            store.replace_results(store.keep_build(BUILD), [point, rated], [rejected])
    assert set(map(repr, store.points())) == {repr(point), repr(rated)}
    assert store.points()[1].workload.rate == math.inf
    assert store.points([point.cell]) == store.points(since="2026-04-12") == (point,)
    assert store.cells() == (rated.cell, point.cell)
    assert store.rejections() == (rejected,)
    assert store.rejections(["other"]) == ()
    assert store.builds() == (BUILD,)


def test_a_file_is_kept_once_until_it_changes(store: SeriesStore) -> None:
    assert keep(store) == "new"
    assert admit_all(store) == {"6433"}
    assert keep(store) == "unchanged"
    assert keep(store, text='{ "a":1 }') == "unchanged", "laid out otherwise"
    assert admit_all(store) == set()
    assert store.versions() == {"/there/x.json": "1"}
    assert keep(store, version="2", text='{"a": 2}') == "changed"
    assert store.files(1)[0].text == '{"a": 2}'
    assert admit_all(store) == {"6433"}


def test_the_same_build_in_another_checkout(store: SeriesStore, tmp_path: Path) -> None:
    here = tmp_path / "x.json"
    here.write_text("{}")
    keep(store, place=str(here))
    assert keep(store, place="/moved/x.json") == "duplicate"
    with pytest.raises(UsageError, match="twice, with different content") as caught:
        keep(store, text='{"a": 2}', place="/moved/x.json")
    assert str(here) in caught.value.message
    assert caught.value.where == "/moved/x.json"
    assert store.files(1)[0].text == '{"a": 1}'
    here.unlink()
    assert keep(store, text='{"a": 2}', place="/moved/x.json") == "changed"


def test_of_equal_files_that_of_a_numbered_build_counts(store: SeriesStore) -> None:
    keep(store, replace(BUILD, name="2026-04-12", pipeline="org/pipe, no build"), place="/old/x.json")
    admit_all(store)
    keep(store)
    keep(store, name="y.json", place="/there/y.json")
    assert admit_all(store) == {"6433", "2026-04-12"}, "both are admitted again"
    assert [file.duplicate_of for file in store.files(1)] == ["/there/x.json"]
    assert [file.duplicate_of for file in store.files(2)] == ["", "/there/x.json"]
    assert keep(store, version="2", text='{"a": 2}') == "changed"
    assert admit_all(store) == {"6433", "2026-04-12"}, "the old content counts elsewhere now"
    assert [file.duplicate_of for file in store.files(1)] == ["/there/y.json"]


def test_another_source_fills_in_what_was_not_known(store: SeriesStore) -> None:
    keep(store)
    admit_all(store)
    known = Build("buildkite", "org/pipe", "6433", commit="c" * 40, branch="main")
    assert keep(store, known, facts={"host": "node-1"}, place="https://there/x") == "duplicate"
    assert store.builds() == (replace(known, source="kanban"),)
    assert admit_all(store) == {"6433"}
    assert store.files(1)[0].facts == {"host": "node-1"}
    assert keep(store, zone="Asia/Shanghai") == "unchanged"
    assert admit_all(store) == {"6433"}, "other times"
    assert store.builds() == (replace(known, source="kanban"),), "what was known stays known"
    assert (store.files(1)[0].zone, store.files(1)[0].facts) == ("Asia/Shanghai", {"host": "node-1"})


def test_builds_that_had_ended(store: SeriesStore) -> None:
    with store.transaction():
        store.keep_build(BUILD)
    assert store.whole_builds() == frozenset()
    with store.transaction():
        store.keep_build(BUILD, whole=True)
        store.keep_build(BUILD)
    assert store.whole_builds() == {BUILD.key}


def test_of_a_large_file_lists_of_requests_are_left_out(store: SeriesStore) -> None:
    document = {"ttfts": [0.25] * 100_000, "percentiles": [50, 99], "completed": 1}
    keep(store, text=json.dumps(document))
    assert json.loads(store.files(1)[0].text) == {"percentiles": [50, 99], "completed": 1}


ALERT = made_alert(
    metric="e2el", interval=(0.1, 0.3), new=False, now="still there", seen="2026-04-13T02:00:00Z",
    places=(AlertPlace(build="n#7", time="2026-04-12T01:20:00Z", p=0.95),),
    evidence=(Evidence("lasting", {"nights": 2}),),
)  # fmt: skip


def test_an_alert_that_is_found_again_keeps_its_state(store: SeriesStore) -> None:
    store.alerts.keep([replace(ALERT, new=True)])
    assert store.alerts.all() == (ALERT,), "it is new only in the run that finds it"
    store.alerts.mark(ALERT.id, "closed", "the series is back", by_rule=True)
    assert store.alerts.all()[0].by_rule
    store.alerts.mark(ALERT.id, "closed", "by rule: of mine")
    later = replace(ALERT, nights=3, seen="2026-04-14T02:00:00Z")
    store.alerts.keep([later])
    assert store.alerts.all() == (replace(later, state="closed", why="by rule: of mine"),)


def test_alerts_are_found_by_name_and_event(store: SeriesStore) -> None:
    alerts = (ALERT, replace(ALERT, id="20260412-3f1a9"), replace(ALERT, id="20260413-0000"))
    store.alerts.keep(alerts)
    assert store.alerts.find("20260413") == alerts[2:]
    assert store.alerts.find("20260412-3f1a") == (ALERT,), "a whole name is that alert"
    assert store.alerts.find("20260412-product") == alerts
    with pytest.raises(UsageError, match="2 alerts begin with"):
        store.alerts.find("20260412")
    for nothing in ("2027", ""):
        with pytest.raises(UsageError, match="no alert") as caught:
            store.alerts.find(nothing)
        assert caught.value.next_step == "perfbisect track detect"
