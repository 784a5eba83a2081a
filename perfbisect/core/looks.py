"""How far an estimate must stand from its null when it is looked at again and again.

A boundary that a standardised sum of equal independent parts crosses at any of K looks with a chosen
probability (Wang, Tsiatis, *Biometrics* 43, 1987): at look k it is ``C (k / K) ** (shape - 1/2)``. ``shape``
0 is O'Brien and Fleming's, strict early and plain at the end; 1/2 is Pocock's, the same at every look. An
interval of that many standard errors at every look holds the truth at all looks together with probability
1 - alpha (a repeated confidence interval: Jennison, Turnbull, *JRSS B* 51, 1989), so also where one stops.
"""

from __future__ import annotations

import math

import numpy as np

from perfbisect.core.stats import Array

SHAPE = 0.25
"""Between the two: early looks may decide on large effects, and the last is hardly dearer than a single
one."""

_STEP = 0.025
_TOLERANCE = 1e-6


def multipliers(looks: int, alpha: float, shape: float = SHAPE) -> tuple[float, ...]:
    """Standard errors at each of ``looks`` looks, such that any is crossed with probability ``alpha``.

    :raises ValueError: no look, or an alpha outside (0, 1).
    """
    if looks < 1 or not 0 < alpha < 1:
        raise ValueError(f"at least one look and 0 < alpha < 1: {looks}, {alpha}")
    shares = (np.arange(1, looks + 1) / looks) ** (shape - 0.5)
    low, high = 0.5, 8.0
    while high - low > _TOLERANCE:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if crossing(middle * shares) > alpha else (low, middle)
    return tuple(float(c) for c in high * shares)


def crossing(bounds: Array) -> float:
    """Probability that |S_k| / sqrt(k) passes ``bounds[k - 1]`` at any look, S_k a sum of k standard normals.

    The density of the sum that has not crossed yet is carried from look to look (Armitage, McPherson, Rowe,
    *JRSS A* 132, 1969).
    """
    reach = float(bounds[0])
    grid = _grid(reach)
    density = _normal(grid)
    stopped = 2 * _tail(reach)
    for k in range(2, len(bounds) + 1):
        limit = float(bounds[k - 1]) * math.sqrt(k)
        width = grid[1] - grid[0]
        weight = np.full(len(grid), width)
        weight[0] = weight[-1] = width / 2
        carried = density * weight
        ahead = np.array([_tail(limit - x) + _tail(limit + x) for x in grid])
        stopped += float(carried @ ahead)
        following = _grid(limit)
        density = _normal(following[:, None] - grid[None, :]) @ carried
        grid = following
    return stopped


def _grid(limit: float) -> Array:
    return np.linspace(-limit, limit, max(41, 2 * math.ceil(limit / _STEP / 2) + 1))


def _normal(x: Array) -> Array:
    return np.asarray(np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi))


def _tail(x: float) -> float:
    return 0.5 * math.erfc(x / math.sqrt(2))
