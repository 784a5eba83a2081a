"""Which covariates moved at the point of a break."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from perfbisect.core.cause_facts import Evidence, Night

NEAR = 3
"""Nights on each side that are compared: what moved weeks before is no evidence."""
_LEAST = 0.02
"""Log of a move of a count that is worth telling."""
_MAD = 1.4826


@dataclass(frozen=True)
class CountMove:
    """A count that is another after the break; ``shift`` is the log of after / before."""

    name: str
    before: float
    after: float
    shift: float


def labels_moved(
    before: Sequence[Night], after: Sequence[Night], names: Iterable[str]
) -> tuple[Evidence, ...]:
    """Labels that had one value on the nights before and another on those after, where they are known."""
    found = []
    for name in names:
        left = {night.labels[name] for night in before[-NEAR:] if name in night.labels}
        right = {night.labels[name] for night in after[:NEAR] if name in night.labels}
        if len(left) == len(right) == 1 and left != right:
            (old,), (new,) = left, right
            found.append(Evidence("label changed", name=name, old=old, new=new))
    return tuple(found)


def counts_moved(before: Sequence[Night], after: Sequence[Night]) -> tuple[CountMove, ...]:
    """Counts whose median moved beyond what they do from one night before the break to the next, largest
    first."""
    names = dict.fromkeys(name for night in (*before, *after) for name in night.counts)
    found = []
    for name in names:
        left, right = _logs(before, name), _logs(after, name)
        if not left or not right:
            continue
        old, new = median(left[-NEAR:]), median(right[:NEAR])
        if abs(new - old) > max(_LEAST, 4 * _spread(left)):
            found.append(CountMove(name, math.exp(old), math.exp(new), new - old))
    return tuple(sorted(found, key=lambda move: -abs(move.shift)))


def _logs(nights: Sequence[Night], name: str) -> list[float]:
    return [math.log(night.counts[name]) for night in nights if night.counts.get(name, 0) > 0]


def _spread(logs: Sequence[float]) -> float:
    """Standard deviation of a night, from the differences between neighbours: earlier steps do not widen
    it."""
    steps = [abs(b - a) for a, b in pairwise(logs)]
    return _MAD * median(steps) / math.sqrt(2) if steps else 0.0


def key_changes(before: Sequence[Night], after: Sequence[Night]) -> tuple[Evidence, ...]:
    """Numbers that the client reported on the nights of one side and on none of the other."""
    left = [night.keys for night in before[-NEAR:] if night.keys]
    right = [night.keys for night in after[:NEAR] if night.keys]
    if not left or not right:
        digests = labels_moved(before, after, ("keys",))
        return (Evidence("keys differ"),) if digests else ()
    gone = frozenset.intersection(*left) - frozenset().union(*right)
    new = frozenset.intersection(*right) - frozenset().union(*left)
    found = []
    if gone:
        found.append(Evidence("keys removed", names=tuple(sorted(gone))))
    if new:
        found.append(Evidence("keys added", names=tuple(sorted(new))))
    return tuple(found)
