"""The comparison: known answers, symmetries, and its promises in worlds whose truth is known."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfbisect.stats.ab_test import (
    BLOCK_SIZE,
    BOTH,
    EARLY,
    AbLaunch,
    AbTest,
    AbVerdict,
    Side,
    forecast_blocks,
    judge_blocks,
    judge_samples,
    next_side,
    side_of_launch,
)
from perfbisect.stats.robust import quantiles
from perfbisect.stats.sequential import tail_mass
from perfbisect.stats.two_sample import LaunchNoise, difference_posterior

Bench = Callable[[Side], float]


def block_order(question: AbTest, block: int) -> tuple[Side, ...]:
    return tuple(side_of_launch(question, BLOCK_SIZE * block + place) for place in range(BLOCK_SIZE))


def bench(seed: int, effect: float, noise: float, drift: float = 0.0) -> Bench:
    """Launches of a machine: B is ``effect`` slower, each launch is off by ``noise``, all ``drift``."""
    rng = np.random.default_rng([seed, 11])
    wander = 0.0

    def launch(side: Side) -> float:
        nonlocal wander
        wander += drift * rng.normal()
        step = math.log1p(effect) if side == "b" else 0.0
        return float(50.0 * math.exp(step + wander + noise * rng.normal()))

    return launch


def settle(question: AbTest, launch: Bench) -> tuple[AbVerdict, list[AbLaunch]]:
    seen: list[AbLaunch] = []
    while (side := next_side(question, seen)) is not None:
        seen.append(AbLaunch(side, (launch(side),)))
    return judge_blocks(question, seen), seen


def words(count: int, effect: float, noise: float, question: AbTest | None = None) -> Counter[str]:
    asked = question or AbTest()
    verdicts = [settle(asked, bench(seed, effect, noise))[0] for seed in range(count)]
    held = sum(v.low <= effect <= v.high for v in verdicts)
    assert held >= 0.9 * count
    return Counter(v.word for v in verdicts)


def test_equal_sides_are_the_same() -> None:
    told = words(20, 0.0, 0.02)
    assert told["same"] >= 15
    assert told["regression"] + told["improvement"] <= 1


def test_a_step_is_seen() -> None:
    assert words(20, 0.06, 0.02)["regression"] == 20
    assert words(20, -0.06, 0.02)["improvement"] == 20


def test_a_difference_needs_more_than_an_interval_without_zero() -> None:
    """Equal sides are called different less often than the interval misses the effect."""
    question = AbTest()
    looks = []
    for seed in range(10):
        _, seen = settle(question, bench(seed, 0.05, 0.03))
        looks += [
            judge_blocks(question, seen[:count]) for count in range(BLOCK_SIZE, len(seen) + 1, BLOCK_SIZE)
        ]
    words_without_zero = {verdict.word for verdict in looks if verdict.low > 0}
    assert words_without_zero == {"regression", "inconclusive"}
    assert all(verdict.low > 0 for verdict in looks if verdict.word == "regression")


def test_noise_too_large_is_inconclusive_and_says_what_more_would_cost() -> None:
    verdict, seen = settle(AbTest(blocks=3), bench(1, 0.02, 0.15))
    assert verdict.word == "inconclusive"
    assert verdict.settled
    assert len(seen) == 3 * BLOCK_SIZE
    assert verdict.needed > 3


def test_a_drift_falls_on_both_sides() -> None:
    verdicts = [settle(AbTest(seed=s), bench(s, 0.0, 0.005, drift=0.004))[0] for s in range(15)]
    assert Counter(v.word for v in verdicts)["same"] >= 13


def test_nothing_is_said_before_a_whole_block() -> None:
    question = AbTest()
    first = block_order(question, 0)[0]
    verdict = judge_blocks(question, [AbLaunch(first, (3.0,))])
    assert verdict.word == "inconclusive"
    assert not verdict.settled
    assert math.isnan(verdict.effect)


BLOCKS = st.lists(st.lists(st.floats(-0.1, 0.1), min_size=4, max_size=4), min_size=1, max_size=3)


def seen_of(question: AbTest, blocks: list[list[float]], scale: float = 1.0) -> list[AbLaunch]:
    return [
        AbLaunch(side, (scale * math.exp(value),))
        for block, values in enumerate(blocks)
        for side, value in zip(block_order(question, block), values, strict=True)
    ]


@settings(max_examples=25, deadline=None)
@given(blocks=BLOCKS)
def test_the_metrics_direction_turns_the_word_and_nothing_else(blocks: list[list[float]]) -> None:
    lower, higher = AbTest(), AbTest(sign=-1)
    one, other = judge_blocks(lower, seen_of(lower, blocks)), judge_blocks(higher, seen_of(higher, blocks))
    assert (other.effect, other.low, other.high) == pytest.approx((one.effect, one.low, one.high), abs=1e-6)
    turned = {"regression": "improvement", "improvement": "regression"}
    assert other.word == turned.get(one.word, one.word)


@settings(max_examples=25, deadline=None)
@given(blocks=BLOCKS, scale=st.floats(1e-3, 1e6), sign=st.sampled_from([1, -1]))
def test_the_effect_is_the_ratio_of_the_sides(blocks: list[list[float]], scale: float, sign: int) -> None:
    question = AbTest(sign=sign)
    verdict = judge_blocks(question, seen_of(question, blocks, scale))
    assert verdict.b / verdict.a - 1 == pytest.approx(verdict.effect, abs=1e-9)
    assert 0.8 * scale < verdict.a < 1.25 * scale


@settings(max_examples=25, deadline=None)
@given(
    blocks=st.lists(
        st.lists(st.sampled_from([0.0, 0.0, 0.002, 0.1]), min_size=4, max_size=4), min_size=1, max_size=3
    )
)
def test_the_effect_on_a_share_is_the_difference_of_the_sides(blocks: list[list[float]]) -> None:
    question = AbTest(absolute=True)
    seen = [
        AbLaunch(side, (value,))
        for block, values in enumerate(blocks)
        for side, value in zip(block_order(question, block), values, strict=True)
    ]
    verdict = judge_blocks(question, seen)
    assert verdict.b - verdict.a == pytest.approx(verdict.effect, abs=1e-12)
    assert verdict.a >= 0 and verdict.b >= 0


def test_a_contaminated_run_does_not_move_its_launch() -> None:
    question = AbTest()
    sides = block_order(question, 0)
    plain = judge_blocks(question, [AbLaunch(side, (1.0, 1.01, 1.02)) for side in sides])
    hit = judge_blocks(
        question, [AbLaunch(side, (1.0, 1.01, 1.4 if k == 0 else 1.02)) for k, side in enumerate(sides)]
    )
    assert (hit.effect, hit.low, hit.high) == pytest.approx((plain.effect, plain.low, plain.high))


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_value_that_is_none(value: float) -> None:
    with pytest.raises(ValueError, match="launch 1: values must be positive"):
        judge_blocks(AbTest(), [AbLaunch(block_order(AbTest(), 0)[0], (value,))])


def test_a_launch_out_of_turn() -> None:
    wrong: Side = "a" if block_order(AbTest(), 0)[0] == "b" else "b"
    with pytest.raises(ValueError, match="launch 1 must be of side"):
        judge_blocks(AbTest(), [AbLaunch(wrong, (1.0,))])


def test_shares_are_compared_by_their_difference() -> None:
    question = AbTest(sign=-1, min_effect=0.02, absolute=True, blocks=6)
    rng = np.random.default_rng(5)
    seen: list[AbLaunch] = []
    while (side := next_side(question, seen)) is not None:
        seen.append(AbLaunch(side, (float({"a": 0.503, "b": 0.313}[side] + 0.01 * rng.normal()),)))
    verdict = judge_blocks(question, seen)
    assert verdict.word == "regression"
    assert verdict.low < -0.19 < verdict.high


def test_shares_that_stay_at_nothing_are_the_same() -> None:
    question = AbTest(min_effect=0.005, absolute=True)
    seen: list[AbLaunch] = []
    while (side := next_side(question, seen)) is not None:
        seen.append(AbLaunch(side, (0.0,)))
    assert judge_blocks(question, seen).word == "same"
    assert len(seen) <= 3 * BLOCK_SIZE


def test_a_foreseen_comparison_takes_about_as_long_as_one_that_is_made() -> None:
    """The yardstick's noise: 1.5 % between launches, 2 % within."""
    noise = math.hypot(0.015, 0.02)
    made = sorted(len(settle(AbTest(), bench(seed, 0.0, noise))[1]) // BLOCK_SIZE for seed in range(15))
    told = forecast_blocks(AbTest(), noise)
    assert told is not None
    assert abs(told - made[7]) <= 2


def test_what_will_not_be_told_in_the_blocks_there_are() -> None:
    assert forecast_blocks(AbTest(), 0.2) is None
    assert forecast_blocks(AbTest(blocks=2), 0.03) is None
    assert forecast_blocks(AbTest(), 0.005) == 1


@pytest.mark.parametrize("question", [{"sign": 2}, {"min_effect": 0.0}, {"min_effect": 1.5}, {"blocks": 0}])
def test_a_question_that_is_none(question: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"sign|min_effect|block"):
        AbTest(**question)  # type: ignore[arg-type]


def test_a_known_noise_tells_a_large_step_after_two_blocks() -> None:
    """15 % at a noise of 2 %, which takes three blocks where nothing is known of it."""
    known = AbTest(noise=LaunchNoise(0.02, 20))
    blocks = [len(settle(known, bench(seed, 0.15, 0.02))[1]) // BLOCK_SIZE for seed in range(20)]
    assert sum(count <= 2 for count in blocks) >= 18
    unknown = [len(settle(AbTest(), bench(seed, 0.15, 0.02))[1]) // BLOCK_SIZE for seed in range(20)]
    assert sum(count <= 2 for count in unknown) <= 6


def test_a_noise_that_the_launches_contradict_does_not_count() -> None:
    """A machine ten times as noisy as it was: the interval is what it would be without that knowledge."""
    _, seen = settle(AbTest(blocks=5), bench(3, 0.0, 0.05))
    plain = judge_blocks(AbTest(), seen)
    wrong = judge_blocks(AbTest(noise=LaunchNoise(0.005, 20)), seen)
    assert (wrong.low, wrong.high) == pytest.approx((plain.low, plain.high), abs=0.004)
    right = judge_blocks(AbTest(noise=LaunchNoise(0.05, 20)), seen)
    assert right.high - right.low < plain.high - plain.low


@settings(max_examples=25, deadline=None)
@given(blocks=BLOCKS, sd=st.floats(0.001, 0.2))
def test_a_known_noise_alone_tells_no_difference(blocks: list[list[float]], sd: float) -> None:
    """Whatever earlier launches say, sides differ only where these launches by themselves say so."""
    launches = seen_of(AbTest(), blocks)
    told = judge_blocks(AbTest(noise=LaunchNoise(sd, 20)), launches)
    if told.word in ("regression", "improvement"):
        is_b = np.array([launch.side == "b" for launch in launches]).reshape(-1, BLOCK_SIZE)
        tail = tail_mass(AbTest().blocks, len(blocks), BOTH, EARLY) / 2
        low, high = quantiles(*difference_posterior(np.array(blocks), is_b), (tail, 1 - tail))
        assert low > 0 or high < 0


def samples(
    seed: int, effect: float, noise: float, a: int = 6, b: int = 6
) -> tuple[list[float], list[float]]:
    launch = bench(seed, effect, noise)
    return [launch("a") for _ in range(a)], [launch("b") for _ in range(b)]


def test_two_samples_keep_the_promise_of_equal_sides_and_see_a_clear_step() -> None:
    for count, noise in ((3, 0.01), (6, 0.03), (6, 0.003)):
        called = [judge_samples(AbTest(), *samples(seed, 0.0, noise, count)).word for seed in range(250)]
        assert sum(word in ("regression", "improvement") for word in called) <= 4, (count, noise)
    clear = [judge_samples(AbTest(), *samples(seed, 0.1, 0.01)) for seed in range(40)]
    assert sum(verdict.word == "regression" for verdict in clear) >= 36
    assert sum(verdict.low <= 0.1 <= verdict.high for verdict in clear) >= 34, "95 % of the intervals"
    assert {verdict.word for verdict in clear} <= {"regression", "inconclusive"}
    # More of one side than of the other.
    assert judge_samples(AbTest(), *samples(1, 0.1, 0.01, 3, 9)).word == "regression"


@given(st.integers(0, 30), st.floats(0.01, 100.0))
@settings(max_examples=10)
def test_two_samples_have_no_order_no_unit_and_no_first_side(seed: int, unit: float) -> None:
    a, b = samples(seed, 0.06, 0.01)
    verdict = judge_samples(AbTest(), a, b)
    assert judge_samples(AbTest(), a[::-1], sorted(b)).effect == pytest.approx(verdict.effect, abs=1e-9)
    scaled = judge_samples(AbTest(), [unit * x for x in a], [unit * x for x in b])
    assert scaled.effect == pytest.approx(verdict.effect, abs=1e-6)
    assert scaled.b == pytest.approx(unit * verdict.b, rel=1e-6)
    mirrored = judge_samples(AbTest(sign=-1), b, a)
    assert (1 + mirrored.effect) * (1 + verdict.effect) == pytest.approx(1.0, abs=1e-6)
    assert mirrored.word == verdict.word, "a throughput that falls is as bad as a time that rises"
