"""The posterior against an integration written from docs/method alone, and what must not change it."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfbisect.bisect.decision.beliefs import (
    distinguishable_sets,
    leading,
    nearest,
    prior_weights,
)
from perfbisect.bisect.decision.model import USUAL_NOISE, Measured, NoisePrior
from perfbisect.bisect.decision.noise import LaunchEstimate, launches
from perfbisect.bisect.decision.posterior import compute_posterior
from perfbisect.stats.two_sample import Scale
from tests.long import mostly_long

MIN_EFFECT = 0.02


def brute_force(events, weights, min_effect=MIN_EFFECT, noise=USUAL_NOISE):
    """P(culprit = c) for c = 1..n and P(no change), by plain sums over sigma, tau, level and step.

    At most two runs a launch: the centre is the mean, the spread one difference of sd sqrt(2) sigma.
    """
    n = len(weights) - 1

    def log_density(z):
        gauss = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
        # Student's t of three degrees of freedom, three times as wide.
        far = 2 / (math.sqrt(3) * math.pi) / (1 + (z / 3) ** 2 / 3) ** 2 / 3
        return np.log(0.9 * gauss + 0.1 * far)

    least = math.log1p(min_effect)
    delta = np.exp(np.linspace(math.log(least), math.log(math.log(12.0)), 420))
    density = np.zeros_like(delta)
    parts = ((0.3, least, math.log(1.5)), (0.5, 2 * least, math.log(1.5)), (0.2, least, math.log(12)))
    for weight, low, high in parts:
        density += weight * ((delta >= low) & (delta <= high)) / (delta * math.log(high / low))
    d_width = np.gradient(delta)
    found = np.zeros(n + 1)
    centers = [float(np.mean(np.log(e.values))) for e in events]
    for sigma, tau in product(0.00125 * 2.0 ** np.arange(9), 0.002 * 2.0 ** np.arange(8)):
        common = -0.5 * (math.log(sigma / noise.runs) / 1.1) ** 2
        common -= 0.5 * (math.log(tau / noise.launches) / 0.9) ** 2
        scale = []
        for e in events:
            scale.append(math.sqrt(tau**2 + sigma**2 / len(e.values)))
            if len(e.values) == 2:
                gap = math.log(e.values[0]) - math.log(e.values[1])
                # The density of the difference, its factor sqrt(2) left out in every term alike.
                common += log_density(gap / (math.sqrt(2) * sigma)) - math.log(sigma)
        wide = 7 * max(scale)
        m = np.linspace(min(centers) - wide, max(centers) + wide, 420)
        m_width = m[1] - m[0]
        after = m[:, None] + delta[None, :]
        before = [np.zeros_like(m) for _ in range(n + 1)]  # of what was measured at each position
        behind = [np.zeros_like(after) for _ in range(n + 1)]
        for e, c, s in zip(events, centers, scale, strict=True):
            before[e.index] += log_density((c - m) / s) - math.log(s)
            if e.index > 0:  # position 0 is never behind the step
                behind[e.index] += log_density((c - after) / s) - math.log(s)
        found[0] += 0.25 * math.exp(common) * np.exp(sum(before)).sum() * m_width
        for c in range(1, n + 1):
            left = np.exp(sum(before[:c]))
            right = (np.exp(sum(behind[c:])) * density * d_width).sum(1)
            found[c] += 0.75 * weights[c] * math.exp(common) * (left * right).sum() * m_width
    return found / found.sum()


CASES = {
    "clear": [(0, (100, 103)), (3, (121, 118)), (1, (101,)), (3, (124,))],
    "doubtful": [(0, (100, 104)), (3, (105, 110)), (3, (103, 107)), (0, (101, 98)), (2, (104, 102))],
    "nothing": [(0, (100, 99)), (3, (100.5, 99.5)), (3, (98, 101)), (0, (101, 100))],
    "contaminated": [(0, (100, 101)), (3, (110, 111)), (2, (140,)), (1, (99,)), (1, (130,)), (2, (111,))],
}


@pytest.mark.parametrize("noise", [USUAL_NOISE, NoisePrior(0.1, 0.1)], ids=["usual", "wide"])
@pytest.mark.parametrize("name", mostly_long(CASES, short=["doubtful"]))
def test_agrees_with_brute_force(name, noise):
    events = tuple(Measured(i, "search", tuple(float(v) for v in values)) for i, values in CASES[name])
    weights = prior_weights(3, (0, 1, 2, 1))
    posterior = compute_posterior(launches(events, Scale()), weights, MIN_EFFECT, prior=noise)
    expected = brute_force(events, weights, noise=noise)
    assert posterior.none == pytest.approx(expected[0], abs=0.012)
    assert posterior.p[1:] == pytest.approx(expected[1:], abs=0.012)


def test_a_step_is_measured_whatever_its_size():
    for step, noise in ((0.05, 0.004), (0.6, 0.005), (math.log(9.5), 0.005), (0.5, 0.1)):
        rng = np.random.default_rng(7)
        level = (0.0, 0.0, step, step)
        data = tuple(
            LaunchEstimate(i, "search", level[i] + float(rng.normal(0, noise)), 1, (0.0,))
            for i in (0, 3, 3, 0, 1, 2, 1, 2)
        )
        posterior = compute_posterior(data, prior_weights(3, None), MIN_EFFECT)
        mean = float(posterior.step @ posterior.step_weight / posterior.step_weight.sum())
        assert mean == pytest.approx(step, abs=3 * noise)
        assert np.argmax(posterior.p) == 2
        assert posterior.p[2] > 0.9
        levels = posterior.levels_of(np.array([2]))[0][0]
        assert float(levels[len(posterior.gaps) + 1] - levels[1]) == pytest.approx(step, abs=3 * noise)


def test_a_wide_prior_takes_two_launches_for_less():
    """Medians of TTFP on two busy processors; each end was launched once."""
    medians = {0: 195.5, 4: 258.0}
    data = tuple(LaunchEstimate(i, "end", math.log(ms), 1, (0.0,)) for i, ms in medians.items())
    usual, wide = (
        compute_posterior(data, prior_weights(4, None), MIN_EFFECT, prior=noise).none
        for noise in (USUAL_NOISE, NoisePrior(0.1, 0.1))
    )
    assert usual < wide


def test_an_improvement_is_no_regression():
    data = tuple(LaunchEstimate(i, "end", -0.1 * (i > 0), 1, (0.0,)) for i in (0, 4, 4, 0, 0, 4, 4, 0))
    assert compute_posterior(data, prior_weights(4, None), MIN_EFFECT).none > 0.95


def test_unmeasured_neighbours_share_by_prior():
    data = tuple(LaunchEstimate(i, "end", 0.2 * (i > 0), 1, (0.0,)) for i in (0, 4, 4, 0, 4, 0))
    posterior = compute_posterior(data, prior_weights(4, (0, 1, 2, 3, 4)), MIN_EFFECT)
    mixed = 0.9 * np.array([1, 2, 3, 4]) / 10 + 0.1 / 4
    assert posterior.p[1:] == pytest.approx((1 - posterior.none) * mixed)
    assert posterior.p[0] == 0


def test_a_span_asks_about_its_own_positions():
    data = tuple(
        LaunchEstimate(i, "search", 0.1 * (i >= 2) + 0.3 * (i >= 5), 1, (0.0,)) for i in (0, 6, 3, 3, 0, 1, 2)
    )
    posterior = compute_posterior(data, prior_weights(6, None), MIN_EFFECT, span=(0, 3))
    assert posterior.p[4:] == pytest.approx(0)
    assert np.argmax(posterior.p) == 2


def test_both_ends_are_needed():
    with pytest.raises(ValueError, match="must both have been measured"):
        compute_posterior((LaunchEstimate(0, "end", 0.0, 1, (0.0,)),), prior_weights(3, None), MIN_EFFECT)


@pytest.mark.parametrize("bad", [(1.0, 1.0), (0, 1, -1, 1), (0, 1, math.nan, 1)])
def test_a_prior_is_one_weight_a_position(bad):
    with pytest.raises(ValueError, match="a prior is 4 weights"):
        prior_weights(3, bad)


def test_a_prior_excludes_nothing():
    assert prior_weights(4, (9, 0, 0, 0, 1))[1:] == pytest.approx([0.025, 0.025, 0.025, 0.925])
    assert prior_weights(4, (1, 0, 0, 0, 0))[1:] == pytest.approx([0.25] * 4)
    assert prior_weights(4, None)[0] == 0


@st.composite
def histories(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    n = draw(st.integers(1, 8))
    count = draw(st.integers(0, 8))
    noise = draw(st.sampled_from([0.005, 0.03, 0.15]))
    where = [0, n, n, 0, *(int(i) for i in rng.integers(0, n + 1, count))]
    step = draw(st.sampled_from([0.0, 0.05, 0.7]))
    return n, [
        Measured(
            i, "search", tuple(np.exp(4 + step * (2 * i > n) + rng.normal(0, noise, rng.integers(1, 7))))
        )
        for i in where
    ]


@settings(max_examples=40, deadline=None)
@given(histories(), st.randoms(use_true_random=False), st.floats(0.01, 1000))
def test_order_units_and_direction_do_not_matter(history, random, factor):
    n, events = history
    weights = prior_weights(n, None)
    posterior = compute_posterior(launches(tuple(events), Scale()), weights, MIN_EFFECT)
    assert posterior.p.sum() + posterior.none == pytest.approx(1)
    shuffled = list(events)
    random.shuffle(shuffled)
    flipped = [Measured(e.index, e.purpose, tuple(1 / v for v in e.values)) for e in events]
    scaled = [Measured(e.index, e.purpose, tuple(factor * v for v in e.values)) for e in events]
    for other, sign in ((shuffled, 1), (flipped, -1), (scaled, 1)):
        same = compute_posterior(launches(tuple(other), Scale(sign)), weights, MIN_EFFECT)
        assert same.p == pytest.approx(posterior.p, abs=1e-6)
        assert same.none == pytest.approx(posterior.none, abs=1e-6)
        assert (same.sigma, same.tau) == pytest.approx((posterior.sigma, posterior.tau), rel=1e-5)


@pytest.mark.parametrize("values", [(), (1.0, 0.0), (-1.0,), (math.nan,), (math.inf, 1.0)])
def test_values_are_positive_and_finite(values):
    with pytest.raises(ValueError, match="position 3: values must be positive and finite"):
        launches((Measured(3, "search", values),), Scale())


def test_the_leading_set_adds_up_its_members():
    p = np.array([0, 0.3, 0.2, 0.2, 0.1, 0.2])
    assert leading(p, frozenset())[:2] == (1, 1)
    first, last, mass = leading(p, frozenset({2, 3}))
    assert (first, last) == (2, 4)
    assert abs(mass - 0.5) < 1e-12


def test_the_nearest_testable_position():
    assert nearest(5, 0, 10, frozenset()) == 5
    assert nearest(5, 0, 10, frozenset({5})) == 4
    assert nearest(5, 0, 10, frozenset({4, 5, 3})) == 6
    assert nearest(1, 0, 3, frozenset({1, 2})) is None


@given(st.integers(1, 40), st.sets(st.integers(1, 39)))
def test_sets_cover_every_candidate_once(n, skips):
    skips = frozenset(s for s in skips if s < n)
    groups = distinguishable_sets(n, skips)
    assert [i for first, last in groups for i in range(first, last + 1)] == list(range(1, n + 1))
    assert all(last not in skips and (first - 1) not in skips for first, last in groups)
