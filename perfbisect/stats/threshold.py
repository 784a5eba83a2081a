"""Is one change beyond a line? Its launches against a level that was measured before, or is known exactly.

The line is what is allowed: a recorded level and a limit above it, the middle between a good and a bad level,
or between two values. Launches that were measured before are moved onto it, so that one question is left: are
the new ones above it? It may be asked after every second launch: the interval is a repeated confidence
interval as in :mod:`perfbisect.stats.ab_test`. The recorded launches are the same at every look, so the looks
are more alike than looks at independent parts, for which the boundary is: it errs on the careful side
(Jennison, Turnbull, *Group Sequential Methods*, 2000, ch. 11: unequal information).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from perfbisect.stats.robust import Array, quantiles
from perfbisect.stats.sequential import tail_mass
from perfbisect.stats.two_sample import difference_posterior, level_posterior

Word = Literal["beyond", "within", "inconclusive"]

STEP = 2
"""Launches from one look to the next."""

LEAST = 4
"""Launches that a recorded level must have: fewer do not show what a launch is off by."""

ERROR = 0.05
"""Chance that the interval misses the truth at any look; half of it on the side that a verdict goes wrong."""


@dataclass(frozen=True)
class Line:
    """``at``: the level from which on a change is too bad. ``known``: levels of the launches that it was
    drawn from, moved onto it; none where it is exact."""

    at: float
    known: tuple[float, ...] = ()


def above(recorded: Sequence[float], room: float) -> Line:
    """The line at so much room above the level of recorded launches.

    :raises ValueError: they are too few.
    """
    if len(recorded) < LEAST:
        raise ValueError(f"{len(recorded)} launches are no level: {LEAST} are needed")
    known = tuple(level + room for level in recorded)
    return Line(float(np.median(known)), known)


def between(good: Sequence[float], bad: Sequence[float]) -> Line:
    """The line in the middle of two levels. Both ends are moved onto it: with as many launches on both sides
    the middle has the same error as their mean, whatever the step between them is.

    :raises ValueError: they are too few, not as many on both sides, or the bad end is not the worse one.
    """
    if len(good) != len(bad) or len(good) + len(bad) < LEAST:
        raise ValueError(f"{len(good)} and {len(bad)} launches are no ends: as many on both sides")
    low, high = float(np.median(good)), float(np.median(bad))
    if high <= low:
        raise ValueError("the bad end is not the worse one")
    half = 0.5 * (high - low)
    known = (*(level + half for level in good), *(level - half for level in bad))
    return Line(0.5 * (low + high), known)


@dataclass(frozen=True)
class Told:
    """``over``: how far above the line, with its interval; nan before the first look. ``settled``: nothing
    more is measured. ``needed``: launches in all that would probably settle it, 0 where it is not known; None
    where no number of launches would, since the recorded ones are too few."""

    word: Word
    over: float
    low: float
    high: float
    launches: int
    settled: bool
    needed: int | None = 0


def judge(line: Line, made: Sequence[float], most: int) -> Told:
    """Whether the levels of the launches made so far, of at most ``most``, lie above the line.

    :raises ValueError: fewer launches were asked for than one look takes.
    """
    if most < STEP:
        raise ValueError(f"at least {STEP} launches: {most}")
    look, looks = len(made) // STEP, max(most, len(made)) // STEP
    if not look:
        return Told("inconclusive", math.nan, math.nan, math.nan, len(made), False)
    over = np.array(made[: look * STEP], float) - line.at
    tail = tail_mass(looks, look, ERROR) / 2
    low, middle, high = quantiles(*_against(line, over), (tail, 0.5, 1 - tail))
    word: Word = "beyond" if low > 0 else "within" if high < 0 else "inconclusive"
    settled = word != "inconclusive" or len(made) + STEP > most
    needed = _needed(len(line.known), look * STEP, max(high - middle, middle - low), abs(middle))
    return Told(word, middle, low, high, len(made), settled, needed if word == "inconclusive" else 0)


def _against(line: Line, over: Array) -> tuple[Array, Array]:
    if not line.known:
        return level_posterior(over)
    row = np.concatenate([np.array(line.known) - line.at, over])
    is_new = np.arange(len(row)) >= len(line.known)
    return difference_posterior(row[None, :], is_new[None, :])


def _needed(known: int, made: int, half: float, away: float) -> int | None:
    """New launches at which the interval would end at the line, the recorded ones being what they are."""
    ours = 1 / known if known else 0.0
    left = (ours + 1 / made) * (away / half) ** 2 - ours
    return math.ceil(1 / left) if left > 0 else None
