"""Does a name hold against other explanations of the same launches?

The search takes every position before the culprit to have one level and every later one another. Three other
worlds look like that through the few positions it measured:

- **builds**: every build has an offset of its own, Gaussian with standard deviation ``sd``, which all its
  launches share (code layout, link order, hash seeds: Mytkowicz et al., "Producing wrong data without doing
  anything obviously wrong", ASPLOS 2009). Launches of one build cannot tell it from a step, other builds can;
- **a slope**: the level moves a little at every position, and no single change carries it;
- **an intermittent step**: from the culprit on only a share of the launches is slow, so fast launches of a
  position say little about which side of the culprit it is on.

The first two are one generalised least squares with weights for far launches (:mod:`.drift`), the third a
mixture of two levels. Each gives the probability of the name with its own prior.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist

import numpy as np

from perfbisect.bisect.decision.beliefs import NO_CHANGE, Posterior, gap_masses, step_prior
from perfbisect.bisect.decision.drift import (
    DRIFT_MINUTES,
    SOON,
    combine,
    moments,
    next_levels,
    reweighted,
)
from perfbisect.bisect.decision.model import BUILD_SD
from perfbisect.bisect.decision.noise import TAU, launch_scale, launch_variance, tau_prior
from perfbisect.stats.robust import Array, log_heavy_tailed

BUILD_PRIOR = (0.5, 0.2, 0.2, 0.1, 0.0, 0.0)
"""Prior of :data:`BUILD_SD` where most builds share their compiled files ..."""

COMPILED_PRIOR = (0.1, 0.25, 0.35, 0.3, 0.0, 0.0)
"""... and where most have their own."""


SLOPE = 0.2
"""Prior probability that what changes between the ends changes gradually."""

GRADUAL = 0.99
"""Probability of a slope above which there is no single change to find."""

SLOW_SHARES = (1.0, 0.8, 0.6, 0.4, 0.2)
"""Grid of the share of launches that a step slows ..."""

SLOW_PRIOR = (0.5, 0.125, 0.125, 0.125, 0.125)
"""... and its prior."""

STEADY = 0.998
"""Probability of a step that may slow only a share of the launches, above which it is named at once ..."""

STEADY_AT_LAST = 0.97
"""... and without which it is not named, however often both sides were launched."""

SHARP = 4.0
"""Least step, in standard deviations of a launch, of which a few launches may settle an A/B by chance: a
smaller one takes so many that fast and slow ones show."""

HOLDS = 0.97
"""Probability of a step among builds with offsets, without which it is not named ..."""

HOLDS_AT_LAST = 0.85
"""... or this one, once the search of other builds has ended, where most builds share their compiled files,
so that little but the step can differ."""

SHOWN = 3.0
"""Least likelihood ratio of builds with offsets against builds without from which launches show them."""

MISFIT = 0.00135
"""Chance that a position of a slope misses it by more than it may: three standard errors for one position."""


@dataclass(frozen=True)
class Explanations:
    """Probabilities given the launches, where builds have offsets and the change may be a slope.

    ``posterior``: of a step, and of the levels that it leaves; ``build_sd``: posterior mean, and
    ``build_ratio`` the likelihood ratio of any offset against none; ``misfit``: largest distance of a
    position's level from the slope, in standard errors. ``build_sds``: of each possible standard deviation.
    """

    posterior: Posterior
    misfit: float
    build_sd: float
    build_ratio: float
    build_sds: Array

    @property
    def shown_sd(self) -> float | None:
        """What builds differ by; None where that is the prior's word rather than the launches'."""
        return self.build_sd if self.build_ratio >= SHOWN else None

    @property
    def is_slope(self) -> bool:
        """Whether the change is a slope rather than a step, and one that every position lies on."""
        least = NormalDist().inv_cdf(1 - MISFIT / len(self.posterior.at))
        return self.posterior.slope > GRADUAL and self.misfit < least


def explanations(plain: Posterior, weights: tuple[float, ...] = BUILD_PRIOR) -> Explanations:
    """The posterior of step, slope and no change with an offset of each build.

    ``plain``: the posterior of the same launches without either; ``weights``: prior of :data:`BUILD_SD`.
    """
    data = plain.data
    at, index = np.array(plain.at), np.array([x.index for x in data])
    y, runs = np.array([x.center for x in data]), np.array([x.runs for x in data], float)
    # The slope is one more column beside the steps: one fit compares both on the same data.
    ramp = (index - at[0]) / (at[-1] - at[0])
    after = np.concatenate([index[:, None] >= at[None, 1:], ramp[:, None]], axis=1).astype(float)
    taus, build_prior = _taus(plain, 5.0), np.array(weights) / sum(weights)
    possible = build_prior > 0
    tau, build = (grid.ravel() for grid in np.meshgrid(taus, np.array(BUILD_SD)[possible], indexing="ij"))
    prior = tau_prior(tau, plain.noise_prior) + np.log(np.tile(build_prior[possible], len(taus)))
    # Commits of equal compiled files have one offset: they are no second opinion on each other.
    binaries = np.unique(plain.binaries or np.arange(len(plain.scope)), return_inverse=True)[1].astype(float)
    binary, when = binaries[index], np.array([x.at for x in data])
    shared = build[:, None, None] ** 2 * (binary[:, None] == binary[None])
    if plain.drift:
        shared = shared + plain.drift**2 * np.exp(-np.abs(when[:, None] - when[None]) / DRIFT_MINUTES)
    own = tau[:, None] ** 2 + (plain.sigma**2 / runs + np.array([x.offset_se for x in data]) ** 2)[None]
    mass = gap_masses(plain.scope, plain.at)
    # Between two positions a slope is a step.
    sloping = SLOPE if len(at) > 2 else 1e-9
    change = np.log(np.append(mass * (1 - sloping), sloping) * (1 - NO_CHANGE))
    *_, (_, weight, got, sizes, share) = reweighted(y, own, after, shared, plain.min_effect, change, prior)
    slopes = share[:, -2]
    kind = int(np.argmax(slopes))
    rise = float(sizes[0][kind, -1] @ sizes[1][kind, -1])
    line = got.level[kind] + rise * (ramp - got.per[kind, -1])
    each = weight / own[kind]
    misfit = [
        abs(each[here] @ (y - line)[here])
        / math.sqrt(each[here].sum() + (build[kind] * each[here].sum()) ** 2)
        for here in (index == position for position in at)
    ]
    alike, before = float(share.sum(1)[build == 0].sum()), min(float(build_prior[0]), 1 - 1e-9)
    soon = float(when.max()) + SOON
    sd = np.sqrt(build**2 + plain.drift**2)

    def forecast(names: Array) -> tuple[Array, Array, Array]:
        between = build[:, None, None] ** 2 * (names[:, None] == binary[None])
        between = between + plain.drift**2 * np.exp(-(soon - when) / DRIFT_MINUTES)
        return next_levels(got, sd, y, after, between)

    def levels(where: Array) -> tuple[Array, Array]:
        return moments(forecast(binaries[where]), sizes, share, (where - at[0]) / (at[-1] - at[0]))

    now, moved, variance = forecast(np.array([-1.0]))
    steps = tuple(part[:, :-1] for part in sizes)
    found = combine(plain, (now, moved[..., :-1], variance), steps, np.delete(share, -2, axis=1), tau)
    return Explanations(
        posterior=replace(found, places=levels, slope=float(slopes.sum())),
        misfit=max(misfit),
        build_sd=float(share.sum(1) @ build),
        build_ratio=(1 - alike) / max(alike, 1e-12) * before / (1 - before),
        build_sds=share.sum(1).reshape(len(taus), -1).sum(0),
    )


@dataclass(frozen=True)
class Intermittence:
    """Probabilities given the launches, where a step may slow only a share of the launches after it.

    ``gaps``: of the culprit in each gap between measured positions; ``none``: of no change; ``share``:
    posterior mean of the slow share; ``tau``: of the noise between launches; ``size``: of the step;
    ``slow``: of each launch, in the order of the data, that it was slow if it was made after the step.
    """

    gaps: Array
    none: float
    share: float
    tau: float
    size: float
    slow: Array


def intermittence(plain: Posterior) -> Intermittence:
    """The posterior of a step that slows a share of the launches from the culprit on."""
    data = plain.data
    order = np.argsort([x.index for x in data], kind="stable")
    launches = [data[k] for k in order]
    index, at = np.array([x.index for x in launches]), np.array(plain.at)
    y, runs = np.array([x.center for x in launches]), np.array([x.runs for x in launches], float)
    taus = _taus(plain, 20.0)
    offset_se = np.array([[x.offset_se] for x in launches])
    scale = launch_scale(np.array(plain.sigma), taus[None], runs[:, None], offset_se)
    fine = float(np.median(scale[:, 0]))
    low = float(np.median(y[index == at[0]])) + fine * np.linspace(-2, 2, 9)
    least = math.log1p(plain.min_effect)
    edges = np.geomspace(least, max(float(y.max() - low[0]) + 3 * fine, 3 * least), 33)
    delta = np.sqrt(edges[1:] * edges[:-1])
    away = ((y[:, None] - low)[:, None] / scale[..., None])[..., None]
    fast = log_heavy_tailed(away)
    gain = log_heavy_tailed(away - delta / scale[..., None, None]) - fast  # [launch, tau, low, delta]
    none = (fast[..., 0] - np.log(scale)[..., None]).sum(0) + tau_prior(taus, plain.noise_prior)[:, None]
    starts = np.searchsorted(index, at[1:])
    size = np.log(np.maximum(np.diff(step_prior(edges, plain.min_effect)), 1e-12))
    mass = np.log(gap_masses(plain.scope, plain.at) * (1 - NO_CHANGE))
    logs = np.empty((len(SLOW_SHARES), len(starts), len(taus), len(low), len(delta)))
    for k, (share, weight) in enumerate(zip(SLOW_SHARES, SLOW_PRIOR, strict=True)):
        with np.errstate(divide="ignore"):
            mixed = np.logaddexp(math.log(share) + gain, np.log1p(-share))
        # A sum from the last launch backwards: the launches after each possible culprit in one pass.
        after = np.cumsum(mixed[::-1], axis=0)[::-1][starts]
        logs[k] = after + none[..., None] + size + mass[:, None, None, None] + math.log(weight)
    flat = none + math.log(NO_CHANGE)
    top = max(float(logs.max()), float(flat.max()))
    p, rest = np.exp(logs - top), float(np.exp(flat - top).sum())
    by_share = p.sum(axis=(1, 2, 3, 4)) / p.sum()
    slow = np.zeros(len(data))
    for share, weight in zip(SLOW_SHARES, p.sum(axis=1), strict=True):
        odds = gain + math.log(share) - math.log(max(1 - share, 1e-9))
        slow[order] += np.einsum("ltgd,tgd->l", 1 / (1 + np.exp(-odds)), weight) / p.sum()
    return Intermittence(
        gaps=p.sum(axis=(0, 2, 3, 4)) / (p.sum() + rest),
        none=rest / float(p.sum() + rest),
        share=float(by_share @ np.array(SLOW_SHARES)),
        tau=float(p.sum(axis=(0, 1, 3, 4)) @ taus / p.sum()),
        size=float(p.sum(axis=(0, 1, 2, 3)) @ delta / p.sum()),
        slow=slow,
    )


def _taus(plain: Posterior, below: float) -> Array:
    """Noise between launches, from ``1 / below`` of what the plain model takes it for: that holds what builds
    and slow launches add."""
    taus = TAU[(2 * plain.tau > TAU) & (plain.tau / below < TAU)]
    return np.asarray(taus if len(taus) else TAU[:1])


def usual_builds(compiles_each: bool) -> tuple[float, ...]:
    """The prior of :data:`BUILD_SD` where nothing was learnt."""
    return COMPILED_PRIOR if compiles_each else BUILD_PRIOR


@dataclass(frozen=True)
class Rivals:
    """The other explanations of the launches of a posterior."""

    plain: Posterior
    other_steps: bool = False
    """Whether other steps of the part are known: they are no rivals of this one."""
    compiles_each: bool = False
    """Whether most builds have compiled files of their own."""

    @cached_property
    def builds(self) -> Explanations:
        return explanations(self.plain, self.plain.noise_prior.builds or usual_builds(self.compiles_each))

    @cached_property
    def intermittent(self) -> Intermittence:
        return intermittence(self.plain)

    def with_builds(self, parent: int, culprit: int) -> float:
        """Probability of a step after ``parent`` up to ``culprit`` where builds have offsets."""
        return self._inside(self.builds.posterior.gaps, parent, culprit)

    def with_intermittence(self, parent: int, culprit: int) -> float:
        """... and where the step may slow only a share of the launches; 1 where it is not :data:`SHARP`."""
        return self._inside(self.intermittent.gaps, parent, culprit) if self._is_sharp else 1.0

    def by_levels(self, parent: int, culprit: int) -> float:
        """... and where neither is so."""
        return self._inside(self.plain.gaps, parent, culprit)

    def probability(self, parent: int, culprit: int) -> float:
        """The least probability that an explanation gives the step."""
        return min(
            self.by_levels(parent, culprit),
            self.with_builds(parent, culprit),
            self.with_intermittence(parent, culprit),
        )

    def deciding(self, parent: int, culprit: int) -> Posterior:
        """The posterior by the explanation that gives the step the least probability."""
        posteriors = [self.plain, self.builds.posterior]
        if self._is_sharp:
            # Only for a sharp step: a smaller one gets so many launches that fast and slow ones show.
            seen = self.intermittent
            posteriors.append(replace(self.plain, gaps=seen.gaps, none=seen.none))
        return min(posteriors, key=lambda x: float(x.p[parent + 1 : culprit + 1].sum()))

    @cached_property
    def _is_sharp(self) -> bool:
        runs = float(np.median([x.runs for x in self.plain.data]))
        noise = math.sqrt(launch_variance(self.plain.sigma, self.intermittent.tau, runs))
        return self.intermittent.size >= SHARP * noise

    def slow_launches(self, culprit: int) -> tuple[int, int]:
        """Launches from the culprit on that were slow, and how many there were."""
        launches = zip(self.intermittent.slow, self.plain.data, strict=True)
        slow = [p > 0.5 for p, x in launches if x.index >= culprit]
        return int(sum(slow)), len(slow)

    def _inside(self, gaps: Array, parent: int, culprit: int) -> float:
        at = np.array(self.plain.at)
        own = float(gaps[(at[:-1] >= parent) & (at[1:] <= culprit)].sum())
        return own / (own + 1 - float(gaps.sum())) if self.other_steps else own
