"""Group-sequential stopping boundaries (Wang-Tsiatis family) and bounds of proportions.

The boundary at look k of K is ``C (k / K) ** (shape - 1/2)`` (Wang, Tsiatis, *Biometrics* 43, 1987).
``shape`` 0 is O'Brien-Fleming, strict early; 1/2 is Pocock, constant. An interval of that many standard
errors at every look is a repeated confidence interval with joint coverage 1 - alpha (Jennison, Turnbull,
*JRSS B* 51, 1989).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from perfbisect.stats.robust import Array

SHAPE = 0.25
"""Early looks can decide on large effects; the last look costs little more than a single one."""

_STEP = 0.025


@dataclass(frozen=True)
class RepeatedInterval:
    """The interval after so many launches; nan before the first look.

    ``settled``: no more launches are needed, or none is left.
    """

    low: float
    high: float
    launches: int
    settled: bool


@lru_cache(maxsize=64)
def stopping_boundaries(looks: int, alpha: float, shape: float = SHAPE) -> tuple[float, ...]:
    """Boundary in standard errors at each look; any is crossed with probability ``alpha``.

    Raises:
        ValueError: no look, or alpha outside (0, 1).
    """
    if looks < 1 or not 0 < alpha < 1:
        raise ValueError(f"need at least one look and 0 < alpha < 1, not {looks} and {alpha}")
    # Imported here: scipy takes half a second to load and most commands need no boundary.
    from scipy.optimize import brentq
    from scipy.special import ndtri

    shares = (np.arange(1, looks + 1) / looks) ** (shape - 0.5)
    # A single look and a Bonferroni correction bracket the solution; the grid grows with the bound.
    low, high = -float(ndtri(alpha / 2)), -float(ndtri(alpha / 2 / looks))
    last = brentq(
        lambda bound: crossing_probability(bound * shares) - alpha, low - 1e-3, high + 1e-3, xtol=1e-7
    )
    return tuple(float(bound) for bound in last * shares)


def tail_mass(looks: int, look: int, alpha: float, shape: float = SHAPE) -> float:
    """Two-sided tail mass of the repeated confidence interval at a look, counted from 1."""
    return math.erfc(stopping_boundaries(looks, alpha, shape)[look - 1] / math.sqrt(2))


def crossing_probability(bounds: Array) -> float:
    """Probability that |S_k| / sqrt(k) exceeds ``bounds[k - 1]`` at any look; S_k sums k standard normals.

    Recursive numerical integration (Armitage, McPherson, Rowe, *JRSS A* 132, 1969).
    """
    from scipy.special import ndtr

    reach = float(bounds[0])
    grid = _grid(reach)
    density = _normal(grid)
    stopped = 2 * float(ndtr(-reach))
    for k in range(2, len(bounds) + 1):
        # The density is that of the sum S_k, whose standard deviation is the root of k.
        limit = float(bounds[k - 1]) * math.sqrt(k)
        # Trapezoids: the density is cut off at the bounds and not zero there.
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
    """95 % upper bound of a proportion after ``of`` trials without an event: about 3 / ``of``.

    Rule of three (Hanley, Lippman-Hand, *JAMA* 249, 1983); valid after every trial.

    Raises:
        ValueError: no trial.
    """
    if of < 1:
        raise ValueError(f"need at least one trial, not {of}")
    return -math.expm1(math.log(0.05) / of)
