"""One change against a line: known answers, and the error of its rule in worlds whose truth is known."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from perfbisect.model.metric import parse_metric
from perfbisect.stats.threshold import (
    STEP,
    Threshold,
    ThresholdVerdict,
    judge_threshold,
    threshold_above,
)
from perfbisect.stats.two_sample import Scale

LOWER, HIGHER, SHARE = Scale(), Scale(-1), Scale(1, absolute=True)


@pytest.mark.parametrize("scale", [LOWER, HIGHER, SHARE, Scale(-1, absolute=True)])
def test_what_is_worse_lies_higher_and_reads_as_it_was_said(scale: Scale) -> None:
    room = scale.worse_by(0.05)
    assert room > 0
    assert scale.effect(room) == pytest.approx(0.05 * scale.sign)
    assert scale.value(scale.level((0.25,))) == pytest.approx(0.25)


def test_scales_of_metrics() -> None:
    assert Scale.of(parse_metric("tpot").metric) == LOWER
    assert Scale.of(parse_metric("output_throughput").metric) == HIGHER
    assert Scale.of(parse_metric("failed").metric) == SHARE


def settle(line: Threshold, level: float, noise: float, seed: int, most: int = 12) -> ThresholdVerdict:
    rng = np.random.default_rng([seed, 5])
    made: list[float] = []
    while True:
        made += [level + noise * rng.normal() for _ in range(STEP)]
        told = judge_threshold(line, made, most)
        if told.settled:
            return told


def recorded(seed: int, noise: float, count: int = 8) -> list[float]:
    return list(noise * np.random.default_rng([seed, 6]).normal(size=count))


def words(level: float, noise: float, room: float, count: int = 40) -> Counter[str]:
    return Counter(
        settle(threshold_above(recorded(seed, noise), room), level, noise, seed).word for seed in range(count)
    )


def test_on_the_line_it_hardly_ever_takes_a_side() -> None:
    """The true level is the limit itself: each wrong word has 2.5 %, over all looks."""
    for line in (None, Threshold(0.05)):
        told = Counter(
            settle(line or threshold_above(recorded(s, 0.02), 0.05), 0.05, 0.02, s).word for s in range(20)
        )
        assert told["beyond"] <= 2
        assert told["within"] <= 2


def test_off_the_line_it_takes_the_right_side() -> None:
    assert words(0.0, 0.015, 0.05)["within"] >= 38
    assert words(0.10, 0.015, 0.05)["beyond"] >= 38
    assert words(0.0, 0.015, 0.05)["beyond"] == 0


def test_a_far_launch_does_not_turn_it() -> None:
    line = threshold_above([0.0, 0.01, -0.01, 0.005, -0.005, 0.3], 0.1)
    assert judge_threshold(line, [0.001, -0.004, 0.006, 0.002, -0.003, 0.25], 12).word == "within"


def test_before_the_first_look_nothing_is_said() -> None:
    told = judge_threshold(Threshold(0.0), [1.0], 12)
    assert (told.word, told.settled) == ("inconclusive", False)
    assert math.isnan(told.over)
    with pytest.raises(ValueError, match="at least 2 launches"):
        judge_threshold(Threshold(0.0), [], 1)


def test_what_more_would_cost() -> None:
    rng = np.random.default_rng(3)
    noisy = list(0.05 + 0.1 * rng.normal(size=6))
    told = judge_threshold(Threshold(0.0), noisy, 6)
    assert (told.word, told.settled) == ("inconclusive", True)
    assert told.needed is not None and told.needed > 6
    few = judge_threshold(threshold_above(list(0.1 * rng.normal(size=4)), 0.0), [0.01] * 6, 6)
    assert few.needed is None
