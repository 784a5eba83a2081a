"""The posterior where the machine drifts: :mod:`perfbisect.core.drift` summed over gaps, noise and paths.

A launch that lies far from all that is believed keeps only part of its weight, found by turns: fit, weigh,
fit again.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from perfbisect.core.belief import NO_CHANGE, Posterior, step_prior
from perfbisect.core.drift import Fit, Kinds, ahead, fit, fitted, kernel, kinds
from perfbisect.core.noise import Launch, Scales
from perfbisect.core.stats import Array, log_sum

SHOWN = 0.5
"""Probability of a drift from which on it is reckoned with."""

LEAST = 8
"""Launches before which nothing is said of a drift."""

_TOGETHER = 0.5
"""Standard errors of the correlation of neighbours in time beyond which a drift is looked for."""

_WORTH = 0.2
"""Probability of a drift at the first turn below which the others are not worth their time."""

_SOON = 5.0
"""Minutes until the next launch begins its runs."""

_FAR = 2.5
"""Standard deviations beyond which a launch loses weight, as the square of its distance."""

_KEPT = 0.02
"""Kinds of noise and path below this share of the likeliest are dropped after a turn."""

_TURNS = 3
_NODES = 17
_REACH = 4.5
_LARGEST = math.log(12.0)

Sizes = tuple[Array, ...]
"""Sizes of the step [kind, gap, node], their shares, and the log likelihood of a gap [kind, gap]."""


def drifting(
    data: tuple[Launch, ...], still: Posterior, scope: Array, mass: Array, min_effect: float
) -> Posterior | None:
    """The posterior with a drift, or None where the data show none.

    ``still``: the posterior of the same launches without drift; ``scope`` prior weights of the positions;
    ``mass`` those of its gaps.
    """
    if sum(not x.imported for x in data) < LEAST or not _wanders(data, still):
        return None
    which = kinds(still.tau)
    y = np.array([x.center for x in data])
    after = (np.array([x.index for x in data])[:, None] >= np.array(still.at)[None, 1:]).astype(float)
    minutes = np.array([x.at for x in data])
    known = np.array([not x.imported for x in data], float)
    runs = np.array([x.runs for x in data], float)
    fixed = still.sigma**2 / runs + np.array([x.doubt for x in data]) ** 2
    weight = np.ones(len(y))
    for turn in range(_TURNS):
        own = which.tau[:, None] ** 2 + fixed[None]
        got = fit(y, own / weight[None], after, kernel(which, minutes, minutes) * np.outer(known, known))
        sizes = _sizes(got, min_effect)
        change = sizes[2] + np.log(mass * (1 - NO_CHANGE))[None]
        logs = np.concatenate([change, got.none[:, None] + math.log(NO_CHANGE)], axis=1)
        logs += which.log_prior[:, None]
        share = np.exp(logs - logs.max())
        share /= share.sum()
        of_kind = share.sum(1)
        if of_kind[which.sd > 0].sum() < (SHOWN if turn == _TURNS - 1 else _WORTH):
            return None
        if turn < _TURNS - 1:
            kept = of_kind > _KEPT * of_kind.max()
            few = tuple(part[kept] for part in sizes)
            weight = _weights(got.of(kept), y, after, weight[None], own[kept], few, share[kept])
            which = which.of(kept)
    soon = np.array([float(minutes.max()) + _SOON])
    seen = ahead(got, which, y, after, kernel(which, soon, minutes)[:, 0] * known)
    return _told(still, seen, sizes, share, which, scope, mass)


def _wanders(data: tuple[Launch, ...], still: Posterior) -> bool:
    """Whether neighbours in time lie on the same side of what is believed more often than chance has it."""
    made = sorted((x for x in data if not x.imported), key=lambda x: x.at)
    after = np.array([x.index for x in made])[:, None] >= np.array(still.at)[None, 1:]
    level = np.where(after, still.high[0], still.low[0]) @ still.gaps + still.none * still.flat[0]
    rest = np.array([x.center for x in made]) - level
    size = np.maximum(np.median(np.abs(rest)), 1e-12)
    rest = np.clip(rest, -3 * size, 3 * size)
    return bool(rest[1:] @ rest[:-1] > _TOGETHER * float(rest @ rest) / math.sqrt(len(rest)))


def _sizes(got: Fit, min_effect: float) -> Sizes:
    """The integral over the step: nodes around the best size of each gap, weighed by the prior's mass."""
    sd = 1 / np.sqrt(got.precision)
    low = np.clip(got.best - _REACH * sd, math.log1p(min_effect), 0.98 * _LARGEST)
    high = np.minimum(np.maximum(got.best + _REACH * sd, low + _REACH * sd), _LARGEST)
    edges = low[..., None] + (high - low)[..., None] * np.linspace(0, 1, _NODES + 1)
    nodes = 0.5 * (edges[..., 1:] + edges[..., :-1])
    prior = np.log(np.maximum(np.diff(step_prior(edges, min_effect), axis=-1), 1e-300))
    best = got.best[..., None]
    each = prior + 0.5 * got.precision[..., None] * (best**2 - (nodes - best) ** 2)
    total = log_sum(each, axis=-1)
    return nodes, np.exp(each - total[..., None]), got.none[:, None] + total


def _mean(sizes: Sizes) -> tuple[Array, Array]:
    mean = (sizes[0] * sizes[1]).sum(-1)
    return mean, np.maximum((sizes[0] ** 2 * sizes[1]).sum(-1) - mean**2, 0.0)


def _weights(
    got: Fit, y: Array, after: Array, weight: Array, own: Array, sizes: Sizes, share: Array
) -> Array:
    """Each launch's weight: its squared distance in units of its own noise, under every hypothesis."""
    mean, var = _mean(sizes)
    flat, slope, spread = fitted(got, y, after, own / weight)
    away = (y[None] - flat)[..., None]
    square = (away - slope * mean[:, None]) ** 2 + slope**2 * var[:, None] + spread[..., None]
    square = np.concatenate([square, away**2 + spread[..., None]], axis=2) / own[..., None]
    each = np.minimum(1.0, _FAR**2 / np.maximum(square, 1e-12))
    return np.asarray(np.einsum("clk,ck->l", each, share) / share.sum())


def _told(
    still: Posterior,
    seen: tuple[Array, Array, Array],
    sizes: Sizes,
    share: Array,
    which: Kinds,
    scope: Array,
    mass: Array,
) -> Posterior:
    now, slope, variance = seen
    of_kind = share.sum(1)
    gaps, none = share[:, :-1].sum(0), float(share[:, -1].sum())
    mix = share[:, :-1] / np.maximum(gaps, 1e-300)[None]
    mean, var = _mean(sizes)
    low = now[:, None] + slope * mean
    p = np.zeros_like(scope)
    for k, (a, b) in enumerate(zip(still.at, still.at[1:], strict=False)):
        p[a + 1 : b + 1] = gaps[k] * scope[a + 1 : b + 1] / mass[k]
    weight, delta = (share[:, :-1, None] * sizes[1]).ravel(), sizes[0].ravel()
    used = weight > 1e-7 * weight.max()
    order = np.argsort(delta[used])
    taus, back = np.unique(which.tau, return_inverse=True)
    zero = np.zeros(len(taus))
    flat = _mixed(now, variance, share[:, -1] / max(none, 1e-300))
    return replace(
        still,
        gaps=gaps,
        none=none,
        p=p,
        tau=float(np.exp(of_kind @ np.log(which.tau))),
        noise=Scales(np.full(len(taus), still.sigma), taus, zero, zero, still.noise.fine, still.noise.wide),
        noise_weight=np.asarray(np.bincount(back, of_kind), float),
        low=_mixed(low, variance[:, None] + slope**2 * var, mix),
        high=_mixed(low + mean, variance[:, None] + (1 + slope) ** 2 * var, mix),
        flat=(float(flat[0]), float(flat[1])),
        step=delta[used][order],
        step_weight=weight[used][order],
        drift=float(np.sqrt(of_kind @ which.sd**2)),
    )


def _mixed(mean: Array, variance: Array, weight: Array) -> tuple[Array, Array]:
    middle = (weight * mean).sum(0)
    return middle, (weight * (variance + mean**2)).sum(0) - middle**2
