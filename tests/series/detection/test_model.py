"""One series: its changes, drifts, transients and levels, and what is none of them."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from perfbisect.series.detection.model import (
    FEWEST,
    LONGEST,
    RAMP,
    ChangePoint,
    SeriesRefusal,
    SeriesValues,
    detect,
    e_value,
    fit_ramp,
    judge_series,
    levels,
    needed,
    p_value,
    transients,
)


def nights(n: int, seed: int, noise: float = 0.02) -> np.ndarray:
    """Unchanged logs of n nights."""
    return noise * np.random.default_rng([n, seed]).normal(size=n)


def series(logs: np.ndarray, **given: object) -> SeriesValues:
    values = tuple(float(v) for v in 100 * np.exp(logs))
    return SeriesValues("cell ttft", values, tuple(range(len(values))), **given)  # type: ignore[arg-type]


def stepped(n: int, at: int, step: float, seed: int = 1) -> np.ndarray:
    return nights(n, seed) + math.log1p(step) * (np.arange(n) >= at)


def only(found: tuple[ChangePoint, ...]) -> ChangePoint:
    assert len(found) == 1, found
    return found[0]


def test_a_step_is_told_with_its_place_and_size() -> None:
    got = only(detect(series(stepped(60, 33, 0.10, seed=2), min_effect=0.03)))
    assert (got.shape, got.until, got.is_relevant) == ("step", None, True)
    assert abs(got.index - 33) <= 1
    assert 33 in got.places
    assert got.low < 0.10 < got.high
    assert got.low < got.effect < got.high
    assert got.p < 1e-6


def early(before: int, after: int, size: float, noise: float, seed: int) -> SeriesValues:
    rng = np.random.default_rng([before, after, seed])
    logs = noise * rng.normal(size=before + after) + math.log1p(size) * (np.arange(before + after) >= before)
    return series(logs, min_effect=0.03)


@pytest.mark.parametrize("before", [2, 3, 4, 5, 6])
def test_a_step_after_few_nights_has_its_night(before: int) -> None:
    """The first level may have begun before the series."""
    worlds = [(after, size) for after in (5, 12, 30) for size in (0.10, -0.14, 0.18)]
    right = 0
    for seed, (after, size) in enumerate(worlds * 2):
        found = detect(early(before, after, size, (0.005, 0.01)[seed >= len(worlds)], seed), 0.05)
        steps = [point for point in found if point.shape == "step"]
        assert before in steps[0].places, (after, size, found)
        right += steps[0].index == before and len(found) == 1
    assert right >= 0.95 * 2 * len(worlds) - 1


@pytest.mark.parametrize("size", [0.24, -0.10])
@pytest.mark.parametrize("nights_between", [4, 5])
def test_two_steps_with_few_nights_between_have_their_nights(nights_between: int, size: float) -> None:
    """How long a level must last does not move the place of a change that is sure."""
    second = 20 + nights_between
    logs = nights(40, 3, 0.008)
    logs[20:second] += math.log1p(0.12)
    logs[second:] += math.log1p(size)
    assert [(b.shape, b.index) for b in detect(series(logs))] == [("step", 20), ("step", second)]


def test_more_is_better_where_the_sign_says_so() -> None:
    logs = stepped(60, 33, 0.10)
    up, down = only(detect(series(logs))), only(detect(series(logs, sign=-1)))
    assert (down.index, down.places) == (up.index, up.places)
    assert (down.effect, down.low, down.high) == pytest.approx((up.effect, up.low, up.high), abs=2e-3)


def test_a_change_below_the_smallest_effect_is_no_news() -> None:
    logs = nights(120, 3, 0.004) + 0.01 * (np.arange(120) >= 50)
    got = only(detect(series(logs, min_effect=0.03)))
    assert not got.is_relevant
    assert only(detect(series(logs, min_effect=0.005))).is_relevant


def test_shares_change_by_a_difference_and_may_be_zero() -> None:
    values = (0.0,) * 20 + (0.02,) * 20
    failed = SeriesValues("failed", values, tuple(range(40)), absolute=True, min_effect=0.005)
    got = only(detect(failed))
    assert (got.index, got.is_relevant) == (20, True)
    assert got.effect == pytest.approx(0.02, abs=1e-3)


def wild() -> np.ndarray:
    logs = nights(80, 4)
    logs[[5, 17, 18, 40, 63, 79]] += 0.3
    return logs


@pytest.mark.parametrize(
    "logs",
    [np.zeros(40), wild(), nights(60, 6) * np.where(np.arange(60) < 30, 1.0, 4.0)],
    ids=["constant", "wild nights", "louder nights"],
)
def test_what_is_no_change(logs: np.ndarray) -> None:
    assert detect(series(logs)) == ()


def test_a_change_undone_is_two_steps_and_a_short_one_a_transient() -> None:
    logs = nights(80, 7)
    logs[30:50] += 0.12
    up, down = detect(series(logs))
    assert up.effect > 0 > down.effect
    assert (abs(up.index - 30) <= 1, abs(down.index - 50) <= 1) == (True, True)
    logs = nights(80, 7)
    logs[30:33] += 0.5
    got = only(detect(series(logs)))
    assert (got.shape, got.index, got.until) == ("transient", 30, 33)
    assert got.low < math.expm1(0.5) < got.high


@pytest.mark.parametrize(("nights_long", "shapes"), [(6, ["transient"]), (9, ["step", "step"])])
def test_what_is_undone_within_a_week_is_a_transient(nights_long: int, shapes: list[str]) -> None:
    logs = nights(80, 7)
    logs[30 : 30 + nights_long] += 0.3
    got = detect(series(logs))
    assert [b.shape for b in got] == shapes
    assert got[0].index == 30 and got[0].effect > 0
    assert got[0].until == (36 if len(got) == 1 else None)
    weekly = dataclasses.replace(series(logs), nights=tuple(range(0, 560, 7)))
    assert [b.shape for b in detect(weekly)] == ["step", "step"], "a week is of days and not of points"
    logs[30 + nights_long :] += 0.15
    assert [b.shape for b in detect(series(logs))] == ["step", "step"], "undone by half"


def test_slow_waves_are_no_levels() -> None:
    """Of sixty series that remember half of the night before, one in a hundred is told."""
    told = 0
    for seed in range(60):
        rng = np.random.default_rng([seed, 5])
        logs = np.zeros(60)
        for k in range(1, 60):
            logs[k] = 0.5 * logs[k - 1] + 0.02 * rng.normal()
        told += bool(detect(series(logs)))
    assert told <= 3


def test_a_tick_is_no_transient_and_several_are_a_step() -> None:
    """Noise of 0.5 % in ticks of 2 %: most nights have one value and a few the next."""
    for seed in range(20):
        logs = nights(30, seed, 0.005)
        quiet, moved = (2 * np.round(50 * np.exp(x)) for x in (logs, logs + 0.05 * (np.arange(30) >= 20)))
        assert detect(series(np.log(quiet / 100))) == ()
        assert only(detect(series(np.log(moved / 100)))).index == 20


def test_the_newest_night_may_be_a_transient_that_has_not_ended() -> None:
    logs = nights(14, 8, 0.04)
    logs[13] += math.log(1.863 / 0.194)
    got = only(detect(series(logs)))
    assert (got.shape, got.index, got.until) == ("transient", 13, None)


def test_a_slow_path_is_a_drift_which_may_go_on() -> None:
    slope = np.interp(np.arange(100), [30, 70], [0.0, 0.12])
    got = only(detect(series(nights(100, 9, 0.01) + slope)))
    assert got.shape == "drift" and got.until is not None
    assert abs(got.index - 30) <= 6 and abs(got.until - 70) <= 6
    assert got.low < math.expm1(0.12) < got.high
    slope = np.interp(np.arange(60), [20, 59], [0.0, 0.15])
    got = only(detect(series(nights(60, 9, 0.005) + slope)))
    assert (got.shape, got.until) == ("drift", None) and abs(got.index - 20) <= 5


@pytest.mark.parametrize(("after", "step"), [(2, 0.25), (5, 0.12)])
def test_the_newest_nights_are_enough_where_the_step_is_large(after: int, step: float) -> None:
    got = only(detect(series(stepped(35 + after, 35, step, seed=2))))
    assert (got.shape, got.index) == ("step", 35)


def test_a_long_series_is_judged_in_pieces() -> None:
    logs = nights(2000, 10)
    places = [190, 505, 1000, 1375, 1990]
    for k, place in enumerate(places):
        logs[place:] += 0.15 * (-1) ** k
    assert [b.index for b in detect(series(logs))] == places


@settings(max_examples=15, deadline=None)
@given(st.floats(1e-6, 1e6), st.integers(0, 1000))
def test_units_do_not_matter(factor: float, first: int) -> None:
    plain = series(stepped(40, 22, 0.08))
    values = tuple(v * factor for v in plain.values)
    other = SeriesValues(plain.key, values, tuple(first + 2 * night for night in plain.nights))
    a, b = only(detect(plain)), only(detect(other))
    assert (a.index, a.places, a.shape) == (b.index, b.places, b.shape)
    assert (a.effect, a.low, a.high, math.log(a.p)) == pytest.approx((b.effect, b.low, b.high, math.log(b.p)))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(0.01, 1e5), min_size=FEWEST, max_size=30))
def test_whatever_the_values_every_field_is_sound(values: list[float]) -> None:
    one = SeriesValues("any", tuple(values), tuple(range(len(values))))
    seen = judge_series(one, 0.2)
    assert all(0 <= p <= 1 for p in seen.p.values())
    assert seen.smallest > 0
    assert len(seen.evidence) == len(values)
    for b in seen.points:
        assert 0 <= b.index < len(values)
        assert list(b.places) == sorted(set(b.places))
        assert -1 <= b.low <= b.effect <= b.high
        assert b.p <= 0.2


def test_a_rate_and_its_evidence_are_one_table() -> None:
    assert p_value(needed(0.01)) == pytest.approx(0.01)
    assert p_value(needed(1e-9)) == pytest.approx(1e-9)
    assert p_value(-math.inf) == p_value(-50.0) == 1.0
    assert p_value(math.inf) > 0


@pytest.mark.parametrize("p", [1e-6, 1e-3, 0.05, 0.5, 0.999])
def test_the_e_value_of_a_p_is_a_mean_of_calibrators(p: float) -> None:
    mean, _ = integrate.quad(lambda k: k * p ** (k - 1), 0.0, 1.0)
    assert e_value(p) == pytest.approx(math.log(mean), abs=1e-6)


def test_a_transient_speaks_for_a_change_before_its_first_night() -> None:
    logs = nights(40, 12)
    logs[25] += 1.5
    seen = judge_series(series(logs))
    assert int(np.argmax(seen.evidence)) == 25
    assert seen.evidence[25] == pytest.approx(e_value(only(seen.points).p / 40))


@pytest.mark.parametrize(
    ("values", "absolute", "reason"),
    [
        ((1.0,) * (FEWEST - 1), False, SeriesRefusal("few nights", FEWEST - 1)),
        ((1.0,) * 9 + (math.nan,), True, SeriesRefusal("not finite")),
        ((1.0,) * 9 + (0.0,), False, SeriesRefusal("not positive")),
    ],
)
def test_what_cannot_be_judged_is_refused(
    values: tuple[float, ...], absolute: bool, reason: SeriesRefusal
) -> None:
    one = SeriesValues("short", values, tuple(range(len(values))), absolute=absolute)
    assert one.refusal == reason
    with pytest.raises(ValueError, match=f"short is not judged: {reason.kind}"):
        detect(one)


def test_a_series_has_one_value_a_night_in_order() -> None:
    with pytest.raises(ValueError, match="2 values of 1 nights"):
        SeriesValues("x", (1.0, 2.0), (1,))
    with pytest.raises(ValueError, match="nights must ascend"):
        SeriesValues("x", (1.0, 2.0), (5, 5))


@pytest.mark.parametrize("n", [12, 40, 120])
def test_the_smallest_step_is_seen_in_about_four_of_five_cases(n: int) -> None:
    """And half of it hardly ever: counted over forty series of Gaussian noise."""
    seen = {1.0: 0, 0.5: 0}
    for seed in range(40):
        smallest = judge_series(series(nights(n, 100 + seed))).smallest
        for share in seen:
            found = detect(series(stepped(n, n // 2, share * smallest, seed=100 + seed)))
            seen[share] += any(b.shape == "step" for b in found)
    assert 20 <= seen[1.0] <= 40
    assert seen[0.5] <= 12


def test_a_ramp_is_found_with_its_ends() -> None:
    path = np.interp(np.arange(60), [20, 40], [0.0, 0.1])
    found = fit_ramp(nights(60, 1, 0.01) + path, (30,))
    assert found is not None
    assert abs(found.begin - 21) <= 3 and abs(found.end - 40) <= 3
    assert found.step == pytest.approx(0.1, abs=3 * found.error)


@pytest.mark.parametrize("seed", range(5))
def test_a_step_is_no_ramp(seed: int) -> None:
    assert fit_ramp(nights(60, seed, 0.01) + 0.05 * (np.arange(60) >= 30), (30,)) is None
    two = nights(90, seed, 0.01) + 0.1 * (np.arange(90) >= 30) + 0.1 * (np.arange(90) >= 60)
    assert fit_ramp(two, (30, 60)) is None
    assert fit_ramp(np.linspace(0, 1, RAMP + 3), (4,)) is None, "too few nights"


def test_a_staircase_of_one_ramp_is_the_ramp() -> None:
    path = np.interp(np.arange(90), [10, 80], [0.0, 0.3])
    found = fit_ramp(nights(90, 3, 0.01) + path, (28, 45, 63))
    assert found is not None
    assert found.end - found.begin > 40


def test_the_p_of_one_night_is_the_tail_of_a_student_t() -> None:
    values = np.insert(np.tile([-0.01, 0.0, 0.01], 33), 60, 0.5)
    (found,) = transients(values, ())
    scale = 1.4826 * 0.01 * 1.06
    assert (found.begin, found.end) == (60, 61)
    assert found.p == pytest.approx(100 * 2 * stats.t.sf(0.5 / scale / 1.134, 3), rel=1e-6)
    assert found.step == pytest.approx(0.5)


def test_where_wild_nights_are_usual_one_more_is_no_news() -> None:
    alone, usual = nights(100, 4, 0.01), nights(100, 4, 0.01)
    alone[60] += 0.5
    usual[[5, 20, 33, 60, 71, 90]] += 0.5
    assert transients(alone, ())[0].p < 0.01
    assert min(found.p for found in transients(usual, ())) == 1.0


def test_a_longer_run_is_a_level_and_no_transient() -> None:
    values = nights(60, 5, 0.01)
    values[20 : 20 + LONGEST] += 0.3
    assert [(t.begin, t.end) for t in transients(values, ())] == [(20, 20 + LONGEST)]
    values[20 + LONGEST] += 0.3
    assert transients(values, ()) == ()


def test_a_run_ends_where_the_level_changes() -> None:
    values = nights(60, 6, 0.01) + 1.0 * (np.arange(60) >= 30)
    values[28:30] += 0.5
    assert [(t.begin, t.end) for t in transients(values, (30,))] == [(28, 30)]


def test_a_level_is_a_median_between_cuts() -> None:
    first, second = levels([1.0, 2.0, 9.0, 20.0, 22.0], [3])
    assert (first.first, first.last, first.value) == (0, 2, 2.0)
    assert (second.first, second.last, second.value) == (3, 4, 21.0)
    assert (first.low, first.high) == (1.0, 9.0)
    # Distances from 2: 1, 0, 7; their median 1, times 1.4826, over 2.
    assert first.spread == pytest.approx(0.7413)


def test_without_cuts_there_is_one_level_and_of_nothing_none() -> None:
    assert len(levels([1.0, 2.0, 3.0], [0, 3])) == 1
    (only,) = levels([3.0], [])
    assert (only.low, only.value, only.high, only.spread) == (3.0, 3.0, 3.0, None)
    assert levels([], []) == ()


@pytest.mark.parametrize("count", [6, 7, 9, 10, 30, 99, 365, 1500])
def test_the_interval_is_the_narrowest_that_holds_the_median(count: int) -> None:
    (only,) = levels([float(value) for value in range(count)], [])
    out = int(only.low)
    assert only.high == count - 1 - out
    assert 2 * stats.binom.cdf(out, count, 0.5) <= 0.05 < 2 * stats.binom.cdf(out + 1, count, 0.5)


def test_the_interval_covers_the_median_of_skewed_noise() -> None:
    rng = np.random.default_rng(3)
    nights = rng.exponential(1.0, (2000, 20))
    held = [one.low <= np.log(2) <= one.high for row in nights for one in levels(row.tolist(), [])]
    # 95.9 % by the binomial, +- 1.3 % of 2000.
    assert np.mean(held) > 0.945
