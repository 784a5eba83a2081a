"""Splits what a commit changed into hunks, and gives its files with some of them taken back.

A hunk is a run of adjacent lines without context. Any set of hunks can be taken back: they do not overlap,
and their lines are counted in the commit's own files.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

from perfbisect.changes.git import Repository
from perfbisect.changes.revert import ConflictError, FileState, edit_files
from perfbisect.model.change import Change

_HEADER = re.compile(rb"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", re.M)
_REGULAR = ("100644", "100755")
_NOTHING = "000000"
_BINARY_BYTES = 8000
"""Bytes in which git looks for a zero to call a file binary."""

HunkId = tuple[str, int]
"""Path and index of a hunk of a commit."""


@dataclass(frozen=True)
class DiffHunk:
    """Lines that a commit replaced, counted from 1; a count of 0: none, after the line ``start``.

    ``function``: the one that encloses it (``Scheduler.schedule``); empty at the level of module or class.
    """

    path: str
    index: int
    old_start: int
    old_count: int
    new_start: int
    new_count: int
    function: str = ""

    @property
    def id(self) -> HunkId:
        return self.path, self.index

    @property
    def lines(self) -> str:
        """``12-14`` of the commit's file; ``after 11`` where lines were only removed."""
        if not self.new_count:
            return f"after {self.new_start}"
        last = self.new_start + self.new_count - 1
        return str(self.new_start) if last == self.new_start else f"{self.new_start}-{last}"


@dataclass(frozen=True)
class CommitFile:
    """A file that a commit changed. ``before``, ``after``: None where it does not exist.

    A renamed file keeps its new name when its hunks are taken back. What is no text, and files that were
    added or deleted, have one hunk.
    """

    path: str
    old_path: str
    before: bytes | None
    after: bytes | None
    old_mode: str
    mode: str
    hunks: tuple[DiffHunk, ...] = ()

    @property
    def is_python(self) -> bool:
        return self.path.endswith(".py")

    @property
    def is_whole(self) -> bool:
        """True if it can be taken back only as a whole."""
        return self.before is None or self.after is None or _is_binary(self.before) or _is_binary(self.after)

    @cached_property
    def _sides(self) -> tuple[list[bytes], list[bytes]]:
        return _lines(self.before or b""), _lines(self.after or b"")

    def old_lines(self, hunk: DiffHunk) -> list[bytes]:
        """The lines that the hunk removed."""
        return _slice(self._sides[0], hunk.old_start, hunk.old_count)

    def new_lines(self, hunk: DiffHunk) -> list[bytes]:
        """The lines that the hunk added."""
        return _slice(self._sides[1], hunk.new_start, hunk.new_count)

    def without(self, reverted: Collection[int]) -> bytes | None:
        """The commit's file with hunks of these indices taken back; None: it does not exist."""
        if self.is_whole:
            return self.before if reverted else self.after
        old, lines = self._sides[0], list(self._sides[1])
        for hunk in reversed(self.hunks):
            if hunk.index in reverted:
                at = hunk.new_start - 1 if hunk.new_count else hunk.new_start
                lines[at : at + hunk.new_count] = _slice(old, hunk.old_start, hunk.old_count)
        return b"".join(lines)


@dataclass(frozen=True)
class CommitDiff:
    """What a commit changed of its first parent, in the order of paths."""

    commit: str
    parent: str
    files: tuple[CommitFile, ...]

    @cached_property
    def by_path(self) -> dict[str, CommitFile]:
        return {file.path: file for file in self.files}

    @property
    def hunks(self) -> tuple[DiffHunk, ...]:
        return tuple(hunk for file in self.files for hunk in file.hunks)

    def without(self, reverted: Collection[HunkId]) -> dict[str, bytes | None]:
        """The contents of the files of these hunks, with the hunks taken back."""
        paths = sorted({path for path, _ in reverted})
        return {
            path: self.by_path[path].without({index for name, index in reverted if name == path})
            for path in paths
        }


def read_diff(repository: Repository, commit: Change) -> CommitDiff:
    """What a commit changed of its first parent.

    Raises:
        ConflictError: it is the first commit.
    """
    parents = repository.records("-1", commit.source)[0].parents
    if not parents:
        raise ConflictError(f"{commit.short} is the first commit: there is nothing before it")
    rows = list(_raw_rows(repository, parents[0], commit.source))
    blobs = [
        blob
        for row in rows
        for mode, blob in ((row.old_mode, row.before), (row.mode, row.after))
        if mode in _REGULAR
    ]
    contents = dict(repository.contents(dict.fromkeys(blobs))) if blobs else {}
    files = []
    for row in rows:
        before = contents.get(row.before) if row.old_mode in _REGULAR else None
        after = contents.get(row.after) if row.mode in _REGULAR else None
        file = CommitFile(row.path, row.old_path, before, after, row.old_mode, row.mode)
        if {row.old_mode, row.mode} <= {*_REGULAR, _NOTHING}:
            file = _with_hunks(file, _hunks(repository, row, file))
        files.append(file)
    return CommitDiff(commit.source, parents[0], tuple(sorted(files, key=lambda file: file.path)))


def revert_hunks(
    repository: Repository, commit: Change, diff: CommitDiff, reverted: Collection[HunkId]
) -> Change:
    """The commit with some of its hunks taken back.

    Raises:
        ConflictError: that changes nothing.
    """
    states: dict[str, FileState | None] = {}
    for path, content in diff.without(reverted).items():
        file = diff.by_path[path]
        mode = file.mode if file.mode in _REGULAR else file.old_mode
        states[path] = None if content is None else FileState(mode, content)
    head = commit.unswapped
    return edit_files(repository, head, states, f"{len(set(reverted))} hunks taken back").swapped(commit.pips)


def hunk_patch(repository: Repository, commit: Change, reverted: Change) -> bytes:
    """The patch that takes these hunks back: ``COMMIT+patch:FILE`` is the same change."""
    return repository.run(
        "diff-tree", "-p", "--binary", "--full-index", "--no-renames", commit.source, reverted.source
    ).stdout


@dataclass(frozen=True)
class _RawRow:
    path: str
    old_path: str
    before: str
    after: str
    old_mode: str
    mode: str


def _raw_rows(repository: Repository, parent: str, commit: str) -> Iterator[_RawRow]:
    words = repository.text("diff-tree", "-r", "-z", "-M50%", "--no-commit-id", parent, commit).split("\0")
    at = 0
    while at < len(words) - 1:
        old_mode, mode, before, after, status = words[at].lstrip(":").split()
        renamed = status[0] in "RC"
        old_path, path = words[at + 1], words[at + 2] if renamed else words[at + 1]
        yield _RawRow(path, old_path, before, after, old_mode, mode)
        at += 3 if renamed else 2


def _hunks(repository: Repository, row: _RawRow, file: CommitFile) -> tuple[DiffHunk, ...]:
    if file.is_whole:
        counts = [
            len(_lines(side)) if side and not _is_binary(side) else 0 for side in (file.before, file.after)
        ]
        return (DiffHunk(file.path, 0, min(1, counts[0]), counts[0], min(1, counts[1]), counts[1]),)
    if row.before == row.after:
        return ()
    # Every option that a user's configuration could set is set: equal commits have equal hunks.
    text = repository.run(
        "diff", "--no-ext-diff", "--no-textconv", "--no-color", "-U0", "--inter-hunk-context=0", "--text",
        "--diff-algorithm=histogram", "--indent-heuristic", "--ignore-submodules=none", row.before, row.after,
    ).stdout  # fmt: skip
    found = []
    for index, match in enumerate(_HEADER.finditer(text)):
        old_start, old_count, new_start, new_count = (
            1 if number is None else int(number) for number in match.groups()
        )
        found.append(DiffHunk(file.path, index, old_start, old_count, new_start, new_count))
    return tuple(found)


def _with_hunks(file: CommitFile, hunks: tuple[DiffHunk, ...]) -> CommitFile:
    """The file with its hunks, each with the function that encloses it."""
    if file.is_python and not file.is_whole:
        scopes = [function_ranges(side) for side in (file.before, file.after)]
        hunks = tuple(_in_function(hunk, *scopes) for hunk in hunks)
    return CommitFile(file.path, file.old_path, file.before, file.after, file.old_mode, file.mode, hunks)


FunctionRange = tuple[int, int, str]
"""First and last line of a function, and its name with its classes."""


def function_ranges(source: bytes | None) -> list[FunctionRange]:
    """The outermost functions and the methods of a Python file; nothing of a file that does not parse."""
    try:
        tree = ast.parse(source or b"")
    except (SyntaxError, ValueError):
        return []
    found: list[FunctionRange] = []

    def visit(nodes: list[ast.stmt], above: str) -> None:
        for node in nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
                found.append((first, node.end_lineno or node.lineno, above + node.name))
            elif isinstance(node, ast.ClassDef):
                visit(node.body, f"{above}{node.name}.")
            elif isinstance(node, ast.If | ast.Try | ast.With):
                for field in ("body", "orelse", "finalbody"):
                    visit(getattr(node, field, []), above)
                for handler in getattr(node, "handlers", []):
                    visit(handler.body, above)

    visit(tree.body, "")
    return found


def _in_function(hunk: DiffHunk, before: list[FunctionRange], after: list[FunctionRange]) -> DiffHunk:
    """The hunk with the function that encloses what it added, or what it removed where it added nothing."""
    scopes, start, count = after, hunk.new_start, hunk.new_count
    if not count:
        scopes, start, count = before, hunk.old_start, hunk.old_count
    function = next(
        (name for first, last, name in scopes if first <= start and start + count - 1 <= last), ""
    )
    values = (hunk.path, hunk.index, hunk.old_start, hunk.old_count, hunk.new_start, hunk.new_count)
    return DiffHunk(*values, function)


def _is_binary(content: bytes | None) -> bool:
    return content is not None and b"\0" in content[:_BINARY_BYTES]


def _lines(content: bytes) -> list[bytes]:
    """Lines with their ends, as git counts them."""
    return [line for line in re.split(rb"(?<=\n)", content) if line]


def _slice(lines: list[bytes], start: int, count: int) -> list[bytes]:
    return lines[start - 1 : start - 1 + count] if count else []
