"""Two changes, or two variants of one, side by side: is the second slower, faster, the same, or not told yet?

Blocks of four fresh launches (A B B A, or B A A B), judged after each: the interval of B / A - 1 is a
repeated confidence interval (:mod:`perfbisect.stats.sequential`), so its promise holds wherever the
comparison stops. A launch is one value, a Student-t around its block's level; block levels are free, so
what drifts between blocks falls on both sides. docs/method/comparison.md has the figures.
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
from perfbisect.stats.sequential import stopping_boundaries, tail_mass
from perfbisect.stats.two_sample import Scale, difference_posterior

Side = Literal["a", "b"]
Word = Literal["regression", "improvement", "same", "inconclusive"]

BLOCK = 4
DIFFERENT = 0.003
"""Chance, over the whole budget, that two equal sides are called different: less than the one in a hundred
that is promised, since launches need not be as the model has them."""

COVERED = 0.95
"""Chance that the interval holds the true effect at every look."""

_HALF = 0.674
"""Standard errors within which an estimate lies as often as not."""


@dataclass(frozen=True)
class Question:
    """``sign`` is +1 where larger is worse; ``min_effect`` the smallest relative effect worth telling;
    ``blocks`` the most blocks that will be made; ``seed`` draws which side begins each block.

    ``absolute``: the metric is a share (of failed requests, of accepted drafts): its effect is B - A, and
    ``min_effect`` a difference of shares.

    :raises ValueError: none of these.
    """

    sign: int = 1
    min_effect: float = 0.03
    blocks: int = 10
    seed: int = 0
    absolute: bool = False

    @property
    def scale(self) -> Scale:
        """The scale of the model."""
        return Scale(self.sign, self.absolute)

    def __post_init__(self) -> None:
        if self.sign not in (1, -1):
            raise ValueError(f"sign is +1 (larger is worse) or -1, not {self.sign}")
        if not 0 < self.min_effect < 1:
            raise ValueError(f"the smallest effect is a share between 0 and 1, not {self.min_effect}")
        if self.blocks < 1:
            raise ValueError(f"a comparison has at least one block, not {self.blocks}")


@dataclass(frozen=True)
class Seen:
    """A launch of one side: one raw positive value a run."""

    side: Side
    values: tuple[float, ...]


@dataclass(frozen=True)
class Verdict:
    """``effect`` is B / A - 1 (of shares B - A) in the metric's own direction, with its interval; nan before
    the first block.

    ``settled``: the word stands and nothing more need be measured, or the blocks are used up. ``needed``:
    blocks in all that would probably settle it, 0 where that is not known or not needed. ``a`` and ``b``: the
    levels of the sides in the metric's unit, estimated together with the effect: their ratio (of shares
    their difference) is the effect.
    """

    word: Word
    effect: float
    low: float
    high: float
    launches: int
    settled: bool
    needed: int = 0
    a: float = math.nan
    b: float = math.nan


def order(question: Question, block: int) -> tuple[Side, Side, Side, Side]:
    """Who is launched in a block: A B B A, or B A A B, by the seed."""
    drawn = hashlib.sha256(f"{question.seed}:{block}".encode()).digest()[0]
    return ("a", "b", "b", "a") if drawn % 2 else ("b", "a", "a", "b")


def next_side(question: Question, seen: Sequence[Seen]) -> Side | None:
    """Whose fresh launch is next; None where the verdict stands."""
    if len(seen) % BLOCK == 0 and judge(question, seen).settled:
        return None
    return turn(question, len(seen))


def turn(question: Question, made: int) -> Side:
    """Whose launch comes after so many, whatever they told."""
    block, place = divmod(made, BLOCK)
    return order(question, block)[place]


def judge(question: Question, seen: Sequence[Seen]) -> Verdict:
    """The verdict after whole blocks; launches of a block under way wait for the rest of it.

    ``same``: the interval lies within the smallest effect. ``regression`` or ``improvement``: it does not,
    and a wider one, which errs in :data:`DIFFERENT` of all comparisons, excludes that nothing changed.

    :raises ValueError: a value is not positive and finite, or the launches are not in the blocks' order.
    """
    block = len(seen) // BLOCK
    used = [_launch(question, i, one) for i, one in enumerate(seen)][: block * BLOCK]
    if not block:
        return Verdict("inconclusive", math.nan, math.nan, math.nan, len(seen), False)
    looks = max(question.blocks, block)
    wide, wider = (tail_mass(looks, block, alpha) for alpha in (1 - COVERED, DIFFERENT))
    is_b = np.array([seen[i].side == "b" for i in range(len(used))]).reshape(-1, BLOCK)
    levels = np.array(used, float).reshape(-1, BLOCK)
    delta, mass = difference_posterior(levels, is_b)
    far_low, low, middle, high, far_high = quantiles(
        delta, mass, (wider / 2, wide / 2, 0.5, 1 - wide / 2, 1 - wider / 2)
    )
    scale = question.scale
    ends = sorted((scale.effect(low), scale.effect(high)))
    within = max(abs(ends[0]), abs(ends[1])) < question.min_effect
    word: Word = "inconclusive"
    if within:
        word = "same"
    elif far_low > 0:
        word = "regression"
    elif far_high < 0:
        word = "improvement"
    settled = word != "inconclusive" or block >= question.blocks
    needed = 0
    if word == "inconclusive":
        needed = _needed(block, low, middle, high, scale.room(question.min_effect))
    a, b = side_levels(levels[~is_b].tolist(), levels[is_b].tolist(), middle)
    values = scale.value(a), scale.value(b)
    # A share is no less than nothing: where few launches have any, both move up.
    lift = max(0.0, -min(values)) if question.absolute else 0.0
    return Verdict(
        word,
        scale.effect(middle),
        ends[0],
        ends[1],
        len(seen),
        settled,
        needed,
        a=values[0] + lift,
        b=values[1] + lift,
    )


def side_levels(a: Sequence[float], b: Sequence[float], difference: float) -> tuple[float, float]:
    """The levels of two sides that lie ``difference`` apart: around the median of all launches of both."""
    half = 0.5 * difference
    middle = median([*(level + half for level in a), *(level - half for level in b)])
    return middle - half, middle + half


def foreseen(question: Question, noise: float) -> int | None:
    """Blocks after which a verdict is as likely as not, if nothing changed; None: too few.

    ``noise`` of a launch (a standard deviation) is on the scale of the model: logs, of shares the shares
    themselves. For plans only: it takes launches for normal and knows no outliers.
    """
    smallest = question.scale.room(question.min_effect)
    wide = stopping_boundaries(question.blocks, 1 - COVERED)
    for block in range(1, question.blocks + 1):
        # A block tells the difference of two means of two: its error is the noise of one launch.
        error = noise / math.sqrt(block)
        if (wide[block - 1] + _HALF) * error < smallest:
            return block
    return None


def _launch(question: Question, number: int, one: Seen) -> float:
    try:
        level = question.scale.level(one.values)
    except ValueError as error:
        raise ValueError(f"launch {number + 1}: {error}") from None
    block, place = divmod(number, BLOCK)
    if one.side != order(question, block)[place]:
        raise ValueError(f"launch {number + 1} should be of side {order(question, block)[place]}")
    return level


def _needed(block: int, low: float, middle: float, high: float, smallest: float) -> int:
    """Blocks in all at which the interval would lie on one side of zero or within the smallest effect."""
    half = max(high - middle, middle - low)
    room = max(abs(middle), smallest - abs(middle))
    return max(block + 1, math.ceil(block * (half / max(room, 1e-6)) ** 2))
