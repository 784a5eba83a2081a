"""A detector that is told what perfbisect has to find out: that nights are Gaussian, alike, and forget.

The largest t between two levels, told where it exceeds what all but a share of unchanged series reach while
they grow night by night. It shows what not knowing the noise costs, and what chance does to few series: its
rate of alarms is exact, whatever a handful of series shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

FIRST, LAST = 5, 2
"""Nights of the shortest first and last level, as of perfbisect's."""

BEGIN, NIGHTS = 12, 60
"""Nights of the first look at a growing series, and of the last."""

NOISE = 0.025

SEED = 20262
"""Of the unchanged series that set the threshold: none of them is scored."""


def ratios(logs: np.ndarray) -> np.ndarray:
    """Log likelihood ratio of two levels against one, for every first night of the second [..., places] of
    series of logs [..., nights]; place 0 is night :data:`FIRST`."""
    n = logs.shape[-1]
    sums, squares = np.cumsum(logs, axis=-1), np.sum(logs * logs, axis=-1, keepdims=True)
    k = np.arange(FIRST, n - LAST + 1)
    before, after = sums[..., k - 1] / k, (sums[..., -1:] - sums[..., k - 1]) / (n - k)
    within = squares - k * before**2 - (n - k) * after**2
    between = (after - before) ** 2 * k * (n - k) / n
    return np.asarray(0.5 * (n - 2) * np.log1p(between / within))


def threshold(rate: float, count: int = 4000) -> float:
    """What that share of unchanged series ever reach while they grow to 60 nights."""
    logs = np.log(1 + NOISE * np.random.default_rng(SEED).normal(size=(count, NIGHTS)))
    reached = [ratios(logs[:, :n]).max(axis=1) for n in range(BEGIN, NIGHTS + 1)]
    return float(np.quantile(np.max(reached, axis=0), 1 - rate))


def informed(rate: float) -> Callable[[Sequence[float]], list[int]]:
    """The detector: the first night of the new level, or nothing."""
    least = threshold(rate)

    def detect(values: Sequence[float]) -> list[int]:
        seen = ratios(np.log(np.asarray(values, float)))
        return [FIRST + int(np.argmax(seen))] if seen.max() >= least else []

    return detect
