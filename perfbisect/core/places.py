"""What a run's place in its launch does: later runs of a server may all be faster or slower than its first.

A launch of two runs and one of one run are compared in the search. Without this factor, what the second run
of every launch has in common would pass for a difference between changes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfbisect.core.stats import Array

_LAUNCHES = 6
"""Launches with a run at a place before anything is said of that place."""

_ERRORS = 4.0
"""Standard errors that an effect must stand from zero: less is left in the noise."""


def place_effects(logs: Sequence[Array]) -> Array:
    """Log shift of run k against the first of its launch, common to all launches; 0 where none is shown.

    ``logs``: the logs of each launch's values in run order. The shift is the median over launches of the
    differences to their first run; its standard error is 1.2533 s / sqrt(m), with s from the median absolute
    deviation over all places (the asymptotic variance of a median, pi/2 that of the mean).
    """
    longest = max((len(launch) for launch in logs), default=0)
    effects = np.zeros(longest)
    places = [np.array([x[k] - x[0] for x in logs if len(x) > k]) for k in range(1, longest)]
    shown = [(k, differences) for k, differences in enumerate(places, 1) if len(differences) >= _LAUNCHES]
    if not shown:
        return effects
    spread = np.concatenate([np.abs(differences - np.median(differences)) for _, differences in shown])
    scale = 1.4826 * float(np.median(spread))
    for k, differences in shown:
        middle = float(np.median(differences))
        if abs(middle) > _ERRORS * 1.2533 * scale / np.sqrt(len(differences)):
            effects[k] = middle
    return effects
