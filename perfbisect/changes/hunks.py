"""Splits what a commit changed into hunks, and gives its files with some of them taken back.

A hunk is a run of adjacent lines without context. Any set of hunks can be taken back: they do not overlap,
and their lines are counted in the commit's own files.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from perfbisect.changes.git import Repository
from perfbisect.changes.revert import File, edit_files, first_parent
from perfbisect.common.python_source import parse_python
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
    parent = first_parent(repository, commit)
    rows = list(_changed_files(repository, parent, commit.source))
    regular = [
        blob
        for file, before, after in rows
        for mode, blob in ((file.old_mode, before), (file.mode, after))
        if mode in _REGULAR
    ]
    contents = dict(repository.contents(dict.fromkeys(regular)))
    files = []
    for file, *blobs in rows:
        if {file.old_mode, file.mode} <= {*_REGULAR, _NOTHING}:
            before, after = map(contents.get, blobs)
            file = replace(file, before=before, after=after)
            file = replace(file, hunks=tuple(_hunks(repository, file, *blobs)))
        files.append(file)
    return CommitDiff(commit.source, parent, tuple(sorted(files, key=lambda file: file.path)))


def revert_hunks(
    repository: Repository, commit: Change, diff: CommitDiff, reverted: Collection[HunkId]
) -> Change:
    """The commit with some of its hunks taken back.

    Raises:
        ConflictError: that changes nothing.
    """
    files: dict[str, File | None] = {}
    for path, content in diff.without(reverted).items():
        file = diff.by_path[path]
        mode = file.mode if file.mode in _REGULAR else file.old_mode
        files[path] = None if content is None else (mode, content)
    head = commit.unswapped
    return edit_files(repository, head, files, f"{len(set(reverted))} hunks taken back").swapped(commit.pips)


def hunk_patch(repository: Repository, commit: Change, reverted: Change) -> bytes:
    """The patch that takes these hunks back: ``COMMIT+patch:FILE`` is the same change."""
    return repository.run(
        "diff-tree", "-p", "--binary", "--full-index", "--no-renames", commit.source, reverted.source
    ).stdout


def _changed_files(repository: Repository, parent: str, commit: str) -> Iterator[tuple[CommitFile, str, str]]:
    """Files without their content, and the object names of both sides."""
    words = repository.text("diff-tree", "-r", "-z", "-M50%", "--no-commit-id", parent, commit).split("\0")
    at = 0
    while at < len(words) - 1:
        old_mode, mode, before, after, status = words[at].lstrip(":").split()
        paths = words[at + 1 : at + 3] if status[0] in "RC" else words[at + 1 : at + 2]
        yield CommitFile(paths[-1], paths[0], None, None, old_mode, mode), before, after
        at += 1 + len(paths)


def _hunks(repository: Repository, file: CommitFile, before: str, after: str) -> Iterator[DiffHunk]:
    """The hunks of a file with these object names, each with the function that encloses it."""
    if file.is_whole:
        sides = (file.before, file.after)
        old, new = (len(_lines(side)) if side and not _is_binary(side) else 0 for side in sides)
        yield DiffHunk(file.path, 0, min(1, old), old, min(1, new), new)
    elif before != after:
        # Every option that a user's configuration could set is set: equal commits have equal hunks.
        text = repository.run(
            "diff", "--no-ext-diff", "--no-textconv", "--no-color", "-U0", "--inter-hunk-context=0", "--text",
            "--diff-algorithm=histogram", "--indent-heuristic", "--ignore-submodules=none", before, after,
        ).stdout  # fmt: skip
        scopes = [function_ranges(side) if file.is_python else [] for side in (file.before, file.after)]
        for index, match in enumerate(_HEADER.finditer(text)):
            removed_at, removed, added_at, added = (int(number or 1) for number in match.groups())
            # What it added is in a function, or what it removed where it added nothing.
            start, count, ranges = (added_at, added, scopes[1]) if added else (removed_at, removed, scopes[0])
            around = (name for first, last, name in ranges if first <= start and start + count - 1 <= last)
            yield DiffHunk(file.path, index, removed_at, removed, added_at, added, next(around, ""))


FunctionRange = tuple[int, int, str]
"""First and last line of a function, and its name with its classes."""


def function_ranges(source: bytes | None) -> list[FunctionRange]:
    """The outermost functions and the methods of a Python file; nothing of a file that does not parse."""
    tree = parse_python(source or b"")
    if tree is None:
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


def _is_binary(content: bytes | None) -> bool:
    return content is not None and b"\0" in content[:_BINARY_BYTES]


def _lines(content: bytes) -> list[bytes]:
    """Lines with their ends, as git counts them."""
    return [line for line in re.split(rb"(?<=\n)", content) if line]


def _slice(lines: list[bytes], start: int, count: int) -> list[bytes]:
    return lines[start - 1 : start - 1 + count] if count else []
