"""What launches say beside each other, on reports built by hand."""

from __future__ import annotations

import pytest

from perfbisect.bisect.documents import ReportDocument
from perfbisect.bisect.figures import LevelSpan, ab_levels, ab_pairs, launch_times, level_spans, step_spans
from perfbisect.jobs.documents import LaunchDocument
from tests.jobs.world import Watch


def with_launches(report: ReportDocument, *rows: dict[str, object]) -> ReportDocument:
    first = report.launches[0]
    made = [
        LaunchDocument.model_validate(
            first.model_dump() | {"number": i, "purpose": "search", "at": None} | row
        )
        for i, row in enumerate(rows, 1)
    ]
    return report.model_copy(update={"launches": tuple(made)})


@pytest.fixture
def report(told: tuple[ReportDocument, Watch]) -> ReportDocument:
    return told[0]


def test_a_level_is_the_median_of_what_lies_between_two_steps(report: ReportDocument) -> None:
    culprit, last = report.culprits[0].index, report.culprits[-1].index
    made = with_launches(
        report,
        {"position": 0, "value": 10.0},
        {"position": culprit - 1, "value": 12.0},
        {"position": culprit - 1, "value": 99.0},
        {"position": culprit, "value": 70.0},
        {"position": last, "value": 20.0},
        {"position": report.positions - 1, "value": None},
    )
    assert culprit < last, "two that cannot be told apart: what is measured between them is on no level"
    assert step_spans(made) == ((culprit, last),)
    assert level_spans(made) == (
        LevelSpan(0, culprit - 1, 12.0),
        LevelSpan(last, report.positions - 1, 20.0),
    )


def test_without_a_step_the_ends_alone_have_levels(report: ReportDocument) -> None:
    last = report.positions - 1
    made = with_launches(
        report.model_copy(update={"outcome": "too small"}),
        {"position": 0, "value": 10.0},
        {"position": 3, "value": 50.0},
        {"position": last, "value": 11.0},
    )
    assert step_spans(made) == ()
    assert level_spans(made) == (LevelSpan(0, 0, 10.0), LevelSpan(last, last, 11.0))


def test_pairs_are_of_one_slot_and_of_unlike_sides(report: ReportDocument) -> None:
    assert report.confirmed is not None
    left, right = report.confirmed.left.model_dump(), report.confirmed.right.model_dump()
    ab = {"purpose": "confirm", "value": 1.0}
    made = with_launches(
        report,
        {"change": left, "value": 1.0},
        ab | {"change": left, "slot": "a"},
        ab | {"change": left, "slot": "b"},
        ab | {"change": right, "slot": "b"},
        ab | {"change": right, "slot": "a"},
        ab | {"change": right, "slot": "a"},
        ab | {"change": left, "slot": "a", "value": None, "outcome": "failed"},
        ab | {"change": left, "slot": "a"},
        ab | {"change": left, "slot": "b"},
    )
    assert [(a.number, b.number) for a, b in ab_pairs(made)] == [(3, 4), (2, 5), (8, 6)]
    assert ab_pairs(made.model_copy(update={"confirmed": None})) == ()


def test_times_are_as_told_else_by_the_clock_else_one_after_the_other(report: ReportDocument) -> None:
    clock = [f"2026-01-01T00:{minute:02d}:30+00:00" for minute in (0, 2, 5)]
    rows = [{"minutes": 2.0, "started_at": at} for at in clock]
    by_clock = with_launches(report, *rows)
    assert launch_times(by_clock.launches) == pytest.approx((0.0, 2.0, 5.0))
    told = with_launches(report, *(row | {"at": at} for row, at in zip(rows, (0.0, 0.5, 9.0), strict=True)))
    assert launch_times(told.launches) == (0.0, 0.5, 9.0)
    for wrong in ("", "2026-01-01T00:00:30+00:00"):
        unknown = with_launches(report, *(row | {"started_at": wrong} for row in rows))
        assert launch_times(unknown.launches) == (0.0, 2.0, 4.0)
    assert launch_times(()) == ()


def test_the_levels_of_an_ab_are_as_far_apart_as_its_effect(report: ReportDocument) -> None:
    assert report.confirmed is not None
    found = ab_pairs(report)
    effect = report.confirmed.effect
    a, b = ab_levels(found, effect)
    assert b / a - 1 == pytest.approx(effect)
    values = [x.value for pair in found for x in pair if x.value is not None]
    assert min(values) < a < b < max(values)
