"""Likelihood of nights at a level, for every kind of noise, and the evidence for one change of level.

    y_t - level = rho (y_(t-1) - level) + s e_t,    e ~ (1 - share) Gaussian + share (3 x Student-t3)

Three things that make nights look changed when nothing did are unknowns of the model: the share of nights
that are far out, the memory rho of one night in the next, and the scale s, which may itself change once. A
change of level starts the memory afresh, at that scale. Levels are nodes of a grid, so that every integral
over a level is a sum. The evidence for a change before night k is a ratio of likelihoods, each averaged over
all that is unknown:

    e(k) = P(nights | another level from night k on) / P(nights | one level)

On average over series without a change it is at most 1 (an e-value), whatever k is and whichever memory their
noise has. The scale of the noise may change at k under both: louder nights are no slower nights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import accumulate, pairwise
from statistics import median

import numpy as np
from numpy.typing import NDArray

from perfbisect.stats.robust import FAR_SCALE, Array, adaptive_grid, grid_cells, log_sum_exp, quantiles

INNER = 5  # nights that a level must last: a shorter one is a transient ...
OUTER = 2  # ... but the first and the last one, which may have begun before the series and may go on
_UNEQUAL = 0.2  # prior probability that the scale of the noise changes where the level might

MEMORY = (0.0, 0.3, 0.6)  # correlations of one night's noise with the next that are weighed ...
MEMORY_PRIOR = (0.7, 0.15, 0.15)  # ... their prior weights where the level changes ...

MEMORY_UNCHANGED = (0.7, 0.3, 0.3)
"""... and where it does not. They add up to more than 1: short series hardly tell a slow wave from a level,
and a change has to beat the rare kinds of noise too."""

FAR = (0.015, 0.1, 0.3)  # shares of nights that are far out that are weighed, with equal weights
SPREAD = (0.5, 0.71, 1.0, 1.41, 2.0, 2.83)  # scales that are weighed, over that of the first differences
FLOOR = 1e-4  # smallest scale of a night (relative): values that repeat exactly are not exact
_COARSEST = 0.05  # largest tick (relative): levels farther apart are no matter of rounding
_EXACT = 1e-6  # relative error of a value on a grid

_T3 = 2 / (math.pi * math.sqrt(3)) * math.sqrt(2 * math.pi)
"""Density of a Student-t3 at its centre over that of a Gaussian."""

_LAG = 4.0  # scales to which a night's distance is cut before it speaks of the next: a wild night has no heir
_KERNEL = 3.0  # scale of the prior of a step, a Cauchy, in scales of a night ...
LEAST = 0.4  # ... without the steps smaller than this, which no series could tell from none
FINE = 0.2  # scales of a night between two levels near the data
_NODES = 112  # levels at most: between far ones they lie wider
_KEEP, _KEEP_PART = 8.0, 3.0  # log likelihood below the best, of all and a third, at which noise is left out
_TAIL = 0.0125  # tails of the interval of a size: measured noise leaves one of 2.5 % too often
_MOST = 0.8  # probability of the places over which the size of a step is averaged


@dataclass(frozen=True)
class NoiseFamily:
    """Kinds of noise that differ in scale alone.

    ``scales``: those of the ``spreads`` weighed ones that the nights do not rule out. ``weight``: prior
    weight where the level changes, ``unchanged``: where it does not.
    """

    memory: float
    far: float
    scales: tuple[float, ...]
    spreads: int
    weight: float
    unchanged: float


NoiseFamilies = tuple[NoiseFamily, ...]


def kinds(
    memory: tuple[float, ...] = MEMORY,
    prior: tuple[float, ...] = MEMORY_PRIOR,
    unchanged: tuple[float, ...] = MEMORY_UNCHANGED,
    far: tuple[float, ...] = FAR,
    spread: tuple[float, ...] = SPREAD,
) -> NoiseFamilies:
    """All combinations."""
    return tuple(
        NoiseFamily(rho, share, spread, len(spread), changed / len(far), same / len(far))
        for rho, changed, same in zip(memory, prior, unchanged, strict=True)
        for share in far
    )


@dataclass(frozen=True)
class Tables:
    """Log likelihoods of one series of n nights at G levels under R kinds of noise of F families.

    ``values``: signed logs [n]. ``scale``: of a night, from first differences. ``kinds``: those of each
    family [F]. ``nodes``: levels [G], ascending; ``width``: of their cells [G]. ``step``: prior probability
    of a step from level g into the cell of level h [G, G]. ``fresh``: log likelihood of night t as the first
    at its level [R, n, G]. ``total``: sum over the nights before t of that given the night before
    [R, n + 1, G].
    """

    values: Array
    scale: float
    families: NoiseFamilies
    kinds: tuple[slice, ...]
    nodes: Array
    width: Array
    step: Array
    fresh: Array
    total: Array

    @property
    def prior(self) -> Array:
        """log prior weight of each family [F] where the level changes."""
        return np.log([family.weight for family in self.families])


def least_scale(values: Array) -> float:
    """The smallest scale of a night (relative): half a tick where all values are multiples of one."""
    tick, distinct, middle = 0.0, np.unique(values), float(np.median(values))
    for value in distinct.tolist():
        tick, rest = value, tick  # the greatest common divisor of both
        while rest > _EXACT * value:
            tick, rest = rest, abs(tick - rest * round(tick / rest))
        # Values with this many digits are not rounded to a tick that matters.
        if tick < 2 * FLOOR * middle:
            return FLOOR
    return 0.5 * min(_COARSEST, tick / middle) if len(distinct) > 1 else FLOOR


def scale_of(values: Array, least: float = FLOOR) -> float:
    """Scale of a night: the median distance of neighbours over that of two Gaussian values. A step enters
    one distance only. Where more than half of the neighbours are equal: the mean distance."""
    apart = np.abs(np.diff(values))
    if not len(apart):
        return least
    # 0.9539 and 1.1284: median and mean distance of two standard Gaussian values.
    robust = float(np.median(apart)) / 0.9539
    return max(robust, least) if robust > 0 else max(float(np.mean(apart)) / 1.1284, least)


def likely(rests: tuple[Array, ...], scale: float, families: NoiseFamilies) -> NoiseFamilies:
    """The kinds of noise that residuals of the nights [n], in any of several ways, do not rule out.

    A scale is kept also where a third of the nights supports it.
    """
    scales = np.array([family.scales for family in families])
    memory, share = (
        np.array(x)[:, None, None] for x in zip(*((f.memory, f.far) for f in families), strict=True)
    )
    kept = np.zeros(scales.shape, bool)
    for rest in rests:
        z = rest / scale
        before = np.clip(np.concatenate([[0.0], z[:-1]]), -_LAG, _LAG)
        core, far = _densities(((z - memory * before) / scales[:, :, None]) ** 2)
        logs = np.log((1.0 - share) * core + share * far) - np.log(scales)[:, :, None]
        whole = logs.sum(axis=2)
        # Noise that is e^8 less likely than the best adds nothing that shows, and each kind of noise costs a
        # table.
        kept |= whole > whole.max() - _KEEP
        # Noise may be small in one third and large in another, as where the scale changes.
        parts = np.array([part.sum(axis=2) for part in np.array_split(logs, 3, axis=2)])
        best = parts.max(axis=2).sum(axis=0)
        near = parts > parts.max(axis=(1, 2), keepdims=True) - _KEEP_PART
        kept |= near.any(axis=0) & (best > best.max() - _KEEP)[:, None]
    left = (tuple(scales[row].tolist()) for scales, row in zip(scales, kept, strict=True))
    return tuple(replace(f, scales=own) for f, own in zip(families, left, strict=True) if own)


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


def tables(values: Array, families: NoiseFamilies, fineness: float = FINE, least: float = FLOOR) -> Tables:
    """The tables of a series of signed logs; ``fineness``: scales of a night between two levels."""
    n = len(values)
    scale = scale_of(values, least)
    fine = scale * fineness
    # A median over five nights hides levels of two nights at the ends, which need nodes, too.
    ends = np.concatenate([values[:3], values[-4:]])
    nodes = adaptive_grid(np.concatenate([smooth(values), ends]), fine, 1.5 * scale, _NODES)
    low, high = grid_cells(nodes)
    width = high - low
    away = (values[:, None] - nodes[None, :]) / scale
    # The first night of a level has no predecessor: its memory starts at the level itself.
    before = np.clip(np.concatenate([np.zeros((1, len(nodes))), away[:-1]]), -_LAG, _LAG)

    @cache
    def densities(memory: float, s: float) -> tuple[Array, Array]:
        return _densities(((away - memory * before) / s) ** 2)

    @cache
    def logs(memory: float, share: float, s: float) -> Array:
        core, far = densities(memory, s)
        return np.asarray(np.log((1.0 - share) * core + share * far) - math.log(s))

    # A new level starts without memory, at its own scale: a step does not depend on the night before it.
    fresh = np.array([logs(0.0, f.far, s) for f in families for s in f.scales])
    given = [logs(f.memory, f.far, s) for f in families for s in f.scales]
    total = np.zeros((len(given), n + 1, len(nodes)))
    np.cumsum(given, axis=1, out=total[:, 1:])
    step = _below(high - nodes[:, None], scale) - _below(low - nodes[:, None], scale)
    starts = accumulate((len(family.scales) for family in families), initial=0)
    own = tuple(slice(first, end) for first, end in pairwise(starts))
    return Tables(values, scale, families, own, nodes, width, step, fresh, total)


def _densities(square: Array) -> tuple[Array, Array]:
    """Density of a usual night and of one far out, at the square of a distance in scales."""
    far = (_T3 / FAR_SCALE) / (1.0 + square / (3.0 * FAR_SCALE**2)) ** 2
    return np.exp(-0.5 * square), far


def likely_places(places: NDArray[np.intp], p: Array, level: float) -> NDArray[np.intp]:
    """The smallest set of places of probability ``level``, ascending."""
    order = np.argsort(-p, kind="stable")
    count = int(np.searchsorted(np.cumsum(p[order]), level)) + 1
    return np.sort(places[order[:count]])


@dataclass(frozen=True)
class ChangeEvidence:
    """Evidence of a stretch for one change: log e(k) (``logs``) of the first nights k of a new level."""

    places: NDArray[np.intp]
    logs: Array

    @cached_property
    def total(self) -> float:
        """log of the sum of e(k); -inf without a place."""
        return float(log_sum_exp(self.logs)) if len(self.logs) else -math.inf

    def under(self, prior: Array) -> float:
        """log of the sum of e(k) under a log prior of all nights [n]; -inf without a place."""
        return float(log_sum_exp(self.logs + prior[self.places])) if len(self.logs) else -math.inf

    def at(self, place: int) -> float:
        return float(self.logs[np.searchsorted(self.places, place)])

    @cached_property
    def posterior(self) -> Array:
        """Probability of each place, given that there is one change."""
        return np.exp(self.logs - self.total)

    def likely(self, level: float) -> NDArray[np.intp]:
        return likely_places(self.places, self.posterior, level)

    @cached_property
    def best(self) -> int:
        """The likeliest place of the five neighbouring nights that hold most probability; -1 without any."""
        if not len(self.places):
            return -1
        p = self.posterior
        around = np.convolve(p, np.ones(5), "same") if len(p) >= 5 else p
        # Ties of the window are broken by the place itself, so that the choice does not depend on rounding.
        near = around + 1e-6 * p
        middle = int(np.argmax(near))
        low = max(0, middle - 2)
        return int(self.places[low + int(np.argmax(p[low : middle + 3]))])


def _mix(family: NoiseFamily) -> Array:
    """Prior of (scale before, scale after) within a family."""
    count, spreads = len(family.scales), family.spreads
    # The prior is spread over all scales that were weighed: those that were left out keep their share.
    out = np.full((count, count), _UNEQUAL / (spreads * max(1, spreads - 1)))
    np.fill_diagonal(out, (1.0 - _UNEQUAL) / spreads)
    return out


def _mixed(mix: Array, parts: Array) -> Array:
    """For every kind before a change the mean over the kinds after it."""
    return np.asarray((mix @ parts.reshape(len(parts), -1)).reshape(parts.shape))


def _parts(t: Tables, start: int, end: int, places: NDArray[np.intp]) -> tuple[Array, Array, Array, Array]:
    """Log likelihoods by kind, place and level: of the nights before a place, and of those after it at a new
    level or further at the old one; by kind and level: of all nights at one level."""
    first, total = t.fresh[:, start], t.total
    head = first - total[:, start + 1]
    before = head[:, None] + total[:, places]
    stay = head + total[:, end]
    rest = total[:, None, end] - total[:, places]
    after = t.fresh[:, places] + total[:, None, end] - total[:, places + 1]
    return before, after, rest, stay


@dataclass(frozen=True)
class Likelihoods:
    """log likelihoods of a stretch by family of noise.

    ``changed``: with one change, at each of ``places`` [F, places]. ``same``: without any, with its prior
    weight over that of a change [F].
    """

    places: NDArray[np.intp]
    changed: Array
    same: Array

    def evidence(self, noise: Array) -> ChangeEvidence:
        """The evidence where ``noise`` is the log weight of each family [F], up to a constant."""
        if not len(self.places):
            return ChangeEvidence(self.places, np.empty(0))
        logs = log_sum_exp(noise[:, None] + self.changed, axis=0)
        return ChangeEvidence(self.places, logs - float(log_sum_exp(noise + self.same)))


def likelihoods(t: Tables, start: int, end: int, inner: int = INNER) -> Likelihoods:
    """Of nights ``start`` to ``end`` (excluded), with one change of level in them and without.

    ``inner``: nights that a level between two changes must last.
    """
    # Only the outer levels of a series may be short: they may have begun before it, or go on after it.
    first = inner if start else OUTER
    last = inner if end < len(t.values) else OUTER
    places = np.arange(start + first, end - last + 1)
    if not len(places):
        return Likelihoods(places, np.empty((len(t.families), 0)), np.empty(len(t.families)))
    before, after, rest, stay = _parts(t, start, end, places)
    # Every exponential is taken relative to the largest of its place: sums of likelihoods of many nights.
    left = before.max(axis=(0, 2))
    right = np.maximum(after.max(axis=(0, 2)), rest.max(axis=(0, 2)))
    a = np.exp(before - left[:, None]) * t.width
    b, c = np.exp(after - right[:, None]), np.exp(rest - right[:, None])
    top = float(stay.max())
    d = np.exp(stay - top) @ t.width
    moved = (a.reshape(-1, a.shape[2]) @ t.step).reshape(a.shape)
    changed, same = np.empty((len(t.families), len(places))), np.empty(len(t.families))
    with np.errstate(divide="ignore"):
        for f, (family, own) in enumerate(zip(t.families, t.kinds, strict=True)):
            mix = _mix(family)
            changed[f] = np.log(np.einsum("rkg,rkg->k", moved[own], _mixed(mix, b[own]))) + left + right
            stayed = math.log1p(-_UNEQUAL) + np.log(d[own].sum() / family.spreads) + top
            turned = -math.inf
            # Noisier nights are not slower nights: the hypothesis of one level allows a change of scale, too.
            if len(family.scales) > 1:
                # The diagonal is no change of scale, which is counted above.
                np.fill_diagonal(mix, 0.0)
                turn = np.log(np.einsum("rkg,rkg->k", a[own], _mixed(mix, c[own]))) + left + right
                turned = float(log_sum_exp(turn)) - math.log(len(places))
            same[f] = np.logaddexp(stayed, turned) + math.log(family.unchanged / family.weight)
    return Likelihoods(places, changed, same)


def level(t: Tables, start: int, end: int) -> Array:
    """log likelihood of nights ``start`` to ``end`` (excluded) at one level of any height, by family [F]."""
    logs = t.fresh[:, start] + t.total[:, end] - t.total[:, start + 1]
    top = float(logs.max())
    each = np.exp(logs - top) @ t.width
    with np.errstate(divide="ignore"):
        sums = [each[own].sum() / f.spreads for f, own in zip(t.families, t.kinds, strict=True)]
        return np.asarray(np.log(sums) + top)


def step_size(
    t: Tables, start: int, end: int, evidence: ChangeEvidence, noise: Array
) -> tuple[float, float, float]:
    """The step between nights ``start`` and ``end``, wherever it lies: median and 95 % interval, in logs.

    ``noise``: the log weight of each family [F], up to a constant.
    """
    places = evidence.likely(_MOST)
    share = evidence.posterior[np.searchsorted(evidence.places, places)]
    before, after, _, _ = _parts(t, start, end, places)
    a = np.exp(before - before.max(axis=(0, 2))[:, None]) * t.width
    b = np.exp(after - after.max(axis=(0, 2))[:, None])
    joint = np.zeros((len(places), *t.step.shape))
    for family, own, weight in zip(t.families, t.kinds, np.exp(noise - noise.max()), strict=True):
        mixed = _mixed(_mix(family), b[own])
        joint += weight * (a[own].transpose(1, 2, 0) @ mixed.transpose(1, 0, 2))
    # With the prior of the step the interval is a posterior of the size, averaged over the levels.
    joint *= t.step
    mass = np.tensordot(share / joint.sum(axis=(1, 2)), joint, 1).ravel()
    # Equal steps between other levels are one step: apart they would make a staircase of the distribution.
    unit = float(t.width.min())
    at = ((t.nodes[None, :] - t.nodes[:, None]) / unit).round().astype(int).ravel()
    far = int(at.max())
    binned = np.bincount(at + far, mass).astype(float)
    used = np.flatnonzero(binned)
    sizes = np.asarray((used - far) * unit, np.float64)
    low, middle, high = quantiles(sizes, binned[used], (_TAIL, 0.5, 1 - _TAIL))
    return middle, low, high
