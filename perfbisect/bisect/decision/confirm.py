"""The A/B that a verdict rests on: culprit and parent launched in turn, judged on these launches alone.

The search says how large the step and the noise are (what to look for); it adds nothing to the evidence. The
log likelihood ratio compares "the culprit's level is the parent's plus the step" with "both have one level",
the common level, the step's size and the noise integrated out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from perfbisect.bisect.decision.beliefs import Posterior
from perfbisect.bisect.decision.model import Comparison
from perfbisect.bisect.decision.noise import LaunchEstimate, launch_scale
from perfbisect.bisect.decision.state import Prices
from perfbisect.stats.robust import Array, adaptive_grid, grid_cells, log_heavy_tailed, log_sum_exp, quantiles

DECIDED = math.log(20.0)
"""A likelihood ratio of twenty to one decides ..."""

LEAST_PAIRS = 2
"""... after so many pairs: one contaminated launch must not."""

_ENOUGH = 9.0
"""Squared step in units of the variance of a pair's difference at which a t4 ratio passes twenty to one."""

DRIFT_MINUTES = 120.0
"""Correlation time that a drift is taken to have within an A/B."""

PAIRS = 12
"""Pairs after which an A/B that has decided nothing counts as failed."""


@dataclass(frozen=True)
class EffectPrior:
    """What the search tells the A/B to look for: steps with weights, and noise pairs with weights."""

    steps: Array
    step_weight: Array
    sigma: Array
    tau: Array
    noise_weight: Array
    drift: float = 0.0
    """Standard deviation of the machine's drift; 0 where none was shown."""


def is_confirmed(launches: int, ratio: float) -> bool | None:
    """Whether an A/B of so many launches confirmed the step; None while it may go on.

    ``ratio``: ln of P(launches | step) / P(launches | no step).
    """
    if launches < 2 * LEAST_PAIRS:
        return None
    if abs(ratio) > DECIDED:
        return ratio > 0
    return False if launches >= 2 * PAIRS else None


def turn(parent: int, culprit: int, made: int) -> int:
    """Whose launch is next after ``made``: culprit, parent, parent, culprit, and again."""
    return (culprit, parent, parent, culprit)[made % 4]


def expected(posterior: Posterior) -> EffectPrior:
    """Five equally likely sizes of the step, and the noise that carries weight."""
    used = posterior.noise_weight > 0.02 * posterior.noise_weight.max()
    weight = posterior.noise_weight[used]
    return EffectPrior(
        np.array(posterior.step_quantiles(0.1, 0.3, 0.5, 0.7, 0.9)),
        np.full(5, 0.2),
        posterior.noise.sigma[used],
        posterior.noise.tau[used],
        weight / weight.sum(),
        posterior.drift,
    )


def _levels(data: list[LaunchEstimate], look: EffectPrior, nodes: Array) -> Array:
    """log likelihood [noise, node] of launches that share one level."""
    out = np.zeros((len(look.sigma), len(nodes)))
    for launch in data:
        scale = launch_scale(look.sigma, look.tau, float(launch.runs), launch.offset_se)
        z = (launch.center - nodes)[None] / scale[:, None]
        out += log_heavy_tailed(z) - np.log(scale)[:, None]
    return out


def _nodes(data: list[LaunchEstimate], look: EffectPrior) -> Array:
    runs = float(max(launch.runs for launch in data))
    scale = launch_scale(look.sigma, look.tau, runs)
    fine, wide = float(scale.min()), float(scale.max())
    points = np.array([launch.center for launch in data])
    return adaptive_grid(points, 0.5 * fine / math.sqrt(len(data)), 6 * wide, most=400)


def log_ratio(parent: list[LaunchEstimate], culprit: list[LaunchEstimate], look: EffectPrior) -> float:
    """ln of P(data | step) / P(data | no step). :raises ValueError: a side is empty.

    All launches share a level, the culprit's moved by the step. Where the machine drifts, each pair has a
    level of its own: what the drift did between the pairs drops out.
    """
    if not parent or not culprit:
        raise ValueError("an A/B needs a launch on each side")
    # Both sides are on one slot: the error of its shift is common to them.
    parent, culprit = ([replace(x, offset_se=0.0) for x in side] for side in (parent, culprit))
    blocks = [(parent, culprit)]
    if look.drift:
        blocks = [([p], [c]) for p, c in zip(parent, culprit, strict=False)]
        look = _wider(look, parent, culprit)
    prior = np.log(look.noise_weight)
    totals = []
    for step in (0.0, *look.steps):
        each = [_one_level(p + [replace(x, center=x.center - step) for x in c], look) for p, c in blocks]
        totals.append(float(log_sum_exp(np.sum(each, axis=0) + prior)))
    changed = float(log_sum_exp(np.array(totals[1:]) + np.log(look.step_weight)))
    return changed - totals[0]


def _one_level(data: list[LaunchEstimate], look: EffectPrior) -> Array:
    """log likelihood [noise] of launches that share one unknown level."""
    nodes = _nodes(data, look)
    low, high = grid_cells(nodes)
    return log_sum_exp(_levels(data, look, nodes) + np.log(high - low)[None], axis=1)


def _wider(look: EffectPrior, parent: list[LaunchEstimate], culprit: list[LaunchEstimate]) -> EffectPrior:
    """Noise that also holds what a drift does between a launch and the nearest one of the other side."""
    if not look.drift:
        return look
    one, other = (np.array([x.at for x in side]) for side in (parent, culprit))
    apart = np.abs(one[:, None] - other[None, :])
    gap = float(np.mean([*apart.min(0), *apart.min(1)]))
    # Half of the variance of a difference over that gap falls on each of the two.
    extra = look.drift**2 * -math.expm1(-gap / DRIFT_MINUTES)
    return replace(look, tau=np.sqrt(look.tau**2 + extra))


def compare(
    parent: list[LaunchEstimate], culprit: list[LaunchEstimate], look: EffectPrior, sign: int
) -> Comparison:
    """The relative effect culprit / parent - 1 in the metric's own direction, with its 95 % interval.

    Both levels are flat before the data; the noise is mixed over, so that few launches give a wide interval.
    """
    look = _wider(look, parent, culprit)
    scale = launch_scale(look.sigma, look.tau, float(max(launch.runs for launch in parent + culprit)))
    parts: list[tuple[Array, Array, float]] = []
    for j in range(len(scale)):
        one = EffectPrior(
            look.steps, look.step_weight, look.sigma[j : j + 1], look.tau[j : j + 1], np.ones(1)
        )
        sides = []
        for side in (parent, culprit):
            points = np.array([launch.center for launch in side])
            fine = 0.4 * float(scale[j]) / math.sqrt(len(side))
            nodes = adaptive_grid(points, fine, 8 * float(scale[j]), most=160)
            low, high = grid_cells(nodes)
            log_mass = _levels(side, one, nodes)[0] + np.log(high - low)
            evidence = float(log_sum_exp(log_mass))
            sides.append((nodes, np.exp(log_mass - evidence), evidence))
        (a, weight_a, log_a), (b, weight_b, log_b) = sides
        difference = (b[None, :] - a[:, None]).ravel()
        mass = (weight_a[:, None] * weight_b[None, :]).ravel()
        parts.append((difference, mass, log_a + log_b + math.log(look.noise_weight[j])))
    top = max(log for _, _, log in parts)
    x = np.concatenate([d for d, _, _ in parts])
    w = np.concatenate([m * math.exp(log - top) for _, m, log in parts])
    by = np.argsort(x)
    low_, middle, high_ = quantiles(x[by], w[by], (0.025, 0.5, 0.975))
    effects = sorted(math.expm1(sign * v) for v in (low_, middle, high_))
    return Comparison(
        parent=parent[0].index,
        culprit=culprit[0].index,
        effect=math.expm1(sign * middle),
        low=effects[0],
        high=effects[2],
        launches=min(len(parent), len(culprit)),
    )


def runs_for(posterior: Posterior, prices: Prices, max_runs: int) -> int:
    """Runs a launch for which the A/B is expected to be cheapest: fewer where the step is large."""
    size = posterior.step_quantiles(0.4)[0]
    best, least = 1, math.inf
    for runs in range(1, max_runs + 1):
        variance = 2 * posterior.launch_variance(runs)
        pairs = max(float(LEAST_PAIRS), _ENOUGH * variance / size**2)
        minutes = pairs * (prices.launch + runs * prices.run)
        if minutes < least * (1 - 1e-9):
            best, least = runs, minutes
    return best
