"""The levels of a series between its changes: where each lies, how sure, how far its nights spread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np
from scipy.special import bdtr

COVERAGE = 0.95  # probability of the interval of a level
_GAUSSIAN = 1.4826  # median absolute deviation -> standard deviation of Gaussian values


@dataclass(frozen=True)
class SeriesLevel:
    """A stretch from point ``first`` to point ``last`` (both included).

    ``value`` is the median. ``low`` to ``high`` holds the median of all such nights, whatever their
    distribution, with a probability of at least :data:`COVERAGE`; of fewer than six nights, which cannot
    tell so much, they are the least and the largest. ``spread``: the robust standard deviation over the
    value; None of a single night or a value of zero.
    """

    first: int
    last: int
    value: float
    low: float
    high: float
    spread: float | None


def levels(values: Sequence[float], cuts: Iterable[int]) -> tuple[SeriesLevel, ...]:
    """The levels of a series; ``cuts`` are the first points of new ones (indices).

    :raises ValueError: a cut is at none of its points.
    """
    edges = sorted({0, len(values), *cuts})
    if edges[0] < 0 or edges[-1] > len(values):
        raise ValueError(f"cuts of a series of {len(values)}: {edges}")
    return tuple(_level(values, first, end) for first, end in pairwise(edges))


def _level(values: Sequence[float], first: int, end: int) -> SeriesLevel:
    ordered = sorted(values[first:end])
    middle = median(ordered)
    out = outermost(len(ordered))
    apart = _GAUSSIAN * median(abs(value - middle) for value in ordered)
    known = len(ordered) > 1 and middle != 0
    return SeriesLevel(
        first, end - 1, middle, ordered[out], ordered[-1 - out], apart / abs(middle) if known else None
    )


def outermost(count: int) -> int:
    """How many values at either end lie outside the interval of the median.

    Each value is as likely below the median as above it, so that the number of those below is binomial.
    """
    outside = 2 * bdtr(np.arange(count // 2 + 1), count, 0.5) <= 1 - COVERAGE
    return max(0, int(outside.sum()) - 1)
