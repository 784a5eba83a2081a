"""Alerts keep their names when they are found again; those of one cause and night are one event."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.model.commit_details import Evidence
from perfbisect.series.alerts import Alert, begun, found_alerts, match_alerts, recovery, status
from perfbisect.series.causes import Cause
from perfbisect.series.findings import SeriesChange, select_alerts
from perfbisect.series.series import Discontinuity
from tests.series.made_alert import made_alert
from tests.series.made_series import FIRST, cell, noise, step
from tests.series.test_findings import QUIET

PRODUCT = Cause("product", (Evidence("lasting", {"nights": 5}),))
NIGHT = Cause("night", (Evidence("one night"),))


def found(
    nights: int = 40, at: int = 20, factor: float = 1.3, until: int | None = None, **more: object
) -> SeriesChange:
    (series,) = cell({"e2el:median": step(noise(1, nights), at, factor, until)}, **more)  # type: ignore[arg-type]
    return select_alerts([series, *QUIET], 0.05).alerts[0]


def told(*findings: SeriesChange, known: tuple[Alert, ...] = (), cause: Cause = PRODUCT) -> tuple[Alert, ...]:
    return match_alerts(found_alerts(findings, [cause] * len(findings)), known)


def test_a_name_says_the_night() -> None:
    (alert,) = told(found())
    assert alert.id.startswith("20241024-") and len(alert.id) == 13
    assert alert.new and alert.state == "open"
    assert alert.event == "20241024-product"
    assert FIRST + 20 == 20020, "which is 2024-10-24"


def test_found_again_with_more_nights_it_is_the_same() -> None:
    (first,) = told(found(nights=30))
    closed = replace(first, state="closed", why="fixed by #7")
    (again,) = told(found(nights=40), known=(closed,))
    assert (again.id, again.new, again.state, again.why) == (first.id, False, "closed", "fixed by #7")
    (first,) = told(found(nights=21, factor=2.0))
    (again,) = told(found(nights=40, factor=2.0), known=(first,))
    assert (first.shape, again.shape, again.id) == ("transient", "step", first.id)


def test_another_night_another_way_or_another_cell_is_another() -> None:
    (first,) = told(found())
    for other in (found(at=30), found(factor=0.7), found(test="other")):
        (alert,) = told(other, known=(first,))
        assert alert.new and alert.id != first.id


@given(st.integers(0, 5), st.integers(1, 5))
def test_nights_that_overlap_are_one(after: int, more: int) -> None:
    """Known to have begun after night a and by night b; found to have begun by night 20, after night 19."""
    finding = found()
    low, high = begun(finding)
    assert (low, high) == (FIRST + 19, FIRST + 20)
    (first,) = told(finding)
    known = replace(first, id="k", begun=(FIRST + 15 + after, FIRST + 15 + after + more))
    (alert,) = told(finding, known=(known,))
    assert (alert.id == "k") == (15 + after < 20 and 15 + after + more > 19)


def test_one_known_alert_is_recognised_once() -> None:
    finding = found()
    (first,) = told(finding)
    one, two = told(finding, finding, known=(first,))
    assert one.id == first.id and two.id != first.id and two.new


def test_the_way_back_and_what_is_known_of_it_now() -> None:
    def now(finding: SeriesChange, until: int = FIRST + 39) -> str:
        (alert,) = match_alerts(found_alerts([finding], [PRODUCT], until=until))
        assert (recovery(finding) is None) == (alert.now != "recovered")
        return alert.now

    there, passed = found(at=20, factor=1.3), found(at=30, factor=2.0, until=32)
    assert now(there) == "still there"
    assert now(there, FIRST + 40) == "not measured since"
    assert (now(passed), recovery(passed)) == ("recovered", 32)
    half = found(at=30, factor=4.0, until=32)
    values = [v * 1.9 if i >= 32 else v for i, v in enumerate(half.series.values)]
    assert now(replace(half, series=replace(half.series, values=tuple(values)))) == "at another level since"
    asked = [{"input_tokens": 100.0 if night < 30 else 300.0} for night in range(40)]
    assert now(found(at=20, factor=1.3, covariates=asked)) == "other requests since"


def levels(metric: str, *values: float, nights: int = 12, spread: float = 0.003) -> SeriesChange:
    """The first change of a series at these levels, of so many nights each."""
    column = [v for seed, level in enumerate(values) for v in noise(seed, nights, level, spread)]
    return select_alerts([*cell({metric: column}), *QUIET], 0.05).alerts[0]


@pytest.mark.parametrize(
    ("metric", "values", "is_recovered"),
    [
        ("ttft:median", (100, 7000, 280), False),
        ("ttft:median", (100, 150, 106), False),
        ("ttft:median", (100, 150, 102), True),
        ("ttft:median", (100, 150, 80), True),
        ("output_throughput", (100, 50, 120), True),
        ("output_throughput", (100, 50, 90), False),
        ("spec_decode_acceptance_rate", (0.95, 0.02, 0.62), False),
        ("spec_decode_acceptance_rate", (0.7, 0.0, 0.695), True),
        ("spec_decode_acceptance_rate", (0.7, 0.0, 0.1), False),
    ],
)
def test_what_is_left_and_worth_telling_is_no_recovery(
    metric: str, values: tuple[float, ...], is_recovered: bool
) -> None:
    """However small a part of a large change it is; a series that is better than before has recovered."""
    change = levels(metric, *values)
    assert recovery(change) == (change.after[-1] + 1 if is_recovered else None)


def test_a_rest_within_the_noise_of_the_nights_before_is_none() -> None:
    assert recovery(levels("ttft:median", 100, 300, 112, spread=0.05)) == 24


@pytest.mark.parametrize(
    ("metric", "values", "now"),
    [
        ("ttft:median", (100, 150, 144), "still there"),
        ("ttft:median", (100, 120, 160), "still there"),
        ("ttft:median", (100, 150, 120, 160), "still there"),
        ("ttft:median", (100, 150, 130), "at another level since"),
        ("ttft:median", (100, 150, 104), "recovered"),
        ("output_throughput", (100, 60, 62), "still there"),
        ("spec_decode_acceptance_rate", (0.9, 0.0, 0.1), "still there"),
        ("spec_decode_acceptance_rate", (0.9, 0.0, 0.3), "at another level since"),
    ],
)
def test_a_change_is_there_while_the_newest_level_keeps_most_of_it(
    metric: str, values: tuple[float, ...], now: str
) -> None:
    change = levels(metric, *values)
    assert change.after[-1] + 1 < len(change.series.nights), "a later step was found"
    assert status(change, change.series.nights[-1]) == now


def test_a_night_that_passed_is_not_there_again_with_a_later_step() -> None:
    passed = levels("ttft:median", 100, 111, 230)
    values = [*passed.series.values[:11], 240.0, *passed.series.values[12:]]
    series = replace(passed.series, values=tuple(values))
    change = next(c for c in select_alerts([series, *QUIET], 0.05).alerts if c.point.shape == "transient")
    assert (change.after, status(change, series.nights[-1])) == ((11,), "at another level since")


def test_nothing_is_told_across_a_discontinuity() -> None:
    series = levels("ttft:median", 100, 130, 400).series
    mark = Discontinuity(24, "model", Evidence("model", {"after": "b", "before": "a"}))
    change, *_ = select_alerts([replace(series, boundaries=(mark,)), *QUIET], 0.05).alerts
    assert (change.first, status(change, series.nights[-1])) == (FIRST + 12, "other requests since")


def test_a_value_that_fell_to_nearly_nothing_has_a_size() -> None:
    assert 30 < made_alert(effect=-1.0).size < 40
    share = made_alert(metric="spec_decode_acceptance_rate", effect=-1.0)
    assert (share.size, share.worse) == (1.0, True)


def test_events_are_a_night_and_a_cause() -> None:
    here, also, later = found(test="a"), found(test="b"), found(test="c", at=30)
    alerts = match_alerts(found_alerts([here, also, later, here], [PRODUCT, PRODUCT, PRODUCT, NIGHT]))
    assert [a.event for a in alerts] == [
        "20241024-product", "20241024-product", "20241103-product", "20241024-night",
    ]  # fmt: skip


def test_what_changed_since_it_was_reported() -> None:
    before, back = found(at=30, factor=2.0), found(at=30, factor=2.0, until=32)
    (first,) = told(before, cause=NIGHT)
    (again,) = told(back, known=(first,))
    assert (again.was, again.came_back, again.recovered) == ("night", True, True)
    (third,) = told(back, known=(again,))
    assert (third.was, third.came_back) == ("", False)


@pytest.mark.parametrize(
    ("metric", "factor", "worse"),
    [
        ("ttft:median", 1.3, True),
        ("ttft:median", 0.7, False),
        ("output_throughput", 1.3, False),
        ("output_throughput", 0.7, True),
    ],
)
def test_worse_follows_the_direction_of_the_metric(metric: str, factor: float, worse: bool) -> None:
    (series,) = cell({metric: step(noise(1, 40), 20, factor)})
    finding = select_alerts([series, *QUIET], 0.05).alerts[0]
    (alert,) = told(finding)
    assert (alert.worse, alert.part, alert.size) == (worse, "typical", pytest.approx(abs(finding.shift)))
