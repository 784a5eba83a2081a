"""What a launch would still tell once the launches under way have told theirs.

Each launch under way is taken for a binary answer, "the step is here or before" or "after", that errs as
often as the midpoint between the levels is crossed by chance. The information of one more such answer, given
theirs, is what is left of it: :func:`left_over` gives it as a share of what it would tell alone.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from perfbisect.core.groups import nearest
from perfbisect.core.noise import launch_variance
from perfbisect.core.posterior import Posterior
from perfbisect.core.stats import Array, quantiles

_LEAST = 1e-9
"""Information (nats) below which there is nothing to take a share of."""


def between(state: Posterior, pending: tuple[tuple[int, int], ...], skips: frozenset[int]) -> tuple[int, ...]:
    """The testable positions at the medians of what measured positions and launches under way divide."""
    cuts = sorted({*state.at, *(index for index, _ in pending)})
    ahead = np.cumsum(state.p)
    out = []
    for low, high in pairwise(cuts):
        if high - low < 2 or ahead[high] - ahead[low] < 2e-3:
            continue
        # Rounding must not choose between two sides of a symmetric question.
        aim = int(np.searchsorted(ahead, 0.5 * (ahead[low] + ahead[high]) - 1e-9))
        found = nearest(min(max(aim, low + 1), high - 1), low, high, skips)
        if found is not None:
            out.append(found)
    return tuple(out)


def left_over(
    state: Posterior, pending: tuple[tuple[int, int], ...], where: tuple[int, ...], runs: int
) -> Array:
    """Share of its information that a launch of so many runs keeps at each position of ``where``.

    ``pending``: position and runs of the launches under way. No launch under way: 1.
    """
    if not pending:
        return np.ones(len(where))
    weight = np.concatenate([[state.none], state.p[1:]])
    alone = _information(weight[None], where, _error(state, runs))
    worlds = weight[None]
    for index, made in pending:
        wrong = _error(state, made)
        yes = np.where(np.arange(len(weight)) <= index, 1 - wrong, wrong)
        yes[0] = 0.5
        worlds = np.concatenate([worlds * yes, worlds * (1 - yes)])
    after = _information(worlds, where, _error(state, runs))
    return np.clip(after / np.maximum(alone, _LEAST), 0.0, 1.0)


def _error(state: Posterior, runs: int) -> float:
    """Chance that a launch lies on the wrong side of the midpoint between the levels."""
    size = quantiles(state.step, state.step_weight, (0.5,))[0]
    scale = math.sqrt(launch_variance(state.sigma, state.tau, runs))
    return max(1e-6, 0.5 * math.erfc(size / (2 * math.sqrt(2) * scale)))


def _information(worlds: Array, where: tuple[int, ...], wrong: float) -> Array:
    """Nats that an answer at each position tells, over worlds [answers so far, no change or culprit]."""
    none, total = worlds[:, :1], worlds.sum(1, keepdims=True)
    at = np.array(where)
    ahead = np.cumsum(worlds[:, 1:], axis=1)
    here = np.where(at > 0, ahead[:, np.maximum(at, 1) - 1], 0.0)
    later = ahead[:, -1:] - here
    yes = here * (1 - wrong) + later * wrong + 0.5 * none
    noise = (total - none) * _entropy(np.array(wrong)) + none * math.log(2.0)
    return np.asarray((total * _entropy(yes / np.maximum(total, 1e-300)) - noise).sum(0))


def _entropy(p: Array) -> Array:
    q = np.clip(p, 1e-12, 1 - 1e-12)
    return np.asarray(-(q * np.log(q) + (1 - q) * np.log(1 - q)))
