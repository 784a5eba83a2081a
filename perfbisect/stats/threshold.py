"""Sequential test of one change against a threshold.

The threshold is a recorded level plus a limit, or the middle of two values. Recorded launches are
shifted onto it, so that the test is whether the new launches lie above. It may be evaluated after every
second launch: the interval is a repeated confidence interval as in :mod:`perfbisect.stats.ab_test`. The
looks share the recorded launches and are more correlated than the boundary assumes, which is conservative
(Jennison, Turnbull, *Group Sequential Methods*, 2000, ch. 11).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from perfbisect.stats.robust import quantiles
from perfbisect.stats.sequential import RepeatedInterval, tail_mass
from perfbisect.stats.two_sample import LaunchNoise, difference_posterior, level_posterior

Word = Literal["beyond", "within", "inconclusive"]

STEP = 2
"""Launches per look."""

LEAST = 4
"""Minimum launches of a recorded level: fewer do not show the noise."""

ERROR = 0.05
"""Probability that the interval misses the true value at any look; half of it on each side."""


@dataclass(frozen=True)
class Threshold:
    """A level ``at`` that a change must not exceed; ``known``: its recorded launches, shifted onto it."""

    at: float
    known: tuple[float, ...] = ()


def threshold_above(recorded: Sequence[float], room: float) -> Threshold:
    """Threshold ``room`` above the recorded launches. :raises ValueError: too few launches."""
    if len(recorded) < LEAST:
        raise ValueError(f"a level needs {LEAST} launches, not {len(recorded)}")
    known = tuple(level + room for level in recorded)
    return Threshold(float(np.median(known)), known)


@dataclass(frozen=True)
class ThresholdVerdict(RepeatedInterval):
    """``over``: distance above the threshold.

    ``needed``: expected total of launches, 0 if unknown, None if the recorded launches are too few.
    """

    word: Word
    over: float
    needed: int | None = 0


def judge_threshold(
    threshold: Threshold,
    launches: Sequence[float],
    most: int,
    *,
    error: float = ERROR,
    beyond_error: float | None = None,
    noise: LaunchNoise | None = None,
) -> ThresholdVerdict:
    """Verdict on the launches so far, of at most ``most``.

    ``error``: of the interval, as :data:`ERROR`; ``beyond_error``: the same for ``beyond`` alone.
    ``noise``: of a launch, as earlier ones have it.

    Raises:
        ValueError: less than one look.
    """
    if most < STEP:
        raise ValueError(f"need at least {STEP} launches, not {most}")
    # A plan may allow fewer launches than were made: the boundary has a look for each.
    look, looks = len(launches) // STEP, max(most, len(launches)) // STEP
    if not look:
        return ThresholdVerdict(math.nan, math.nan, len(launches), False, "inconclusive", math.nan)
    over = np.array(launches[: look * STEP], float) - threshold.at
    recorded = np.array(threshold.known) - threshold.at
    if threshold.known:
        row = np.concatenate([recorded, over])
        is_new = np.arange(len(row)) >= len(recorded)
        posterior = difference_posterior(row[None, :], is_new[None, :], noise)
    else:
        posterior = level_posterior(over, noise)
    tail, strict = (tail_mass(looks, look, alpha) / 2 for alpha in (error, beyond_error or error))
    lowest, low, middle, high = quantiles(*posterior, (strict, tail, 0.5, 1 - tail))
    word: Word = "beyond" if lowest > 0 else "within" if high < 0 else "inconclusive"
    is_open = word == "inconclusive"
    settled = not is_open or len(launches) + STEP > most
    half = max(high - middle, middle - low)
    needed = _needed(len(threshold.known), look * STEP, half, abs(middle)) if is_open else 0
    return ThresholdVerdict(low, high, len(launches), settled, word, middle, needed)


def _needed(recorded: int, launches: int, half: float, away: float) -> int | None:
    """New launches until the interval excludes the threshold, given the recorded ones."""
    # The recorded launches' part of the variance stays, however many new ones are made.
    fixed = 1 / recorded if recorded else 0.0
    left = (fixed + 1 / launches) * (away / half) ** 2 - fixed
    return math.ceil(1 / left) if left > 0 else None
