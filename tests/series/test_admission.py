"""Which results of a build are its points."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfbisect.series.points import Build, FileLocation, Point, Workload, admit_results, preferred_location

BUILD = Build("kanban", "org/pipe", "6433")


def point(began: str = "2026-04-12T19:00:00Z", **changed: object) -> Point:
    made = Point(
        build=BUILD,
        workload=Workload("omni", "random", 4, prompts=40, model="M"),
        began=began,
        ended=began,
        values={"e2el:median": 5.0},
        covariates={"input_tokens": 100.0},
        raw=f"{began}.json",
    )
    return replace(made, **changed)  # type: ignore[arg-type]


def test_a_build_that_passes_midnight_is_one_night() -> None:
    late = point("2026-04-13T00:10:00Z", workload=Workload("tts", "random", 1, prompts=10))
    admitted, rejected = admit_results([late, point("2026-04-12T23:50:00Z")])
    assert {p.night for p in admitted} == {"2026-04-12"}
    assert [p.began for p in admitted] == sorted(p.began for p in admitted)
    assert rejected == ()


@pytest.mark.parametrize("tokens", [100.0, 140.0, None])
def test_the_last_of_like_results_counts(tokens: float | None) -> None:
    first, again = point(), point("2026-04-12T21:00:00Z", covariates={"input_tokens": tokens})
    admitted, rejected = admit_results([again, first])
    assert [p.raw for p in admitted] == [again.raw]
    assert [(r.fate, r.raw) for r in rejected] == [("repeated", first.raw)]
    assert again.raw in rejected[0].reason


@pytest.mark.parametrize(
    "other",
    [
        point("2026-04-12T21:00:00Z", covariates={"input_tokens": 2500.0}),
        point("2026-04-12T21:00:00Z", workload=Workload("omni", "random", 4, prompts=40, model="Other")),
    ],
)
def test_of_two_workloads_under_one_name_neither_counts(other: Point) -> None:
    admitted, rejected = admit_results([point(), other])
    assert admitted == ()
    assert [r.fate for r in rejected] == ["ambiguous", "ambiguous"]
    assert "two workloads under one name" in rejected[0].reason


def test_text_beside_sound_is_another_cell_and_another_server() -> None:
    silent = point("2026-04-12T21:00:00Z", workload=replace(point().workload, only_text=True))
    admitted, rejected = admit_results([point(), silent])
    assert [p.cell for p in admitted] == ["omni/random@c4-n40", "omni/random@c4-n40-text"]
    assert len({p.start for p in admitted}) == 2
    assert rejected == ()


def test_cells_of_one_test_share_a_server() -> None:
    other = point("2026-04-12T21:00:00Z", workload=replace(point().workload, concurrency=8))
    admitted, _ = admit_results([point(), other])
    assert len({p.start for p in admitted}) == 1


def test_launches_of_ours_are_all_kept() -> None:
    ours = Build("journal", "perfbisect", "job")
    admitted, rejected = admit_results([point(build=ours, start="a"), point(build=ours, start="b")])
    assert {p.start for p in admitted} == {"a", "b"}
    assert rejected == ()


def test_a_numbered_build_is_where_a_file_counts() -> None:
    older = FileLocation("p, no build#2026-04-01", "a.json", numbered=False)
    newer = FileLocation("p#5654", "tests/a.json", numbered=True)
    copy = FileLocation("p#5654", "other/a.json", numbered=True)
    assert preferred_location([older, newer]) == newer
    assert preferred_location([newer, copy, older]) == copy
