"""A/B test of two changes or variants: regression, improvement, same or inconclusive.

Launches come in blocks of four (A B B A or B A A B), with a verdict after each block. The interval of
B / A - 1 is a repeated confidence interval (:mod:`perfbisect.stats.sequential`), so it stays valid wherever
the comparison stops. A launch is one Student-t value around its block's level; block levels are free, so
drift between blocks cancels. docs/method/comparison.md has the figures.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

import numpy as np

from perfbisect.stats.robust import quantiles
from perfbisect.stats.sequential import SHAPE, RepeatedInterval, stopping_boundaries, tail_mass
from perfbisect.stats.two_sample import LaunchNoise, Scale, differ, difference_posterior

Side = Literal["a", "b"]
Word = Literal["regression", "improvement", "same", "inconclusive"]

BLOCK_SIZE = 4
DIFFERENT = 0.003
"""Probability over the whole budget, and over all tests of one family, that equal sides are called different;
below the promised 1 %, since launches may deviate from the model."""

MISSED = 0.05
"""Probability that the interval misses the effect at any look."""

BOTH = 0.005
"""Probability of a false difference where the noise is known, with that noise and again without: whatever
became of the machine, no more equal sides are called different ..."""

EARLY = 0.5
"""... and the shape of its boundary: early looks have a noise to rest on."""

_HALF = 0.674
"""Normal quantile of 75 %: half of all estimates lie within so many standard errors."""


@dataclass(frozen=True)
class AbTest:
    """Settings of a test: ``sign`` is +1 if larger is worse, ``min_effect`` the smallest relevant effect.

    ``blocks``: the maximum; ``seed`` draws the side that begins each block. ``absolute``: the metric is a
    share, its effect is B - A and ``min_effect`` a difference of shares. ``tests``: how many tests share
    :data:`DIFFERENT`, by Bonferroni's inequality; ``missed``: 1 - coverage of this test's interval.
    ``noise``: of a launch, as earlier ones have it.
    """

    sign: int = 1
    min_effect: float = 0.03
    blocks: int = 10
    seed: int = 0
    absolute: bool = False
    tests: int = 1
    missed: float = MISSED
    noise: LaunchNoise | None = None

    @property
    def scale(self) -> Scale:
        return Scale(self.sign, self.absolute)

    def __post_init__(self) -> None:
        if self.sign not in (1, -1):
            raise ValueError(f"sign must be +1 (larger is worse) or -1, not {self.sign}")
        if not 0 < self.min_effect < 1:
            raise ValueError(f"min_effect must be between 0 and 1, not {self.min_effect}")
        if self.blocks < 1 or self.tests < 1:
            raise ValueError(f"blocks and tests must be at least 1, not {self.blocks} and {self.tests}")


@dataclass(frozen=True)
class AbLaunch:
    """A launch of one side, with one positive value per run."""

    side: Side
    values: tuple[float, ...]


@dataclass(frozen=True)
class AbVerdict(RepeatedInterval):
    """``effect``: B / A - 1, for shares B - A. ``a``, ``b``: levels in the metric's unit that agree with it.

    ``needed``: expected total of blocks, 0 if unknown or settled.
    """

    word: Word
    effect: float
    needed: int = 0
    a: float = math.nan
    b: float = math.nan


def next_side(test: AbTest, launches: Sequence[AbLaunch]) -> Side | None:
    """The side to launch next; None once the verdict is settled."""
    if len(launches) % BLOCK_SIZE == 0 and judge_blocks(test, launches).settled:
        return None
    return side_of_launch(test, len(launches))


def side_of_launch(test: AbTest, index: int) -> Side:
    """The side of a launch, counted from 0: blocks are A B B A or B A A B, by the seed."""
    block, place = divmod(index, BLOCK_SIZE)
    # A hash, not a generator: a resumed comparison draws block n again without the blocks before it.
    drawn = hashlib.sha256(f"{test.seed}:{block}".encode()).digest()[0]
    order: tuple[Side, ...] = ("a", "b", "b", "a") if drawn % 2 else ("b", "a", "a", "b")
    return order[place]


def judge_blocks(test: AbTest, launches: Sequence[AbLaunch]) -> AbVerdict:
    """The verdict after all complete blocks.

    ``same``: the interval lies within ``min_effect``. ``regression`` or ``improvement``: it does not, and a
    wider interval, with this test's part of :data:`DIFFERENT`, excludes zero. With a known noise that is
    :data:`BOTH`, and the same interval without it must exclude zero as well.

    Raises:
        ValueError: a value is not positive and finite, or the launches are out of order.
    """
    block = len(launches) // BLOCK_SIZE
    # Launches after the last whole block are checked and not judged.
    used = [_level(test, i, launch) for i, launch in enumerate(launches)][: block * BLOCK_SIZE]
    if not block:
        return AbVerdict(math.nan, math.nan, len(launches), False, "inconclusive", math.nan)
    # A plan may allow fewer blocks than were made: the boundary has a look for each.
    looks = max(test.blocks, block)
    error, shape = (BOTH, EARLY) if test.noise else (DIFFERENT, SHAPE)
    wide = tail_mass(looks, block, test.missed)
    wider = tail_mass(looks, block, error / test.tests, shape)
    is_b = np.array([launch.side == "b" for launch in launches[: len(used)]]).reshape(-1, BLOCK_SIZE)
    levels = np.array(used, float).reshape(-1, BLOCK_SIZE)
    tails = (wider / 2, wide / 2, 0.5, 1 - wide / 2, 1 - wider / 2)
    far_low, low, middle, high, far_high = quantiles(*difference_posterior(levels, is_b, test.noise), tails)
    if test.noise:
        far = quantiles(*difference_posterior(levels, is_b), (wider / 2, 1 - wider / 2))
        far_low, far_high = min(far_low, far[0]), max(far_high, far[1])
    scale = test.scale
    ends = sorted((scale.effect(low), scale.effect(high)))
    word: Word = "inconclusive"
    # First: a difference that is too small to matter is not a regression, however certain it is.
    if max(abs(ends[0]), abs(ends[1])) < test.min_effect:
        word = "same"
    elif far_low > 0:
        word = "regression"
    elif far_high < 0:
        word = "improvement"
    is_open = word == "inconclusive"
    needed = _needed(block, low, middle, high, scale.room(test.min_effect)) if is_open else 0
    a, b = _values_of_sides(test, levels[~is_b].tolist(), levels[is_b].tolist(), middle)
    settled = not is_open or block >= test.blocks
    effect = scale.effect(middle)
    return AbVerdict(ends[0], ends[1], len(launches), settled, word, effect, needed, a, b)


def judge_samples(test: AbTest, a: Sequence[float], b: Sequence[float]) -> AbVerdict:
    """The verdict on two samples of launches, one value a launch, in any order: judged once.

    The words are those of :func:`judge_blocks`. The interval has a coverage of 1 - ``test.missed``; equal
    sides are called different with a probability of at most :data:`DIFFERENT`. Drift of the machine is no
    noise of launches: those of both sides must alternate.

    Raises:
        ValueError: a side has fewer than two values, or a value is not positive and finite.
    """
    if min(len(a), len(b)) < 2:
        raise ValueError(f"two values a side are needed, not {len(a)} and {len(b)}")
    scale = test.scale
    left, right = ([scale.level((value,)) for value in side] for side in (a, b))
    levels, is_b = np.array([[*left, *right]]), np.array([[False] * len(a) + [True] * len(b)])
    tails = (test.missed / 2, 0.5, 1 - test.missed / 2)
    low, middle, high = quantiles(*difference_posterior(levels, is_b), tails)
    ends = sorted((scale.effect(low), scale.effect(high)))
    word: Word = "inconclusive"
    if max(-ends[0], ends[1]) < test.min_effect:
        word = "same"
    elif differ((left, right), scale.room(test.min_effect), DIFFERENT):
        word = "regression" if middle > 0 else "improvement"
    values, launches = _values_of_sides(test, left, right, middle), len(a) + len(b)
    return AbVerdict(
        ends[0], ends[1], launches, word != "inconclusive", word, scale.effect(middle), 0, *values
    )


def _values_of_sides(
    test: AbTest, a: Sequence[float], b: Sequence[float], difference: float
) -> tuple[float, float]:
    """The levels of both sides as values of the metric."""
    left, right = map(test.scale.value, side_levels(a, b, difference))
    # Shares are not negative: shift both levels up if one is.
    lift = max(0.0, -min(left, right)) if test.absolute else 0.0
    return left + lift, right + lift


def side_levels(a: Sequence[float], b: Sequence[float], difference: float) -> tuple[float, float]:
    """Two levels ``difference`` apart, centred on the median of all launches."""
    half = 0.5 * difference
    middle = median([*(level + half for level in a), *(level - half for level in b)])
    return middle - half, middle + half


def forecast_blocks(test: AbTest, noise: float) -> int | None:
    """Blocks for an even chance of a verdict if nothing changed; None if the budget is too small.

    ``noise``: standard deviation of a launch on the model's scale. Assumes normal launches without outliers.
    """
    smallest = test.scale.room(test.min_effect)
    for block, wide in enumerate(stopping_boundaries(test.blocks, test.missed), 1):
        # The difference of two means of two has the standard error of one launch.
        if (wide + _HALF) * (noise / math.sqrt(block)) < smallest:
            return block
    return None


def _level(test: AbTest, index: int, launch: AbLaunch) -> float:
    expected = side_of_launch(test, index)
    try:
        level = test.scale.level(launch.values)
    except ValueError as error:
        raise ValueError(f"launch {index + 1}: {error}") from None
    if launch.side != expected:
        raise ValueError(f"launch {index + 1} must be of side {expected}")
    return level


def _needed(block: int, low: float, middle: float, high: float, smallest: float) -> int:
    """Total blocks until the interval excludes zero or lies within the smallest effect."""
    half = max(high - middle, middle - low)
    room = max(abs(middle), smallest - abs(middle))
    return max(block + 1, math.ceil(block * (half / max(room, 1e-6)) ** 2))
