"""The stacks of both sides as one tree of bounded size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from perfbisect.explain.diff import StackDiff
from perfbisect.explain.functions import SampledLaunch, mean_times
from perfbisect.explain.stacks import FunctionKey, StackSample, process_role, working
from perfbisect.report.flames import FlameDocument

LEAST_SHARE: Final = 0.005
"""Of the time of the slower side, at least, for a frame of its own."""

MOST_LEVELS: Final = 48
"""Frames above one another, at most; deeper ones count for the last."""

_Row = tuple[tuple[FunctionKey, ...], float, float]
"""A stack with its own time on both sides."""


def build_flames(
    a: Sequence[SampledLaunch], b: Sequence[SampledLaunch], diff: StackDiff | None
) -> FlameDocument | None:
    """Working time in ms a step by process and stack, of both sides; None if one has no launch.

    Raises:
        ValueError: a launch has no sample or no step.
    """
    if not a or not b:
        return None
    before = mean_times(a, diff.work("before") if diff is not None else working, _stack)
    after = mean_times(b, diff.work("after") if diff is not None else working, _stack)
    stacks = sorted(dict.fromkeys((*before, *after)))
    rows = [(stack, before.get(stack, 0.0), after.get(stack, 0.0)) for stack in stacks]
    return flame_tree(rows)


def _stack(sample: StackSample) -> tuple[FunctionKey, ...]:
    return ("", process_role(sample.process)), *(frame.key for frame in sample.frames)


def flame_tree(rows: Sequence[_Row]) -> FlameDocument:
    """The tree of these stacks; nothing of their times is lost."""
    before, after = _sums(rows)
    return _frame(("", "all processes"), rows, 0, LEAST_SHARE * max(before, after))


def _frame(key: FunctionKey, rows: Sequence[_Row], level: int, least: float) -> FlameDocument:
    calls: defaultdict[FunctionKey, list[_Row]] = defaultdict(list)
    for row in rows:
        if len(row[0]) > level and level < MOST_LEVELS:
            calls[row[0][level]].append(row)
    small = {call for call, below in calls.items() if max(_sums(below)) < least}
    children = [_frame(call, below, level + 1, least) for call, below in calls.items() if call not in small]
    children.sort(key=lambda child: (-max(child.before, child.after), child.path, child.function))
    if small:
        before, after = _sums([row for call, below in calls.items() if call in small for row in below])
        children.append(FlameDocument(function="", path="", before=before, after=after, folded=len(small)))
    path, function = key
    before, after = _sums(rows)
    return FlameDocument(function=function, path=path, before=before, after=after, children=tuple(children))


def _sums(rows: Sequence[_Row]) -> tuple[float, float]:
    return sum(row[1] for row in rows), sum(row[2] for row in rows)
