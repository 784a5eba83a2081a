"""How much a stretch of nights speaks for one change of level in it, where it lies, and of what size.

The evidence for a change before night k is a ratio of likelihoods, each averaged over all that is not known:

    e(k) = P(nights | another level from night k on) / P(nights | one level)

On average over series without a change it is at most 1 (an e-value), whatever k is and whichever memory their
noise has. The scale of the noise may change at k under both: louder nights are no slower nights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from perfbisect.series.detection.noise import Tables
from perfbisect.stats.robust import Array, log_sum_exp, quantiles

INNER = 5  # nights that a level must last: a shorter one is a transient ...
LAST = 2  # ... but the last one, which may go on
_UNEQUAL = 0.2  # prior probability that the scale of the noise changes where the level might


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
        near = around + 1e-6 * p
        middle = int(np.argmax(near))
        low = max(0, middle - 2)
        return int(self.places[low + int(np.argmax(p[low : middle + 3]))])


_TAIL = 0.0125
"""Tails of the interval of a size: with 2.5 % in each, measured noise leaves it more often than it should."""

_MOST = 0.8  # probability of the places over which the size of a step is averaged


def _mix(count: int, spreads: int) -> Array:
    """Prior of (scale before, scale after) within a family."""
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


def likelihoods(t: Tables, start: int, end: int) -> Likelihoods:
    """Of nights ``start`` to ``end`` (excluded), with one change of level in them and without."""
    last = LAST if end == len(t.values) else INNER
    places = np.arange(start + INNER, end - last + 1)
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
        for f, family in enumerate(t.families):
            own = family.kinds
            mix = _mix(len(own), t.spreads)
            changed[f] = np.log(np.einsum("rkg,rkg->k", moved[own], _mixed(mix, b[own]))) + left + right
            stayed = math.log1p(-_UNEQUAL) + np.log(d[own].sum() / t.spreads) + top
            turned = -math.inf
            if len(own) > 1:
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
        return np.array([np.log(each[family.kinds].sum() / t.spreads) for family in t.families]) + top


def size(
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
    for family, weight in zip(t.families, np.exp(noise - noise.max()), strict=True):
        own = family.kinds
        mixed = _mixed(_mix(len(own), t.spreads), b[own])
        joint += weight * (a[own].transpose(1, 2, 0) @ mixed.transpose(1, 0, 2))
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
