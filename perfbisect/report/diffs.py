"""Lines of a diff with those marked that are named as a cause."""

from __future__ import annotations

from typing import Final, Literal

from perfbisect.changes.hunks import DiffState
from perfbisect.common.quantities import counted
from perfbisect.jobs.documents import Document

DiffSign = Literal["+", "-", " "]
"""Of a line of a diff: added, removed, context."""

MARK: Final = ">"
"""Stands beside a marked line, in a column of its own."""

_BEFORE: Final = 3
"""Lines that are shown above the first marked one."""

_TAB: Final = 4


class DiffLineDocument(Document):
    """A line of a diff. ``number``: in the file after it; of a removed line, in the file before it.

    ``marked``: it is of the function or value that the conclusion names.
    """

    sign: DiffSign
    number: int
    content: str
    marked: bool = False

    @property
    def shown(self) -> str:
        """The content as it is printed."""
        return self.content.rstrip("\r").expandtabs(_TAB)


class DiffFileDocument(Document):
    """A file of a diff in hunks with context. ``omitted``: changed lines and context that are not here."""

    path: str
    old_path: str
    state: DiffState
    binary: bool
    hunks: tuple[tuple[DiffLineDocument, ...], ...]
    omitted: int = 0

    @property
    def remarks(self) -> str:
        """What happened to the file, and what is not shown of it."""
        state = f"renamed from {self.old_path}" if self.state == "renamed" else self.state
        binary = ", binary" if self.binary else ""
        omitted = f", {counted(self.omitted, 'line')} not shown" if self.omitted else ""
        return f"{state}{binary}{omitted}"


class DiffDocument(Document):
    """The diff between two sides, files with marked lines first. ``omitted_files``: not here at all."""

    files: tuple[DiffFileDocument, ...]
    omitted_files: int = 0


def diff_lines(file: DiffFileDocument) -> list[str]:
    """Sign, mark, number and text of each line; dots between hunks."""
    out: list[str] = []
    for hunk in file.hunks:
        out += ["..."] if out else []
        out += [
            f"{line.sign} {MARK if line.marked else ' '} {line.number:5}  {line.shown}".rstrip()
            for line in hunk
        ]
    return out


def marked_part(diff: DiffDocument, most: int) -> DiffFileDocument | None:
    """The hunk with most marked lines, at most ``most`` from the first of them; None if none is marked."""
    hunks = [(file, hunk) for file in diff.files for hunk in file.hunks]
    file, hunk = max(hunks, key=lambda found: sum(line.marked for line in found[1]), default=(None, ()))
    if file is None or not any(line.marked for line in hunk):
        return None
    first = next(index for index, line in enumerate(hunk) if line.marked)
    start = max(0, first - _BEFORE)
    part = hunk[start : start + most]
    return file.model_copy(update={"hunks": (part,), "omitted": len(hunk) - len(part)})
