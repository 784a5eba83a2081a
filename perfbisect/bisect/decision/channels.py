"""What further metrics of the same launches say of the place of the step.

A channel is a metric that the change which is searched may move, too: with probability :data:`TOGETHER` a
change of the channel is of that change, else it is anywhere. What a channel says multiplies the prior weight
of each position by

    1 - TOGETHER + TOGETHER * P(channel | its change is there) / P(channel)

which is never less than 1 - TOGETHER: a channel says where to look, and the metric itself names the change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import compress, pairwise

import numpy as np

from perfbisect.bisect.decision.beliefs import NO_CHANGE, gap_masses
from perfbisect.bisect.decision.noise import LaunchEstimate
from perfbisect.bisect.decision.posterior import compute_posterior
from perfbisect.model.metric import Metric
from perfbisect.stats.robust import Array
from perfbisect.stats.two_sample import Scale

TOGETHER = 0.5
"""Prior probability that the searched change moves a channel, and no other change does."""

AGREE = 0.25
"""Launches of one position agree within this share of the smallest relevant step."""

_REPEATS = 4
"""Launches beyond the first of their position from which on it is known how the noise of two metrics goes
together."""

Gap = tuple[int, int]
"""Two neighbouring measured positions."""


def exact_levels(data: Sequence[LaunchEstimate], room: float) -> dict[int, float] | None:
    """The level of each measured position; None where launches of one differ by more than agreement allows.

    ``room``: the smallest relevant step.
    """
    centers: dict[int, list[float]] = {}
    for launch in data:
        centers.setdefault(launch.index, []).append(launch.center)
    if any(max(found) - min(found) > AGREE * room for found in centers.values()):
        return None
    return {index: float(np.mean(found)) for index, found in centers.items()}


def weigh(
    channel: Metric, seen: Sequence[LaunchEstimate], data: Sequence[LaunchEstimate], weights: Array
) -> tuple[Array, tuple[Gap, ...]]:
    """The weights of positions with what a channel says; of an exact one also the gaps in which it moved.

    ``data``: launches of both ends of the positions that have a weight and from between them, and ``seen``
    the same by the channel's values; empty: it says nothing.
    """
    if not seen:
        return weights, ()
    room = Scale(1, channel.absolute).room(channel.smallest_effect)
    if channel.exact:
        levels = exact_levels(seen, room) or {}
        moved = [abs(levels[b] - levels[a]) > AGREE * room for a, b in pairwise(sorted(levels))]
        if not any(moved):
            return weights, ()
        at = tuple(sorted(levels))
        mass = gap_masses(weights / weights.sum(), at) * np.array(moved)
        return _times(weights, at, mass / mass.sum()), tuple(compress(pairwise(at), moved))
    index = np.array([launch.index for launch in data])
    found, place = np.unique(index, return_inverse=True)
    if len(data) - len(found) < _REPEATS:
        return weights, ()
    y, z = (np.array([launch.center for launch in made]) for made in (data, seen))
    count = np.bincount(place)
    off_y, off_z = (values - (np.bincount(place, values) / count)[place] for values in (y, z))
    # What the searched metric tells of a launch's noise is taken out: a slow launch must not count twice.
    rest = z - float(off_y @ off_z) / max(float(off_y @ off_y), 1e-12) * y
    at = tuple(map(int, found))
    rises, falls = (
        compute_posterior(
            tuple(replace(x, center=float(sign * value)) for x, value in zip(seen, rest, strict=True)),
            weights,
            math.expm1(room),
            (at[0], at[-1]),
        )
        for sign in (1.0, -1.0)
    )
    # Both give no change the same likelihood, which says how much likelier the launches are under the one.
    falling = rises.none / max(rises.none + falls.none, 1e-300)
    gaps = (1 - falling) * rises.gaps + falling * falls.gaps
    return _times(weights, at, gaps / (1 - NO_CHANGE)), ()


def _times(weights: Array, at: Sequence[int], gaps: Array) -> Array:
    """The weights times what a channel says; ``gaps``: of its change in each gap, given that there is one."""
    factor = 1 - TOGETHER + TOGETHER * gaps / np.maximum(gap_masses(weights / weights.sum(), at), 1e-300)
    out = np.array(weights)
    for (low, high), times in zip(pairwise(at), factor, strict=True):
        out[low + 1 : high + 1] *= times
    return out
