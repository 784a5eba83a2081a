"""Diffs of texts, without a repository."""

from __future__ import annotations

from difflib import SequenceMatcher

from perfbisect.changes.hunks import DiffHunk, FileDiff


def file_diff(path: str, before: str | None, after: str | None, heading: str = "") -> FileDiff:
    """A file in hunks as git counts them: a side without lines has the line above."""
    old, new = ((text or "").splitlines() for text in (before, after))
    hunks: list[DiffHunk] = []
    for tag, i, j, k, m in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            ranges = i + (j > i), j - i, k + (m > k), m - k
            hunks.append(DiffHunk(path, len(hunks), *ranges, heading=heading))
    sides = (None if text is None else text.encode() for text in (before, after))
    return FileDiff(path, path, *sides, hunks=tuple(hunks))
