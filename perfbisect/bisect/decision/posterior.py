"""Where the step is, given every launch: one formula, with all that is not asked for integrated out.

The centre of launch j at position i is y = m + delta x + u(binary of i) + f(t) + e: the level m, a step of
size delta (x = 1 from the culprit on) or a slope (x from 0 to 1 over the range) or nothing; an offset u of
each binary; a drift f of the machine; and noise of variance tau^2 + sigma^2 / r with a far tail
(:func:`perfbisect.stats.robust.log_heavy_tailed`). Between two neighbouring measured positions the data
cannot tell candidates apart: a hypothesis is a gap, the slope, or no change.

Each combination of noise and offsets (a kind) and hypothesis is fitted by itself: weighted least squares,
in which the far tail is a weight of each launch, found in a few turns (expectation maximisation), and in
which u is a closed form of each binary. At the fit m and u are integrated out by their Gaussian (Laplace's
approximation), delta on nodes under its prior, the kinds as a sum. The tests compare it with plain sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import partial

import numpy as np
from numpy.typing import NDArray

from perfbisect.bisect.decision.beliefs import (
    NO_CHANGE,
    RELEVANT,
    Posterior,
    gap_masses,
    step_prior,
)
from perfbisect.bisect.decision.model import BUILD_SD, USUAL_NOISE, NoisePrior
from perfbisect.bisect.decision.noise import LaunchEstimate, WeightedNoise, likely_noise
from perfbisect.bisect.decision.staircase import staircase
from perfbisect.stats.robust import Array, heavy_tailed_weight, log_heavy_tailed, log_sum_exp

BUILD_PRIOR = (0.6, 0.2, 0.15, 0.05, 0.0, 0.0)
"""Prior of :data:`BUILD_SD` where most builds share their compiled files ..."""

COMPILED_PRIOR = (0.1, 0.25, 0.35, 0.3, 0.0, 0.0)
"""... and where most have their own."""

SLOPE = 0.1
"""Prior probability that what changes between the ends changes gradually."""

SLOPE_SHOWN = 0.2
"""Probability of a slope above which the search tells it from a step before anything else, and reckons with
several steps: these look like a slope where few positions were launched."""

SEVERAL = 2.0
"""Prior weight of several steps, in the units of :data:`SLOPE`: true slopes are rare."""

SLOW_SHARES = (0.8, 0.6, 0.4, 0.2)
"""Grid of the share of launches that a step slows, where it does not slow all ..."""

SLOW_PRIOR = 0.125
"""... and the prior of each."""

SHARP = 4.0
"""Least step, in standard deviations of a launch, that may slow a share of the launches: a smaller one takes
so many that fast and slow ones show."""

DRIFT_MINUTES = 120.0
"""Correlation time of a drift, an Ornstein-Uhlenbeck path ..."""

_DRIFTS = (0.0, 0.008, 0.016, 0.032)
"""... its standard deviation ..."""

_DRIFT_PRIOR = (0.7, 0.1, 0.1, 0.1)
"""... and the prior of that."""

_MIN_DRIFT = 0.5
"""Least probability of a drift at which it is reckoned with."""

_MIN_LAUNCHES = 8
"""Least launches for a drift to be considered."""

_TOGETHER = 1.0
"""Standard errors of the correlation of neighbours in time beyond which a drift is looked for."""

_SPACING = 20.0
"""Least minutes between two knots of a drift's path, and ..."""

_KNOTS = 8
"""... most of them."""

_SOON = 5.0
"""Minutes until the next launch begins its runs."""

_TURNS = 4
_KEPT = 3e-3
"""Kinds below this share of the likeliest are dropped after a turn."""

_USUAL_LAUNCHES = 4.0
"""What the usual noise counts for, in launches, where launches have two levels."""

_NODES = 17
_REACH = 4.5
_LARGEST = math.log(12.0)


@dataclass(frozen=True)
class Alternatives:
    """What else may explain launches than a step among builds that are alike; slopes and slow launches are
    always among it.

    ``binaries``: of each position, equal where the compiled files are; empty: each is by itself. ``builds``:
    weights of :data:`BUILD_SD`; ``drift``: standard deviation of the machine's drift, as it was seen.
    """

    binaries: tuple[str, ...] = ()
    builds: tuple[float, ...] = BUILD_PRIOR
    drift: float = 0.0


def usual_builds(compiles_each: bool) -> tuple[float, ...]:
    """The prior of :data:`BUILD_SD` where nothing was learnt."""
    return COMPILED_PRIOR if compiles_each else BUILD_PRIOR


@dataclass(frozen=True)
class _Kinds:
    """Combinations of noise, standard deviation of builds (an index of :data:`BUILD_SD`) and drift."""

    sigma: Array
    tau: Array
    build: NDArray[np.intp]
    drift: Array
    log_prior: Array

    def pick(self, chosen: NDArray[np.bool_]) -> _Kinds:
        return _Kinds(*(getattr(self, each.name)[chosen] for each in fields(self)))

    @property
    def build_variance(self) -> Array:
        return np.asarray(np.array(BUILD_SD)[self.build] ** 2)

    @classmethod
    def of(
        cls, data: tuple[LaunchEstimate, ...], noise: NoisePrior, builds: Array, drifts: dict[float, float]
    ) -> _Kinds:
        pairs = likely_noise(data, noise)
        possible = np.flatnonzero(builds > 0)
        pair, build, path = (
            part.ravel()
            for part in np.meshgrid(np.arange(len(pairs.sigma)), possible, list(drifts), indexing="ij")
        )
        prior = np.log(pairs.weight[pair] * builds[build] / builds.sum())
        prior = prior + np.log([drifts[float(sd)] for sd in path])
        return cls(pairs.sigma[pair], pairs.tau[pair], build, np.asarray(path, float), prior)


@dataclass(frozen=True)
class _Launches:
    """The launches in the order of their binaries, and the hypotheses as rows of x."""

    y: Array
    runs: Array
    offset_se: Array
    index: NDArray[np.intp]
    starts: NDArray[np.intp]
    """The first launch of each binary."""
    binary: NDArray[np.intp]
    """The block of the launches of each position's binary; -1: it was not launched."""
    x: Array
    """[hypothesis, launch]: gaps between measured positions, the slope, no change."""
    hats: Array
    """[knot, launch]: what each knot of a drift's path adds; no rows without a drift."""
    soon: Array
    """... and adds to the next launch."""
    apart: Array
    """Minutes between two knots."""
    min_effect: float
    order: NDArray[np.intp]
    """Of the launches, in which they were given."""
    when: Array

    @classmethod
    def of(
        cls,
        data: tuple[LaunchEstimate, ...],
        at: NDArray[np.intp],
        names: tuple[str, ...],
        min_effect: float,
        is_drifting: bool,
    ) -> _Launches:
        """The launches as arrays."""
        index, when = np.array([x.index for x in data]), np.array([x.at for x in data])
        name = np.unique(names, return_inverse=True)[1]
        order = np.lexsort((index, name[index]))
        index, own = index[order], name[index[order]]
        starts = np.flatnonzero(np.append(True, own[1:] != own[:-1]))
        blocks = np.full(len(names), -1)
        blocks[own[starts]] = np.arange(len(starts))
        ramp = (index - at[0]) / (at[-1] - at[0])
        knots = np.zeros(0)
        if is_drifting:
            count = int(np.clip(np.ptp(when) / _SPACING + 1, 2, _KNOTS))
            knots = np.linspace(when.min(), when.max() + _SOON, count)
        hats = np.array([np.interp(when[order], knots, one) for one in np.eye(len(knots))])
        return cls(
            y=np.array([data[k].center for k in order]),
            runs=np.array([data[k].runs for k in order], float),
            offset_se=np.array([data[k].offset_se for k in order]),
            index=index,
            starts=starts,
            binary=blocks[name],
            x=np.array([*(index >= at[1:, None]), ramp, np.zeros(len(index))], float),
            hats=hats.reshape(len(knots), len(index)),
            soon=np.eye(len(knots))[-1] if is_drifting else knots,
            apart=np.abs(knots[:, None] - knots[None]),
            min_effect=min_effect,
            order=order,
            when=when[order],
        )

    def variance(self, kinds: _Kinds) -> Array:
        own = kinds.tau[:, None] ** 2 + kinds.sigma[:, None] ** 2 / self.runs
        return np.asarray(own + self.offset_se**2)

    def shows_drift(self, rest: Array) -> bool:
        """Whether residuals of consecutive launches are correlated."""
        if len(rest) < _MIN_LAUNCHES:
            return False
        rest = rest[np.argsort(self.when, kind="stable")]
        size = np.maximum(np.median(np.abs(rest)), 1e-12)
        # One far launch must not make, or hide, the correlation of all others.
        rest = np.clip(rest, -3 * size, 3 * size)
        return bool(rest[1:] @ rest[:-1] > _TOGETHER * float(rest @ rest) / math.sqrt(len(rest)))


@dataclass(frozen=True)
class _Fit:
    """Of each kind and hypothesis: the step, what else is common to the launches, and the evidence.

    ``fixed`` [.., (level, knots), (of x, of y)]: level and knots are those of y less delta times those of x.
    """

    delta: Array
    delta_variance: Array
    nodes: Array
    mass: Array
    fixed: Array
    covariance: Array
    blocks: Array
    """[.., (level, knots, x, y), binary]: sums of precisions; the last column is of no launch."""
    shrink: Array
    """[.., binary]: variance of its offset, given all else."""
    rest: Array
    log: Array

    @property
    def common(self) -> Array:
        """Of y less the step [.., (level, knots)]."""
        return np.asarray(self.fixed[..., 1] - self.delta[..., None] * self.fixed[..., 0])

    def misfit(self, data: _Launches, kinds: _Kinds, share: Array) -> float:
        """Largest distance of a position's level from the slope, in standard errors, by the likeliest fit."""
        kind = int(np.argmax(share[:, -2]))
        variance, size = data.variance(kinds)[kind], len(data.soon) + 1
        common = self.common[kind, -2]
        line = common[0] + common[1:size] @ data.hats + self.delta[kind, -2] * data.x[-2]
        weight = heavy_tailed_weight(self.rest[kind, -2] / np.sqrt(variance)) / variance
        _, place = np.unique(data.index, return_inverse=True)
        total = np.bincount(place, weight)
        away = np.bincount(place, weight * (data.y - line))
        return float(np.max(np.abs(away) / np.sqrt(total + kinds.build_variance[kind] * total**2)))


def _fit(data: _Launches, kinds: _Kinds, weight: Array) -> _Fit:
    """``weight`` [kind, hypothesis, launch]: of a launch's precision, relative to a Gaussian one."""
    variance = data.variance(kinds)[:, None]
    count, hypotheses = len(data.y), len(data.x)
    rows = np.empty((hypotheses, len(data.hats) + 3, count))
    rows[:, 0], rows[:, 1:-2], rows[:, -2], rows[:, -1] = 1.0, data.hats, data.x, data.y
    weighed = (weight / variance)[:, :, None] * rows
    sums = np.add.reduceat(weighed, data.starts, axis=3)
    blocks = np.concatenate([sums, np.zeros((*sums.shape[:3], 1))], axis=3)
    of_builds = kinds.build_variance[:, None, None]
    shrink = of_builds / (1 + of_builds * blocks[:, :, 0])
    gram = weighed @ rows.swapaxes(1, 2) - (blocks * shrink[:, :, None]) @ blocks.swapaxes(2, 3)
    size = len(data.hats) + 1
    log_paths = 0.0
    if size > 1:
        path = kinds.drift[:, None, None] ** 2 * np.exp(-data.apart / DRIFT_MINUTES)
        # A path of no width is one that no launch can show.
        path += 1e-12 * np.eye(size - 1)
        of_path = np.linalg.inv(path)
        gram[:, :, 1:size, 1:size] += of_path[:, None]
        log_paths = np.linalg.slogdet(path)[1][:, None]
    own = gram[..., :size, :size]
    # Most launches show no drift: then there is the level alone.
    covariance = np.linalg.inv(own) if size > 1 else 1 / own
    log_det = np.linalg.slogdet(own)[1] if size > 1 else np.log(own[..., 0, 0])
    fixed = covariance @ gram[..., :size, size:]
    precision = np.maximum(gram[..., -2, -2] - (gram[..., -2, :size] * fixed[..., 0]).sum(-1), 1e-9)
    best = (gram[..., -2, -1] - (gram[..., -2, :size] * fixed[..., 1]).sum(-1)) / precision
    nodes, mass, inside = _step_sizes(best, precision, data.min_effect)
    is_step = data.x.any(axis=1)
    delta = np.where(is_step, (nodes * mass).sum(-1), 0.0)
    spread = np.where(is_step, np.maximum((nodes**2 * mass).sum(-1) - delta**2, 0.0), 0.0)
    inside = np.where(is_step, inside + 0.5 * precision * (delta - best) ** 2, 0.0)
    common = fixed[..., 1] - delta[..., None] * fixed[..., 0]
    away = blocks[:, :, -1] - (blocks[:, :, :size] * common[..., None]).sum(2)
    away -= delta[..., None] * blocks[:, :, -2]
    lengths = np.diff([*data.starts, count])
    rest = data.y - (rows[None, :, :size] * common[..., None]).sum(2) - delta[..., None] * data.x
    rest = rest - np.repeat((shrink * away)[..., :-1], lengths, axis=2)
    log = (log_heavy_tailed(rest / np.sqrt(variance)) - 0.5 * np.log(variance)).sum(-1)
    offsets = of_builds * (away / (1 + of_builds * blocks[:, :, 0])) ** 2
    log += inside - 0.5 * (log_det + log_paths)
    log -= 0.5 * (offsets + np.log1p(of_builds * blocks[:, :, 0])).sum(-1)
    if size > 1:
        knots = common[..., 1:]
        log -= 0.5 * np.einsum("khi,kij,khj->kh", knots, of_path, knots)
    return _Fit(delta, spread, nodes, mass, fixed, covariance, blocks, shrink, rest, log)


def _step_sizes(best: Array, precision: Array, min_effect: float) -> tuple[Array, Array, Array]:
    """Nodes around the best size of a step, their shares, and the log of the prior's integral over them."""
    sd = 1 / np.sqrt(precision)
    low = np.clip(best - _REACH * sd, math.log1p(min_effect), 0.98 * _LARGEST)
    high = np.minimum(np.maximum(best + _REACH * sd, low + _REACH * sd), _LARGEST)
    edges = low[..., None] + (high - low)[..., None] * np.linspace(0, 1, _NODES + 1)
    nodes = 0.5 * (edges[..., 1:] + edges[..., :-1])
    prior = np.log(np.maximum(np.diff(step_prior(edges, min_effect), axis=-1), 1e-300))
    each = prior - 0.5 * precision[..., None] * (nodes - best[..., None]) ** 2
    total = log_sum_exp(each, axis=-1)
    return nodes, np.exp(each - total[..., None]), total


def _settle(data: _Launches, kinds: _Kinds, log_prior: Array) -> tuple[_Kinds, _Fit, Array]:
    """The kinds that carry weight, their fit, and the share of each kind and hypothesis."""
    # The first weights are those of the likeliest noise: a fit of every kind takes long.
    combinations = len(np.unique([kinds.build, kinds.drift], axis=1).T)
    noises = len(kinds.tau) // combinations
    best = int(np.argmax(kinds.log_prior[::combinations]))
    few = kinds.pick(np.arange(len(kinds.tau)) // combinations == best)
    rest = _fit(data, few, np.ones((1, 1, 1))).rest
    weight = np.tile(heavy_tailed_weight(rest / np.sqrt(data.variance(few))[:, None]), (noises, 1, 1))
    for turn in range(_TURNS):
        got = _fit(data, kinds, weight)
        logs = got.log + log_prior + kinds.log_prior[:, None]
        share = np.exp(logs - logs.max())
        share /= share.sum()
        if turn == _TURNS - 1:
            break
        of_kind = share.sum(1)
        kept = of_kind >= _KEPT * of_kind.max()
        kinds = kinds.pick(kept)
        weight = heavy_tailed_weight(got.rest[kept] / np.sqrt(data.variance(kinds))[:, None])
    return kinds, got, share


def compute_posterior(
    data: tuple[LaunchEstimate, ...],
    weights: Array,
    min_effect: float,
    span: tuple[int, int] | None = None,
    prior: NoisePrior = USUAL_NOISE,
    others: Alternatives | None = None,
) -> Posterior:
    """The posterior over culprit positions.

    ``weights`` are prior weights over positions 0..n, positive but for position 0 (:func:`prior_weights`);
    ``span`` restricts candidates to (lo, hi] and data to lo..hi; ``prior``: of the noise; ``others``: what
    else is reckoned with, by default nothing but a drift where the launches show one.

    Raises:
        ValueError: fewer than two positions were measured, or not both ends of the span.
    """
    lo, hi = span or (0, len(weights) - 1)
    data = tuple(launch for launch in data if lo <= launch.index <= hi)
    if not {lo, hi} <= {launch.index for launch in data}:
        raise ValueError(f"positions {lo} and {hi} must both have been measured")
    scope = np.zeros_like(weights)
    scope[lo + 1 : hi + 1] = weights[lo + 1 : hi + 1]
    scope /= scope.sum()
    builds = np.array(others.builds if others else (1.0, *(0.0 for _ in BUILD_SD[1:])), float)
    at = np.unique([launch.index for launch in data])
    # Between two positions a slope is a step.
    sloping = SLOPE if others and len(at) > 2 else 0.0
    change = (1 - NO_CHANGE) * np.append(gap_masses(scope, at) * (1 - sloping), sloping)
    with np.errstate(divide="ignore"):
        log_prior = np.log(np.append(change, NO_CHANGE))
    names = others.binaries if others and others.binaries else tuple(map(str, range(len(weights))))
    drift = others.drift if others else 0.0
    made = _Launches.of(data, at, names, min_effect, drift > 0)
    kinds, got, share = _settle(made, _Kinds.of(data, prior, builds, {drift: 1.0}), log_prior)
    if others is None and made.shows_drift(np.einsum("kh,khl->l", share, got.rest)):
        seen = _Launches.of(data, at, names, min_effect, is_drifting=True)
        paths = _Kinds.of(data, prior, builds, dict(zip(_DRIFTS, _DRIFT_PRIOR, strict=True)))
        paths, fitted, shares = _settle(seen, paths, log_prior)
        if shares[paths.drift > 0].sum() >= _MIN_DRIFT:
            made, kinds, got, share = seen, paths, fitted, shares
            drift = float(np.sqrt(share.sum(1) @ kinds.drift**2))
    is_sharp, slow_share, slow = False, 1.0, np.ones(len(data))
    if others is not None:
        is_sharp, factor, slow_share, slow[made.order] = _slow_launches(made, at, kinds, got, share, scope)
        share = share * factor
        share /= share.sum()
    of_kind, gaps = share.sum(1), len(at) - 1
    told, several = share.sum(0), np.zeros(gaps)
    if told[-2] > SLOPE_SHOWN:
        several = told[-2] * _several_steps(made, kinds, got, share, gap_masses(scope, at))
        several /= 1 + several.sum()
        told *= 1 - several.sum()
    step, step_weight = got.nodes[:, :gaps].ravel(), (share[:, :gaps, None] * got.mass[:, :gaps]).ravel()
    used = step_weight > 1e-7 * step_weight.max()
    # Quantiles need ascending sizes; the nodes of different gaps lie among each other.
    by_size = np.argsort(step[used])
    alike, before = float(of_kind[kinds.build == 0].sum()), min(float(builds[0] / builds.sum()), 1 - 1e-9)
    pairs, pair = np.unique([kinds.sigma, kinds.tau], axis=1, return_inverse=True)
    return Posterior(
        data=data,
        scope=scope,
        at=tuple(map(int, at)),
        gaps=told[:gaps] + several,
        none=float(told[-1]),
        min_effect=min_effect,
        sigma=float(np.exp(of_kind @ np.log(kinds.sigma))),
        tau=float(np.exp(of_kind @ np.log(kinds.tau))),
        noise=WeightedNoise(pairs[0], pairs[1], np.asarray(np.bincount(pair.ravel(), of_kind), float)),
        levels_of=partial(_levels, made, got, share / np.maximum(share.sum(0), 1e-300), (lo, hi)),
        step=step[used][by_size],
        step_weight=step_weight[used][by_size],
        drift=drift,
        slope=float(told[-2]),
        several=float(several.sum()),
        misfit=got.misfit(made, kinds, share) if sloping else 0.0,
        builds=np.asarray(np.bincount(kinds.build, of_kind, minlength=len(BUILD_SD)), float),
        build_ratio=(1 - alike) / max(alike, 1e-12) * before / (1 - before),
        is_sharp=is_sharp,
        slow_share=slow_share,
        slow=slow,
    )


def _several_steps(data: _Launches, kinds: _Kinds, got: _Fit, share: Array, mass: Array) -> Array:
    """The probability of several steps in units of the slope's, gap by gap; ``mass``: prior of each."""
    likely = share[:, -2] > 0.1 * share[:, -2].max()
    kinds = kinds.pick(likely)
    # Less the drift as the slope has it.
    y = data.y - got.common[likely, -2, 1:] @ data.hats
    # No number of launches tells steps that hardly matter from a slope.
    least = math.expm1(RELEVANT * math.log1p(data.min_effect))
    scale, builds = np.sqrt(data.variance(kinds)), np.sqrt(kinds.build_variance)
    steps, falls = staircase(y, scale, data.index, builds, mass, least)
    odds = log_sum_exp(steps + kinds.log_prior) - log_sum_exp(got.log[likely, -2] + kinds.log_prior)
    return SEVERAL / SLOPE * np.exp(np.minimum(odds, 100.0)) * falls


def _levels(
    data: _Launches, got: _Fit, mix: Array, ends: tuple[int, int], where: Array
) -> tuple[Array, Array]:
    """Mean and variance [place, hypothesis] of the level that the next launch of each place would see.

    Hypotheses: before the step in each gap, after it, the slope, no change. ``mix`` [kind, hypothesis]: share
    of each kind in a hypothesis.
    """
    binary, gaps = data.binary[where], len(data.x) - 2
    blocks, shrink = got.blocks[..., binary], got.shrink[..., binary]
    size = len(data.soon) + 1
    row = np.concatenate([[1.0], data.soon])[:, None] - shrink[:, :, None] * blocks[:, :, :size]
    of_x, of_y = (np.einsum("khfw,khf->khw", row, got.fixed[..., k]) for k in (0, 1))
    still = shrink * blocks[:, :, -1] + of_y
    pull = shrink * blocks[:, :, -2] + of_x
    spread = shrink + np.einsum("khfw,khfg,khgw->khw", row, got.covariance, row)

    def level(chosen: slice, x: Array | float) -> tuple[Array, Array]:
        moved = x - pull[:, chosen]
        mean = still[:, chosen] + got.delta[:, chosen, None] * moved
        own = spread[:, chosen] + got.delta_variance[:, chosen, None] * moved**2
        middle = np.einsum("khw,kh->wh", mean, mix[:, chosen])
        return middle, np.einsum("khw,kh->wh", own + mean**2, mix[:, chosen]) - middle**2

    ramp = (where - ends[0]) / (ends[1] - ends[0])
    steps = slice(0, gaps)
    parts = [level(steps, 0.0), level(steps, 1.0), level(slice(gaps, gaps + 1), ramp)]
    parts.append(level(slice(gaps + 1, None), 0.0))
    mean, variance = (np.concatenate(part, axis=1) for part in zip(*parts, strict=True))
    return mean, np.maximum(variance, 0.0)


def _slow_launches(
    data: _Launches, at: NDArray[np.intp], kinds: _Kinds, got: _Fit, share: Array, scope: Array
) -> tuple[bool, Array, float, Array]:
    """What a step that slows a share of the launches after it adds: whether it is so large that this is
    reckoned with, a factor of each hypothesis's weight, the mean share, and of each launch the probability
    that it was slow, if it was made after the step.

    With two levels and a noise of its own, as the launches show them around the likeliest place of a step: to
    a steady step launches of two levels are one wide noise.
    """
    gaps = len(at) - 1
    gap = int(np.argmax(share[:, :gaps].sum(0)))
    kind = int(np.argmax(share[:, gap]))
    is_after = data.x[gap] > 0
    fast = float(np.median(data.y[~is_after]))
    slow = float(data.y[is_after].max())
    is_slow = np.zeros(len(data.y), bool)
    for _ in range(_TURNS if slow > fast else 0):
        is_slow = 2 * data.y > slow + fast
        slow = float(data.y[is_slow & is_after].mean())
    variance = data.variance(kinds)[kind]
    usual = USUAL_NOISE.launches**2 + kinds.sigma[kind] ** 2 / float(np.median(data.runs))
    away = data.y - np.where(is_slow, slow, fast)
    own = (float(away @ away) + _USUAL_LAUNCHES * usual) / (len(away) + _USUAL_LAUNCHES)
    scale = np.sqrt(own * variance / variance.mean())
    at_slow, at_fast = (log_heavy_tailed((data.y - level) / scale) for level in (slow, fast))
    probability = 1 / (1 + np.exp(at_fast - at_slow))
    factor = np.ones(gaps + 2)
    if slow - fast < SHARP * math.sqrt(own):
        return False, factor, 1.0, probability
    after, before = data.x[:gaps], 1 - data.x[:gaps]
    mixed = np.array([np.logaddexp(math.log(x) + at_slow, math.log1p(-x) + at_fast) for x in SLOW_SHARES])
    steady = log_heavy_tailed(got.rest[kind, gap] / np.sqrt(variance)) - 0.5 * np.log(variance)
    same = np.where(is_after, at_slow, at_fast) - np.log(scale)
    ratio = mixed @ after.T + before @ at_fast - np.log(scale).sum() - max(steady.sum(), same.sum())
    mass, p = gap_masses(scope, at), share[:, :gaps].sum(0)
    ratio += math.log(max(p[gap], 1e-300) / mass[gap])
    # Only shares matter, and a ratio may be larger than any number.
    top = max(0.0, float(ratio.max()))
    some, out = SLOW_PRIOR * mass * np.exp(ratio - top), math.exp(-top)
    always = (1 - SLOW_PRIOR * len(SLOW_SHARES)) * p * out
    factor[gaps:] = out
    factor[:gaps] = (always + some.sum(0)) / np.maximum(p, 1e-300)
    mean = (always.sum() + np.array(SLOW_SHARES) @ some.sum(1)) / (always.sum() + some.sum())
    return True, factor, float(mean), probability
