"""What each of several known machines adds to its nights, and changes that come with another machine.

An offset shows whenever the machine changes, a change of level at one of these nights only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import groupby, pairwise

import numpy as np

from perfbisect.series.detection.likelihood import FLOOR
from perfbisect.stats.robust import Array

_REACH = 5  # nights on either side of a change that are compared
_PRIOR = 3.0  # scale of the prior of an offset, a Cauchy, in scales of a night
_ROUNDS = 30  # of reweighted least squares


def machine_offsets(values: Array, machines: Sequence[str]) -> Array:
    """What its machine adds to each night (signed logs), 0 of machines that do not recur in alternation.

    ``machines``: of each night, empty where it is not known. Least absolute deviations of the differences at
    changes of machine, with the prior; 0 also where machines are as likely alike (Schwarz). A change at which
    one machine measures last and the other first is left out: it may be a change of level as well.
    """
    offsets = np.zeros(len(values))
    # A host that comes once cannot be told from a change of level at that night.
    recurring = Counter(name for name, _ in groupby(filter(None, machines)))
    known = [night for night, name in enumerate(machines) if recurring[name] > 1]
    runs = [(name, list(nights)) for name, nights in groupby(known, machines.__getitem__)]
    used = [
        (old, before[-_REACH:], new, after[:_REACH])
        for k, ((old, before), (new, after)) in enumerate(pairwise(runs), 1)
        if any(name == new for name, _ in runs[:k]) or any(name == old for name, _ in runs[k:])
    ]
    if not used:
        return offsets
    names = sorted({name for old, _, new, _ in used for name in (old, new)})
    y = np.array([np.median(values[right]) - np.median(values[left]) for _, left, _, right in used])
    x = np.array([[(name == new) - (name == old) for name in names] for old, _, new, _ in used])
    fit = np.zeros(len(names))
    for _ in range(_ROUNDS):
        # Least absolute deviations by reweighting: a step between two hosts is one far difference among
        # many.
        away = np.abs(y - x @ fit)
        scale = max(float(np.median(away)), FLOOR)
        data = x.T / (scale * np.maximum(away, 0.1 * scale))
        # The Cauchy prior as a weight: it shrinks small offsets to zero and leaves large ones nearly as they
        # are.
        prior = np.diag(2 / ((_PRIOR * scale) ** 2 + fit * fit))
        fit = np.linalg.solve(data @ x + prior, data @ y)
    alike, apart = (max(float(np.abs(rest).sum()), FLOOR) for rest in (y, y - x @ fit))
    # Schwarz: hosts that are alike get no offset, or its error would be added to every night.
    if len(y) * math.log(alike / apart) < (len(names) - 1) * math.log(len(y)):
        return offsets
    for name, offset in zip(names, fit, strict=True):
        offsets[np.array(machines) == name] = offset
    return offsets


def replaced_machines(
    machines: Sequence[str], start: int, places: Sequence[int], end: int
) -> tuple[str, str] | None:
    """The machines before and after a change, where no machine of one level measured the other.

    ``start`` to ``end``: the nights of both levels. None where every night has a machine of its own.
    """
    for place in places:
        before, after = (Counter(filter(None, side)) for side in (machines[start:place], machines[place:end]))
        if not before & after and all(side.total() > len(side) for side in (before, after)):
            return ", ".join(sorted(before)), ", ".join(sorted(after))
    return None
