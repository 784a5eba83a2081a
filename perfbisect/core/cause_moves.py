"""Which covariates moved at the point of a break."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from perfbisect.core.cause_facts import Night

NEAR = 3
"""Nights on each side that are compared: what moved weeks before is no evidence."""
_LEAST = 0.02
"""Log of a move of a count that is worth telling."""
_MAD = 1.4826


@dataclass(frozen=True)
class Move:
    """A covariate that is another after the break, in words."""

    name: str
    words: str


@dataclass(frozen=True)
class CountMove(Move):
    """... with its size, the log of after / before."""

    shift: float


def labels_moved(before: Sequence[Night], after: Sequence[Night], names: Iterable[str]) -> tuple[Move, ...]:
    """Labels that had one value on the nights before and another on those after, where they are known."""
    found = []
    for name in names:
        left = {night.labels[name] for night in before[-NEAR:] if name in night.labels}
        right = {night.labels[name] for night in after[:NEAR] if name in night.labels}
        if len(left) == len(right) == 1 and left != right:
            (old,), (new,) = left, right
            found.append(Move(name, f"{_plain(name)}: {old} before, {new} after"))
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
            words = f"{_plain(name)}: {math.exp(old):,.6g} before, {math.exp(new):,.6g} after"
            found.append(CountMove(name, words, new - old))
    return tuple(sorted(found, key=lambda move: -abs(move.shift)))


def _logs(nights: Sequence[Night], name: str) -> list[float]:
    return [math.log(night.counts[name]) for night in nights if night.counts.get(name, 0) > 0]


def _spread(logs: Sequence[float]) -> float:
    """Standard deviation of a night, from the differences between neighbours: earlier steps do not widen
    it."""
    steps = [abs(b - a) for a, b in pairwise(logs)]
    return _MAD * median(steps) / math.sqrt(2) if steps else 0.0


def key_changes(before: Sequence[Night], after: Sequence[Night]) -> tuple[Move, ...]:
    """Numbers that the client reported on the nights of one side and on none of the other."""
    left = [night.keys for night in before[-NEAR:] if night.keys]
    right = [night.keys for night in after[:NEAR] if night.keys]
    if not left or not right:
        digests = labels_moved(before, after, ("keys",))
        return (Move("keys", "the client reports other numbers than before"),) if digests else ()
    gone = frozenset.intersection(*left) - frozenset().union(*right)
    new = frozenset.intersection(*right) - frozenset().union(*left)
    return tuple(
        Move(" ".join(sorted(keys)), f"the client reports {_some(keys)} {how}")
        for keys, how in ((gone, "no longer"), (new, "from here on"))
        if keys
    )


def _some(keys: Iterable[str]) -> str:
    names = sorted(keys)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _plain(name: str) -> str:
    return name.replace("_", " ")
