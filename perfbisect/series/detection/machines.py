"""What each of several known machines adds to a night, and changes of level that are a machine's.

The offset of a machine shows between neighbouring stretches of nights on different machines: a change of
level is in one of these differences, an offset in all. Of a machine that measured a single stretch it cannot
be told from a change.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import groupby, pairwise

import numpy as np

from perfbisect.series.detection.likelihood import FLOOR
from perfbisect.stats.robust import Array

_REACH = 5  # nights on either side of a change of machine that are compared
_ROUNDS = 30  # of least absolute deviations as reweighted least squares


def machine_offsets(values: Array, machines: Sequence[str]) -> Array:
    """What its machine adds to each night (signed logs), less what the most usual machine does.

    ``machines``: of each night, empty where it is not known. 0 of nights on machines that do not recur in
    alternation, and where offsets do not explain the nights better.
    """
    offsets = np.zeros(len(values))
    stretches = _recurring(machines)
    if len(stretches) < 2:
        return offsets
    names = [name for name, _ in Counter(name for name, n in stretches for _ in n).most_common()]
    differences, weights, design = [], [], []
    for (old, before), (new, after) in pairwise(stretches):
        left, right = before[-_REACH:], after[:_REACH]
        differences.append(np.median(values[right]) - np.median(values[left]))
        weights.append(1 / math.sqrt(1 / len(left) + 1 / len(right)))
        design.append([(name == new) - (name == old) for name in names[1:]])
    y, x = np.array(differences) * weights, np.array(design, float) * np.array(weights)[:, None]
    fit = np.zeros(x.shape[1])
    for _ in range(_ROUNDS):
        closeness = 1 / np.maximum(np.abs(y - x @ fit), FLOOR)
        fit = np.linalg.solve(x.T @ (closeness[:, None] * x) + 1e-9 * np.eye(len(fit)), x.T @ (closeness * y))
    rest = max(float(np.abs(y - x @ fit).sum()), FLOOR)
    if len(y) * math.log(max(float(np.abs(y).sum()), FLOOR) / rest) < len(fit) * math.log(len(y)):
        return offsets
    for name, offset in zip(names[1:], fit, strict=True):
        offsets[np.array(machines) == name] = offset
    return offsets


def _recurring(machines: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Stretches of nights on one machine, without machines that have a single one."""
    names = set(machines) - {""}
    while True:
        nights = [i for i, name in enumerate(machines) if name in names]
        stretches = [(name, list(run)) for name, run in groupby(nights, lambda i: machines[i])]
        counts = Counter(name for name, _ in stretches)
        recurring = {name for name in names if counts[name] > 1}
        if recurring == names:
            return stretches
        names = recurring


def change_of_machine(
    machines: Sequence[str], start: int, places: Sequence[int], end: int
) -> tuple[str, str] | None:
    """The machines before and after a change, where they changed wholly at one of its places.

    ``start`` to ``end``: the nights at the levels that it lies between. None where every night has a machine
    of its own, from which nothing follows.
    """
    for place in places:
        sides = machines[start:place], machines[place:end]
        before, after = ([name for name in side if name] for side in sides)
        old, new = set(before), set(after)
        if old and new and not old & new and len(old) < len(before) and len(new) < len(after):
            return ", ".join(sorted(old)), ", ".join(sorted(new))
    return None
