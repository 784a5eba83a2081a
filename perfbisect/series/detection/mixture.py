"""Nights of two kinds: two levels that recur in alternation, as of machines that nothing tells apart.

A night keeps the kind of the night before with a probability, else its kind is drawn anew. Kinds that stay
for long are no noise but changes, so that only short stays are weighed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from perfbisect.series.detection.likelihood import FLOOR, NoiseFamily, densities
from perfbisect.stats.robust import Array

STAYS = (0.0, 0.6, 0.8)  # probabilities to keep the kind that are weighed
FAR = 0.03  # share of nights that are of neither kind
CHANGED, UNCHANGED = 0.15, 0.3  # prior weights of a mixture, where the level changes and where it does not

_WILD = 12.0  # median absolute deviations to which nights are cut before they are divided
_DIVIDED = 3.0  # scales between the parts of a division, which are narrower than the kinds
_ROUNDS = 12  # of expectation and maximisation
_SCALES = (0.75, 1.0, 1.33)  # scales of a night that are weighed, over the fitted one
_APART = 3.0  # scales between the kinds, at least
_MARGIN = 0.2  # share of that distance by which a night of another kind lies beyond the middle
_SWITCHES = 3  # from one kind to the other, at least: fewer are changes
_GAIN = 3.0  # log likelihood by which two kinds explain the nights better than one, at least


@dataclass(frozen=True)
class Mixture:
    """``apart``: what the rarer kind adds to a night, in logs; ``share``: of its nights; ``scale``: of nights
    of one kind."""

    apart: float
    share: float
    scale: float

    def families(self, scale: float) -> tuple[NoiseFamily, ...]:
        """The noise of such nights; ``scale``: the unit of its scales."""
        scales = tuple(self.scale / scale * factor for factor in _SCALES)
        weight, unchanged = CHANGED / len(STAYS), UNCHANGED / len(STAYS)
        return tuple(
            NoiseFamily(0.0, FAR, scales, len(scales), weight, unchanged, self.apart, self.share, stay)
            for stay in STAYS
        )

    def residuals(self, values: Array) -> Array:
        """Nights of one level, each less the nearer kind."""
        best, least = values, math.inf
        for level in (np.median(values), np.median(values) - self.apart):
            for _ in range(4):
                rest = values - level
                shift = np.where(np.abs(rest - self.apart) < np.abs(rest), self.apart, 0.0)
                level = np.median(values - shift)
            rest = values - level - shift
            if (total := float(np.abs(rest).sum())) < least:
                best, least = rest, total
        return best


def fit_mixture(values: Array) -> Mixture | None:
    """The two kinds that explain nights (signed logs) better than one; None where they do not alternate."""
    halves = _halves(values)
    if halves is None:
        return None
    one, *_ = _fit(values, np.array([np.median(values)]))
    logs, (low, high), (_, share), scale = _fit(values, halves)
    apart = float(high - low)
    if logs - one < _GAIN or apart < _APART * scale:
        return None
    away = values - 0.5 * (low + high)
    kinds = np.sign(away[np.abs(away) > _MARGIN * apart])
    if np.count_nonzero(np.diff(kinds)) < _SWITCHES:
        return None
    return Mixture(apart, share, scale) if share <= 0.5 else Mixture(-apart, 1 - share, scale)


def _halves(values: Array) -> Array | None:
    """The levels of the likeliest division into low and high nights; None where they are not apart."""
    n = len(values)
    middle = np.median(values)
    reach = _WILD * max(float(np.median(np.abs(values - middle))), FLOOR)
    ordered = np.clip(np.sort(values) - middle, -reach, reach)
    sums, squares = np.cumsum(ordered), np.cumsum(ordered * ordered)
    low = np.arange(1, n)
    high = n - low
    means = sums[:-1] / low, (sums[-1] - sums[:-1]) / high
    within = np.maximum((squares[-1] - low * means[0] ** 2 - high * means[1] ** 2) / n, FLOOR**2)
    logs = low * np.log(low) + high * np.log(high) - 0.5 * n * np.log(within)
    cut = int(np.argmax(logs))
    if means[1][cut] - means[0][cut] < _DIVIDED * math.sqrt(within[cut]):
        return None
    return np.array([means[0][cut], means[1][cut]]) + middle


def _fit(values: Array, levels: Array) -> tuple[float, Array, Array, float]:
    """Expectation and maximisation with heavy tails, from the levels of the kinds.

    Returns the log likelihood, levels and shares of the kinds, and the scale of a night.
    """
    least = max(FLOOR, 1e-3 * float(np.ptp(values)))
    shares = np.full(levels.shape, 1 / len(levels))
    scale = 1.4826 * float(np.median(np.abs(values - levels[:, None]).min(0)))
    logs = -math.inf
    for _ in range(_ROUNDS):
        scale = max(scale, least)
        core, far = densities(((values - levels[:, None]) / scale) ** 2)
        usual = (1 - FAR) * core
        each = shares[:, None] * (usual + FAR * far)
        total = each.sum(0)
        logs = float(np.log(total / scale).sum())
        own = each / total
        shares = own.mean(1)
        weight = own * usual / (usual + FAR * far) + 1e-12
        mass = weight.sum(1)
        levels = weight @ values / mass
        scale = math.sqrt(float((weight * (values - levels[:, None]) ** 2).sum() / mass.sum()))
    return logs, levels, shares, max(scale, least)
