"""Which positions can be told apart: candidates between two neighbouring testable positions are one set."""

from __future__ import annotations

import numpy as np

from perfbisect.stats.robust import Array


def sets(n: int, skips: frozenset[int]) -> tuple[tuple[int, int], ...]:
    """The distinguishable sets as (first, last), ascending: the culprit is one of first..last, and ``first -
    1`` and ``last`` can be measured. Position n counts as testable."""
    out, first = [], 1
    for i in range(1, n + 1):
        if i == n or i not in skips:
            out.append((first, i))
            first = i + 1
    return tuple(out)


def leading(p: Array, skips: frozenset[int]) -> tuple[int, int, float]:
    """The set with most probability (the earliest, where several share it): first, last, and how much."""
    groups = sets(len(p) - 1, skips)
    ahead = np.cumsum(p)
    mass = np.array([ahead[last] - ahead[first - 1] for first, last in groups])
    best = int(np.argmax(mass >= mass.max() * (1 - 1e-9)))
    return groups[best][0], groups[best][1], float(mass[best])


def nearest(index: int, low: int, high: int, skips: frozenset[int]) -> int | None:
    """The testable position strictly between ``low`` and ``high`` that is nearest to ``index``; the earlier
    of two."""
    for distance in range(high - low):
        for i in (index - distance, index + distance):
            if low < i < high and i not in skips:
                return i
    return None


def parent_of(index: int, skips: frozenset[int]) -> int:
    """The last testable position before a candidate."""
    parent = index - 1
    while parent in skips:
        parent -= 1
    return parent
