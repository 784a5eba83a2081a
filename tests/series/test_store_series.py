"""The store of reported results: what is kept, once, and given back."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfbisect.errors import MachineError, UsageError
from perfbisect.series.points import Build, Point, RejectedResult, Workload
from perfbisect.series.store import SeriesStore

BUILD = Build("kanban", "org/pipe", "6433")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SeriesStore]:
    with SeriesStore.of(tmp_path) as opened:
        yield opened


def keep(store: SeriesStore, build: Build = BUILD, text: str = '{"a": 1}', **told: Any) -> str:
    known = {"name": "x.json", "place": "/there/x.json", "size": len(text), "version": "1"}
    with store.transaction():
        number = store.keep_build(build)
        return store.keep_file(number, text=text, document=json.loads(text), **{**known, **told})


def sort_all(store: SeriesStore) -> list[str]:
    """Marks everything as sorted; the builds that were not."""
    found = store.unsorted()
    with store.transaction():
        for number, _ in found:
            store.sorted_build(number, (), ())
    return [build.name for _, build in found]


def point(**changed: Any) -> Point:
    made = Point(
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
    return replace(made, **changed)


def test_points_come_back_as_they_were(store: SeriesStore) -> None:
    rated = point(workload=Workload("omni", "mm", None, 0.5, 40, only_text=True), night="2026-04-11")
    rejected = RejectedResult(
        BUILD, "failed", "3 of 40 requests failed", "/there/y.json", 1, "omni", "2026-04-12"
    )
    with store.transaction():
        number = store.keep_build(BUILD)
        store.sorted_build(number, [point(), rated], [rejected])
    assert set(map(repr, store.points())) == {repr(point()), repr(rated)}
    assert store.points()[1].workload.rate == math.inf
    assert store.points([point().cell]) == (point(),)
    assert store.points(since="2026-04-12") == (point(),)
    assert store.cells() == (rated.cell, point().cell)
    assert store.rejections() == (rejected,)
    assert store.rejections(["other"]) == ()
    assert store.builds() == (BUILD,)


def test_sorting_again_replaces(store: SeriesStore) -> None:
    for _ in range(2):
        with store.transaction():
            store.sorted_build(store.keep_build(BUILD), [point()], [])
    assert len(store.points()) == 1


def test_nothing_is_kept_twice(store: SeriesStore) -> None:
    assert keep(store) == "new"
    assert sort_all(store) == ["6433"]
    assert keep(store) == "unchanged"
    assert keep(store, text='{ "a":1 }') == "unchanged", "laid out otherwise"
    assert sort_all(store) == []
    assert store.known()["/there/x.json"] == (9, "1")


def test_a_file_that_changed_is_read_again(store: SeriesStore) -> None:
    keep(store)
    sort_all(store)
    assert keep(store, text='{"a": 2}', version="2") == "changed"
    assert store.raw("/there/x.json") == '{"a": 2}'
    assert sort_all(store) == ["6433"]


def test_the_same_build_in_another_checkout(store: SeriesStore, tmp_path: Path) -> None:
    here = tmp_path / "x.json"
    here.write_text("{}")
    keep(store, place=str(here))
    assert keep(store, place="/moved/x.json") == "duplicate"
    with pytest.raises(UsageError, match="twice, with different content") as caught:
        keep(store, text='{"a": 2}', place="/moved/x.json")
    assert str(here) in caught.value.message
    assert caught.value.where == "/moved/x.json"
    assert store.raw(str(here)) == '{"a": 1}'
    here.unlink()
    assert keep(store, text='{"a": 2}', place="/moved/x.json") == "changed"


def test_where_a_content_lies_elsewhere_both_builds_are_sorted_again(store: SeriesStore) -> None:
    keep(store)
    sort_all(store)
    older = Build("kanban", "org/pipe, no build", "2026-04-12")
    keep(store, older, place="/old/x.json")
    assert set(sort_all(store)) == {"6433", "2026-04-12"}
    numbers = {build.name: number for number, build in store.unsorted()}
    assert numbers == {}
    ((file, places),) = store.same(1).items()
    assert {place.build: place.numbered for place in places} == {
        "org/pipe#6433": True,
        "org/pipe, no build#2026-04-12": False,
    }
    assert file in {number for number, _ in places.values()}


def test_another_source_fills_in_what_was_not_known(store: SeriesStore) -> None:
    keep(store)
    sort_all(store)
    told = Build("buildkite", "org/pipe", "6433", commit="c" * 40, branch="main")
    assert keep(store, told, facts={"host": "node-1"}, place="https://there/x") == "duplicate"
    (build,) = store.builds()
    assert (build.source, build.commit, build.branch) == ("kanban", "c" * 40, "main")
    assert sort_all(store) == ["6433"]
    assert store.files(1)[0].facts == {"host": "node-1"}
    assert keep(store) == "unchanged"
    assert store.builds() == (build,), "what was known stays known"


def test_another_zone_sorts_again(store: SeriesStore) -> None:
    keep(store, zone="UTC")
    sort_all(store)
    assert keep(store, zone="Asia/Shanghai") == "unchanged"
    assert sort_all(store) == ["6433"]
    assert store.files(1)[0].zone == "Asia/Shanghai"


def test_builds_that_had_ended(store: SeriesStore) -> None:
    with store.transaction():
        store.keep_build(BUILD, logs={"job": "the end"})
    assert store.whole_builds() == frozenset()
    with store.transaction():
        store.keep_build(BUILD, whole=True)
        store.keep_build(BUILD)
    assert store.whole_builds() == {BUILD.key}
    assert store.log(BUILD, "job") == "the end"
    assert store.log(BUILD, "other") == ""


def test_of_a_large_file_lists_of_requests_are_left(store: SeriesStore) -> None:
    document = {"ttfts": [0.25] * 100_000, "percentiles": [50, 99], "completed": 1}
    keep(store, text=json.dumps(document))
    assert json.loads(store.raw("/there/x.json")) == {"percentiles": [50, 99], "completed": 1}


def test_all_of_a_transaction_or_nothing(store: SeriesStore) -> None:
    with pytest.raises(RuntimeError), store.transaction():
        store.keep_build(BUILD)
        raise RuntimeError
    assert store.builds() == ()


def test_what_is_not_there_is_told(store: SeriesStore) -> None:
    with pytest.raises(UsageError, match="no file was ingested from /nowhere"):
        store.raw("/nowhere")


def test_a_store_that_is_damaged_is_told_where_it_shows(tmp_path: Path) -> None:
    """Its first page is whole, so it opens; a page of its tables is not."""
    with SeriesStore.of(tmp_path) as opened:
        for number in range(200):
            keep(opened, replace(BUILD, name=str(number), message="x" * 200))
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


def test_a_store_that_another_holds_is_told(store: SeriesStore) -> None:
    with SeriesStore(store.path) as other:
        other._db.execute("PRAGMA busy_timeout = 1")
        with store.transaction(), pytest.raises(MachineError, match="nothing of it was changed"):
            other.transaction().__enter__()
