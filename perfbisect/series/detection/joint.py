"""Nights at which several series changed together: small changes that none shows alone.

Every series gives its evidence e(b) for a change before night b. Series of one server start share its luck:
they are one vote, their mean, which is an e-value whatever binds them. The votes are independent and
multiply, each mixed with indifference, since a change reaches a share of the servers that is not known:

    E(b) = mean over shares of the product over groups of (1 - share + share * mean of e(b))

By Markov's inequality the sum of E(b) / (number of nights) reaches 1 / p with a probability of at most p
where nothing changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfbisect.series.detection.evidence import INNER
from perfbisect.series.detection.model import JudgedSeries, SeriesValues
from perfbisect.stats.robust import Array, log_sum_exp

RATE = 0.01
"""Largest p of an event that is told, where no other is asked for."""

SHARES = (0.5, 0.15, 0.05)
"""Shares of the servers that are weighed, with equal weights: with the first alone many quiet servers would
outvote the one that changed."""

_SPEAKS = math.log(3.0)
"""log evidence from which a series or a group is for an event; against it below minus that."""

_MOST = 20.0
"""log evidence beyond which one group adds nothing: no single server decides an event."""


@dataclass(frozen=True)
class JointEvent:
    """A change that several series share."""

    window: tuple[int, int]
    """The last night surely before it and the first one surely after it: ordinals."""
    p: float
    """Probability of so much joint evidence anywhere where nothing changed, at most."""
    members: tuple[str, ...]
    """Keys of the series that are for it by their own nights."""
    votes: tuple[str, ...]
    """Groups that are for it ..."""
    against: tuple[str, ...]
    """... and against it. The others' nights do not tell."""


def find_joint_events(
    series: Sequence[SeriesValues], judged: Sequence[JudgedSeries], rate: float = RATE
) -> tuple[JointEvent, ...]:
    """The nights at which at least two series changed together, in order of time."""
    nights = np.array(sorted({night for item in series for night in item.nights}))[1:]
    if len(nights) < 2 or len(series) < 2:
        return ()
    own = np.array([_spread(s, j, nights) for s, j in zip(series, judged, strict=True)])
    names = [s.group or s.key for s in series]
    groups = list(dict.fromkeys(names))
    vote = np.array([_mean(own[[name == group for name in names]]) for group in groups])
    joint = _joint(np.minimum(vote, _MOST))
    out, free = [], np.ones(len(nights), bool)
    while free.any():
        peak = int(np.argmax(np.where(free, joint, -np.inf)))
        near = _around(joint, free, peak)
        total = float(log_sum_exp(joint[near])) - math.log(len(nights))
        if total < -math.log(rate):
            break
        free[near] = False
        at = _likely(joint[near], near)
        strongest, voted = own[:, at].max(1), vote[:, at].max(1)
        members = tuple(s.key for s, e in zip(series, strongest, strict=True) if e > _SPEAKS)
        if len(members) > 1:
            out.append(
                JointEvent(
                    window=(_before(series, int(nights[at[0]])), int(nights[at[-1]])),
                    p=math.exp(-total),
                    members=members,
                    votes=tuple(g for g, e in zip(groups, voted, strict=True) if e > _SPEAKS),
                    against=tuple(g for g, e in zip(groups, voted, strict=True) if e < -_SPEAKS),
                )
            )
    return tuple(sorted(out, key=lambda event: event.window))


def _around(joint: Array, free: NDArray[np.bool_], peak: int) -> NDArray[np.intp]:
    """The nights that the change at ``peak`` explains: those next to it, and on while they speak for one."""
    low = high = peak
    while low > 0 and free[low - 1] and (peak - low < INNER or joint[low - 1] > 0):
        low -= 1
    while high < len(joint) - 1 and free[high + 1] and (high - peak < INNER or joint[high + 1] > 0):
        high += 1
    return np.arange(low, high + 1)


def _spread(series: SeriesValues, judged: JudgedSeries, nights: NDArray[np.intp]) -> Array:
    """log evidence of one series for a change before each of ``nights``; 0 where it has no say. A night that
    the series lacks is part of the change before its next one."""
    at = np.searchsorted(np.array(series.nights), nights)
    inside = (at > 0) & (at < len(series.nights))
    return np.where(inside, judged.evidence[np.minimum(at, len(series.nights) - 1)], 0.0)


def _joint(vote: Array) -> Array:
    """log E(b) of the votes [group, night]."""
    each = [np.logaddexp(math.log1p(-share), math.log(share) + vote).sum(0) for share in SHARES]
    return _mean(np.array(each))


def _mean(logs: Array) -> Array:
    return log_sum_exp(logs, axis=0) - math.log(len(logs))


def _likely(joint: Array, at: NDArray[np.intp]) -> NDArray[np.intp]:
    p = np.exp(joint - joint.max())
    order = np.argsort(-p, kind="stable")
    count = int(np.searchsorted(np.cumsum(p[order]) / p.sum(), 0.95)) + 1
    return np.sort(at[order[:count]])


def _before(series: Sequence[SeriesValues], night: int) -> int:
    return max(n for item in series for n in item.nights if n < night)
