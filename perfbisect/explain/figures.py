"""What a report shows of two sides: the part of the diff that fits, and the stacks as one tree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from perfbisect.changes.hunks import FileDiff, line_texts
from perfbisect.explain.attribution import ProfileConclusion
from perfbisect.explain.diff import StackDiff
from perfbisect.explain.functions import SampledLaunch, mean_times
from perfbisect.explain.stacks import FunctionKey, StackSample, process_role, working
from perfbisect.report.diffs import DiffDocument, DiffFileDocument, DiffLineDocument, DiffSign
from perfbisect.report.flames import FlameDocument

MOST_LINES: Final = 400
"""Lines of a diff that are kept, with context."""

MOST_FILES: Final = 40
LONGEST_LINE: Final = 300

_CONTEXT: Final = 3
_ABOVE: Final = 3
"""Lines above the first marked one that a hunk is not cut short of."""


MarkedLines = frozenset[tuple[DiffSign, int]]
"""Lines of a file that are named as a cause: numbers after the diff with ``+``, before it with ``-``."""


def excerpt_diff(diff: StackDiff, conclusion: ProfileConclusion) -> DiffDocument:
    """Files that the conclusion names, then the others; hunks with marked lines are left out last."""
    causes: dict[str, MarkedLines] = {}
    for named in (conclusion.location, conclusion.link):
        if named is not None and named.path in diff.by_path:
            found = cause_lines(diff, diff.by_path[named.path], named.line)
            causes[named.path] = causes.get(named.path, frozenset()) | found
    rank = {path: at for at, path in reversed([*enumerate((*causes, *conclusion.configuration))])}
    files = sorted(diff.files, key=lambda file: rank.get(file.path, len(rank)))[:MOST_FILES]
    hunks = {file.path: [*_hunks(file, causes.get(file.path, frozenset()))] for file in files}
    keys = [(path, at) for path, own in hunks.items() for at in range(len(own))]
    # Hunks that the conclusion names get room first; they are shown in the order of the diff.
    keys.sort(key=lambda key: not any(line.marked for line in hunks[key[0]][key[1]]))
    shown: dict[tuple[str, int], tuple[DiffLineDocument, ...]] = {}
    room = MOST_LINES
    for path, at in keys:
        shown[path, at] = _cut(hunks[path][at], room)
        room -= len(shown[path, at])
    documents = []
    for file in files:
        own = hunks[file.path]
        kept = tuple(filter(None, (shown[file.path, at] for at in range(len(own)))))
        documents.append(
            DiffFileDocument(
                path=file.path,
                old_path=file.old_path,
                state=file.state,
                binary=file.is_binary,
                hunks=kept,
                omitted=sum(map(len, own)) - sum(map(len, kept)),
            )
        )
    return DiffDocument(files=tuple(documents), omitted_files=len(diff.files) - len(documents))


def cause_lines(diff: StackDiff, file: FileDiff, line: int) -> MarkedLines:
    """The function around a line of the file after the diff, on both sides; else the hunk of the line."""
    span = diff.function_of(file.path, line, "after")
    if span is None:
        hunks = [hunk for hunk in file.hunks if line in hunk.added or line == hunk.new_start]
        after, before = [hunk.added for hunk in hunks], [hunk.removed for hunk in hunks]
    else:
        earlier = [old for old in file.functions_before if old.name == span.name]
        after, before = [span.lines], [old.lines for old in earlier]
    return _signed("+", after) | _signed("-", before)


def _signed(sign: DiffSign, ranges: Iterable[range]) -> MarkedLines:
    return frozenset((sign, number) for numbers in ranges for number in numbers)


def _hunks(file: FileDiff, causes: MarkedLines) -> Iterator[list[DiffLineDocument]]:
    """Hunks with context; those whose context meets are one."""
    after = line_texts(file.lines_after)
    lines: list[DiffLineDocument] = []
    next_line = 1
    """Of the file after the diff: the first that is not shown yet."""
    for hunk in file.hunks:
        first = hunk.new_start + (hunk.new_count == 0)
        start = max(next_line, first - _CONTEXT)
        if lines:
            end = min(next_line + _CONTEXT, start)
            lines += _context(after, next_line, end)
            if end < start:
                yield lines
                lines = []
        lines += _context(after, start, first)
        removed = zip(hunk.removed, line_texts(file.old_lines(hunk)), strict=True)
        added = zip(hunk.added, line_texts(file.new_lines(hunk)), strict=True)
        lines += [_line("-", number, text, causes) for number, text in removed]
        lines += [_line("+", number, text, causes) for number, text in added]
        next_line = first + hunk.new_count
    if lines:
        yield lines + _context(after, next_line, next_line + _CONTEXT)


def _context(after: Sequence[str], start: int, end: int) -> list[DiffLineDocument]:
    last = min(end, len(after) + 1)
    return [_line(" ", number, after[number - 1], frozenset()) for number in range(start, last)]


def _line(sign: DiffSign, number: int, text: str, causes: MarkedLines) -> DiffLineDocument:
    short = text if len(text) <= LONGEST_LINE else text[: LONGEST_LINE - 1] + "…"
    return DiffLineDocument(sign=sign, number=number, content=short, marked=(sign, number) in causes)


def _cut(hunk: Sequence[DiffLineDocument], room: int) -> tuple[DiffLineDocument, ...]:
    if len(hunk) <= room:
        return tuple(hunk)
    first = next((at for at, line in enumerate(hunk) if line.marked), 0)
    start = max(0, first - _ABOVE)
    return tuple(hunk[start : start + max(0, room)])


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
    # Frames too small to see would make the page large: thousands of stacks have a sample or two.
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
