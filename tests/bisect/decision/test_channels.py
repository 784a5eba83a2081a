"""Channels: further metrics of the same launches say where to look, and no more."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from perfbisect.bisect.decision.beliefs import prior_weights
from perfbisect.bisect.decision.channels import TOGETHER, weigh
from perfbisect.bisect.decision.model import Measured, Plan
from perfbisect.bisect.decision.noise import launches
from perfbisect.bisect.decision.state import SearchState
from perfbisect.model.metric import METRICS
from perfbisect.stats.two_sample import Scale
from scripts.calibrate import CLAIMS, WORLDS, play

N = 8
COUNT, NOISY = METRICS["kv_cache_tokens"], METRICS["output_throughput"]


def seen(values, sign=1):
    """Launches of (position, value)."""
    events = tuple(Measured(index, "search", (value,)) for index, value in values)
    return launches(events, Scale(sign))


def share(weights, first, last):
    return float(weights[first : last + 1].sum() / weights.sum())


def test_an_exact_channel_gives_half_to_where_it_moved_and_the_rest_to_the_prior():
    own = seen([(0, 1000.0), (8, 1100.0), (4, 1000.0), (6, 1100.0)])
    weights, gaps = weigh(COUNT, own, own, prior_weights(N, None))
    assert gaps == ((4, 6),)
    # A quarter of the prior lies in that gap.
    assert share(weights, 5, 6) == pytest.approx(TOGETHER + (1 - TOGETHER) / 4)
    assert share(weights, 1, 4) == pytest.approx((1 - TOGETHER) / 2)


def test_several_moves_of_a_count_share_what_it_says_by_the_prior():
    own = seen([(0, 1000.0), (2, 1100.0), (4, 1100.0), (8, 1200.0)])
    prior = prior_weights(N, (0.0, *(1.0,) * 4, *(3.0,) * 4))
    weights, gaps = weigh(COUNT, own, own, prior)
    assert gaps == ((0, 2), (4, 8))
    assert share(weights, 5, 8) / share(weights, 1, 2) == pytest.approx(
        share(prior, 5, 8) / share(prior, 1, 2)
    )


@pytest.mark.parametrize(
    "values",
    [
        [(0, 1000.0), (8, 1000.0), (4, 1000.0)],
        [(0, 1000.0), (8, 1100.0), (8, 1000.0)],
        [],
    ],
    ids=["it never moved", "two launches of one position differ", "it was not reported"],
)
def test_a_count_that_tells_no_place_changes_nothing(values):
    prior = prior_weights(N, None)
    weights, gaps = weigh(COUNT, seen(values), seen(values), prior)
    assert gaps == () and np.array_equal(weights, prior)


def noisy(rng, step_at, common, beside=0.0, step=0.05, noise=0.01):
    """Launches of positions 0, 2, ... 8, four each, by the searched metric and by a channel."""
    index = np.repeat(np.arange(0, N + 1, 2), 4)
    y, z = rng.normal(0, noise, (2, len(index)))
    z = math.sqrt(common) * y + math.sqrt(1 - common) * z + step * (index >= step_at) + beside
    both = (seen(zip(map(int, index), 100 * np.exp(v), strict=True)) for v in (y + step * (index >= 5), z))
    return tuple(both)


@pytest.mark.parametrize("direction", [1, -1])
def test_a_channel_with_noise_points_at_its_own_step_in_either_direction(direction):
    data, own = noisy(np.random.default_rng(3), step_at=5, common=0.0)
    own = tuple(replace(x, center=direction * x.center) for x in own)
    weights, gaps = weigh(NOISY, own, data, prior_weights(N, None))
    assert gaps == ()
    assert share(weights, 5, 6) > 0.5
    assert min(weights[1:]) >= (1 - TOGETHER) / N


def test_a_channel_that_repeats_the_searched_metric_tells_nothing_more():
    data, _ = noisy(np.random.default_rng(4), step_at=5, common=0.0)
    weights, _ = weigh(NOISY, data, data, prior_weights(N, None))
    assert share(weights, 5, 6) < 0.3


def test_the_noise_of_channels_is_judged_once_positions_were_repeated():
    data = seen([(0, 100.0), (8, 110.0), (4, 100.0), (6, 110.0)])
    prior = prior_weights(N, None)
    assert np.array_equal(weigh(NOISY, data, data, prior)[0], prior)


def event(index, value, count):
    return Measured(index, "search", (value,), channels=((count,) if count else (),))


@pytest.mark.parametrize("missing", [None, 0.0, math.nan])
def test_a_channel_that_a_launch_does_not_report_is_left_out(missing):
    plan = Plan(n=N, channels=(COUNT,))
    whole = tuple(event(i, 100.0 + i, 1000.0 if i < 5 else 900.0) for i in (0, 8, 4, 6))
    with_it = SearchState.from_events(plan, whole).posterior((0, N))
    without = SearchState.from_events(plan, (*whole[:3], event(6, 106.0, missing))).posterior((0, N))
    plain = SearchState.from_events(Plan(n=N), whole).posterior((0, N))
    assert with_it.splits == ((4, 6),) and without.splits == ()
    assert np.array_equal(without.p, plain.p)
    assert with_it.p[5:7].sum() > plain.p[5:7].sum()


def test_a_part_of_the_range_takes_what_a_channel_says_within_it():
    plan = Plan(n=N, channels=(COUNT,))
    whole = tuple(event(i, 100.0, count) for i, count in ((0, 1.0), (8, 3.0), (4, 2.0), (6, 3.0), (2, 2.0)))
    state = SearchState.from_events(plan, whole)
    assert state.posterior((0, N)).splits == ((0, 2), (4, 6))
    assert state.posterior((0, 4)).splits == ((0, 2),)


@pytest.mark.processes
def test_a_small_step_is_found_sooner_with_a_second_metric():
    names = ("quiet, step 2 %", "quiet, step 2 %; a count moves with it alone")
    pairs = [[play(WORLDS[name], seed) for name in names] for seed in range(6)]
    assert all(with_channel.right for _, with_channel in pairs)
    assert sum(with_channel.gpu for _, with_channel in pairs) < 0.9 * sum(alone.gpu for alone, _ in pairs)


@pytest.mark.processes
def test_a_count_that_moves_elsewhere_does_not_name_the_change():
    ends = [play(WORLDS["quiet, step 2 %; a count moves with three others"], seed) for seed in range(3)]
    assert all(end.word not in CLAIMS or end.held for end in ends)
