"""The part of a diff that a report shows: what the conclusion names first, then as much as fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from perfbisect.changes.hunks import DiffHunk, FileDiff
from perfbisect.explain.attribution import ProfileConclusion
from perfbisect.explain.diff import StackDiff
from perfbisect.report.diffs import DiffDocument, DiffFileDocument, DiffLineDocument

MOST_LINES: Final = 400
"""Lines of a diff that are kept, with context."""

MOST_FILES: Final = 40
LONGEST_LINE: Final = 300

_CONTEXT: Final = 3
_ABOVE: Final = 3
"""Lines above the first marked one that a hunk is not cut short of."""


@dataclass(frozen=True)
class CauseLines:
    """Lines of a file that are named as a cause, by their numbers after and before the diff."""

    after: frozenset[int] = frozenset()
    before: frozenset[int] = frozenset()

    def union(self, other: CauseLines) -> CauseLines:
        return CauseLines(self.after | other.after, self.before | other.before)


def excerpt_diff(diff: StackDiff, conclusion: ProfileConclusion) -> DiffDocument:
    """Files that the conclusion names, then the others; hunks with marked lines are left out last."""
    causes = _causes(diff, conclusion)
    rank = {path: at for at, path in reversed([*enumerate((*causes, *conclusion.configuration))])}
    files = sorted(diff.files, key=lambda file: rank.get(file.path, len(rank)))[:MOST_FILES]
    hunks = {file.path: [*_hunks(file, causes.get(file.path, CauseLines()))] for file in files}
    keys = [(path, at) for path, own in hunks.items() for at in range(len(own))]
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


def _causes(diff: StackDiff, conclusion: ProfileConclusion) -> dict[str, CauseLines]:
    causes: dict[str, CauseLines] = {}
    for named in (conclusion.location, conclusion.link):
        if named is not None and named.path in diff.by_path:
            found = cause_lines(diff, diff.by_path[named.path], named.line)
            causes[named.path] = causes.get(named.path, CauseLines()).union(found)
    return causes


def cause_lines(diff: StackDiff, file: FileDiff, line: int) -> CauseLines:
    """The function around a line of the file after the diff, on both sides; else the hunk of the line."""
    span = diff.function_of(file.path, line, "after")
    if span is None:
        hunks = [hunk for hunk in file.hunks if line in hunk.added or line == hunk.new_start]
        return CauseLines(
            frozenset(number for hunk in hunks for number in hunk.added),
            frozenset(number for hunk in hunks for number in hunk.removed),
        )
    earlier = [old for old in file.functions_before if old.name == span.name]
    return CauseLines(
        frozenset(range(span.first, span.last + 1)),
        frozenset(number for old in earlier for number in range(old.first, old.last + 1)),
    )


def _hunks(file: FileDiff, causes: CauseLines) -> Iterator[list[DiffLineDocument]]:
    """Hunks with context; those whose context meets are one."""
    after = _texts(file.lines_after)
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
        lines += _changed(file, hunk, causes)
        next_line = first + hunk.new_count
    if lines:
        yield lines + _context(after, next_line, next_line + _CONTEXT)


def _texts(lines: Sequence[bytes]) -> list[str]:
    return [line.decode(errors="replace").removesuffix("\n") for line in lines]


def _context(after: Sequence[str], start: int, end: int) -> list[DiffLineDocument]:
    return [
        _line(" ", number, after[number - 1], marked=False)
        for number in range(start, min(end, len(after) + 1))
    ]


def _changed(file: FileDiff, hunk: DiffHunk, causes: CauseLines) -> Iterator[DiffLineDocument]:
    for number, text in zip(hunk.removed, _texts(file.old_lines(hunk)), strict=True):
        yield _line("-", number, text, marked=number in causes.before)
    for number, text in zip(hunk.added, _texts(file.new_lines(hunk)), strict=True):
        yield _line("+", number, text, marked=number in causes.after)


def _line(sign: Literal["+", "-", " "], number: int, text: str, *, marked: bool) -> DiffLineDocument:
    short = text if len(text) <= LONGEST_LINE else text[: LONGEST_LINE - 1] + "…"
    return DiffLineDocument(sign=sign, number=number, content=short, marked=marked)


def _cut(hunk: Sequence[DiffLineDocument], room: int) -> tuple[DiffLineDocument, ...]:
    if len(hunk) <= room:
        return tuple(hunk)
    first = next((at for at, line in enumerate(hunk) if line.marked), 0)
    start = max(0, first - _ABOVE)
    return tuple(hunk[start : start + max(0, room)])
