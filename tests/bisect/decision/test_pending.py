"""What a launch tells beside those under way: against sums over every answer, written out."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from perfbisect.bisect.decision.beliefs import prior_weights
from perfbisect.bisect.decision.model import Measured
from perfbisect.bisect.decision.noise import launches
from perfbisect.bisect.decision.posterior import compute_posterior
from perfbisect.bisect.decision.probe import between, left_over, probe
from perfbisect.bisect.decision.state import observed_prices
from tests.bisect.decision.test_prices import PLAN


def range_posterior(n=12, step=0.2, noise=0.02):
    values = {0: (100.0, 100 * (1 + noise)), n: (100 * (1 + step), 100 * (1 + step + noise))}
    events = tuple(Measured(i, "end", values[i]) for i in (0, n, n, 0))
    return compute_posterior(launches(events, 1), prior_weights(n, None), 0.02)


def bits(p_yes_given_world, worlds):
    """Mutual information (nats) of a yes-or-no answer and the world."""

    def h(p):
        return -sum(x * math.log(x) for x in (p, 1 - p) if x > 0)

    total = sum(worlds)
    yes = sum(w * p for w, p in zip(worlds, p_yes_given_world, strict=True)) / total
    noise = sum(w * h(p) for w, p in zip(worlds, p_yes_given_world, strict=True)) / total
    return h(yes) - noise


@pytest.mark.parametrize("pending", [((6, 1),), ((6, 1), (3, 2)), ((4, 1), (6, 1), (6, 3))])
@pytest.mark.parametrize("noise", [0.002, 0.05, 0.12])
def test_the_share_is_that_of_every_answer_summed(pending, noise):
    posterior = range_posterior(noise=noise)
    n = len(posterior.p) - 1
    worlds = [posterior.none, *posterior.p[1:]]
    size = float(
        np.interp(
            0.5,
            (np.cumsum(posterior.step_weight) - posterior.step_weight / 2) / posterior.step_weight.sum(),
            posterior.step,
        )
    )

    def wrong(runs):
        scale = math.sqrt(posterior.tau**2 + posterior.sigma**2 / runs)
        return max(1e-6, 0.5 * math.erfc(size / scale / 2 / math.sqrt(2)))

    def says(index, runs):
        e = wrong(runs)
        return [0.5, *(1 - e if culprit <= index else e for culprit in range(1, n + 1))]

    where = (1, 3, 5, 6, 9, n)
    told = left_over(posterior, pending, where, 1)
    for index, share in zip(where, told, strict=True):
        expected = 0.0
        for answers in itertools.product((True, False), repeat=len(pending)):
            left = list(worlds)
            for (position, runs), answer in zip(pending, answers, strict=True):
                yes = says(position, runs)
                left = [w * (p if answer else 1 - p) for w, p in zip(left, yes, strict=True)]
            expected += sum(left) * bits(says(index, 1), left)
        alone = bits(says(index, 1), worlds)
        assert share == pytest.approx(expected / alone, abs=2e-3)


def test_nothing_under_way_takes_nothing():
    posterior = range_posterior()
    assert left_over(posterior, (), (1, 2), 1).tolist() == [1.0, 1.0]
    prices = observed_prices(PLAN, ())
    assert probe(posterior, prices, frozenset(), 6) == probe(posterior, prices, frozenset(), 6, ())
    assert probe(posterior, prices, frozenset(), 6).share == 1.0


def test_medians_between_cuts():
    posterior = range_posterior(n=32)
    assert between(posterior, (), frozenset()) == (16,)
    assert between(posterior, ((16, 1),), frozenset()) == (8, 24)
    assert between(posterior, ((16, 1), (8, 1)), frozenset({4, 24})) == (3, 12, 23)
    assert between(posterior, ((1, 1), (31, 1)), frozenset(range(2, 31))) == ()
    assert between(range_posterior(n=1), (), frozenset()) == ()
