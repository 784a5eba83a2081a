"""Launches as the model sees them, and what is known of the noise before any level is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from perfbisect.core.places import place_effects
from perfbisect.core.plan import Event, Imported, Lost, Measured, Purpose, Skipped
from perfbisect.core.slots import slot_shifts
from perfbisect.core.stats import Array, center, log_sum, log_tail, run_scale

SIGMA = 0.00125 * 2.0 ** np.arange(9)
"""Grid of the noise between runs of a launch (log scale): 0.125 % to 32 %."""

TAU = 0.002 * 2.0 ** np.arange(8)
"""Grid of the noise between launches: 0.2 % to 26 %."""

_SIGMA_PRIOR = (0.02, 1.1)
TAU_PRIOR = (0.012, 0.9)


@dataclass(frozen=True)
class Launch:
    """One server start: the centre of its runs' signed logs, and their spread around it."""

    index: int
    purpose: Purpose
    center: float
    runs: int
    residuals: tuple[float, ...]
    slot: str = ""
    at: float = 0.0
    """Minutes from the first launch."""
    doubt: float = 0.0
    """Standard error of the slot's shift, which is taken out; infinite where the slot cannot be compared."""
    imported: bool = False
    """Made by an earlier job; then ``at`` says nothing."""


def launches(events: tuple[Event, ...], sign: int) -> tuple[Launch, ...]:
    """The measured and the imported events as launches, larger is worse; what a run's place and what a slot
    does is taken out. Imported launches count as made on a slot of their own.

    :raises ValueError: no value, or one that is not positive.
    """
    seen = [event for event in events if isinstance(event, Measured | Imported)]
    logs = [_logs(event, sign) for event in seen]
    places = place_effects(logs)
    runs = [own - places[: len(own)] for own in logs]
    scale = run_scale(runs)
    middles = np.array([center(own, scale) for own in runs])
    slots = [None if isinstance(event, Imported) else event.slot for event in seen]
    shift, doubt = slot_shifts(slots, [event.index for event in seen], middles)
    times = iter(minutes(events))
    out = []
    for k, event in enumerate(seen):
        rest = tuple(sorted(float(v) for v in runs[k] - middles[k]))
        middle, error = float(middles[k] - shift[k]), float(doubt[k])
        if isinstance(event, Imported):
            out.append(Launch(event.index, "search", middle, len(rest), rest, doubt=error, imported=True))
        else:
            at = next(times)
            out.append(
                Launch(event.index, event.purpose, middle, len(rest), rest, event.slot, at, doubt=error)
            )
    return tuple(out)


def minutes(events: tuple[Event, ...]) -> tuple[float, ...]:
    """When each measured launch began its runs, in minutes: as told, else one launch after the other."""
    out, clock = [], 0.0
    for event in events:
        if isinstance(event, Measured):
            began = clock + event.build + event.launch if event.at is None else event.at
            out.append(began)
            clock = began + event.run
        elif isinstance(event, Skipped | Lost):
            clock += event.minutes
    return tuple(out)


def _logs(event: Measured | Imported, sign: int) -> Array:
    values = np.array(event.values, float)
    if not len(values) or not np.all(np.isfinite(values)) or np.any(values <= 0):
        raise ValueError(f"position {event.index}: values must be positive and finite: {event.values}")
    return np.asarray(sign * np.log(values))


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


def launch_variance(sigma: float, tau: float, runs: float) -> float:
    """Variance of the centre of a launch of so many runs."""
    return tau**2 + sigma**2 / runs


def launch_scale(sigma: Array, tau: Array, runs: Array | float, doubt: Array | float = 0.0) -> Array:
    """Scale of a launch's centre: sqrt(tau^2 + sigma^2 / r), wider by the doubt of its slot's shift."""
    return np.sqrt(tau * tau + sigma * sigma / runs + doubt * doubt)


def _spread(residuals: Array, scale: Array) -> Array:
    """Log likelihood [scale] of k residuals around their own centre.

    They carry k - 1 free differences, and each has the variance scale^2 (k - 1) / k: so every residual counts
    for that share of one, widened to the full scale.
    """
    count = len(residuals)
    if count < 2:
        return np.zeros(len(scale))
    share = (count - 1) / count
    z = residuals[None] / (math.sqrt(share) * scale[:, None])
    return np.asarray(share * (log_tail(z) - np.log(scale)[:, None]).sum(1))


def scales(data: tuple[Launch, ...], keep: float = 1e-3) -> Scales:
    """The grid of noise, less what the spread within launches and between launches of one position rules out.

    Only pairs below ``keep`` of the best are dropped; the repeats of a position are used for that alone,
    since the full model counts them again.
    """
    s, t = (a.ravel() for a in np.meshgrid(SIGMA, TAU, indexing="ij"))
    prior = -0.5 * (np.log(s / _SIGMA_PRIOR[0]) / _SIGMA_PRIOR[1]) ** 2
    prior = prior - 0.5 * (np.log(t / TAU_PRIOR[0]) / TAU_PRIOR[1]) ** 2
    within = np.zeros(len(s))
    repeats = np.zeros(len(s))
    for launch in data:
        within += _spread(np.array(launch.residuals), s)
    for index in {launch.index for launch in data}:
        here = [launch for launch in data if launch.index == index]
        centers = np.array([launch.center for launch in here])
        runs = float(np.mean([launch.runs for launch in here]))
        doubt = math.sqrt(float(np.mean([launch.doubt**2 for launch in here])))
        repeats += _spread(centers - center(centers), launch_scale(s, t, runs, doubt))
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
