"""A baseline is the mean of nights of one workload, one instrument and one level."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest

from perfbisect.model.commit_details import CauseWord, Evidence
from perfbisect.series.alerts import Alert, found_alerts, match_alerts
from perfbisect.series.causes import Cause
from perfbisect.series.findings import SeriesChange, select_alerts
from perfbisect.series.points import day_number
from perfbisect.series.rebaseline import BaselineRow, propose
from perfbisect.series.series import CellSeries
from tests.series.made_series import FIRST, cell, noise, step
from tests.series.test_findings import QUIET

LAST = FIRST + 39
WEEK = (10.0,) * 7

Change = tuple[Alert, SeriesChange]
"""An alert, with the finding that it was made of."""


def row(old: float | None, *values: float, name: str = "e2el") -> BaselineRow:
    (series,) = cell({name: values})
    return propose("cell", "name", old, series, (), last=series.nights[-1])


@pytest.mark.parametrize(
    ("old", "name", "new", "status"),
    [
        (12.0, "e2el", 10.0, "better"),
        (8.0, "output_throughput", 10.0, "better"),
        (10.1, "e2el", 10.0, "same"),
        (9.5, "e2el", 10.0, "worse, tolerated"),
        (9.0, "e2el", 9.0, "kept"),
        (11.0, "output_throughput", 11.0, "kept"),
        (None, "e2el", 10.0, "new"),
    ],
)
def test_what_got_worse_by_more_than_seven_per_cent_is_not_absorbed(
    old: float | None, name: str, new: float, status: str
) -> None:
    proposal = row(old, *WEEK, name=name)
    assert (proposal.mean, proposal.new, proposal.status) == (10.0, new, status)


@pytest.mark.parametrize("values", [(*WEEK[:6], 500.0), (6.0, 8.0, 12.0, 14.0, 10.0)])
def test_nights_that_are_no_level_make_no_baseline(values: tuple[float, ...]) -> None:
    """Also where mean and median agree: the standard error of the second is 14 %."""
    kept, none = row(12.0, *values), row(None, *values)
    assert (kept.new, kept.status) == (12.0, "kept")
    assert kept.spread == (min(values), max(values))
    assert (none.new, none.status) == (None, "skipped"), "there is nothing to keep"


def test_the_mean_is_plain_and_too_few_nights_and_open_alerts_change_nothing() -> None:
    assert row(None, 9.0, 9.5, 10.5, 11.0).new == 10.0
    few, unreported = row(12.0, *WEEK[:3]), propose("cell", "name", 12.0, None, (), last=LAST)
    assert (few.new, few.status, few.n) == (12.0, "too few", 3)
    assert row(12.0, *WEEK[:4]).status == "better"
    assert (unreported.new, unreported.status, unreported.mean) == (12.0, "too few", None)
    series, change = changed_series(36, 1.3)
    skipped = propose("cell", "name", 12.0, series, [change], last=LAST)
    assert (skipped.new, skipped.status, skipped.alert) == (12.0, "skipped", change[0].id)
    assert skipped.alert_state == "open"


def changed_series(
    at: int, factor: float, until: int | None = None, *, word: CauseWord = "product", name: str = "e2el"
) -> tuple[CellSeries, Change]:
    """Forty nights with one change, its alert and its finding."""
    (series,) = cell({f"{name}:median": step(noise(1, 40), at, factor, until)})
    finding = select_alerts([series, *QUIET], 0.05).alerts[0]
    found = found_alerts([finding], [Cause(word, (Evidence("lasting", {"nights": 5}),))])
    return series, (match_alerts(found)[0], finding)


def closed(change: Change) -> Change:
    return replace(change[0], state="closed"), change[1]


def week(series: CellSeries, *changes: Change, last: int = LAST, breaks: tuple[int, ...] = ()) -> BaselineRow:
    return propose("cell", "name", None, series, changes, last=last, breaks=breaks)


def left_out(row: BaselineRow) -> list[int]:
    return [day_number(night) - FIRST for night in row.left_out]


def mean(*values: float) -> object:
    return pytest.approx(fmean(values), rel=1e-12)


def test_without_a_change_all_nights_count() -> None:
    series, change = changed_series(10, 1.3)
    assert (week(series).mean, left_out(week(series))) == (mean(*series.values[-7:]), [])
    assert week(series, change, last=FIRST + 9).mean == mean(*series.values[3:10]), "it began later"


@pytest.mark.parametrize("word", ["product", "night", "unknown", "workload"])
def test_a_transient_is_left_out(word: CauseWord) -> None:
    series, change = changed_series(35, 1.6, 36, word=word)
    nights = week(series, change)
    assert (left_out(nights), nights.alert) == ([35], "")
    assert nights.mean == mean(*series.values[33:35], *series.values[36:])


def test_a_night_on_which_the_product_broke_is_left_out_of_all_metrics_of_the_cell() -> None:
    _, broken = changed_series(35, 1.6, 36, name="ttft")
    _, noisy = changed_series(35, 1.6, 36, name="itl", word="unknown")
    series, _ = changed_series(10, 1.3)
    assert left_out(week(series, broken)) == [35]
    assert left_out(week(series, noisy)) == []


@pytest.mark.parametrize("factor", [1.3, 0.7])
def test_what_is_worse_and_not_accepted_is_no_level(factor: float) -> None:
    series, change = changed_series(36, factor)
    nights = week(series, change)
    if factor > 1:
        assert nights.alert == change[0].id
        assert left_out(nights) == [36, 37, 38, 39]
        nights = week(series, closed(change))
    assert (nights.mean, nights.alert) == (mean(*series.values[36:]), "")
    assert left_out(nights) == [33, 34, 35]


def test_what_is_closed_and_came_back_begins_where_it_did() -> None:
    series, change = changed_series(20, 1.3)
    assert change[0].shape == "step"
    values = (*series.values[:36], *(value / 1.3 for value in series.values[36:]))
    back = replace(series, values=values)
    nights = week(
        back, closed((change[0], replace(change[1], series=back, point=replace(change[1].point, until=36))))
    )
    assert (nights.mean, nights.alert) == (mean(*values[36:]), "")


def test_a_transient_that_is_still_there_and_accepted_is_a_level() -> None:
    series, change = changed_series(39, 2.0)
    assert (change[0].shape, change[1].point.until) == ("transient", None)
    assert left_out(week(series, change)) == [39]
    assert week(series, closed(change)).mean == mean(*series.values[39:])


def test_what_became_better_beside_a_regression_is_no_level() -> None:
    series, better = changed_series(36, 0.7)
    _, worse = changed_series(36, 1.3, name="ttft")
    assert better[0].event == worse[0].event
    assert week(series, better, worse).alert == better[0].id
    assert week(series, better, closed(worse)).alert == ""


@pytest.mark.parametrize("word", ["instrument", "workload"])
@pytest.mark.parametrize("name", ["e2el", "ttft"])
def test_another_workload_or_instrument_begins_the_cell_anew(word: CauseWord, name: str) -> None:
    series, _ = changed_series(10, 1.3)
    _, change = changed_series(37, 1.5, word=word, name=name)
    nights = week(series, change)
    assert (nights.mean, nights.alert) == (mean(*series.values[37:]), "")
    assert left_out(nights) == [33, 34, 35, 36]


def test_other_requests_begin_it_anew_also_where_another_cell_says_so() -> None:
    tokens = [{"input_tokens": 100.0 if night < 38 else 300.0} for night in range(40)]
    (series,) = cell({"e2el:median": noise(1, 40)}, covariates=tokens)
    assert week(series).mean == mean(*series.values[38:])
    breaks = (FIRST + 36,)
    (plain,) = cell({"e2el:median": noise(1, 40)})
    assert week(plain, breaks=breaks).mean == mean(*plain.values[36:])
    assert week(series, breaks=breaks).mean == mean(*series.values[38:]), "the newest counts"
    assert week(plain, last=FIRST + 35, breaks=breaks).mean == mean(*plain.values[29:36])
