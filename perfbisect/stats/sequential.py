"""Group-sequential stopping boundaries (Wang-Tsiatis family).

A boundary that a standardised sum of equal independent parts crosses at any of K looks with a chosen
probability (Wang, Tsiatis, *Biometrics* 43, 1987): at look k it is ``C (k / K) ** (shape - 1/2)``. ``shape``
0 is O'Brien and Fleming's, strict early and plain at the end; 1/2 is Pocock's, the same at every look. An
interval of that many standard errors at every look holds the truth at all looks together with probability
1 - alpha (a repeated confidence interval: Jennison, Turnbull, *JRSS B* 51, 1989), so also where one stops.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from perfbisect.stats.robust import Array

SHAPE = 0.25
"""Between the two: early looks may decide on large effects, and the last is hardly dearer than a single
one."""

_STEP = 0.025


@lru_cache(maxsize=64)
def stopping_boundaries(looks: int, alpha: float, shape: float = SHAPE) -> tuple[float, ...]:
    """Standard errors at each of ``looks`` looks, such that any is crossed with probability ``alpha``.

    :raises ValueError: no look, or an alpha outside (0, 1).
    """
    if looks < 1 or not 0 < alpha < 1:
        raise ValueError(f"at least one look and 0 < alpha < 1: {looks}, {alpha}")
    # Imported here: most commands draw no boundary, and scipy takes half a second to load.
    from scipy.optimize import brentq
    from scipy.special import ndtri

    shares = (np.arange(1, looks + 1) / looks) ** (shape - 0.5)
    # The last look alone crosses less often than any, and the looks by themselves, added up, more often. A
    # narrow bracket matters: the grid grows with the bound.
    low, high = -float(ndtri(alpha / 2)), -float(ndtri(alpha / 2 / looks))
    last = brentq(
        lambda bound: crossing_probability(bound * shares) - alpha, low - 1e-3, high + 1e-3, xtol=1e-7
    )
    return tuple(float(bound) for bound in last * shares)


def tail_mass(looks: int, look: int, alpha: float) -> float:
    """Two-sided tail mass of the repeated confidence interval at a look, counted from 1."""
    return math.erfc(stopping_boundaries(looks, alpha)[look - 1] / math.sqrt(2))


def crossing_probability(bounds: Array) -> float:
    """Probability that |S_k| / sqrt(k) passes ``bounds[k - 1]`` at any look, S_k a sum of k standard normals.

    The density of the sum that has not crossed yet is carried from look to look (Armitage, McPherson, Rowe,
    *JRSS A* 132, 1969).
    """
    from scipy.special import ndtr

    reach = float(bounds[0])
    grid = _grid(reach)
    density = _normal(grid)
    stopped = 2 * float(ndtr(-reach))
    for k in range(2, len(bounds) + 1):
        limit = float(bounds[k - 1]) * math.sqrt(k)
        width = grid[1] - grid[0]
        weight = np.full(len(grid), width)
        weight[0] = weight[-1] = width / 2
        carried = density * weight
        stopped += float(carried @ (ndtr(grid - limit) + ndtr(-grid - limit)))
        following = _grid(limit)
        density = _normal(following[:, None] - grid[None, :]) @ carried
        grid = following
    return stopped


def _grid(limit: float) -> Array:
    return np.linspace(-limit, limit, max(41, 2 * math.ceil(limit / _STEP / 2) + 1))


def _normal(x: Array) -> Array:
    return np.asarray(np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi))


def most_of_none(of: int) -> float:
    """The largest share of which ``of`` trials without a hit leave a chance of 5 %: about 3 / ``of`` (Hanley
    and Lippman-Hand, *JAMA* 249, 1983). It may be looked at after every trial: to have had none by then one
    must have had none before.

    :raises ValueError: no trial.
    """
    if of < 1:
        raise ValueError(f"0 of {of} is no share")
    return -math.expm1(math.log(0.05) / of)
