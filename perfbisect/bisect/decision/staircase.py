"""How likely launches are where the level rises in several steps: a hidden Markov chain along the positions.

In each gap between measured positions the level stays, or rises by a step; the number of steps is Poisson, of
which none and one are left out. Few launched positions on a slope may lie on such a staircase as well.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from perfbisect.bisect.decision.beliefs import step_prior
from perfbisect.stats.robust import Array, log_heavy_tailed

MEAN_STEPS = 2.0
"""Mean number of steps, none and one included."""

_MOST_LEVELS = 300
"""Most nodes of a level."""


def staircase(
    y: Array, scale: Array, index: NDArray[np.intp], build_sd: Array, mass: Array, least: float
) -> tuple[Array, Array]:
    """Log likelihood [kind] of two steps or more, and of the likeliest kind how these fall on the gaps.

    ``y``, ``scale`` [kind, launch]: centres and their noise; ``build_sd`` [kind]: of a position's offset;
    ``mass``: prior weights of the gaps between the positions of ``index``; ``least``: the smallest relative
    step. As in the model of one step, the first level is flat, and constants of its Gaussian are left out.
    """
    order = np.argsort(index, kind="stable")
    starts = np.unique(index[order], return_index=True)[1]
    most = int(np.diff([*starts, len(order)]).max())
    low, high = float((y - 4 * scale).min()), float((y + 4 * scale).max())
    fine = 0.5 * float(scale.min()) / math.sqrt(most)
    nodes = np.linspace(low, high, min(_MOST_LEVELS, math.ceil((high - low) / fine)))
    width = float(nodes[1] - nodes[0])
    # Levels may be coarse where steps are huge: a launch is then as wide as they are.
    wide = np.hypot(scale, 0.5 * width)[:, order, None]
    logs = log_heavy_tailed((y[:, order, None] - nodes) / wide) - np.log(wide)
    seen = np.add.reduceat(logs, starts, axis=1)
    top = seen.max(axis=2, keepdims=True)
    apart = nodes[:, None] - nodes
    blur = np.exp(-0.5 * (apart / np.maximum(build_sd, 0.1 * width)[:, None, None]) ** 2)
    seen = np.exp(seen - top) @ (blur / blur.sum(axis=1, keepdims=True))
    edges = width * np.arange(-0.5, len(nodes))
    sizes = np.diff(step_prior(np.maximum(edges, 1e-9), least))
    rise = np.triu(sizes[np.rint(np.abs(apart) / width).astype(int)])
    chance = -np.expm1(-MEAN_STEPS * mass)
    logs = _chain(seen, 1 - chance, chance, rise)
    best = int(np.argmax(logs + top.sum((1, 2))))
    # Less what is left where a gap has none.
    gaps = chance * (1 - np.eye(len(mass)))
    without = [_chain(seen[best : best + 1], 1 - chance, steps, rise)[0] for steps in gaps]
    held = -np.expm1(np.array(without) - logs[best])
    least_two = math.log1p(-math.exp(-MEAN_STEPS) * (1 + MEAN_STEPS))
    total = logs + top.sum((1, 2)) + math.log(width / math.sqrt(2 * math.pi)) - least_two
    return total, held / max(float(held.sum()), 1e-300)


def _chain(seen: Array, stays: Array, steps: Array, rise: Array) -> Array:
    """Log likelihood [kind] of two steps or more.

    ``seen`` [kind, position, level]; ``stays``, ``steps``: chances of each gap; ``rise`` [before, after].
    """
    level, logs = np.zeros((len(seen), 3, seen.shape[2])), np.zeros(len(seen))
    level[:, 0] = seen[:, 0]
    for k, (stay, step) in enumerate(zip(stays, steps, strict=True), 1):
        risen = step * level @ rise
        level *= stay
        level[:, 1:] += risen[:, :2]
        level[:, 2] += risen[:, 2]
        level *= seen[:, k, None]
        # Many positions off a staircase multiply to less than any number.
        top = np.maximum(level.max(axis=(1, 2)), 1e-300)
        level /= top[:, None, None]
        logs += np.log(top)
    return np.asarray(logs + np.log(level[:, 2].sum(axis=1) + 1e-300))
