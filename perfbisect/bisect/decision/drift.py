"""Posterior of the step when the machine drifts: a slow path is added to every launch and integrated out.

A launch at position i that began its runs at minute t has centre = level_i + f(t) + noise. The path f is an
Ornstein-Uhlenbeck process: its values at two launches t minutes apart have covariance
sd^2 exp(-t / minutes). The noise is Gaussian here, with weights that the caller gives a launch; then the
integrals over the first level and over the path are closed forms for every gap between measured positions
(generalised least squares; Rasmussen and Williams, *Gaussian Processes for Machine Learning*, 2006, 2.7).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from perfbisect.bisect.decision.beliefs import NO_CHANGE, Posterior, WeightedNoise, gap_masses, step_prior
from perfbisect.bisect.decision.model import NoisePrior
from perfbisect.bisect.decision.noise import TAU, tau_prior
from perfbisect.stats.robust import Array, log_sum_exp

ABSENT = 0.7
"""Prior probability that the machine does not drift."""

DRIFT_MINUTES = 120.0
"""Correlation time that a drift is taken to have where it is not integrated over."""

_SD = (0.008, 0.016, 0.032)
_MINUTES = (60.0, 240.0)


@dataclass(frozen=True)
class DriftModels:
    """Candidate models: noise between launches, sd and correlation minutes of the path, log prior.

    A path of sd 0 is no drift.
    """

    tau: Array
    sd: Array
    minutes: Array
    log_prior: Array


def kinds(around: float, noise: NoisePrior) -> DriftModels:
    """Noise between launches up to a little above what a model without drift takes it for, with every
    path: what drifts passes for noise there."""
    tau = TAU[(2 * around > TAU) & (around / 9 < TAU)]
    tau = tau if len(tau) else TAU[:1]
    paths = [(0.0, 60.0, ABSENT)]
    each = (1 - ABSENT) / (len(_SD) * len(_MINUTES))
    paths += [(sd, minutes, each) for sd in _SD for minutes in _MINUTES]
    t = np.repeat(tau, len(paths))
    sd, minutes, weight = (np.tile(np.array(x), len(tau)) for x in zip(*paths, strict=True))
    return DriftModels(t, sd, minutes, tau_prior(t, noise) + np.log(weight))


def kernel(which: DriftModels, a: Array, b: Array) -> Array:
    """Covariance [kind, a, b] of the path between minutes ``a`` and ``b``."""
    apart = np.abs(a[:, None] - b[None, :])
    return np.asarray(which.sd[:, None, None] ** 2 * np.exp(-apart[None] / which.minutes[:, None, None]))


@dataclass(frozen=True)
class DriftFit:
    """What the launches say under each kind c, the first level and the path integrated out.

    ``none`` is the log likelihood of no change; a step delta in gap k adds
    ``precision`` / 2 * (``best``^2 - (delta - best)^2).
    """

    none: Array
    best: Array
    precision: Array
    level: Array
    per: Array
    """[kind, gap]: how far a unit step pulls the first level down."""
    top: Array
    inverse: Array
    shared: Array


ByKind = TypeVar("ByKind", DriftModels, DriftFit)


def _select(values: ByKind, chosen: NDArray[np.generic]) -> ByKind:
    """Some kinds of the models, or of their fit."""
    return type(values)(*(getattr(values, each.name)[chosen] for each in fields(values)))


def fit(y: Array, variance: Array, after: Array, shared: Array) -> DriftFit:
    """``variance`` [kind, launch] of the centres' own noise; ``after`` [launch, gap]: 1 where a launch's
    position lies at or after the step; ``shared`` [kind, launch, launch]: covariance of the path."""
    count, gaps = after.shape
    cov = shared.copy()
    # The launch's own noise is independent of the path: on the diagonal alone.
    cov[:, range(count), range(count)] += variance
    v = np.concatenate([np.ones((count, 1)), after, y[:, None]], axis=1)
    inverse = np.linalg.inv(cov)
    half = inverse @ v
    first = half[:, :, 0] @ v
    top, level = first[:, 0], first[:, -1] / first[:, 0]
    own = np.einsum("lk,clk->ck", after, half[:, :, 1 : gaps + 1])
    with_y = half[:, :, -1] @ v
    _, log_det = np.linalg.slogdet(cov)
    none = -0.5 * (log_det + np.log(top) + with_y[:, -1] - level * first[:, -1])
    across = first[:, 1 : gaps + 1]
    # Where all launches lie on one side of a gap, a step cannot be told from the level: the precision is 0.
    precision = np.maximum(own - across**2 / top[:, None], 1e-9)
    best = (with_y[:, 1 : gaps + 1] - across * level[:, None]) / precision
    return DriftFit(none, best, precision, level, across / top[:, None], top, inverse, shared)


def fitted(got: DriftFit, y: Array, after: Array, variance: Array) -> tuple[Array, Array, Array]:
    """Level and path at each launch where nothing changed [kind, launch], what a unit step in each gap adds
    [kind, launch, gap], and the variance of the first."""
    onto = got.shared @ got.inverse
    moved = after[None] - got.per[:, None, :]
    rest = y[None] - got.level[:, None]
    flat = got.level[:, None] + (onto @ rest[..., None])[..., 0]
    spread = np.einsum("cii,ci->ci", onto, variance) + (1 - onto.sum(-1)) ** 2 / got.top[:, None]
    return flat, moved - onto @ moved, spread


def next_levels(
    got: DriftFit, sd: Array, y: Array, after: Array, between: Array
) -> tuple[Array, Array, Array]:
    """The level before the step as the next launch of each place would see it.

    ``sd`` [kind]: of what a place adds to the level; ``between`` [kind, place, launch]: covariance of that
    with the launches' paths. Mean where nothing changed [kind, place], what a unit step adds [kind, place,
    gap], variance [kind, place].
    """
    weigh = between @ got.inverse
    moved = after[None] - got.per[:, None, :]
    rest = y[None] - got.level[:, None]
    now = got.level[:, None] + (weigh @ rest[..., None])[..., 0]
    slope = -got.per[:, None, :] - weigh @ moved
    left = np.maximum(sd[:, None] ** 2 - (weigh * between).sum(-1), 0.0)
    return now, slope, left + (1 - weigh.sum(-1)) ** 2 / got.top[:, None]


MIN_PROBABILITY = 0.5
"""Least probability of a drift at which the drift model is used."""

MIN_LAUNCHES = 8
"""Least launches for a drift to be considered."""

_TOGETHER = 0.5
"""Standard errors of the correlation of neighbours in time beyond which a drift is looked for."""

_MIN_FIRST = 0.2
"""Probability of a drift at the first turn below which the others are not worth their time."""

SOON = 5.0
"""Minutes until the next launch begins its runs."""

_FAR = 2.5
"""Standard deviations beyond which a launch loses weight, as the square of its distance."""

_KEPT = 0.02
"""DriftModels of noise and path below this share of the likeliest are dropped after a turn."""

_TURNS = 3
_NODES = 17
_REACH = 4.5
_LARGEST = math.log(12.0)

Sizes = tuple[Array, ...]
"""Sizes of the step [kind, gap, node], their shares, and the log likelihood of a gap [kind, gap]."""


def drifting(without_drift: Posterior) -> Posterior | None:
    """The posterior of the same launches with a drift, or None where they show none."""
    data = without_drift.data
    if len(data) < MIN_LAUNCHES or not _has_drift(without_drift):
        return None
    which = kinds(without_drift.tau, without_drift.noise_prior)
    y = np.array([x.center for x in data])
    after = (np.array([x.index for x in data])[:, None] >= np.array(without_drift.at)[None, 1:]).astype(float)
    minutes = np.array([x.at for x in data])
    runs = np.array([x.runs for x in data], float)
    # sigma is known from the runs within launches, which a slow path hardly moves: only tau is fitted anew.
    fixed = without_drift.sigma**2 / runs + np.array([x.offset_se for x in data]) ** 2
    change = np.log(gap_masses(without_drift.scope, without_drift.at) * (1 - NO_CHANGE))
    own, shared = which.tau[:, None] ** 2 + fixed[None], kernel(which, minutes, minutes)
    least = [_MIN_FIRST, _MIN_FIRST, MIN_PROBABILITY]
    fits = reweighted(y, own, after, shared, without_drift.min_effect, change, which.log_prior, _KEPT)
    for enough, turn in zip(least, fits, strict=True):
        chosen, *_, share = turn
        if share[which.sd[chosen] > 0].sum() < enough:
            return None
    _, _, got, sizes, _ = turn
    which = _select(which, chosen)
    soon = np.array([float(minutes.max()) + SOON])
    forecast = next_levels(got, which.sd, y, after, kernel(which, soon, minutes))
    drift = float(np.sqrt(share.sum(1) @ which.sd**2))
    return replace(combine(without_drift, forecast, sizes, share, which.tau), drift=drift)


def _has_drift(without_drift: Posterior) -> bool:
    """Whether residuals of consecutive launches are correlated."""
    made = sorted(without_drift.data, key=lambda x: x.at)
    after = np.array([x.index for x in made])[:, None] >= np.array(without_drift.at)[None, 1:]
    level = (
        np.where(after, without_drift.high[0], without_drift.low[0]) @ without_drift.gaps
        + without_drift.none * without_drift.flat[0]
    )
    rest = np.array([x.center for x in made]) - level
    size = np.maximum(np.median(np.abs(rest)), 1e-12)
    # One far launch must not make, or hide, the correlation of all others.
    rest = np.clip(rest, -3 * size, 3 * size)
    return bool(rest[1:] @ rest[:-1] > _TOGETHER * float(rest @ rest) / math.sqrt(len(rest)))


def reweighted(
    y: Array,
    own: Array,
    after: Array,
    shared: Array,
    min_effect: float,
    change: Array,
    log_prior: Array,
    keep: float = 0.0,
) -> Iterator[tuple[NDArray[np.int_], Array, DriftFit, Sizes, Array]]:
    """Three fits in turn: kinds, weights of launches, fit, sizes, and shares of the hypotheses.

    ``own`` [kind, launch]: variance of a launch's own noise; ``change``: log prior of a step in each gap;
    shares are [kind, gap], no change last; ``keep``: kinds below this share of the likeliest are left out of
    the next turn. What all launches share is Gaussian and would follow a contaminated one: each turn gives
    less weight to launches that are far from what the last holds likely.
    """
    chosen, weight = np.arange(len(own)), np.ones(len(y))
    for turn in range(_TURNS):
        got = fit(y, own[chosen] / weight[None], after, shared[chosen])
        sizes = step_sizes(got, min_effect)
        logs = np.concatenate([sizes[2] + change, got.none[:, None] + math.log(NO_CHANGE)], axis=1)
        logs += log_prior[chosen, None]
        share = np.exp(logs - logs.max())
        share /= share.sum()
        yield chosen, weight, got, sizes, share
        if turn < _TURNS - 1:
            kept = share.sum(1) >= keep * share.sum(1).max()
            few, chosen = tuple(part[kept] for part in sizes), chosen[kept]
            weight = launch_weights(_select(got, kept), y, after, weight[None], own[chosen], few, share[kept])


def step_sizes(got: DriftFit, min_effect: float) -> Sizes:
    """The integral over the step: nodes around the best size of each gap, weighed by the prior's mass."""
    sd = 1 / np.sqrt(got.precision)
    low = np.clip(got.best - _REACH * sd, math.log1p(min_effect), 0.98 * _LARGEST)
    high = np.minimum(np.maximum(got.best + _REACH * sd, low + _REACH * sd), _LARGEST)
    edges = low[..., None] + (high - low)[..., None] * np.linspace(0, 1, _NODES + 1)
    nodes = 0.5 * (edges[..., 1:] + edges[..., :-1])
    prior = np.log(np.maximum(np.diff(step_prior(edges, min_effect), axis=-1), 1e-300))
    best = got.best[..., None]
    each = prior + 0.5 * got.precision[..., None] * (best**2 - (nodes - best) ** 2)
    total = log_sum_exp(each, axis=-1)
    return nodes, np.exp(each - total[..., None]), got.none[:, None] + total


def _mean(sizes: Sizes) -> tuple[Array, Array]:
    mean = (sizes[0] * sizes[1]).sum(-1)
    return mean, np.maximum((sizes[0] ** 2 * sizes[1]).sum(-1) - mean**2, 0.0)


def launch_weights(
    got: DriftFit, y: Array, after: Array, weight: Array, own: Array, sizes: Sizes, share: Array
) -> Array:
    """Each launch's weight: its squared distance in units of its own noise, under every hypothesis."""
    mean, var = _mean(sizes)
    flat, slope, spread = fitted(got, y, after, own / weight)
    away = (y[None] - flat)[..., None]
    square = (away - slope * mean[:, None]) ** 2 + slope**2 * var[:, None] + spread[..., None]
    square = np.concatenate([square, away**2 + spread[..., None]], axis=2) / own[..., None]
    each = np.minimum(1.0, _FAR**2 / np.maximum(square, 1e-12))
    return np.asarray(np.einsum("clk,ck->l", each, share) / share.sum())


def moments(
    forecast: tuple[Array, Array, Array], sizes: Sizes, share: Array, ramp: Array | None = None
) -> tuple[Array, Array]:
    """Mean and variance [place, hypothesis] of the levels that a launch of each place would see.

    Hypotheses: before the step in each gap, after it, a slope of which ``ramp`` says how far each place is
    on it, and no change. ``share`` [kind, hypothesis]: of a step in each gap, of the slope, of no change.
    """
    now, moved, variance = forecast
    mean, var = _mean(sizes)
    gaps = share.shape[1] - (1 if ramp is None else 2)
    column = np.concatenate([np.arange(gaps), np.arange(gaps), np.arange(gaps, share.shape[1] - 1)])
    onto = np.zeros((now.shape[1], len(column)))
    onto[:, gaps : 2 * gaps] = 1.0
    if ramp is not None:
        onto[:, -1] = ramp
    moved = moved[..., column] + onto
    means = now[..., None] + moved * mean[:, None, column]
    spread = variance[..., None] + moved**2 * var[:, None, column]
    means = np.concatenate([means, now[..., None]], axis=2)
    spread = np.concatenate([spread, variance[..., None]], axis=2)
    of_hypothesis = share[:, [*column, -1]]
    mix = of_hypothesis / np.maximum(of_hypothesis.sum(0), 1e-300)
    middle = np.einsum("cwh,ch->wh", means, mix)
    return middle, np.einsum("cwh,ch->wh", spread + means**2, mix) - middle**2


def combine(
    plain: Posterior, forecast: tuple[Array, Array, Array], sizes: Sizes, share: Array, tau: Array
) -> Posterior:
    """The posterior over all kinds; ``forecast``: of one place, ``tau``: noise between launches, by kind."""
    of_kind = share.sum(1)
    of_kind = of_kind / of_kind.sum()
    middle, spread = (part[0] for part in moments(forecast, sizes, share))
    weight, delta = (share[:, :-1, None] * sizes[1]).ravel(), sizes[0].ravel()
    used = weight > 1e-7 * weight.max()
    # Quantiles need ascending sizes; the nodes of different gaps lie among each other.
    order = np.argsort(delta[used])
    taus, back = np.unique(tau, return_inverse=True)
    count = share.shape[1] - 1
    return replace(
        plain,
        gaps=share[:, :-1].sum(0),
        none=float(share[:, -1].sum()),
        tau=float(np.exp(of_kind @ np.log(tau))),
        noise=WeightedNoise(
            np.full(len(taus), plain.sigma), taus, np.asarray(np.bincount(back, of_kind), float)
        ),
        low=(middle[:count], spread[:count]),
        high=(middle[count:-1], spread[count:-1]),
        flat=(float(middle[-1]), float(spread[-1])),
        step=delta[used][order],
        step_weight=weight[used][order],
    )
