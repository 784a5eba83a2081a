"""The tutorial, taken apart: its two halves, and what each has its reader type."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from tests.docs.commands import ROOT

TUTORIAL = ROOT / "docs" / "tutorial.md"

_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HALVES = ("First half", "Second half")


@dataclass(frozen=True)
class Line:
    """What is typed. ``words``: the command; ``into``: the file that takes what it prints, or empty."""

    text: str
    words: tuple[str, ...]
    into: str = ""


def half(number: int, path: Path = TUTORIAL) -> list[Line]:
    """What the reader types in one half, from 0; several commands of one line one after the other.

    :raises ValueError: there is no such half.
    """
    text = path.read_text()
    parts = re.split(rf"^## (?={'|'.join(_HALVES)})", text, flags=re.MULTILINE)[1:]
    if [part.split(":")[0] for part in parts] != [*_HALVES]:
        raise ValueError(f"{path} has not the halves {' and '.join(_HALVES)}")
    rows = "\n".join(block[1].replace("\\\n", " ") for block in _BLOCK.finditer(parts[number]))
    return [_line(piece) for row in rows.splitlines() for piece in row.split(" && ") if piece.strip()]


def _line(text: str) -> Line:
    words = shlex.split(text, comments=True)
    if ">" in words:
        at = words.index(">")
        return Line(text, tuple(words[:at]), words[at + 1])
    return Line(text, tuple(words))
