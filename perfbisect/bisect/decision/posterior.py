"""Where the step is, given every launch: one change point with all that is not asked for integrated out.

A launch at position i has a centre around level_i, of variance tau^2 + sigma^2 / r, Gaussian with a far tail
(:func:`perfbisect.stats.robust.log_heavy_tailed`). The level is m before the culprit and m + delta from it
on, or m everywhere (no change, prior 0.25). m is flat, delta log-uniform in parts (:data:`STEPS`), sigma and
tau on a grid (:mod:`perfbisect.bisect.decision.noise`). Where the machine is seen to drift,
:mod:`perfbisect.bisect.decision.drift` answers.

Between two neighbouring measured positions the data cannot tell candidates apart, so the likelihood is
needed once a gap, and it is a product of one factor for everything left of the gap and one for everything
right: two cumulative sums over the positions serve all gaps.
"""

from __future__ import annotations

import math

import numpy as np

from perfbisect.bisect.decision.beliefs import NO_CHANGE, Posterior, WeightedNoise, gap_masses, step_prior
from perfbisect.bisect.decision.drift import drifting
from perfbisect.bisect.decision.model import USUAL_NOISE, NoisePrior
from perfbisect.bisect.decision.noise import LaunchEstimate, Scales, launch_scale, scales
from perfbisect.stats.robust import Array, adaptive_grid, grid_cells, log_heavy_tailed, log_sum_exp


def _likelihood(
    data: tuple[LaunchEstimate, ...], noise: Scales, nodes: Array
) -> tuple[tuple[int, ...], Array]:
    """The measured positions, ascending, and their log likelihood [position, noise, node]."""
    ordered = sorted(data, key=lambda launch: launch.index)
    index = np.array([launch.index for launch in ordered])
    at, first = np.unique(index, return_index=True)
    y = np.array([launch.center for launch in ordered])
    runs = np.array([launch.runs for launch in ordered], float)
    offset_se = np.array([launch.offset_se for launch in ordered])
    scale = launch_scale(noise.sigma[None], noise.tau[None], runs[:, None], offset_se[:, None])
    z = (y[:, None] - nodes[None])[:, None, :] / scale[:, :, None]
    each = log_heavy_tailed(z) - np.log(scale)[:, :, None]
    return tuple(int(i) for i in at), np.add.reduceat(each, first, axis=0)


def _moments(weight: Array, nodes: Array) -> tuple[Array, Array]:
    mean = weight @ nodes
    return mean, np.maximum(weight @ nodes**2 - mean**2, 0.0)


def compute_posterior(
    data: tuple[LaunchEstimate, ...],
    weights: Array,
    min_effect: float,
    span: tuple[int, int] | None = None,
    prior: NoisePrior = USUAL_NOISE,
) -> Posterior:
    """The posterior over culprit positions.

    ``weights`` are prior weights over positions 0..n, positive but for position 0 (:func:`prior_weights`);
    ``span`` restricts candidates to (lo, hi] and data to lo..hi; ``prior``: of the noise.

    Raises:
        ValueError: fewer than two positions were measured, or not both ends of the span.
    """
    lo, hi = span or (0, len(weights) - 1)
    data = tuple(launch for launch in data if lo <= launch.index <= hi)
    if not {lo, hi} <= {launch.index for launch in data}:
        raise ValueError(f"positions {lo} and {hi} must both have been measured")
    noise = scales(data, prior)
    centers = np.array([launch.center for launch in data])
    # The error of a level falls with the root of the launches: nodes near the data must be as close.
    nodes = adaptive_grid(centers, 0.9 * noise.fine / math.sqrt(max(1, len(data))), 6 * noise.wide)
    border = grid_cells(nodes)
    width = border[1] - border[0]
    at, each = _likelihood(data, noise, nodes)
    # One sum up to each position and the total less it: all gaps in two passes, not one pass a gap.
    below = np.cumsum(each, axis=0)
    total, left = below[-1], below[:-1]
    right = total[None] - left
    top_left, top_right = left.max(-1), right.max(-1)
    # The maximum is subtracted here and added to the log again: levels far from the data would underflow.
    e_left = np.exp(left - top_left[..., None])
    e_right = np.exp(right - top_right[..., None])
    # [g, h]: prior mass of a step that leads from node g into the cell of node h.
    smaller, larger = (step_prior(edge[None, :] - nodes[:, None], min_effect) for edge in border)
    steps = larger - smaller
    shape = e_left.shape
    onto = (e_right.reshape(-1, len(nodes)) @ steps.T).reshape(shape)
    from_left = e_left * width
    joint = from_left * onto
    with np.errstate(divide="ignore"):
        evidence = np.log(joint.sum(-1)) + top_left + top_right
    scope = np.zeros_like(weights)
    scope[lo + 1 : hi + 1] = weights[lo + 1 : hi + 1]
    scope /= scope.sum()
    mass = gap_masses(scope, at)
    common = noise.log_prior + noise.log_runs
    change = evidence + np.log(mass * (1 - NO_CHANGE))[:, None] + common[None]
    same = log_sum_exp(total + np.log(width)[None], axis=1) + math.log(NO_CHANGE) + common
    everything = np.concatenate([change, same[None]])
    share = np.exp(everything - everything.max())
    share /= share.sum()
    gaps, none = share[:-1].sum(1), float(share[-1].sum())
    of_noise = share.sum(0)
    tiny = 1e-300
    mix = share[:-1] / np.maximum(gaps, tiny)[:, None]
    w_low = (joint / np.maximum(joint.sum(-1, keepdims=True), tiny) * mix[..., None]).sum(1)
    back = (from_left.reshape(-1, len(nodes)) @ steps).reshape(shape) * e_right
    w_high = (back / np.maximum(back.sum(-1, keepdims=True), tiny) * mix[..., None]).sum(1)
    flat = np.exp(total - total.max(-1, keepdims=True)) * width
    flat = (flat / flat.sum(-1, keepdims=True) * (share[-1] / max(none, tiny))[:, None]).sum(0)
    f_mean, f_var = _moments(flat, nodes)
    step, step_weight = _step_sizes(nodes, from_left, e_right, joint, steps, share[:-1])
    still = Posterior(
        data=data,
        scope=scope,
        at=at,
        gaps=gaps,
        none=none,
        min_effect=min_effect,
        noise_prior=prior,
        sigma=float(np.exp(of_noise @ np.log(noise.sigma))),
        tau=float(np.exp(of_noise @ np.log(noise.tau))),
        noise=WeightedNoise(noise.sigma, noise.tau, of_noise),
        low=_moments(w_low, nodes),
        high=_moments(w_high, nodes),
        flat=(float(f_mean), float(f_var)),
        step=step,
        step_weight=step_weight,
    )
    return drifting(still) or still


def _step_sizes(
    nodes: Array, from_left: Array, e_right: Array, joint: Array, steps: Array, share: Array
) -> tuple[Array, Array]:
    """The distribution of delta, over the hypotheses that carry any weight worth the work."""
    # A hypothesis below a hundredth of the likeliest moves no quantile that is shown.
    k, s = np.nonzero(share > 0.01 * share.max())
    scale = share[k, s] / np.maximum(joint[k, s].sum(-1), 1e-300)
    mass = ((from_left[k, s] * scale[:, None]).T @ e_right[k, s]) * steps
    delta = nodes[None, :] - nodes[:, None]
    used = mass > 1e-7 * mass.max()
    order = np.argsort(delta[used])
    return delta[used][order], mass[used][order]
