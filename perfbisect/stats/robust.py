"""Robust location, the Student-t likelihood and intervals of distributions on a grid."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from perfbisect.model.attempt import robust_center

Array = NDArray[np.float64]

DEGREES = 4.0
"""Degrees of freedom of the launch likelihood: heavy enough that one contaminated launch in twenty costs
little."""


_FAR = 2.5
"""Standard deviations of a run beyond which it loses weight, as the square of its distance."""


def center(values: Array, scale: float = 0.0) -> float:
    """The location of log values: their mean, where none lies far out.

    ``scale`` is the standard deviation of a value; one further than :data:`_FAR` of them from the centre
    loses weight. Without a scale: :func:`perfbisect.model.attempt.robust_center`. Symmetric under a change of
    sign and of order.
    """
    if not scale or len(values) < 3:
        return robust_center(values.tolist())
    ordered = np.sort(values)
    middle = float(np.median(ordered))
    for _ in range(8):
        away = np.maximum(np.abs(ordered - middle) / (_FAR * scale), 1.0)
        middle = float(np.average(ordered, weights=away**-2.0))
    return middle


def run_scale(launches: list[Array]) -> float:
    """Standard deviation of runs within their launches: the median distance of two of them over 0.954, that
    of two Gaussian values. 0 where no launch has two runs, or they do not differ."""
    apart = [np.abs(x[i] - x[j]) for x in launches for i in range(len(x)) for j in range(i)]
    return float(np.median(apart)) / 0.9539 if apart else 0.0


def log_t(z: Array) -> Array:
    """log of the Student-t density of :data:`DEGREES` degrees of freedom at ``z``, less its constant."""
    return -0.5 * (DEGREES + 1) * np.log1p(z * z / DEGREES)


FAR_SHARE = 0.1
"""Share of launches (and of runs) that a far tail is taken to hold ..."""

FAR_SCALE = 3.0
"""... in units of the scale of the others; it falls off as a Student-t of three degrees of freedom."""

_T3 = 2 / (math.pi * math.sqrt(3)) * math.sqrt(2 * math.pi)
"""Density of that Student-t at its centre over that of a Gaussian."""


def log_tail(z: Array) -> Array:
    """log density of a launch at ``z`` scales from its level, up to a constant: Gaussian, with a far tail.

    Under Gaussian noise a Student-t alone takes values between two levels for more than they tell; without a
    tail one contaminated launch outweighs all others.
    """
    square = z * z
    far = 1.0 + square / (3.0 * FAR_SCALE**2)
    out = np.log((1 - FAR_SHARE) * np.exp(-0.5 * square) + (FAR_SHARE * _T3 / FAR_SCALE) / (far * far))
    return np.asarray(out)


def log_sum(a: Array, axis: int | None = None) -> Array:
    """log of the sum of exponentials along an axis; -inf where every term is -inf.

    As scipy.special.logsumexp, in a third to a seventh of its time: decisions take it thousands of times.
    """
    top = a.max(axis=axis, keepdims=True)
    top[~np.isfinite(top)] = 0.0
    with np.errstate(divide="ignore"):
        out = np.log(np.exp(a - top).sum(axis=axis))
    return np.asarray(out + top.reshape(out.shape))


def quantiles(x: Array, weight: Array, levels: tuple[float, ...]) -> tuple[float, ...]:
    """Quantiles of a distribution with masses ``weight`` at ascending ``x``, linear between the masses'
    midpoints."""
    mass = np.maximum(weight, 0.0)
    middle = (np.cumsum(mass) - 0.5 * mass) / mass.sum()
    return tuple(float(q) for q in np.interp(levels, middle, x))


def march(points: Array, fine: float, reach: float, most: int = 224) -> Array:
    """Ascending nodes for integrals over a level that the ``points`` inform.

    The spacing is ``fine`` at a point and a quarter of the distance to the nearest point away from it, over
    ``reach`` beyond both ends. More than ``most`` nodes are avoided by a wider spacing.
    """
    # Rounded distances from the smallest point: other units of the metric must not move a node.
    origin = float(np.min(points))
    data = np.unique(np.round(points - origin, 12))
    while True:
        nodes: list[float] = []
        x, end, at = float(data[0]) - reach, float(data[-1]) + reach, 0
        known = data.tolist()
        while x <= end and len(nodes) < most - 1:
            nodes.append(x)
            while at < len(known) and known[at] <= x:
                at += 1
            behind = x - known[at - 1] if at else math.inf
            ahead = known[at] - x if at < len(known) else math.inf
            x += max(fine, 0.25 * min(behind, ahead))
        if x > end:
            # A node that ends within rounding of the last one is the last one.
            kept = nodes if end - nodes[-1] > 1e-3 * fine else nodes[:-1]
            return origin + np.array([*kept, end])
        fine *= 1.4


def cells(nodes: Array) -> tuple[Array, Array]:
    """The lower and upper border of each node's cell: halfway to its neighbours."""
    middle = 0.5 * (nodes[1:] + nodes[:-1])
    low = np.concatenate([[nodes[0] - (middle[0] - nodes[0])], middle])
    high = np.concatenate([middle, [nodes[-1] + (nodes[-1] - middle[-1])]])
    return low, high
