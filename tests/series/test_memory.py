"""What is remembered of a detection is what a fresh one would find, and forgotten where anything differs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace

import pytest

from perfbisect.model.commit_details import Evidence
from perfbisect.series import store as stores
from perfbisect.series.detect import TrackDetectDocument, analyze_series, detect
from perfbisect.series.detection.model import SeriesValues, judge_series
from perfbisect.series.points import Point
from perfbisect.series.store import SeriesStore
from perfbisect.series.suspects.table import SuspectTable, load_suspect_table
from tests.series.made_series import cell, noise, step
from tests.series.test_detect import keep

TABLE = load_suspect_table()


def points(test: str, factor: float = 1.0, n: int = 40) -> list[Point]:
    values = {"e2el:median": step(noise(7, n), 25, factor), "ttft:median": noise(8, n)}
    series = cell(values, test=test, covariates=[{"host": "box1"}] * n)
    return [replace(p, build=replace(p.build, name=f"{test}-{p.build.name}")) for p in series[0].points]


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The series that were judged, and not remembered."""
    names: list[str] = []

    def judge(series: SeriesValues, alpha: float) -> object:
        names.append(series.key)
        return judge_series(series, alpha)

    monkeypatch.setattr(stores, "judge_series", judge)
    return names


@pytest.fixture
def filled(store: SeriesStore) -> SeriesStore:
    keep(store, *points("slow", 1.3), *points("quiet"))
    detect(store, TABLE, now="2026-01-01T00:00:00Z")
    return store


def fresh(store: SeriesStore, table: SuspectTable = TABLE, fdr: float = 0.05) -> TrackDetectDocument:
    """The detection of a copy of the store that remembers nothing."""
    copy = store.path.with_name("copy.sqlite")
    with store._db:
        store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(store.path, copy)
    with SeriesStore(copy) as forgetful:
        with forgetful.transaction():
            forgetful._db.execute("DELETE FROM judged")
            forgetful._db.execute("DELETE FROM detections")
        return detect(forgetful, table, now="2026-01-02T00:00:00Z", fdr=fdr)


def test_an_unchanged_store_is_not_judged_again(filled: SeriesStore, judged: list[str]) -> None:
    wanted = fresh(filled)
    assert len(judged) == 4 and wanted.alerts
    judged.clear()
    assert detect(filled, TABLE, now="2026-01-02T00:00:00Z") == wanted
    analysis = analyze_series(filled, TABLE)
    assert judged == [] and analysis.alerts == wanted.alerts
    since = detect(filled, TABLE, now="2026-01-03T00:00:00Z", since="2030-01-01")
    assert since.alerts == since.listed == () and judged == []


def test_state_of_an_alert_is_read_beside_what_is_remembered(filled: SeriesStore) -> None:
    (alert,) = detect(filled, TABLE, now="2026-01-02T00:00:00Z").alerts
    with filled.transaction():
        filled.alerts.mark(alert.id, "acknowledged", "issue 1")
    (again,) = detect(filled, TABLE, now="2026-01-03T00:00:00Z").alerts
    assert (again.id, again.state, again.why, again.new) == (alert.id, "acknowledged", "issue 1", False)


def test_a_result_that_is_set_aside_is_told_of_an_unchanged_series(filled: SeriesStore) -> None:
    point = points("other")[0]
    label, measured = "a" * 40, "b" * 40
    why = Evidence("another commit", {"label": label, "measured": measured, "key": "commit"})
    with filled.transaction():
        number = filled.keep_build(replace(point.build, commit=label))
        filled.replace_results(number, [], [point.rejected("mislabelled", why)])
    document = detect(filled, TABLE, now="2026-01-02T00:00:00Z")
    assert [aside.values["measured"] for aside in document.census.set_aside] == [measured]


def test_only_series_with_a_new_night_are_judged(filled: SeriesStore, judged: list[str]) -> None:
    keep(filled, points("quiet", n=41)[-1])
    wanted = fresh(filled)
    judged.clear()
    assert detect(filled, TABLE, now="2026-01-02T00:00:00Z") == wanted
    assert {name.split("/")[0] for name in judged} == {"quiet"} and len(judged) == 2
    judged.clear()
    assert detect(filled, TABLE, now="2026-01-02T00:00:00Z") == wanted.model_copy() and judged == []


def other_value(point: Point) -> Point:
    return replace(point, values={**point.values, "e2el:median": 500.0})


def other_label(point: Point) -> Point:
    return replace(point, covariates={"host": "box2"})


@pytest.mark.parametrize("change", [other_value, other_label])
def test_another_value_or_label_of_an_old_night_is_judged(
    filled: SeriesStore, judged: list[str], change: Callable[[Point], Point]
) -> None:
    keep(filled, change(points("quiet")[30]))
    wanted = fresh(filled)
    judged.clear()
    assert detect(filled, TABLE, now="2026-01-02T00:00:00Z") == wanted
    assert {name.split("/")[0] for name in judged} == {"quiet"}


def test_another_rate_table_or_code_forgets(
    filled: SeriesStore, judged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert detect(filled, TABLE, now="2026-01-02T00:00:00Z", fdr=0.2) == fresh(filled, fdr=0.2)
    assert len(judged) == 8
    other = TABLE.model_copy(update={"cells": ()})
    assert detect(filled, other, now="2026-01-02T00:00:00Z") == fresh(filled, other)
    judged.clear()
    detect(filled, other, now="2026-01-02T00:00:00Z")
    assert judged == []
    monkeypatch.setattr(stores, "code_digest", lambda: "other code")
    detect(filled, other, now="2026-01-02T00:00:00Z")
    assert len(judged) == 4


def test_what_no_series_has_any_more_is_forgotten(filled: SeriesStore) -> None:
    keep(filled, *(other_value(point) for point in points("quiet")))
    detect(filled, TABLE, now="2026-01-02T00:00:00Z")
    assert filled._db.execute("SELECT count(*) FROM judged").fetchone()[0] == 4


def test_a_table_with_the_columns_of_another_version_is_made_anew(filled: SeriesStore) -> None:
    wanted = fresh(filled)
    with filled.transaction():
        filled._db.execute("DROP TABLE judged")
        filled._db.execute("CREATE TABLE judged (key BLOB PRIMARY KEY, p REAL, evidence BLOB) WITHOUT ROWID")
        filled._db.execute("DELETE FROM detections")
    with SeriesStore(filled.path) as reopened:
        assert detect(reopened, TABLE, now="2026-01-02T00:00:00Z") == wanted
        assert reopened._db.execute("SELECT count(*) FROM judged").fetchone()[0] == 4
    with SeriesStore(filled.path) as unchanged:
        assert unchanged._db.execute("SELECT count(*) FROM judged").fetchone()[0] == 4
