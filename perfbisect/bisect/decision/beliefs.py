"""What is believed after the data, as values: probabilities of positions, levels, noise; and the priors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from perfbisect.bisect.decision.model import BUILD_SD
from perfbisect.bisect.decision.noise import LaunchEstimate, WeightedNoise, launch_variance
from perfbisect.stats.robust import Array, quantiles

NO_CHANGE = 0.25
"""Prior probability that the two ends do not differ."""

STEPS = ((0.3, 1.0, math.log(1.5)), (0.5, 2.0, math.log(1.5)), (0.2, 1.0, math.log(12.0)))
"""Prior of the step: log-uniform parts (weight, least in units of the smallest effect, largest). Most weight
lies between twice the smallest effect and half as much again, where regressions are, some up to twelve
times."""

MIN_ODDS_AGAINST = 60.0
"""Least likelihood ratio against a step of any size before it is called absent ..."""

RELEVANT = 2.0
"""... from this many times the smallest effect on."""


@dataclass(frozen=True)
class Posterior:
    """Probabilities and levels after the data. Levels are signed logs (larger is worse); sd in the same unit.

    A hypothesis is a gap k: the culprit lies in (``at[k]``, ``at[k + 1]``]; or the slope, or no change.
    ``data``: the launches that it rests on; ``scope``: prior weights of the positions, which add up to 1.
    ``sigma``, ``tau``: the means of the pairs of ``noise``.
    """

    data: tuple[LaunchEstimate, ...]
    scope: Array
    at: tuple[int, ...]
    gaps: Array
    none: float
    min_effect: float
    sigma: float
    tau: float
    noise: WeightedNoise
    levels_of: Callable[[Array], tuple[Array, Array]]
    """Of places: mean and variance [place, hypothesis] of the level that the next launch there would see;
    before each gap's step, after it, slope, no change."""
    step: Array
    """Sizes delta of the step (ascending) ..."""
    step_weight: Array
    """... and the mass at each, given that there is a change."""
    drift: float
    """Standard deviation of the machine's drift, 0 where the data show none."""
    slope: float
    """Probability that the level moves a little at every position, where that is thought of."""
    several: float
    """Probability of several steps, where a slope is likely; it is shared out to their gaps."""
    misfit: float
    """Largest distance of a position's level from the slope, in standard errors."""
    builds: Array
    """Probability of each of :data:`BUILD_SD`; all of it on 0 where builds are taken for alike."""
    build_ratio: float
    """Likelihood ratio of builds that differ against builds that are alike."""
    is_sharp: bool
    """Whether the step is so large that its A/B may be passed by chance where it slows only some launches."""
    slow_share: float
    """Mean share of the launches that the step slows, and ..."""
    slow: Array
    """... of each launch the probability that it was slow, if it was made after the step."""
    splits: tuple[tuple[int, int], ...] = ()
    """Gaps between measured positions in which an exact channel moved."""

    @cached_property
    def p(self) -> Array:
        """The probability of each position: a gap's is shared out by the prior."""
        p, mass = np.zeros_like(self.scope), gap_masses(self.scope, self.at)
        for k, (before, last) in enumerate(pairwise(self.at)):
            inside = slice(before + 1, last + 1)
            p[inside] = self.gaps[k] * self.scope[inside] / mass[k]
        return p

    def inside(self, parent: int, culprit: int) -> float:
        """The probability that the culprit lies after ``parent``, up to ``culprit``."""
        return float(self.p[parent + 1 : culprit + 1].sum())

    @property
    def build_sd(self) -> float:
        """Mean of the standard deviation of what builds have of their own."""
        return float(self.builds @ np.array(BUILD_SD))

    def step_quantiles(self, *levels: float) -> tuple[float, ...]:
        """Quantiles of the step's size, given that there is a change."""
        return quantiles(self.step, self.step_weight, levels)

    def launch_variance(self, runs: float) -> float:
        """Variance of the centre of a launch of so many runs."""
        return launch_variance(self.sigma, self.tau, runs)

    def launches_needed(self, runs: int, made: int) -> int:
        """Launches a side, more than ``made``, that would settle a step of the size now believed.

        With n launches a side the expected log likelihood ratio is n delta^2 / (4 s^2); about 4 is needed to
        overcome the prior of no change and of all the sizes that the step could have had.
        """
        size = max(self.step_quantiles(0.5)[0], math.log1p(self.min_effect))
        return max(made + 1, math.ceil(16 * self.launch_variance(runs) / size**2))

    @property
    def rules_out_relevant_step(self) -> bool:
        """Whether the data contradict every step from :data:`RELEVANT` times the smallest effect on.

        P(no change) alone is not enough: where the prior spreads over many sizes, it grows on data that say
        little about a step of a certain size. A likelihood ratio that is looked at after every round crosses
        R at most once in R worlds in which that step is real (Ville 1939).
        """
        edges = math.log1p(self.min_effect) * RELEVANT * np.power(1.35, np.arange(9.0))
        mass = np.histogram(self.step, edges, weights=self.step_weight)[0] / self.step_weight.sum()
        expected = np.diff(step_prior(edges, self.min_effect))
        change = (1 - self.none) / (1 - NO_CHANGE)
        # P(data | a step between two neighbouring edges) / P(data | no change), whatever the prior.
        # Beyond the largest step of the prior there is none: no mass, and nothing to rule out.
        odds = mass / np.maximum(expected, 1e-300) * change / max(self.none / NO_CHANGE, 1e-300)
        return bool(np.max(odds) < 1 / MIN_ODDS_AGAINST)


def gap_masses(scope: Array, at: Sequence[int] | NDArray[np.intp]) -> Array:
    """The prior weight of each gap between measured positions."""
    return np.diff(np.cumsum(scope)[np.asarray(at)])


def prior_weights(n: int, prior: tuple[float, ...] | None) -> Array:
    """Weights of the candidates over positions 0..n (position 0: none), mixed with a tenth of uniform so that
    nothing is excluded; they add up to 1. :raises ValueError: wrong length, or weights that are no
    weights."""
    flat = np.ones(n + 1)
    flat[0] = 0.0
    flat /= flat.sum()
    if prior is None:
        return flat
    given = np.array(prior, float)
    if given.shape != flat.shape or not np.all(np.isfinite(given)) or np.any(given < 0):
        raise ValueError(f"a prior is {n + 1} weights >= 0, one a position; got {len(given)}")
    given[0] = 0.0
    if given.sum() <= 0:
        return flat
    return np.asarray(0.9 * given / given.sum() + 0.1 * flat)


def step_prior(delta: Array, min_effect: float) -> Array:
    """Prior probability that the step is smaller than each ``delta``, given that there is one."""
    smallest = math.log1p(min_effect)
    out = np.zeros_like(delta)
    for weight, least, largest in STEPS:
        low, high = least * smallest, max(largest, 2 * least * smallest)
        out += weight * np.log(np.clip(delta, low, high) / low) / math.log(high / low)
    return out


def distinguishable_sets(n: int, skips: frozenset[int]) -> tuple[tuple[int, int], ...]:
    """The distinguishable sets as (first, last), ascending: the culprit is one of first..last, and ``first -
    1`` and ``last`` can be measured. Position n counts as testable."""
    out, first = [], 1
    for i in range(1, n + 1):
        if i == n or i not in skips:
            out.append((first, i))
            first = i + 1
    return tuple(out)


def leading(p: Array, skips: frozenset[int]) -> tuple[int, int, float]:
    """The set with most probability (the earliest, where several share it): first, last, and how much."""
    groups = distinguishable_sets(len(p) - 1, skips)
    ahead = np.cumsum(p)
    mass = np.array([ahead[last] - ahead[first - 1] for first, last in groups])
    best = int(np.argmax(mass >= mass.max() * (1 - 1e-9)))
    return groups[best][0], groups[best][1], float(mass[best])


def credible_set(p: Array, level: float) -> tuple[int, ...]:
    """The smallest set of positions with at least this share of all that ``p`` gives, ascending."""
    order = np.argsort(-p, kind="stable")
    ahead = np.cumsum(p[order])
    count = int(np.searchsorted(ahead, level * ahead[-1])) + 1
    return tuple(sorted(map(int, order[:count])))


def nearest(index: int, low: int, high: int, skips: frozenset[int]) -> int | None:
    """The testable position strictly between ``low`` and ``high`` that is nearest to ``index``; the earlier
    of two."""
    for distance in range(high - low):
        for i in (index - distance, index + distance):
            if low < i < high and i not in skips:
                return i
    return None
