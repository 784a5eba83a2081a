"""A baseline is made of nights of one workload, one instrument and one level."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfbisect.model.commit_details import CauseWord
from perfbisect.series.alerts import match_alerts
from perfbisect.series.causes import Cause, Evidence
from perfbisect.series.findings import select_alerts
from perfbisect.series.rebaseline import BaselineNights, Change, choose_nights
from perfbisect.series.series import CellSeries
from tests.series.made_series import FIRST, cell, noise, step
from tests.series.test_findings import QUIET

LAST = FIRST + 39


def found(
    at: int, factor: float, until: int | None = None, *, word: CauseWord = "product", name: str = "e2el"
) -> tuple[CellSeries, Change]:
    """Forty nights with one change, its alert and its finding."""
    (series,) = cell({f"{name}:median": step(noise(1, 40), at, factor, until)})
    finding = select_alerts([series, *QUIET], 0.05).alerts[0]
    return series, (match_alerts([finding], [Cause(word, (Evidence("lasting", {"nights": 5}),))])[0], finding)


def closed(change: Change) -> Change:
    return replace(change[0], state="closed"), change[1]


def week(
    series: CellSeries, *changes: Change, last: int = LAST, breaks: tuple[int, ...] = ()
) -> BaselineNights:
    return choose_nights(series, changes, last=last, breaks=breaks)


def left(made: BaselineNights) -> list[int]:
    return [night - FIRST for night in made.left_out]


def test_where_nothing_changed_it_is_all_nights() -> None:
    series, alert = found(10, 1.3)
    assert week(series) == BaselineNights(series.values[-7:], ())
    assert week(series, alert, last=FIRST + 9).values == series.values[3:10], "it began later"


@pytest.mark.parametrize("word", ["product", "night", "unknown", "workload"])
def test_a_transient_is_left_out(word: CauseWord) -> None:
    series, alert = found(35, 1.6, 36, word=word)
    made = week(series, alert)
    assert (left(made), made.skip) == ([35], "")
    assert made.values == (*series.values[33:35], *series.values[36:])


def test_a_night_on_which_the_product_broke_is_left_out_of_all_that_the_cell_reports() -> None:
    _, broken = found(35, 1.6, 36, name="ttft")
    _, noisy = found(35, 1.6, 36, name="itl", word="unknown")
    series, _ = found(10, 1.3)
    assert left(week(series, broken)) == [35]
    assert left(week(series, noisy)) == []


@pytest.mark.parametrize("factor", [1.3, 0.7])
def test_what_is_worse_and_not_accepted_is_no_level(factor: float) -> None:
    series, alert = found(36, factor)
    made = week(series, alert)
    if factor > 1:
        assert made.skip == f"alert {alert[0].id} is open"
        assert left(made) == [36, 37, 38, 39]
        made = week(series, closed(alert))
    assert (made.values, made.skip) == (series.values[36:], "")
    assert left(made) == [33, 34, 35]


def test_what_is_closed_and_came_back_begins_where_it_did() -> None:
    series, alert = found(20, 1.3)
    assert alert[0].shape == "step"
    values = (*series.values[:36], *(value / 1.3 for value in series.values[36:]))
    back = replace(series, values=values)
    finding = replace(alert[1], series=back, point=replace(alert[1].point, until=36))
    made = week(back, closed((alert[0], finding)))
    assert (made.values, made.skip) == (values[36:], "")


def test_a_transient_that_is_still_there_and_accepted_is_a_level() -> None:
    series, alert = found(39, 2.0)
    assert (alert[0].shape, alert[1].point.until) == ("transient", None)
    assert left(week(series, alert)) == [39]
    assert week(series, closed(alert)).values == series.values[39:]


def test_what_became_better_beside_a_regression_is_no_level() -> None:
    series, better = found(36, 0.7)
    _, worse = found(36, 1.3, name="ttft")
    assert better[0].event == worse[0].event
    assert week(series, better, worse).skip == f"alert {better[0].id} is open"
    assert week(series, better, closed(worse)).skip == ""


@pytest.mark.parametrize("word", ["instrument", "workload"])
def test_another_workload_or_instrument_begins_the_cell_anew(word: CauseWord) -> None:
    series, _ = found(10, 1.3)
    for name in ("e2el", "ttft"):
        _, alert = found(37, 1.5, word=word, name=name)
        made = week(series, alert)
        assert (made.values, made.skip) == (series.values[37:], "")
        assert left(made) == [33, 34, 35, 36]


def test_other_requests_begin_it_anew_also_where_another_cell_says_so() -> None:
    asked = [{"input_tokens": 100.0 if night < 38 else 300.0} for night in range(40)]
    (series,) = cell({"e2el:median": noise(1, 40)}, covariates=asked)
    assert week(series).values == series.values[38:]
    there = (FIRST + 36,)
    (plain,) = cell({"e2el:median": noise(1, 40)})
    assert week(plain, breaks=there).values == plain.values[36:]
    assert week(series, breaks=there).values == series.values[38:], "the newest counts"
    assert week(plain, last=FIRST + 35, breaks=there).values == plain.values[29:36]
