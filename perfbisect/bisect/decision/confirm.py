"""The A/B that a verdict rests on: culprit and parent launched in turn, judged on these launches alone.

The search says how large the step and the noise are (what to look for); it adds nothing to the evidence. The
log likelihood ratio compares "the culprit's level is the parent's plus the step" with "both have one level",
the common level, the step's size and the noise integrated out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from perfbisect.bisect.decision.beliefs import Posterior
from perfbisect.bisect.decision.model import Comparison
from perfbisect.bisect.decision.noise import LaunchEstimate, WeightedNoise, launch_scale
from perfbisect.bisect.decision.posterior import DRIFT_MINUTES
from perfbisect.bisect.decision.state import Prices
from perfbisect.stats.robust import Array, log_heavy_tailed, log_sum_exp, quantiles
from perfbisect.stats.two_sample import Scale

DECIDED = math.log(20.0)
"""A likelihood ratio of twenty to one decides ..."""

LEAST_PAIRS = 2
"""... after so many pairs: one contaminated launch must not."""

_ENOUGH = 9.0
"""Squared step in units of the variance of a pair's difference at which a t4 ratio passes twenty to one."""

_MOST_NODES = 800
"""Levels and steps that an A/B is integrated over, at most."""

PAIRS = 12
"""Pairs after which an A/B that has decided nothing counts as failed."""

ABSENT = math.log(100.0)
"""A step that has its A/B is not called absent on other machines below a hundred to one."""

PAIRS_ELSEWHERE = 24
"""Pairs on other machines after which it stays open whether a confirmed step is there."""

Elsewhere = Literal["holds", "absent", "another size", "undecided"]


@dataclass(frozen=True)
class EffectPrior:
    """What the search tells the A/B to look for: steps with weights, and noise."""

    steps: Array
    step_weight: Array
    noise: WeightedNoise
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


def elsewhere(
    parent: list[LaunchEstimate], culprit: list[LaunchEstimate], look: EffectPrior
) -> Elsewhere | None:
    """What launches on other machines say of a confirmed step; None while they may go on.

    What is clearly worse there, and not by the expected step, is of another size.

    Raises:
        ValueError: so many launches, and no block has both sides.
    """
    launches = len(parent) + len(culprit)
    if launches < 2 * LEAST_PAIRS:
        return None
    ratio = log_ratio(parent, culprit, look)
    if ratio > DECIDED:
        return "holds"
    # Stricter than the other side: it contradicts an A/B that was passed, and denies it with less data.
    if ratio < -ABSENT:
        return "another size" if compare(parent, culprit, look, Scale()).low > 0 else "absent"
    return "undecided" if launches >= 2 * PAIRS_ELSEWHERE else None


def turn(parent: int, culprit: int, made: int) -> int:
    """Whose launch is next after ``made``: culprit, parent, parent, culprit, and again."""
    return (culprit, parent, parent, culprit)[made % 4]


def expected(posterior: Posterior) -> EffectPrior:
    """Five equally likely sizes of the step, and the noise that carries weight."""
    # Each pair of noise values costs a convolution: pairs with hardly any weight are left out.
    noise = posterior.noise
    used = noise.weight > 0.02 * noise.weight.max()
    weight = noise.weight[used]
    return EffectPrior(
        np.array(posterior.step_quantiles(0.1, 0.3, 0.5, 0.7, 0.9)),
        np.full(5, 0.2),
        WeightedNoise(noise.sigma[used], noise.tau[used], weight / weight.sum()),
        posterior.drift,
    )


def log_ratio(parent: list[LaunchEstimate], culprit: list[LaunchEstimate], look: EffectPrior) -> float:
    """ln of P(launches | step) / P(launches | no step). :raises ValueError: no block has both sides."""
    if not _blocks(parent, culprit):
        raise ValueError("an A/B needs a launch on each side")
    totals = np.interp([0.0, *look.steps], *_of_steps(parent, culprit, look))
    return float(log_sum_exp(totals[1:] + np.log(look.step_weight)) - totals[0])


def _of_steps(
    parent: list[LaunchEstimate], culprit: list[LaunchEstimate], look: EffectPrior
) -> tuple[Array, Array]:
    """Steps in equal distances, and the log likelihood of each, noise and the parent's level integrated out.

    The launches of a block share a level, the culprit's moved by the step. Where the machine drifts, each
    pair has a level of its own: what the drift did between the pairs drops out.
    """
    blocks = _blocks(parent, culprit)
    if look.drift:
        look = _wider(look, blocks)
        blocks = [([p], [c]) for sides in blocks for p, c in zip(*sides, strict=False)]
    points = np.array([launch.center for launch in parent + culprit])
    most = float(max(launch.runs for launch in parent + culprit))
    scale = launch_scale(look.noise.sigma, look.noise.tau, most)
    reach = 8 * float(scale.max())
    fine = 0.4 * float(scale.min()) / math.sqrt(min(len(parent), len(culprit)))
    count = min(_MOST_NODES, math.ceil((float(np.ptp(points)) + 2 * reach) / fine))
    nodes = np.linspace(float(points.min()) - reach, float(points.max()) + reach, count)
    total = np.zeros((len(scale), 2 * count - 1))
    for sides in blocks:
        (before, log_a), (after, log_b) = (_levels(side, look, nodes) for side in sides)
        # On equally spaced levels a correlation integrates over the parent's level, for all steps at once.
        mass = np.array([np.correlate(b, a, "full") for a, b in zip(before, after, strict=True)])
        total += np.log(np.maximum(mass, 1e-300)) + (log_a + log_b)[:, None]
    steps = (nodes[1] - nodes[0]) * np.arange(1.0 - count, count)
    return steps, log_sum_exp(total + np.log(look.noise.weight)[:, None], axis=0)


def _levels(data: list[LaunchEstimate], look: EffectPrior, nodes: Array) -> tuple[Array, Array]:
    """Likelihood [noise, node] of launches that share one level, relative to its maximum; log of that."""
    out = np.zeros((len(look.noise.sigma), len(nodes)))
    for launch in data:
        scale = launch_scale(look.noise.sigma, look.noise.tau, float(launch.runs), launch.offset_se)
        z = (launch.center - nodes)[None] / scale[:, None]
        out += log_heavy_tailed(z) - np.log(scale)[:, None]
    top = out.max(axis=1)
    return np.exp(out - top[:, None]), top


def _blocks(
    parent: list[LaunchEstimate], culprit: list[LaunchEstimate]
) -> list[tuple[list[LaunchEstimate], list[LaunchEstimate]]]:
    """The launches of both sides, block by block; a block that has one side alone tells nothing."""
    names = dict.fromkeys(launch.block for launch in (*parent, *culprit))
    blocks = [tuple([x for x in side if x.block == name] for side in (parent, culprit)) for name in names]
    return [(before, after) for before, after in blocks if before and after]


def _wider(look: EffectPrior, blocks: list[tuple[list[LaunchEstimate], list[LaunchEstimate]]]) -> EffectPrior:
    """Noise that also holds what a drift does between a launch and the nearest one of the other side."""
    nearest: list[float] = []
    for parent, culprit in blocks:
        apart = np.abs(np.subtract.outer([x.at for x in parent], [x.at for x in culprit]))
        nearest += [*apart.min(0), *apart.min(1)]
    gap = float(np.mean(nearest))
    # Half of the variance of a difference over that gap falls on each of the two.
    extra = look.drift**2 * -math.expm1(-gap / DRIFT_MINUTES)
    return replace(look, noise=replace(look.noise, tau=np.sqrt(look.noise.tau**2 + extra)))


def compare(
    parent: list[LaunchEstimate], culprit: list[LaunchEstimate], look: EffectPrior, scale: Scale
) -> Comparison:
    """The effect culprit / parent - 1 (of shares their difference), with its 95 % interval.

    The step is flat before the data; everything else is as in :func:`log_ratio`.
    """
    steps, log_mass = _of_steps(parent, culprit, look)
    low_, middle, high_ = quantiles(steps, np.exp(log_mass - log_mass.max()), (0.025, 0.5, 0.975))
    effects = sorted(map(scale.effect, (low_, middle, high_)))
    return Comparison(
        parent=parent[0].index,
        culprit=culprit[0].index,
        effect=scale.effect(middle),
        low=effects[0],
        high=effects[2],
        launches=min(len(parent), len(culprit)),
    )


def expected_pairs(posterior: Posterior, runs: int) -> float:
    """Pairs of so many runs a launch that an A/B of the step is likely to need."""
    size = posterior.step_quantiles(0.4)[0]
    return max(float(LEAST_PAIRS), _ENOUGH * 2 * posterior.launch_variance(runs) / size**2)


def runs_for(posterior: Posterior, prices: Prices, max_runs: int) -> int:
    """Runs a launch for which the A/B is expected to be cheapest: fewer where the step is large."""
    best, least = 1, math.inf
    for runs in range(1, max_runs + 1):
        minutes = expected_pairs(posterior, runs) * (prices.costs.launch + runs * prices.costs.run)
        if minutes < least * (1 - 1e-9):
            best, least = runs, minutes
    return best
