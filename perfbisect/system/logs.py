"""Log files: bounded, safe excerpts and the most likely cause of a failure."""

from __future__ import annotations

import re
from pathlib import Path

from perfbisect.common.text import line as safe_line

_READ = 256 * 1024
_ERROR = re.compile(
    r"(?:^|[\s:])(?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)|Killed|CUDA error)\b(?::|$)"
)
_SECOND_HAND = re.compile(
    r"See (?:the )?(?:root cause|stack trace|error) (?:above|trace)|See root cause|core initialization failed"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NOISE = re.compile(r"nanobind: |^\s*- leaked |skipped remainder")
"""What nanobind prints at every exit."""


def neutral(text: str, width: int = 300) -> str:
    """One safe line without colours, cut to ``width`` characters."""
    return safe_line(_COLOUR.sub("", text).expandtabs(), width)


def text_of(path: Path, limit: int = _READ, *, first: bool = False) -> str:
    """At most the last ``limit`` bytes of a file, or the first; empty if it cannot be read."""
    try:
        with path.open("rb") as stream:
            stream.seek(0 if first else max(0, stream.seek(0, 2) - limit))
            return stream.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""


def tail(path: Path, lines: int = 15) -> str:
    """The last meaningful lines, or ``(the log is empty)``."""
    found = [neutral(line) for line in text_of(path).splitlines() if line.strip() and not _NOISE.search(line)]
    return "\n".join(found[-lines:]) or "(the log is empty)"


def cause(path: Path) -> str:
    """The first error near the end that does not refer to another error; empty without errors."""
    errors = [line for line in text_of(path).splitlines() if _ERROR.search(line)][-20:]
    first_hand = [line for line in errors if not _SECOND_HAND.search(line)]
    return next((neutral(line.strip()) for line in first_hand or errors), "")
