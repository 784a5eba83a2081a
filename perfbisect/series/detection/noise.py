"""How likely each night of a series is at each level, for every kind of noise that is weighed.

    y_t - level = rho (y_(t-1) - level) + s e_t,    e ~ (1 - share) Gaussian + share (3 x Student-t3)

Three things that make nights look changed when nothing did are unknowns of the model and not assumptions: the
share of nights that are far out, the memory rho of one night in the next, and the scale s, which may itself
change once. A change of level starts the memory afresh, at that scale. Levels are nodes of a grid, so that
every integral over a level is a sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from perfbisect.stats.robust import FAR_SCALE, Array, adaptive_grid, grid_cells

MEMORY = (0.0, 0.3, 0.6)  # correlations of one night's noise with the next that are weighed ...
MEMORY_PRIOR = (0.7, 0.15, 0.15)  # ... their prior weights where the level changes ...

MEMORY_UNCHANGED = (0.7, 0.3, 0.3)
"""... and where it does not. They add up to more than 1: short series hardly tell a slow wave from a level,
and a change has to beat the rare kinds of noise too, or it would be told wherever one of them is at work."""

FAR = (0.015, 0.1, 0.3)  # shares of nights that are far out that are weighed, with equal weights

SPREAD = (0.5, 0.71, 1.0, 1.41, 2.0, 2.83)
"""Scales that are weighed, with equal weights, over the scale of the first differences."""

FLOOR = 1e-4  # smallest scale of a night (relative): values that repeat exactly are not exact

_T3 = 2 / (math.pi * math.sqrt(3)) * math.sqrt(2 * math.pi)
"""Density of a Student-t3 at its centre over that of a Gaussian."""

_LAG = 4.0  # scales to which a night's distance is cut before it speaks of the next: a wild night has no heir
_KERNEL = 3.0  # scale of the prior of a step, a Cauchy, in scales of a night ...
LEAST = 0.4  # ... without the steps smaller than this, which no series could tell from none

FINE = 0.2
"""Scales of a night between two levels near the data: about what a level of a hundred nights is known to."""

_NODES = 112  # levels at most: between far ones they lie wider

_KEEP, _KEEP_PART = 8.0, 3.0
"""Log likelihood below the best, of all nights and of a third of them, at which a kind of noise is left
out."""


@dataclass(frozen=True)
class NoiseFamily:
    """Kinds of noise that differ in scale alone, with their prior weight where the level changes and where it
    does not."""

    kinds: NDArray[np.intp]
    weight: float
    unchanged: float


@dataclass(frozen=True)
class NoiseKinds:
    """The kinds of noise: memory, share far out and scale factor [kind], family (kinds that differ in scale
    alone) and the family's prior weights [family], where the level changes and where it does not.

    ``spreads``: number of scales that are weighed; some may be left out.
    """

    memory: Array
    far: Array
    spread: Array
    family: NDArray[np.intp]
    weight: Array
    unchanged: Array
    spreads: int

    @property
    def families(self) -> tuple[NoiseFamily, ...]:
        return tuple(
            NoiseFamily(np.flatnonzero(self.family == f), float(self.weight[f]), float(self.unchanged[f]))
            for f in np.unique(self.family)
        )


def kinds(
    memory: tuple[float, ...] = MEMORY,
    prior: tuple[float, ...] = MEMORY_PRIOR,
    unchanged: tuple[float, ...] = MEMORY_UNCHANGED,
    far: tuple[float, ...] = FAR,
    spread: tuple[float, ...] = SPREAD,
) -> NoiseKinds:
    """All combinations."""
    rows = [
        (rho, share, s, i * len(far) + j)
        for i, rho in enumerate(memory)
        for j, share in enumerate(far)
        for s in spread
    ]
    rho, share, s, family = (np.array(column) for column in zip(*rows, strict=True))
    changed, same = (np.repeat(np.array(w) / len(far), len(far)) for w in (prior, unchanged))
    return NoiseKinds(rho, share, s, family.astype(np.intp), changed, same, len(spread))


@dataclass(frozen=True)
class Tables:
    """Log likelihoods of one series of n nights at G levels under R kinds of noise of F families.

    ``values``: signed logs [n]. ``scale``: of a night, from first differences. ``spreads``: number of scales
    weighed. ``nodes``: levels [G], ascending; ``width``: of their cells [G]. ``step``: prior probability of
    a step from level g into the cell of level h [G, G]. ``fresh``: log likelihood of night t as the first at
    its level [R, n, G]. ``total``: sum over the nights before t of that given the night before [R, n + 1, G].
    """

    values: Array
    scale: float
    families: tuple[NoiseFamily, ...]
    spreads: int
    nodes: Array
    width: Array
    step: Array
    fresh: Array
    total: Array

    @property
    def prior(self) -> Array:
        """log prior weight of each family [F] where the level changes."""
        return np.log([family.weight for family in self.families])


def scale_of(values: Array) -> float:
    """Scale of a night: the median distance of neighbours over that of two Gaussian values. A step enters
    one distance only. Where more than half of the neighbours are equal: the mean distance."""
    apart = np.abs(np.diff(values))
    if not len(apart):
        return FLOOR
    robust = float(np.median(apart)) / 0.9539
    return max(robust, FLOOR) if robust > 0 else max(float(np.mean(apart)) / 1.1284, FLOOR)


def likely(rests: tuple[Array, ...], scale: float, which: NoiseKinds) -> NoiseKinds:
    """The kinds of noise that the residuals of the nights [n], in any of several ways, do not rule out; a
    scale also where a third of the nights supports it."""
    kept = np.zeros(len(which.memory), bool)
    for rest in rests:
        z = rest / scale
        before = np.clip(np.concatenate([[0.0], z[:-1]]), -_LAG, _LAG)
        square = ((z[None, :] - which.memory[:, None] * before) / which.spread[:, None]) ** 2
        core, far = _densities(square)
        share = which.far[:, None]
        logs = np.log((1.0 - share) * core + share * far) - np.log(which.spread)[:, None]
        whole = logs.sum(axis=1)
        kept |= whole > whole.max() - _KEEP
        parts = np.array([part.sum(axis=1) for part in np.array_split(logs, 3, axis=1)])
        best = np.array([parts[:, which.family == f].max(axis=1).sum() for f in range(len(which.weight))])
        near = parts > parts.max(axis=1, keepdims=True) - _KEEP_PART
        kept |= near.any(axis=0) & (best > best.max() - _KEEP)[which.family]
    return replace(
        which,
        memory=which.memory[kept],
        far=which.far[kept],
        spread=which.spread[kept],
        family=which.family[kept],
    )


def smooth(values: Array, reach: int = 2) -> Array:
    """Running median over ``2 reach + 1`` nights, over fewer at the ends."""
    n = len(values)
    padded = np.concatenate([np.full(reach, np.nan), values, np.full(reach, np.nan)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1)
    inside = windows[reach : n - reach]
    out = np.partition(inside, reach, axis=1)[:, reach] if len(inside) else np.empty(0)
    head = [median(values[: t + reach + 1].tolist()) for t in range(min(reach, n))]
    tail = [median(values[max(0, t - reach) :].tolist()) for t in range(max(n - reach, len(head)), n)]
    return np.concatenate([head, out, tail])


_INSIDE = math.atan(LEAST / _KERNEL)  # half the mass that a Cauchy has where no step is expected, times pi


def step_density(step: float, scale: float) -> float:
    """Prior density of a step (in logs) where a night has that ``scale``."""
    away = abs(step) / scale
    if away < LEAST:
        return 0.0
    return 1.0 / ((math.pi - 2 * _INSIDE) * _KERNEL * scale * (1.0 + (away / _KERNEL) ** 2))


def _below(step: Array, scale: float) -> Array:
    """Prior probability of a smaller step than each."""
    away = np.maximum(np.abs(step) / scale, LEAST)
    half = (np.arctan(away / _KERNEL) - _INSIDE) / (math.pi - 2 * _INSIDE)
    return np.asarray(0.5 + np.sign(step) * half)


def tables(values: Array, which: NoiseKinds, fineness: float = FINE) -> Tables:
    """The tables of a series of signed logs; ``fineness``: scales of a night between two levels."""
    n = len(values)
    scale = scale_of(values)
    fine = scale * fineness
    ends = np.concatenate([values[:3], values[-4:]])
    nodes = adaptive_grid(np.concatenate([smooth(values), ends]), fine, 1.5 * scale, _NODES)
    low, high = grid_cells(nodes)
    width = high - low
    away = (values[:, None] - nodes[None, :]) / scale
    before = np.clip(np.concatenate([np.zeros((1, len(nodes))), away[:-1]]), -_LAG, _LAG)
    count = len(which.memory)
    given = np.empty((count, n, len(nodes)))
    fresh = np.empty_like(given)
    for s in np.unique(which.spread):
        own = np.flatnonzero(which.spread == s)
        shares = np.unique(which.far[own])
        first = _logs(away / s, shares) - math.log(s)
        fresh[own] = first[np.searchsorted(shares, which.far[own])]
        for rho in np.unique(which.memory[own]):
            here = own[which.memory[own] == rho]
            at = np.searchsorted(shares, which.far[here])
            given[here] = _logs((away - rho * before) / s, shares)[at] - math.log(s) if rho else first[at]
    total = np.zeros((count, n + 1, len(nodes)))
    np.cumsum(given, axis=1, out=total[:, 1:])
    step = _below(high - nodes[:, None], scale) - _below(low - nodes[:, None], scale)
    return Tables(values, scale, which.families, which.spreads, nodes, width, step, fresh, total)


def _logs(z: Array, shares: Array) -> Array:
    """log density at ``z`` [n, G] for each share [k, n, G], up to a constant."""
    core, far = _densities(z * z)
    return np.log((1.0 - shares)[:, None, None] * core + shares[:, None, None] * far)


def _densities(square: Array) -> tuple[Array, Array]:
    """Density of a usual night and of one far out, at the square of a distance in scales."""
    far = (_T3 / FAR_SCALE) / (1.0 + square / (3.0 * FAR_SCALE**2)) ** 2
    return np.exp(-0.5 * square), far
