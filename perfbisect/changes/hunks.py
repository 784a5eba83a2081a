"""The diff between two commits in hunks, any set of which can be taken back.

A hunk is a run of adjacent lines without context. Hunks do not overlap, and their lines are counted in the
files of the two commits. Of git's output only names of objects and heads of hunks are parsed; the lines are
those of the files, so a path, an encoding or a missing end of line needs no quoting.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from perfbisect.changes.git import Repository
from perfbisect.changes.revert import File, edit_files, first_parent
from perfbisect.common.python_source import FunctionSpan, function_spans
from perfbisect.common.quantities import counted
from perfbisect.model.change import Change

_HEADER = re.compile(rb"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@ ?(.*)", re.M)
_REGULAR = ("100644", "100755")
_SUBMODULE = "160000"
_NOTHING = "000000"
_BINARY_BYTES = 8000
"""Bytes in which git looks for a zero to call a file binary."""

HunkId = tuple[str, int]
"""Path and index of a hunk of a commit."""

DiffState = Literal["added", "changed", "deleted", "renamed"]


@dataclass(frozen=True)
class DiffHunk:
    """Lines that were replaced, counted from 1; a count of 0: none, after the line ``start``.

    ``function``: of Python, the one that encloses it (``Scheduler.schedule``); empty at the level of module
    or class. ``heading``: the line that git shows as the function above it.
    """

    path: str
    index: int
    old_start: int
    old_count: int
    new_start: int
    new_count: int
    function: str = ""
    heading: str = ""

    @property
    def removed(self) -> range:
        """Numbers of its lines before."""
        return range(self.old_start, self.old_start + self.old_count)

    @property
    def added(self) -> range:
        """Numbers of its lines after."""
        return range(self.new_start, self.new_start + self.new_count)

    @property
    def id(self) -> HunkId:
        return self.path, self.index

    @property
    def lines(self) -> str:
        """``12-14`` of the file after; ``after 11`` where lines were only removed."""
        if not self.new_count:
            return f"after {self.new_start}"
        first, last = self.added[0], self.added[-1]
        return str(first) if last == first else f"{first}-{last}"


@dataclass(frozen=True)
class FileDiff:
    """A file that differs. ``before``, ``after``: None where it does not exist.

    A renamed file keeps its new name when its hunks are taken back. A file without lines of text, a link, and
    what was added or deleted have one hunk; of a binary file it has no lines.
    """

    path: str
    old_path: str
    before: bytes | None
    after: bytes | None
    old_mode: str = _REGULAR[0]
    mode: str = _REGULAR[0]
    hunks: tuple[DiffHunk, ...] = ()

    @property
    def suffix(self) -> str:
        return self.path.rpartition(".")[2] if "." in self.path.rpartition("/")[2] else ""

    @property
    def state(self) -> DiffState:
        if self.before is None:
            return "added"
        if self.after is None:
            return "deleted"
        return "changed" if self.path == self.old_path else "renamed"

    @property
    def is_link(self) -> bool:
        """Whether it is a symbolic link or a submodule on a side."""
        return not {self.old_mode, self.mode} <= {*_REGULAR, _NOTHING}

    @property
    def is_python(self) -> bool:
        return self.suffix == "py" and not self.is_link

    @property
    def is_binary(self) -> bool:
        return any(b"\0" in side[:_BINARY_BYTES] for side in (self.before, self.after) if side)

    @property
    def is_whole(self) -> bool:
        """Whether it can be taken back only as a whole."""
        return self.state in ("added", "deleted") or self.is_link or self.is_binary

    @cached_property
    def functions_before(self) -> tuple[FunctionSpan, ...]:
        return function_spans(self.before or b"") if self.is_python else ()

    @cached_property
    def functions_after(self) -> tuple[FunctionSpan, ...]:
        return function_spans(self.after or b"") if self.is_python else ()

    @cached_property
    def lines_before(self) -> list[bytes]:
        return _lines(self.before)

    @cached_property
    def lines_after(self) -> list[bytes]:
        return _lines(self.after)

    def old_lines(self, hunk: DiffHunk) -> list[bytes]:
        """The lines that the hunk removed."""
        return _slice(self.lines_before, hunk.removed)

    def new_lines(self, hunk: DiffHunk) -> list[bytes]:
        """The lines that the hunk added."""
        return _slice(self.lines_after, hunk.added)

    def new_number(self, old: int) -> int | None:
        """The number after of a line before; None if it was removed."""
        moved = 0
        for hunk in self.hunks:
            if old in hunk.removed:
                return None
            # A hunk that only adds stands behind its line.
            if old < hunk.old_start + (not hunk.old_count):
                break
            moved += hunk.new_count - hunk.old_count
        return old + moved

    def without(self, reverted: Collection[int]) -> bytes | None:
        """The file after with hunks of these indices taken back; None: it does not exist."""
        if self.is_whole:
            return self.before if reverted else self.after
        lines = list(self.lines_after)
        # From the last hunk on: the lines of earlier hunks keep their numbers.
        for hunk in reversed(self.hunks):
            if hunk.index in reverted:
                at = hunk.new_start - 1 if hunk.new_count else hunk.new_start
                lines[at : at + hunk.new_count] = self.old_lines(hunk)
        return b"".join(lines)


@dataclass(frozen=True)
class CommitDiff:
    """What a commit changed of its first parent, in the order of paths."""

    commit: str
    parent: str
    files: tuple[FileDiff, ...]

    @cached_property
    def by_path(self) -> dict[str, FileDiff]:
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
    files = read_files(repository, parent, commit.source)
    return CommitDiff(commit.source, parent, tuple(sorted(files, key=lambda file: file.path)))


def read_files(
    repository: Repository, before: str, after: str, *, errors: str = "surrogateescape"
) -> tuple[FileDiff, ...]:
    """The files that differ between two commits, in git's order. ``errors``: of paths that are no UTF-8.

    Raises:
        RevisionError: git does not know one.
        MachineError: an object cannot be read.
    """
    rows = list(_changed_files(repository, before, after, errors))
    sides = {side for file, *blobs in rows for side in zip((file.old_mode, file.mode), blobs, strict=True)}
    read = {blob for mode, blob in sides if mode not in (_NOTHING, _SUBMODULE)}
    contents = dict(repository.contents(sorted(read)))
    # The commit of a submodule is not in this repository: git shows this line for it.
    contents |= {
        blob: b"Subproject commit %s\n" % blob.encode() for mode, blob in sides if mode == _SUBMODULE
    }
    files = []
    for bare, *blobs in rows:
        file = replace(bare, before=contents.get(blobs[0]), after=contents.get(blobs[1]))
        files.append(replace(file, hunks=tuple(_hunks(repository, file, *blobs))))
    return tuple(files)


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
        # A file that the commit deleted has no mode after it.
        mode = file.mode if file.mode in _REGULAR else file.old_mode
        files[path] = None if content is None else (mode, content)
    head = commit.unswapped
    what = f"{counted(len(set(reverted)), 'hunk')} taken back"
    return edit_files(repository, head, files, what).swapped(commit.pips)


def hunk_patch(repository: Repository, commit: Change, reverted: Change) -> str:
    """The patch that takes these hunks back: ``COMMIT+patch:FILE`` is the same change.

    Empty if a journal cannot hold it, since it is of another encoding.
    """
    # git apply needs whole object names for binary files.
    options = ("--binary", "--full-index", "--no-renames")
    patch = repository.run("diff-tree", "-p", *options, commit.source, reverted.source).stdout
    try:
        return patch.decode()
    except UnicodeDecodeError:
        return ""


def line_texts(lines: Iterable[bytes]) -> list[str]:
    """Lines as they are shown, without their line feeds."""
    return [line.decode(errors="replace").removesuffix("\n") for line in lines]


def _changed_files(
    repository: Repository, old: str, new: str, errors: str
) -> Iterator[tuple[FileDiff, str, str]]:
    """Files without their content, and the object names of both sides."""
    words = repository.text("diff-tree", "-r", "-z", "-M50%", old, new, errors=errors).split("\0")
    at = 0
    while at < len(words) - 1:
        old_mode, mode, before, after, status = words[at].lstrip(":").split()
        paths = words[at + 1 : at + 3] if status[0] in "RC" else words[at + 1 : at + 2]
        yield FileDiff(paths[-1], paths[0], None, None, old_mode, mode), before, after
        at += 1 + len(paths)


def _hunks(repository: Repository, file: FileDiff, before: str, after: str) -> Iterator[DiffHunk]:
    """The hunks of a file with these object names."""
    if file.is_whole:
        sides = (file.lines_before, file.lines_after)
        old, new = (0 if file.is_binary else len(side) for side in sides)
        yield DiffHunk(file.path, 0, min(1, old), old, min(1, new), new)
    elif before != after:
        # Every option that a user's configuration could set is set: equal commits have equal hunks.
        text = repository.run(
            "diff", "--no-ext-diff", "--no-textconv", "--no-color", "-U0", "--inter-hunk-context=0", "--text",
            "--diff-algorithm=histogram", "--indent-heuristic", "--ignore-submodules=none", before, after,
        ).stdout  # fmt: skip
        for index, match in enumerate(_HEADER.finditer(text)):
            removed_at, removed, added_at, added = (int(number or 1) for number in match.groups()[:4])
            heading = match[5].decode(errors="replace")
            hunk = DiffHunk(file.path, index, removed_at, removed, added_at, added, heading=heading)
            yield replace(hunk, function=_function_around(file, hunk))


def _function_around(file: FileDiff, hunk: DiffHunk) -> str:
    """The outermost function around what a hunk added, or around what it removed where it added nothing."""
    lines, spans = (hunk.added, file.functions_after) if hunk.added else (hunk.removed, file.functions_before)
    around = (span for span in spans if lines[0] in span.lines and lines[-1] in span.lines)
    return next((span.name for span in around if not span.is_local), "")


def _lines(content: bytes | None) -> list[bytes]:
    """Lines with their ends, as git counts them."""
    # Not splitlines, which also splits at a carriage return.
    return [line for line in re.split(rb"(?<=\n)", content or b"") if line]


def _slice(lines: list[bytes], numbers: range) -> list[bytes]:
    return lines[numbers[0] - 1 : numbers[-1]] if numbers else []
