"""Probes: information against its closed form, prices, and what skips do to the choice."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate
from scipy import stats as scipy_stats

from perfbisect.bisect.decision.beliefs import prior_weights
from perfbisect.bisect.decision.model import Plan
from perfbisect.bisect.decision.noise import LaunchEstimate
from perfbisect.bisect.decision.posterior import compute_posterior
from perfbisect.bisect.decision.probe import candidates, information, probe, testable
from perfbisect.bisect.decision.state import observed_prices
from perfbisect.model.attempt import Costs

testable.__test__ = False


def posterior(n=16, step=0.3, noise=0.004, extra=(), prior=None, rounds=4):
    rng = np.random.default_rng(3)
    where = [0, n, n, 0] * rounds + list(extra)
    data = tuple(
        LaunchEstimate(i, "search", step * (i >= n // 2) + float(rng.normal(0, noise)), 1, (0.0,))
        for i in where
    )
    return compute_posterior(data, prior_weights(n, prior), 0.02)


def entropy(q):
    return -sum(x * math.log2(x) for x in (q, 1 - q) if x > 0)


def test_a_sharp_launch_tells_on_which_side_it_lies():
    known = posterior()
    bits = information(known, (4, 8, 12), 1e-6)
    assert bits == pytest.approx([entropy(4 / 16), 1.0, entropy(12 / 16)], abs=0.02)


def test_a_blunt_launch_tells_the_mutual_information_of_two_gaussians():
    known = posterior(rounds=30)
    low, high = float(known.low[0][0]), float(known.high[0][0])
    variance = 0.2**2
    sd = math.sqrt(variance)

    def mixed(y):
        return 0.5 * (scipy_stats.norm.pdf(y, low, sd) + scipy_stats.norm.pdf(y, high, sd))

    own = math.log2(sd * math.sqrt(2 * math.pi * math.e))
    whole = integrate.quad(lambda y: -mixed(y) * math.log2(mixed(y)), low - 8 * sd, high + 8 * sd)[0]
    assert information(known, (8,), variance)[0] == pytest.approx(whole - own, abs=0.01)


def test_without_noise_it_bisects():
    known = posterior()
    plan = Plan(n=16)
    assert probe(known, observed_prices(plan, ()), frozenset(), 6).index == 8


def test_a_prior_moves_the_probe_to_its_middle():
    weights = tuple(10.0 if i in (13, 14) else 0.01 for i in range(17))
    known = posterior(prior=weights)
    assert probe(known, observed_prices(Plan(n=16), ()), frozenset(), 6).index == 13


def test_builds_that_cost_much_are_avoided():
    plan = Plan(n=16, costs=Costs(build=200, launch=1, run=1), cached=frozenset({5}))
    assert probe(posterior(), observed_prices(plan, ()), frozenset(), 6).index == 5


def test_runs_are_added_where_they_are_cheap_and_needed():
    cheap = observed_prices(Plan(n=16, costs=Costs(4, 30, 0.1)), ())
    noisy = posterior(step=0.1, noise=0.03, rounds=8)
    spread = tuple(
        LaunchEstimate(i, "search", 0.1 * (i > 7), 4, (-0.06, -0.01, 0.02, 0.05))
        for i in (0, 16, 16, 0, 0, 16, 16, 0)
    )
    runs = compute_posterior(spread, prior_weights(16, None), 0.02)
    assert runs.sigma > 3 * runs.tau
    assert probe(runs, cheap, frozenset(), 6).runs == 6
    dear = observed_prices(Plan(n=16, costs=Costs(0.1, 0.1, 30)), ())
    assert probe(noisy, dear, frozenset(), 6).runs == 1


def test_skips_are_no_candidates_and_their_neighbours_doubtful():
    skips = frozenset(range(6, 11))
    known = posterior()
    assert not set(candidates(known, skips)) & skips
    assert probe(known, observed_prices(Plan(n=16), ()), skips, 6).index in {4, 5, 11, 12}
    assert testable(5, frozenset(), skips, 2) < testable(2, frozenset(), skips, 2) < 1
    assert testable(5, frozenset({5}), skips, 2) == 1
    assert testable(5, frozenset(), frozenset(), 50) > testable(5, frozenset(), frozenset(), 0) > 0.9
