"""Nights of two kinds that nothing tells apart: no step, no transient, and a real step all the same."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from perfbisect.series.detection.likelihood import FLOOR, NoiseFamily, likelihoods, tables
from perfbisect.series.detection.mixture import FAR, Mixture, fit_mixture
from perfbisect.series.detection.model import SeriesValues, detect
from scripts.detection import machine_kinds

APART = 0.08


def nights(n: int, stay: float, seed: int, share: float = 0.5, spread: float = 0.01) -> np.ndarray:
    rng = np.random.default_rng([n, seed, int(100 * stay)])
    kinds = machine_kinds(n, share, stay, rng)
    return spread * rng.normal(size=n) + APART * kinds


def series(logs: np.ndarray) -> SeriesValues:
    values = tuple(float(v) for v in 100 * np.exp(logs))
    return SeriesValues("cell ttft", values, tuple(range(len(values))), min_effect=0.015)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_the_two_kinds_are_found_with_their_shares(share: float) -> None:
    found = fit_mixture(nights(200, 0.0, 1, share))
    assert found is not None
    assert abs(found.apart) == pytest.approx(APART, rel=0.1)
    assert found.scale == pytest.approx(0.01, rel=0.2)
    assert found.share == pytest.approx(min(share, 1 - share), abs=0.08)
    if share != 0.5:
        assert (found.apart > 0) == (share < 0.5), "the other kind is the rarer one"


@pytest.mark.parametrize(
    "logs",
    [
        np.zeros(30),
        0.02 * np.random.default_rng(2).normal(size=200),
        np.repeat([0.0, 0.3], 30),
        np.repeat([0.0, 0.3, 0.0], 20),
        np.insert(np.tile([0.0, 0.01, -0.01], 20), 30, 1.0),
    ],
    ids=["constant", "one kind", "a step", "a step that is undone", "a wild night"],
)
def test_without_alternation_there_are_not_two_kinds(logs: np.ndarray) -> None:
    assert fit_mixture(logs) is None


@given(st.floats(-3, 3), st.sampled_from([-1, 1]), st.floats(0.1, 10))
def test_level_direction_and_unit_do_not_matter(level: float, sign: int, unit: float) -> None:
    logs = nights(60, 0.6, 4, 0.3)
    one, other = fit_mixture(logs), fit_mixture(level + sign * unit * logs)
    assert one is not None and other is not None
    assert (other.apart, other.scale) == pytest.approx((sign * unit * one.apart, unit * one.scale), rel=1e-4)
    assert other.share == pytest.approx(one.share, rel=1e-4)


def test_the_likelihood_of_a_night_depends_on_the_kind_of_the_night_before() -> None:
    """At the usual level: the density of a hidden kind that stays or is drawn anew, by hand."""
    values = np.array([0.0, 0.4, 0.41, 0.0, 0.01, 0.39, 0.0, 0.0])
    family = NoiseFamily(0.0, 1e-12, (1.0,), 1, 1.0, 1.0, apart=0.4, other=0.3, stay=0.5)
    t = tables(values, (family,))
    level = int(np.argmin(np.abs(t.nodes)))

    def density(value: float, kind: int) -> float:
        away = (value - float(t.nodes[level]) - 0.4 * kind) / t.scale
        return float(stats.norm.pdf(away) * math.sqrt(2 * math.pi))

    for k in range(1, len(values)):
        before = np.array([0.7, 0.3]) * [density(values[k - 1], kind) for kind in (0, 1)]
        other = 0.5 * 0.3 + 0.5 * before[1] / before.sum()
        expected = (1 - other) * density(values[k], 0) + other * density(values[k], 1)
        assert t.total[0, k + 1, level] - t.total[0, k, level] == pytest.approx(math.log(expected), abs=1e-6)


@pytest.mark.parametrize("stay", [0.0, 0.6])
def test_machines_of_two_kinds_are_no_step_and_no_transient(stay: float) -> None:
    """Without the mixture half of the series of kinds that stay show steps, and a third transients."""
    reported = [seed for seed in range(12) if detect(series(nights(40, stay, seed)))]
    assert len(reported) <= 1


def test_a_step_is_found_among_nights_of_two_kinds() -> None:
    for seed in range(3):
        logs = nights(60, 0.0, seed) + math.log1p(0.2) * (np.arange(60) >= 35)
        (found,) = (point for point in detect(series(logs)) if point.is_relevant)
        assert found.shape == "step"
        assert abs(found.index - 35) <= 2 and found.low < 0.2 < found.high


def test_nights_in_ticks_are_no_transients() -> None:
    """Ticks of 2 % at noise of 0.5 %: most nights have one value, a few the next."""
    for seed in range(20):
        values = 2 * np.round(50 * np.exp(0.005 * np.random.default_rng([seed, 6]).normal(size=40)))
        assert detect(series(np.log(values / 100))) == ()


def test_residuals_are_those_of_the_nearer_kind() -> None:
    mixture = Mixture(0.4, 0.3, 0.01)
    values = 2.0 + np.array([0.0, 0.01, 0.4, -0.01, 0.39, 0.0, 0.7])
    rest = [0.0, 0.01, 0.0, -0.01, -0.01, 0.0, 0.3]
    assert mixture.residuals(values) == pytest.approx(rest)
    usual_rare = 2.0 + np.array([0.4, 0.4, 0.4, 0.41, 0.0])
    assert mixture.residuals(usual_rare) == pytest.approx([0.0, 0.0, 0.0, 0.01, 0.0])
    assert FLOOR < mixture.families(0.02)[0].scales[0] < 1.0 and FAR < 0.1
    assert len(likelihoods(tables(values, mixture.families(0.01)), 0, 7).places) == 1
