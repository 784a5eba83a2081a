"""Launches as the model sees them, and what is known of the noise before any level is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from perfbisect.core.plan import Event, Measured, Purpose
from perfbisect.core.stats import Array, center, log_sum, log_t

SIGMA = 0.00125 * 2.0 ** np.arange(9)
"""Grid of the noise between runs of a launch (log scale): 0.125 % to 32 %."""

TAU = 0.002 * 2.0 ** np.arange(8)
"""Grid of the noise between launches: 0.2 % to 26 %."""

_SIGMA_PRIOR = (0.02, 1.1)
_TAU_PRIOR = (0.012, 0.9)


@dataclass(frozen=True)
class Launch:
    """One server start: the centre of its runs' signed logs, and their spread around it."""

    index: int
    purpose: Purpose
    center: float
    runs: int
    residuals: tuple[float, ...]


def launches(events: tuple[Event, ...], sign: int) -> tuple[Launch, ...]:
    """The measured events as launches, larger is worse. :raises ValueError: no value, or one that is not
    positive."""
    out = []
    for event in events:
        if isinstance(event, Measured):
            values = np.array(event.values, float)
            if not len(values) or not np.all(np.isfinite(values)) or np.any(values <= 0):
                raise ValueError(
                    f"position {event.index}: values must be positive and finite: {event.values}"
                )
            logs = sign * np.log(values)
            middle = center(logs)
            rest = tuple(sorted(float(v) for v in logs - middle))
            out.append(Launch(event.index, event.purpose, middle, len(values), rest))
    return tuple(out)


@dataclass(frozen=True)
class Scales:
    """Pairs (sigma, tau) that are worth integrating over, with their log weight so far."""

    sigma: Array
    tau: Array
    log_prior: Array
    log_runs: Array
    """Log likelihood of the runs' spread within their launches; the levels do not enter it."""
    fine: float
    """A small but plausible noise of a launch's centre: how fine levels must be resolved."""
    wide: float
    """A large but plausible one: how far levels may lie from what was seen."""


def launch_scale(sigma: Array, tau: Array, runs: Array | float) -> Array:
    """Scale of a launch's centre: sqrt(tau^2 + sigma^2 / r)."""
    return np.sqrt(tau * tau + sigma * sigma / runs)


def scales(data: tuple[Launch, ...], keep: float = 1e-3) -> Scales:
    """The grid of noise, less what the spread within launches and between launches of one position rules out.

    Only pairs below ``keep`` of the best are dropped; the repeats of a position are used for that alone,
    since the full model counts them again.
    """
    s, t = (a.ravel() for a in np.meshgrid(SIGMA, TAU, indexing="ij"))
    prior = -0.5 * (np.log(s / _SIGMA_PRIOR[0]) / _SIGMA_PRIOR[1]) ** 2
    prior = prior - 0.5 * (np.log(t / _TAU_PRIOR[0]) / _TAU_PRIOR[1]) ** 2
    # Within a launch r runs carry r - 1 free differences, each residual a variance of sigma^2 (r - 1) / r.
    rest: list[float] = []
    free: list[float] = []
    for launch in data:
        if launch.runs > 1:
            share = (launch.runs - 1) / launch.runs
            rest.extend(v / math.sqrt(share) for v in launch.residuals)
            free.extend([share] * launch.runs)
    within = np.zeros(len(SIGMA))
    if rest:
        z = np.array(rest)[None] / SIGMA[:, None]
        within = ((log_t(z) - np.log(SIGMA)[:, None]) * np.array(free)[None]).sum(1)
    within = np.repeat(within, len(TAU))
    repeats = np.zeros(len(s))
    last: dict[int, Launch] = {}
    for launch in data:
        before = last.get(launch.index)
        last[launch.index] = launch
        if before is not None:
            scale = np.sqrt(2 * t * t + s * s * (1 / before.runs + 1 / launch.runs))
            repeats += log_t(np.asarray((launch.center - before.center) / scale)) - np.log(scale)
    weight = prior + within + repeats
    kept = weight > weight.max() + math.log(keep)
    s, t, weight = s[kept], t[kept], weight[kept]
    most = max((launch.runs for launch in data), default=1)
    each = launch_scale(s, t, float(most))
    order = np.argsort(each)
    share = np.exp(weight[order] - float(log_sum(weight)))
    level = np.cumsum(share)
    fine = float(each[order][min(int(np.searchsorted(level, 0.15)), len(each) - 1)])
    wide = float(each[order][min(int(np.searchsorted(level, 0.99)), len(each) - 1)])
    return Scales(s, t, prior[kept], within[kept], fine, wide)
