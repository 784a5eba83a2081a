"""Probes: information against its closed form, prices, launches under way, skips."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import integrate
from scipy import stats as scipy_stats

from perfbisect.bisect.decision.beliefs import prior_weights
from perfbisect.bisect.decision.model import Lost, Measured, Plan, Skipped, Visit
from perfbisect.bisect.decision.noise import LaunchEstimate, launches
from perfbisect.bisect.decision.posterior import compute_posterior
from perfbisect.bisect.decision.probe import between, candidates, information, left_over, probe, testable
from perfbisect.bisect.decision.state import observed_prices
from perfbisect.model.attempt import Costs
from perfbisect.stats.two_sample import Scale

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
    bits = information(known, (4, 8, 12), (1e-6,))[0]
    assert bits == pytest.approx([entropy(4 / 16), 1.0, entropy(12 / 16)], abs=0.02)


def test_a_blunt_launch_tells_the_mutual_information_of_two_gaussians():
    known = posterior(rounds=30)
    low, high = known.levels_of(np.array([0]))[0][0][:2]
    variance = 0.2**2
    sd = math.sqrt(variance)

    def mixed(y):
        return 0.5 * (scipy_stats.norm.pdf(y, low, sd) + scipy_stats.norm.pdf(y, high, sd))

    own = math.log2(sd * math.sqrt(2 * math.pi * math.e))
    whole = integrate.quad(lambda y: -mixed(y) * math.log2(mixed(y)), low - 8 * sd, high + 8 * sd)[0]
    assert information(known, (8,), (variance,))[0, 0] == pytest.approx(whole - own, abs=0.01)


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


PLAN = Plan(n=8, costs=Costs(build=10, launch=5, run=2), cached=frozenset({3}))


def test_before_anything_is_seen_the_plan_prices():
    prices = observed_prices(PLAN, ())
    assert prices.visit(1, 2) == 10 + 5 + 4
    assert prices.visit(3, 1) == 7
    assert prices.spent == 0


def test_then_medians_of_what_was_seen():
    events = (
        Measured(0, "end", (1.0, 1.0), build=2.0, launch=1.0, run=3.0),
        Measured(8, "end", (1.0, 1.0), build=4.0, launch=2.0, run=1.0),
        Measured(8, "end", (1.0,), build=0.0, launch=9.0, run=1.0),
        Skipped(5, "search", minutes=6.5),
        Lost(minutes=30.0),
    )
    prices = observed_prices(PLAN, events)
    assert prices.costs == Costs(3.0, 2.0, 1.0)
    assert prices.spent == 6 + 7 + 10 + 6.5 + 30
    assert prices.visit(1, 4) == 3 + 2 + 4
    assert prices.visit(5, 1) == prices.visit(8, 1) == prices.visit(3, 1) == 3.0


def test_what_a_machine_of_a_fleet_has_is_not_brought_there_again():
    events = (
        Measured(0, "end", (1.0,), build=3.0, launch=1.0, run=1.0, machine="a", bring=4.0),
        Measured(8, "end", (1.0,), build=3.0, launch=1.0, run=1.0, machine="b", bring=2.0),
        Measured(8, "end", (1.0,), launch=1.0, run=1.0, machine="b"),
    )
    prices = observed_prices(PLAN, events)
    assert (prices.bring, prices.spent) == (3.0, 9 + 7 + 2)
    assert prices.visit(8, 1) == 2.0, "of no machine"
    on_b = replace(prices, machine="b")
    assert (on_b.visit(8, 1), on_b.visit(0, 1), on_b.visit(5, 1)) == (2.0, 5.0, 8.0)


def test_a_machine_measures_what_it_has_where_bringing_costs_much():
    prices = observed_prices(Plan(n=16, costs=Costs(build=0, launch=1, run=1)), ())
    dear = replace(prices, bring=200.0, machine="a", there=frozenset({("a", 5)}))
    assert probe(posterior(), dear, frozenset(), 6).index == 5
    assert probe(posterior(), replace(dear, machine="b"), frozenset(), 6).index == 8


def test_free_things_do_not_divide_by_zero():
    prices = observed_prices(Plan(n=2, costs=Costs(0, 0, 0)), ())
    assert prices.visit(1, 1) > 0
    assert prices.best_runs(0.02, 0.01, 6) == 2


@pytest.mark.parametrize(("launch", "run"), [(3.0, 1.5), (20.0, 1.0), (0.5, 2.0)])
@pytest.mark.parametrize(("sigma", "tau"), [(0.01, 0.015), (0.04, 0.01), (0.1, 0.021)])
def test_the_best_number_of_runs_is_the_cheapest_precision(launch, run, sigma, tau):
    prices = observed_prices(Plan(n=2, costs=Costs(4.0, launch, run)), ())
    r = np.arange(0.2, 80, 0.001)
    exact = r[np.argmin((launch + r * run) * (tau**2 + sigma**2 / r))]
    assert prices.best_runs(sigma, tau, 60) == max(1, round(exact))
    assert prices.best_runs(sigma, tau, 2) <= 2


def range_posterior(n=12, step=0.2, noise=0.02):
    values = {0: (100.0, 100 * (1 + noise)), n: (100 * (1 + step), 100 * (1 + step + noise))}
    events = tuple(Measured(i, "end", values[i]) for i in (0, n, n, 0))
    return compute_posterior(launches(events, Scale()), prior_weights(n, None), 0.02)


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
    told = left_over(posterior, visits(*pending), where, 1)
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


def visits(*launches):
    return [Visit(index, "search", runs) for index, runs in launches]


def test_medians_between_cuts():
    posterior = range_posterior(n=32)
    assert between(posterior, (), frozenset()) == (16,)
    assert between(posterior, visits((16, 1)), frozenset()) == (8, 24)
    assert between(posterior, visits((16, 1), (8, 1)), frozenset({4, 24})) == (3, 12, 23)
    assert between(posterior, visits((1, 1), (31, 1)), frozenset(range(2, 31))) == ()
    assert between(range_posterior(n=1), (), frozenset()) == ()
