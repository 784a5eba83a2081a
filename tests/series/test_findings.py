"""Which changes of series are alerts, suppressed or not judged, and the nights that they are of."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfbisect.model.metric import PER_UNIT
from perfbisect.series.alerts import found_alerts, match_alerts
from perfbisect.series.causes import infer_causes
from perfbisect.series.detection.model import SeriesRefusal
from perfbisect.series.findings import (
    JudgedFamily,
    SeriesChange,
    SeriesIndex,
    drop_duplicate_tails,
    select_alerts,
)
from perfbisect.series.series import CellSeries
from tests.series.made_series import FIRST, cell, noise, step

QUIET = [one for seed in range(4) for one in cell({"e2el:median": noise(seed + 50, 40)}, test=f"quiet{seed}")]


def family(*series: CellSeries, fdr: float = 0.05) -> JudgedFamily:
    return select_alerts([*series, *QUIET], fdr)


def only(series: tuple[CellSeries, ...]) -> SeriesChange:
    (change,) = family(*series).alerts
    return change


def test_a_step_with_the_nights_on_its_sides() -> None:
    found = only(cell({"e2el:median": step(noise(1, 40), 20, 1.2)}))
    assert (found.point.shape, found.point.index, found.first) == ("step", 20, FIRST + 20)
    assert found.before == tuple(range(20)) and found.after == tuple(range(20, 40))
    assert found.shift > 0


def test_of_two_steps_each_ends_where_the_next_begins() -> None:
    (series,) = cell({"e2el:median": step(step(noise(2, 60), 20, 1.2), 40, 0.8)})
    one, two = family(series).alerts
    assert (one.point.index, one.after[-1], two.before[0], two.point.index) == (20, 39, 20, 40)


def test_a_transient_is_its_own_nights_and_a_missing_night_moves_its_places() -> None:
    values: list[float | None] = [*step(noise(3, 40), 30, 1.6, 32)]
    found = only(cell({"e2el:median": values}))
    assert (found.point.shape, found.after, found.point.until) == ("transient", (30, 31), 32)
    values[10] = None
    found = only(cell({"e2el:median": values}))
    assert (found.after, found.first) == ((29, 30), FIRST + 30)


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("ttft", step(noise(4, 60, spread=0.004), 30, 1.03), "too small"),
        ("peak_memory_mb", step(noise(5, 30, spread=0.0001), 0, 1.08, 1), "starts the series"),
    ],
)
def test_changes_that_are_no_alerts(name: str, values: list[float], reason: str) -> None:
    found = family(*cell({f"{name}:median": values}))
    assert found.alerts == ()
    assert [change.suppression for change in found.suppressed] == [reason]


def test_guards_and_what_follows_from_others_are_not_judged() -> None:
    series = cell(
        {"output_tokens": [100.0] * 30, "e2el_per_token": noise(6, 30), "e2el:median": noise(7, 30)}
    )
    found = select_alerts(series, 0.05)
    assert {e.series.split()[1]: e.why for e in found.coverage.series if e.why} == {
        "output_tokens": SeriesRefusal("covariate"),
        "e2el_per_token": SeriesRefusal("derived", of=PER_UNIT["e2el_per_token"]),
    }
    assert found.coverage.judged == 1


def test_a_doubtful_change_is_an_alert_on_a_night_that_other_servers_name() -> None:
    """The same series, alone and beside two servers that clearly changed that night."""
    own = cell({"e2el:median": step(noise(11, 14, spread=0.03), 12, 1.4, 13)}, test="small")
    loud = [
        one
        for n in range(4)
        for one in cell(
            {"e2el:median": step(noise(20 + n, 14), 12, 3.0, 13)}, test=f"loud{n % 2}", concurrency=n + 1
        )
    ]
    many = [
        one for seed in range(12) for one in cell({"e2el:median": noise(seed + 200, 14)}, test=f"quiet{seed}")
    ]
    alone = select_alerts([*own, *many], 0.05)
    assert (own[0].cell, "too doubtful") in {(c.series.cell, c.suppression) for c in alone.suppressed}
    support = {c.series.cell: c.supported_by for c in select_alerts([*own, *loud, *many], 0.05).alerts}
    assert support.pop(own[0].cell) == ("p/loud0", "p/loud1")
    assert support == dict.fromkeys((one.cell for one in loud), ())


def test_a_mean_that_its_median_reports_is_suppressed() -> None:
    series = cell({"e2el:median": step(noise(9, 40), 20, 1.3), "e2el:mean": step(noise(10, 40), 20, 1.3)})
    medians = select_alerts([s for s in series if s.part == "typical"] + QUIET, 0.05)
    tails = select_alerts([s for s in series if s.part != "typical"], 0.05)
    assert len(tails.alerts) == 1
    left = drop_duplicate_tails(tails, medians)
    assert left.alerts == ()
    assert [(c.suppression, c.duplicate_of) for c in left.suppressed] == [("reported by the median", "e2el")]
    assert drop_duplicate_tails(tails, select_alerts(QUIET, 0.05)) == tails


def test_a_slower_tail_beside_a_faster_median_is_told() -> None:
    series = cell({"e2el:median": step(noise(9, 40), 20, 0.9), "e2el:p99": step(noise(10, 40), 20, 4.5)})
    tails = select_alerts(series[1:], 0.05)
    assert drop_duplicate_tails(tails, select_alerts([series[0], *QUIET], 0.05)) == tails


def together(factor: float) -> JudgedFamily:
    """Eight servers that are slower from one night on, at a noise of four per cent."""
    series = [
        one
        for n in range(8)
        for one in cell({"e2el:median": step(noise(70 + n, 24, spread=0.04), 12, factor)}, test=f"s{n}")
    ]
    return select_alerts(series, 0.01)


def test_small_steps_of_many_servers_on_one_night_are_a_joint_event() -> None:
    assert together(1.0).joint_changes == select_alerts(QUIET, 0.01).alerts == ()
    assert "too doubtful" not in {change.suppression for change in select_alerts(QUIET, 0.001).suppressed}
    small = together(1.06)
    assert small.alerts == ()
    (event,) = small.joint_changes
    assert (event.after, event.by) == (FIRST + 11, FIRST + 12)
    assert event.p < 1e-3 and len(event.servers) > 3


def test_one_of_them_that_nearly_shows_it_by_itself_is_an_alert() -> None:
    found = together(1.075)
    (alert,) = found.alerts
    assert alert.point.p > found.coverage.cut["level"] and len(alert.supported_by) > 3
    assert alert.series.group not in alert.supported_by
    assert found.joint_changes == ()


VALUES = st.one_of(st.floats(1e-3, 1e6), st.just(100.0), st.none())


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(VALUES, min_size=6, max_size=30), min_size=1, max_size=4))
def test_whatever_the_nights_are_every_change_has_nights_on_both_sides(
    columns: list[list[float | None]],
) -> None:
    series = [
        one
        for n, column in enumerate(columns)
        if any(v is not None for v in column)
        for one in cell({"e2el:median": column}, test=f"t{n}")
    ]
    if not series:
        return
    changes = select_alerts(series, 0.2).alerts
    causes = infer_causes(changes, SeriesIndex(series, lambda _: frozenset()))
    assert len(match_alerts(found_alerts(changes, causes))) == len(changes)
    for one in changes:
        assert (
            0 <= one.before[0] <= one.before[-1] < one.point.index <= one.after[-1] < len(one.series.values)
        )
        assert one.point.places[0] > 0
