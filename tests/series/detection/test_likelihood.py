"""The evidence of a stretch of nights against integrals done otherwise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from perfbisect.series.detection.likelihood import (
    LEAST,
    OUTER,
    ChangeEvidence,
    NoiseFamilies,
    Tables,
    kinds,
    least_scale,
    level,
    likelihoods,
    likely,
    scale_of,
    smooth,
    step_density,
    step_size,
    tables,
)
from tests.long import mostly_long

ONE = kinds((0.0,), (1.0,), (1.0,), (1e-9,), (1.0,))
"""One kind of noise: Gaussian, of the scale of the first differences, without memory."""


def weigh(t: Tables, start: int, end: int) -> ChangeEvidence:
    return likelihoods(t, start, end).evidence(t.prior)


def logs(n: int, seed: int, at: int = 0, step: float = 0.0) -> np.ndarray:
    return 0.02 * np.random.default_rng([n, seed]).normal(size=n) + step * (np.arange(n) >= at)


def exact(values: np.ndarray, k: int) -> float:
    """log e(k) for Gaussian noise of known scale: the integral over the level in closed form, that over the
    step by quadrature."""
    s = scale_of(values)
    a, b = values[:k], values[k:]
    apart = b.mean() - a.mean()
    error = s * math.sqrt(1 / len(a) + 1 / len(b))

    def weight(step: float) -> float:
        return step_density(step, s) * float(stats.norm.pdf(apart, step, error))

    points = sorted({-LEAST * s, LEAST * s, apart})
    top = max(abs(apart), s) + 40 * error
    value, _ = integrate.quad(weight, -top, top, points=points, limit=400)
    return math.log(value) - float(stats.norm.logpdf(apart, 0.0, error))


@pytest.mark.parametrize(
    ("n", "at", "step"),
    mostly_long(
        [(14, 7, 0.0), (14, 7, 0.06), (30, 24, -0.05), (60, 30, 0.02)], short=[(14, 7, 0.0), (14, 7, 0.06)]
    ),
)
def test_it_is_the_integral_over_both_levels(n: int, at: int, step: float) -> None:
    values = logs(n, 3, at, step)
    got = weigh(tables(values, ONE), 0, n)
    assert list(got.places) == list(range(OUTER, n - OUTER + 1))
    expected = [exact(values, int(k)) for k in got.places]
    assert got.logs == pytest.approx(expected, abs=0.06)


def test_the_size_is_that_of_a_gaussian_mean_where_the_place_is_sure() -> None:
    values = logs(60, 5, 30, 0.2)
    t = tables(values, ONE)
    middle, low, high = step_size(t, 0, 60, weigh(t, 0, 60), t.prior)
    apart = values[30:].mean() - values[:30].mean()
    error = t.scale * math.sqrt(2 / 30)
    assert middle == pytest.approx(apart, abs=0.3 * error)
    assert high - low == pytest.approx(2 * stats.norm.ppf(1 - 0.0125) * error, rel=0.15)


@pytest.mark.parametrize("memory", [0.0, 0.6])
def test_it_is_at_most_one_on_average_whatever_the_memory(memory: float) -> None:
    """Also of one that is rare where the level changes."""
    which = kinds((0.0, 0.6), (0.9, 0.1), (1.0, 1.0), (0.05,))
    means = []
    for seed in range(300):
        rng = np.random.default_rng([16, seed])
        values = np.zeros(36)
        for k in range(1, 36):
            values[k] = memory * values[k - 1] + 0.02 * rng.normal()
        means.append(np.exp(weigh(tables(values[20:], which), 0, 16).logs).mean())
    assert np.mean(np.minimum(means, 50.0)) < 1.0


def test_what_the_other_nights_say_of_the_noise_counts() -> None:
    """A short level could be a slow wave; beside many nights that show no waves it is one less."""
    gains = []
    for seed in range(12):
        values = logs(200, seed) + 0.04 * (np.arange(200) >= 190)
        t = tables(values, kinds())
        short = likelihoods(t, 180, 200)
        gains.append(short.evidence(t.prior + level(t, 0, 180)).total - short.evidence(t.prior).total)
    assert np.mean(gains) > 0.3


def test_the_likelihood_of_a_level_is_the_integral_over_it() -> None:
    values = logs(20, 8)
    t = tables(values, ONE)
    s = scale_of(values)
    away = values - values.mean()
    # Densities of single nights are taken relative to their peak.
    expected = -0.5 * away @ away / s**2 + 0.5 * math.log(2 * math.pi * s**2 / 20)
    assert level(t, 0, 20) == pytest.approx([expected], abs=0.05)


def test_a_level_lasts_five_nights_but_the_first_and_the_newest() -> None:
    t = tables(logs(30, 1), ONE)
    assert list(weigh(t, 0, 30).places) == list(range(2, 29))
    assert list(weigh(t, 10, 30).places) == list(range(15, 29))
    assert list(weigh(t, 10, 29).places) == list(range(15, 25))
    assert weigh(t, 10, 19).total == -math.inf


def test_the_likely_places_are_the_fewest() -> None:
    weighed = ChangeEvidence(np.array([4, 5, 6, 7]), np.log([0.1, 0.6, 0.28, 0.02]))
    assert list(weighed.likely(0.5)) == [5]
    assert list(weighed.likely(0.9)) == [4, 5, 6]
    assert list(weighed.likely(0.999)) == [4, 5, 6, 7]
    assert weighed.posterior == pytest.approx([0.1, 0.6, 0.28, 0.02])
    assert weighed.best == 5
    assert weighed.under(np.full(9, -1.0)) == pytest.approx(-1.0)
    assert ChangeEvidence(np.array([], int), np.array([])).best == -1


def test_a_scale_is_not_moved_by_a_step_and_never_zero() -> None:
    values = logs(200, 2)
    assert scale_of(values) == pytest.approx(0.02, rel=0.2)
    assert scale_of(values + 3.0 * (np.arange(200) > 99)) == pytest.approx(scale_of(values), rel=0.02)
    assert scale_of(np.zeros(9)) == scale_of(np.zeros(1)) == 1e-4
    assert scale_of(np.array([0.0, 0.0, 0.0, 0.1, 0.1])) == pytest.approx(0.1 / 4 / 1.1284)


@pytest.mark.parametrize(
    ("values", "least"),
    [
        ([100.0, 102.0, 98.0, 100.0, 104.0], 0.01),
        ([12.0, 11.7, 12.3, 12.3, 11.7], 0.0125),
        ([50 / 150, 51 / 150, 49 / 150], 0.01),
        ([0.1 + 0.2, 0.3, 0.31], 0.005 / 0.3),
        ([1.0, 2.0, 3.0], 0.025),
        ([100.0, 103.1234567, 100.0], 1e-4),
        ([100.0] * 5, 1e-4),
        ([1e-300, 1.0, 1e300], 1e-4),
        (list(100 * np.exp(logs(30, 9))), 1e-4),
    ],
)
def test_no_scale_is_below_half_a_tick(values: list[float], least: float) -> None:
    """Of values that are all multiples of it, in any unit."""
    assert least_scale(np.array(values)) == pytest.approx(least, rel=1e-3)
    assert least_scale(7.3 * np.array(values)) == pytest.approx(least, rel=1e-3)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 9])
def test_the_running_median_ends_in_shorter_ones(n: int) -> None:
    values = logs(n, 1)
    expected = [np.median(values[max(0, t - 2) : t + 3]) for t in range(n)]
    assert smooth(values) == pytest.approx(expected)


def test_kinds_that_the_nights_rule_out_are_left_out() -> None:
    full = kinds()
    rest = logs(150, 4)
    quiet = likely((rest,), scale_of(rest), full)
    assert 0 < sum(len(f.scales) for f in quiet) < sum(len(f.scales) for f in full)
    assert any(f.memory == 0.0 and 1.0 in f.scales for f in quiet)
    assert {f.spreads for f in quiet} == {len(f.scales) for f in full}
    wild = rest.copy()
    wild[::8] += 0.4
    assert {f.far for f in likely((wild,), scale_of(rest), full)} <= {0.1, 0.3}
    loud = rest * np.where(np.arange(150) < 75, 1.0, 4.0)
    assert {0.5, 2.0} <= {scale for f in likely((loud,), scale_of(loud), full) for scale in f.scales}


def test_memory_takes_evidence_from_a_slow_wave() -> None:
    values = np.zeros(60)
    noise = np.random.default_rng(11).normal(size=60)
    for t in range(1, 60):
        values[t] = 0.6 * values[t - 1] + 0.02 * noise[t]
    values[25:45] += 0.015

    def total(which: NoiseFamilies) -> float:
        t: Tables = tables(values, which)
        return weigh(t, 0, 60).total

    assert total(kinds()) < total(kinds((0.0,), (1.0,), (1.0,)))
