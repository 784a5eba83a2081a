"""Which changes of reported series are told, listed or left, and the nights that they are of."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfbisect.series.alerts import match_alerts
from perfbisect.series.finding_causes import SeriesIndex, infer_causes
from perfbisect.series.findings import JudgedFamily, Suppression, drop_duplicate_tails, select_alerts
from perfbisect.series.series import CellSeries
from tests.series.made_series import FIRST, cell, noise, step

QUIET = [one for seed in range(4) for one in cell({"e2el:median": noise(seed + 50, 40)}, test=f"quiet{seed}")]


def family(*series: CellSeries, fdr: float = 0.05) -> JudgedFamily:
    return select_alerts([*series, *QUIET], fdr)


def test_a_step_with_the_nights_on_its_sides() -> None:
    (series,) = cell({"e2el:median": step(noise(1, 40), 20, 1.2)})
    (found,) = family(series).alerts
    assert (found.found.shape, found.index, found.first) == ("step", 20, FIRST + 20)
    assert found.before == tuple(range(20)) and found.after == tuple(range(20, 40))
    assert found.shift > 0 and found.last == FIRST + 39
    assert 0 <= found.q < 0.05


def test_better_is_below_nothing_whichever_way_the_metric_goes() -> None:
    (series,) = cell({"output_throughput": step(noise(1, 40), 20, 1.2)})
    (found,) = family(series).alerts
    assert found.shift < 0 and found.found.effect == pytest.approx(0.2, abs=0.02)


def test_of_two_steps_each_ends_where_the_next_begins() -> None:
    (series,) = cell({"e2el:median": step(step(noise(2, 60), 20, 1.2), 40, 0.8)})
    one, two = family(series).alerts
    assert (one.index, one.after[-1], two.before[0], two.index) == (20, 39, 20, 40)


def test_a_transient_is_its_own_nights() -> None:
    (series,) = cell({"e2el:median": step(noise(3, 40), 30, 1.6, 32)})
    (found,) = family(series).alerts
    assert (found.found.shape, found.after, found.until) == ("transient", (30, 31), 32)
    assert found.last == FIRST + 31


def test_a_missing_night_moves_the_places_and_not_the_nights() -> None:
    values: list[float | None] = [*step(noise(1, 41), 20, 1.2)]
    values[10] = None
    (series,) = cell({"e2el:median": values})
    (found,) = family(series).alerts
    assert (found.index, found.first) == (19, FIRST + 20)


def test_what_is_below_the_smallest_worth_telling_is_listed() -> None:
    (series,) = cell({"ttft:median": step(noise(4, 60, spread=0.004), 30, 1.03)})
    found = family(series)
    assert found.alerts == ()
    assert [why for _, why in found.listed] == [Suppression("too small", least=0.05)]


def test_a_series_that_begins_with_a_transient_knows_nothing_before_it() -> None:
    (series,) = cell({"peak_memory_mb:median": step(noise(5, 30, spread=0.0001), 0, 1.08, 2)})
    found = family(series)
    assert found.alerts == ()
    assert [why for _, why in found.listed] == [Suppression("starts the series")]


def test_guards_and_what_follows_from_others_are_not_judged() -> None:
    series = cell(
        {"output_tokens": [100.0] * 30, "e2el_per_token": noise(6, 30), "e2el:median": noise(7, 30)}
    )
    found = select_alerts(series, 0.05)
    assert {name.split()[1] for name, _ in found.left} == {"output_tokens", "e2el_per_token"}
    assert len(found.census.judged) == 1


def test_a_doubtful_change_is_told_on_a_night_that_other_servers_name() -> None:
    """The same series, alone and beside two servers that clearly changed that night."""
    own = cell({"e2el:median": step(noise(11, 14, spread=0.03), 12, 1.4, 13)}, test="small")
    loud = [
        one
        for n in range(4)
        for one in cell(
            {"e2el:median": step(noise(20 + n, 14), 12, 3.0, 13)}, test=f"loud{n % 2}", concurrency=n + 1
        )
    ]
    alone = select_alerts([*own, *_many(14)], 0.05)
    assert (own[0].cell, "too doubtful") in {(f.series.cell, why.kind) for f, why in alone.listed}
    beside = select_alerts([*own, *loud, *_many(14)], 0.05)
    told = {f.series.cell: f.joined for f in beside.alerts}
    assert told.pop(own[0].cell) == ("p/loud0", "p/loud1")
    assert set(told) == {one.cell for one in loud} and set(told.values()) == {()}


def _many(nights: int) -> list[CellSeries]:
    return [
        one
        for seed in range(12)
        for one in cell({"e2el:median": noise(seed + 200, nights)}, test=f"quiet{seed}")
    ]


def test_a_mean_that_its_median_tells_is_not_told_twice() -> None:
    typical, mean = noise(9, 40), noise(10, 40)
    series = cell({"e2el:median": step(typical, 20, 1.3), "e2el:mean": step(mean, 20, 1.3)})
    medians = select_alerts([s for s in series if s.part == "typical"] + QUIET, 0.05)
    tails = select_alerts([s for s in series if s.part != "typical"], 0.05)
    assert len(tails.alerts) == 1
    left = drop_duplicate_tails(tails, medians)
    assert left.alerts == ()
    assert [why for _, why in left.listed] == [Suppression("reported by the median", metric="e2el")]
    assert drop_duplicate_tails(tails, JudgedFamily((), (), medians.census)) == tails


def test_quiet_series_say_nothing() -> None:
    assert select_alerts(QUIET, 0.01).alerts == ()
    assert "too doubtful" not in {why.kind for _, why in select_alerts(QUIET, 0.001).listed}


def together(factor: float) -> JudgedFamily:
    """Eight servers that are slower from one night on, at a noise of four per cent."""
    series = [
        one
        for n in range(8)
        for one in cell({"e2el:median": step(noise(70 + n, 24, spread=0.04), 12, factor)}, test=f"s{n}")
    ]
    return select_alerts(series, 0.01)


def test_small_steps_of_many_servers_on_one_night_are_told_together() -> None:
    assert together(1.0).shared == ()
    small = together(1.06)
    assert small.alerts == ()
    (event,) = small.shared
    assert (event.window, event.p < 1e-3, len(event.votes) > 3) == ((FIRST + 11, FIRST + 12), True, True)


def test_one_of_them_that_nearly_shows_it_by_itself_is_an_alert() -> None:
    found = together(1.075)
    (alert,) = found.alerts
    assert alert.found.p > found.census.cut and len(alert.joined) > 3
    assert alert.series.group not in alert.joined
    assert found.shared == (), "what an alert tells is told"


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
    found = select_alerts(series, 0.2)
    causes = infer_causes(found.alerts, SeriesIndex(series, lambda _: frozenset()))
    assert len(match_alerts(found.alerts, causes)) == len(found.alerts)
    for one in found.alerts:
        assert 0 <= one.before[0] <= one.before[-1] < one.index <= one.after[-1] < len(one.series.values)
        assert one.places[0] > 0
