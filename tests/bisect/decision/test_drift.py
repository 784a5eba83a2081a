"""A drift of the machine: that it is seen, and when it is left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfbisect.bisect.decision.beliefs import prior_weights
from perfbisect.bisect.decision.confirm import EffectPrior, log_ratio
from perfbisect.bisect.decision.noise import LaunchEstimate, WeightedNoise
from perfbisect.bisect.decision.posterior import compute_posterior


def history(drift, seed=0, step=0.03, count=60, n=16):
    """Launches of both ends and of the middle positions in turn, six minutes apart."""
    rng = np.random.default_rng(seed)
    where = [(0, n, n, 0, 5, 8, 7, 10)[k % 8] for k in range(count)]
    path = drift * np.sin(np.arange(count) / 12.0 + seed)
    return tuple(
        LaunchEstimate(
            i, "search", step * (i >= 8) + path[k] + float(rng.normal(0, 0.008)), 1, (0.0,), at=6.0 * k
        )
        for k, i in enumerate(where)
    )


def test_a_drift_is_seen_and_the_step_found_through_it():
    sure = 0
    for seed in range(8):
        posterior = compute_posterior(history(0.05, seed), prior_weights(16, None), 0.02)
        assert posterior.drift > 0.01
        assert np.argmax(posterior.p) == 8
        assert posterior.p.sum() + posterior.none == pytest.approx(1)
        steps = float(posterior.step @ posterior.step_weight / posterior.step_weight.sum())
        assert steps == pytest.approx(0.03, abs=0.01)
        sure += posterior.p[8] > 0.95
    assert sure >= 4


def test_where_no_drift_is_shown_time_does_not_matter():
    unseen, rng = 0, np.random.default_rng(0)
    for seed in range(8):
        data = history(0.0, seed)
        posterior = compute_posterior(data, prior_weights(16, None), 0.02)
        assert posterior.p[8] > 0.99
        if not posterior.drift:
            hours = rng.permutation([x.at for x in data])
            reordered = tuple(replace(x, at=float(at)) for x, at in zip(data, hours, strict=True))
            still = compute_posterior(reordered, prior_weights(16, None), 0.02)
            assert posterior.p == pytest.approx(still.p)
            assert posterior.tau == still.tau
            unseen += 1
    assert unseen >= 6


def test_an_a_b_under_drift_compares_within_pairs():
    look = EffectPrior(
        np.array([0.05]), np.ones(1), WeightedNoise(np.array([0.01]), np.array([0.01]), np.ones(1)), 0.03
    )
    away = (0.0, 0.3, -0.2)
    parent = [LaunchEstimate(3, "confirm", x, 1, (0.0,), at=12.0 * k) for k, x in enumerate(away)]
    culprit = [LaunchEstimate(4, "confirm", x + 0.05, 1, (0.0,), at=12.0 * k + 6) for k, x in enumerate(away)]
    once = log_ratio(parent[:1], culprit[:1], look)
    assert log_ratio(parent, culprit, look) == pytest.approx(3 * once, rel=1e-3)
    assert log_ratio(parent, culprit, replace(look, drift=0.0)) < 2 * once
