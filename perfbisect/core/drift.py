"""Where the step is when the machine drifts: a slow path added to every launch, and integrated out.

A launch at position i that began its runs at minute t has centre = level_i + f(t) + noise. The path f is an
Ornstein-Uhlenbeck process: its values at two launches t minutes apart have covariance
sd^2 exp(-t / minutes). The noise is Gaussian here, with weights that the caller gives a launch; then the
integrals over the first level and over the path are closed forms for every gap between measured positions
(generalised least squares; Rasmussen and Williams, *Gaussian Processes for Machine Learning*, 2006, 2.7).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from perfbisect.core.noise import TAU, TAU_PRIOR
from perfbisect.core.stats import Array

ABSENT = 0.7
"""Prior probability that the machine does not drift."""

_SD = (0.008, 0.016, 0.032)
_MINUTES = (60.0, 240.0)


@dataclass(frozen=True)
class Kinds:
    """Kinds of noise and path that are weighed: sd between launches, sd and minutes of the path (sd 0: no
    drift), log prior."""

    tau: Array
    sd: Array
    minutes: Array
    log_prior: Array

    def of(self, chosen: Array) -> Kinds:
        """Some of them."""
        return Kinds(self.tau[chosen], self.sd[chosen], self.minutes[chosen], self.log_prior[chosen])


def kinds(around: float) -> Kinds:
    """Noise between launches up to a little above what a model without drift takes it for, with every
    path: what drifts passes for noise there."""
    tau = TAU[(2 * around > TAU) & (around / 9 < TAU)]
    tau = tau if len(tau) else TAU[:1]
    paths = [(0.0, 60.0, ABSENT)]
    each = (1 - ABSENT) / (len(_SD) * len(_MINUTES))
    paths += [(sd, minutes, each) for sd in _SD for minutes in _MINUTES]
    t = np.repeat(tau, len(paths))
    sd, minutes, weight = (np.tile(np.array(x), len(tau)) for x in zip(*paths, strict=True))
    prior = -0.5 * (np.log(t / TAU_PRIOR[0]) / TAU_PRIOR[1]) ** 2
    return Kinds(t, sd, minutes, prior + np.log(weight))


def kernel(which: Kinds, a: Array, b: Array) -> Array:
    """Covariance [kind, a, b] of the path between minutes ``a`` and ``b``."""
    apart = np.abs(a[:, None] - b[None, :])
    return np.asarray(which.sd[:, None, None] ** 2 * np.exp(-apart[None] / which.minutes[:, None, None]))


@dataclass(frozen=True)
class Fit:
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

    def of(self, chosen: Array) -> Fit:
        """Some kinds of it."""
        return Fit(*(getattr(self, each.name)[chosen] for each in fields(self)))


def fit(y: Array, variance: Array, after: Array, shared: Array) -> Fit:
    """``variance`` [kind, launch] of the centres' own noise; ``after`` [launch, gap]: 1 where a launch's
    position lies at or after the step; ``shared`` [kind, launch, launch]: covariance of the path."""
    count, gaps = after.shape
    cov = shared.copy()
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
    precision = np.maximum(own - across**2 / top[:, None], 1e-9)
    best = (with_y[:, 1 : gaps + 1] - across * level[:, None]) / precision
    return Fit(none, best, precision, level, across / top[:, None], top, inverse, shared)


def fitted(got: Fit, y: Array, after: Array, variance: Array) -> tuple[Array, Array, Array]:
    """Level and path at each launch where nothing changed [kind, launch], what a unit step in each gap adds
    [kind, launch, gap], and the variance of the first."""
    onto = got.shared @ got.inverse
    moved = after[None] - got.per[:, None, :]
    rest = y[None] - got.level[:, None]
    flat = got.level[:, None] + (onto @ rest[..., None])[..., 0]
    spread = np.einsum("cii,ci->ci", onto, variance) + (1 - onto.sum(-1)) ** 2 / got.top[:, None]
    return flat, moved - onto @ moved, spread


def ahead(got: Fit, which: Kinds, y: Array, after: Array, between: Array) -> tuple[Array, Array, Array]:
    """The level before the step as the next launch would see it: mean where nothing changed [kind], what a
    unit step adds [kind, gap], variance [kind]. ``between``: covariance [kind, launch] of the path there."""
    weigh = (between[:, None, :] @ got.inverse)[:, 0]
    moved = after[None] - got.per[:, None, :]
    rest = y[None] - got.level[:, None]
    now = got.level + (weigh * rest).sum(-1)
    slope = -got.per - (weigh[:, None, :] @ moved)[:, 0]
    left = np.maximum(which.sd**2 - (weigh * between).sum(-1), 0.0)
    return now, slope, left + (1 - weigh.sum(-1)) ** 2 / got.top
