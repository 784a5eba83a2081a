"""Shares of single runs: all there is where a result was measured elsewhere."""

from __future__ import annotations

import math
from dataclasses import dataclass

_Z95 = 1.959963984540054


@dataclass(frozen=True)
class Shares:
    """Two shares from counts: ``difference`` is b - a with its 95 % interval, ``p`` that of equal shares.

    It knows the noise of counting and of nothing else: what differs from launch to launch is not in it.
    """

    a: float
    b: float
    difference: float
    low: float
    high: float
    p: float


def two_proportions(hits_a: int, of_a: int, hits_b: int, of_b: int) -> Shares:
    """The two-proportion z test (pooled) and Newcombe's interval of the difference (hybrid score, *Statistics
    in Medicine* 17, 1998, method 10).

    :raises ValueError: counts that are none.
    """
    for hits, of in ((hits_a, of_a), (hits_b, of_b)):
        if of < 1 or not 0 <= hits <= of:
            raise ValueError(f"{hits} of {of} is no share")
    a, b = hits_a / of_a, hits_b / of_b
    pooled = (hits_a + hits_b) / (of_a + of_b)
    error = math.sqrt(pooled * (1 - pooled) * (1 / of_a + 1 / of_b))
    p = math.erfc(abs(b - a) / error / math.sqrt(2)) if error else 1.0
    low_a, high_a = _wilson(a, of_a)
    low_b, high_b = _wilson(b, of_b)
    difference = b - a
    low = difference - math.hypot(b - low_b, high_a - a)
    high = difference + math.hypot(high_b - b, a - low_a)
    return Shares(a, b, difference, low, high, p)


def most_of_none(of: int) -> float:
    """The largest share of which ``of`` trials without a hit leave a chance of 5 %: about 3 / ``of`` (Hanley
    and Lippman-Hand, *JAMA* 249, 1983). It may be looked at after every trial: to have had none by then one
    must have had none before.

    :raises ValueError: no trial.
    """
    if of < 1:
        raise ValueError(f"0 of {of} is no share")
    return -math.expm1(math.log(0.05) / of)


def _wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of one share."""
    square = _Z95**2 / count
    middle = (share + square / 2) / (1 + square)
    half = _Z95 / (1 + square) * math.sqrt(share * (1 - share) / count + square / (4 * count))
    return middle - half, middle + half
