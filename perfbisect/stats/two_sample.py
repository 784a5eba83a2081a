"""Posterior of a difference of two sides in blocks, or of a distance from a known level.

A launch is one Student-t value around its level. Block levels are free; the launch's scale is integrated out
over a grid. Values are logs, or shares as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfbisect.model.attempt import value_of_runs
from perfbisect.model.metric import Metric
from perfbisect.stats.robust import Array, log_student_t, log_sum_exp, quantiles

_SCALES = 0.001 * np.power(2.0, 0.5 * np.arange(19))
"""Grid of launch noise: 0.1 % to 51 %."""

_SCALE_PRIOR = (0.025, 1.2)
"""Log-normal prior of launch noise: median 2.5 %, log sd 1.2."""

_PLAUSIBLE = 0.16
"""Noise level that the grid always includes."""

_FINE_SCALES = 0.001 * np.power(2.0, 0.25 * np.arange(37))
"""The same grid where earlier launches have told most of the noise."""

_AS_STUDENT_T = 0.83
"""Scale of the Student-t that fits normal values of standard deviation 1 best."""

UNCHANGED = 0.9
"""Prior probability that a machine is as noisy as it was."""


@dataclass(frozen=True)
class LaunchNoise:
    """What earlier launches say of a launch: standard deviation (scale of levels), degrees of freedom."""

    sd: float
    degrees: float

    def __post_init__(self) -> None:
        if not (0 < self.sd < math.inf and 0 < self.degrees < math.inf):
            raise ValueError(f"noise is a positive sd and degrees of freedom: {self}")


@dataclass(frozen=True)
class Scale:
    """Scale of levels: logs, or shares as they are; larger is worse."""

    sign: int = 1
    absolute: bool = False

    @staticmethod
    def of(metric: Metric) -> Scale:
        return Scale(metric.sign, metric.absolute)

    def level(self, values: Sequence[float]) -> float:
        """The value of a launch on this scale. :raises ValueError: not finite, or not positive for logs."""
        given = np.array(values, float)
        least = 0.0 if self.absolute else np.nextafter(0.0, 1.0)
        if not len(given) or not np.all(np.isfinite(given)) or np.any(given < least):
            raise ValueError(f"values must be positive and finite: {tuple(values)}")
        value = value_of_runs(values, absolute=self.absolute)
        return self.sign * (value if self.absolute else math.log(value))

    def signed(self, values: Array) -> Array:
        return np.asarray(self.sign * (values if self.absolute else np.log(values)))

    def value(self, level: float) -> float:
        """A level as a value of the metric."""
        return self.sign * level if self.absolute else math.exp(self.sign * level)

    def room(self, share: float) -> float:
        """Distance on this scale of a relative effect, whichever the direction."""
        return share if self.absolute else math.log1p(share)

    def worse_by(self, share: float) -> float:
        """Distance on this scale of a worsening by a share (0.05: 5 % slower)."""
        return share if self.absolute else self.sign * math.log1p(self.sign * share)

    def difference(self, effect: float) -> float:
        """The difference of levels of an effect."""
        # The effect of a value that nearly vanished is rounded to -1.
        return self.sign * (effect if self.absolute else math.log1p(max(effect, math.nextafter(-1.0, 0.0))))

    def worse(self, step: float) -> float:
        """A step of levels as a share of the value before it (of shares the difference), worse above 0."""
        return self.sign * self.effect(step)

    def effect(self, difference: float) -> float:
        """The effect of a difference of levels: B / A - 1, or B - A for shares."""
        return self.sign * difference if self.absolute else math.expm1(self.sign * difference)


def difference_posterior(
    values: Array, is_b: NDArray[np.bool_], known: LaunchNoise | None = None
) -> tuple[Array, Array]:
    """Posterior of B - A under a flat prior: ascending values and their masses.

    Shapes are (blocks, launches); every block has the same number of B launches. ``known``: of the noise.
    """
    count = len(values)
    b = values[is_b].reshape(count, -1)
    a = values[~is_b].reshape(count, -1)
    # Block by block: drift between two blocks is in neither difference.
    each = np.median(b, axis=1) - np.median(a, axis=1)
    middle = float(np.median(each))
    rest = values - np.where(is_b, middle, 0.0)
    noise = _noise(rest - np.median(rest, axis=1, keepdims=True), known)
    share = math.sqrt((1 / a.shape[1] + 1 / b.shape[1]) / count)
    delta = _differences(each, middle, noise.rough * share, 8 * noise.most / math.sqrt(count))
    return delta, noise.mass(delta, lambda scale: _blocks(values, is_b, delta, scale))


def level_posterior(values: Array, known: LaunchNoise | None = None) -> tuple[Array, Array]:
    """The level of launches whose distance from a known level these are; as :func:`difference_posterior`."""
    middle = float(np.median(values))
    noise = _noise(values - middle, known)
    error = noise.rough / math.sqrt(len(values))
    delta = _differences(np.array([middle]), middle, error, 8 * noise.most)

    def one_level(scale: float) -> Array:
        each = log_student_t((values[:, None] - delta[None, :]) / scale)
        return np.asarray(each.sum(0) - len(values) * math.log(scale))

    return delta, noise.mass(delta, one_level)


def difference_p(groups: Sequence[Sequence[float]]) -> float:
    """Two-sided p value of equal levels of the first two groups, with the variance within all groups.

    The contrast of a one-way analysis of variance, by Student's t: exact for normal values of any noise. Zero
    where no group has a spread and the two differ.
    """
    # Imported here: scipy takes half a second to load.
    from scipy.special import stdtr

    a, b = (np.array(group, float) for group in groups[:2])
    degrees = sum(len(group) - 1 for group in groups)
    variance = sum(float(np.var(group)) * len(group) for group in groups) / degrees
    deviation = math.sqrt(variance * (1 / len(a) + 1 / len(b)))
    difference = abs(float(a.mean() - b.mean()))
    if not deviation:
        return 0.0 if difference else 1.0
    return float(2 * stdtr(degrees, -difference / deviation))


def differ(groups: Sequence[Sequence[float]], room: float, error: float) -> bool:
    """Whether the first two groups have different levels; equal ones are called so with at most ``error``.

    Judged once. Both must say so: the posterior, whose prior of the noise keeps launches that agree by chance
    from counting as free of noise; and Student's t with the variance within all groups (the contrast of a
    one-way analysis of variance), which is exact for normal launches of any noise. Levels whose difference is
    within ``room`` with 95 % probability do not differ.
    """
    if difference_p(groups) >= error:
        return False
    a, b = (np.array(group, float) for group in groups[:2])
    values, is_b = np.concatenate([a, b]), np.arange(len(a) + len(b)) >= len(a)
    posterior = difference_posterior(values[None, :], is_b[None, :])
    lowest, low, high, highest = quantiles(*posterior, (error / 2, 0.025, 0.975, 1 - error / 2))
    return (lowest > 0 or highest < 0) and max(-low, high) >= room


@dataclass(frozen=True)
class _Noise:
    """Plausible scales of a launch with their log prior; ``rough``: a robust estimate."""

    rough: float
    most: float
    scales: Array
    prior: Array

    def mass(self, delta: Array, log_likelihood: Callable[[float], Array]) -> Array:
        """Mass at each difference, with the scale integrated out."""
        total = np.stack(
            [p + log_likelihood(float(scale)) for p, scale in zip(self.prior, self.scales, strict=True)]
        )
        log_mass = log_sum_exp(total, axis=0) + np.log(np.gradient(delta))
        return np.asarray(np.exp(log_mass - log_mass.max()))


def _noise(rest: Array, known: LaunchNoise | None = None) -> _Noise:
    rough = float(np.clip(1.4826 * np.median(np.abs(rest)), _SCALES[0], _SCALES[-1]))
    # Few launches may agree by chance: their spread bounds the noise from below only.
    most = max(6 * rough, 6 * float(np.sqrt(np.mean(rest**2))), _PLAUSIBLE)
    scales = _FINE_SCALES if known else _SCALES
    prior = -0.5 * (np.log(scales / _SCALE_PRIOR[0]) / _SCALE_PRIOR[1]) ** 2
    if known:
        # A scaled inverse chi-square of the variance, beside the usual prior: launches that contradict it
        # leave only the latter.
        ratio = (_AS_STUDENT_T * known.sd / scales) ** 2
        told = 0.5 * known.degrees * (np.log(ratio) - ratio)
        parts = [(told, UNCHANGED), (prior, 1 - UNCHANGED)]
        prior = np.logaddexp(*(part - log_sum_exp(part) + math.log(share) for part, share in parts))
    used = (rough / 6 < scales) & (most > scales)
    return _Noise(rough, most, scales[used], prior[used])


def _differences(each: Array, middle: float, error: float, beyond: float) -> Array:
    """Grid of differences, dense near the median of the blocks."""
    reach = float(np.abs(each - middle).max()) + beyond
    half = error * np.sinh(np.linspace(0.0, math.asinh(reach / error), 80))
    return np.asarray(middle + np.concatenate([-half[:0:-1], half]))


def _blocks(values: Array, is_b: NDArray[np.bool_], delta: Array, scale: float) -> Array:
    """log P(data | delta, scale), shape (delta,), with block levels integrated out."""
    moved = values[:, :, None] - np.where(is_b[:, :, None], delta[None, None, :], 0.0)
    # In units of the scale around each block's median: the integrand is a product of t densities.
    middle = np.median(moved, axis=1, keepdims=True)
    z = (moved - middle) / scale
    reach = np.abs(z).max() + 6.0
    nodes = np.sinh(np.linspace(-math.asinh(reach), math.asinh(reach), 41))
    width = np.gradient(nodes)
    each = log_student_t(z[:, None, :, :] - nodes[None, :, None, None]).sum(2)
    level = log_sum_exp(each + np.log(width)[None, :, None], axis=1)
    # One scale fewer a block than launches: the integral over the level in units of the scale gives one back.
    return np.asarray(level.sum(0) - (values.shape[1] - 1) * len(values) * math.log(scale))
