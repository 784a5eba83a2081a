"""Log files: bounded reads without control characters, and the most likely cause of a failure."""

from __future__ import annotations

import re
from pathlib import Path

_READ = 256 * 1024
_ERROR = re.compile(
    r"(?:^|[\s:])(?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)|Killed|CUDA error)\b(?::|$)"
)
_SECOND_HAND = re.compile(
    r"See (?:the )?(?:root cause|stack trace|error) (?:above|trace)|See root cause|core initialization failed"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def neutral(text: str, width: int = 300) -> str:
    """One line with colours dropped, control characters shown as escapes, cut to ``width`` characters."""
    shown = "".join(
        c if c == "\t" or c.isprintable() else c.encode("unicode_escape").decode("ascii")
        for c in _COLOUR.sub("", text)
    )
    return shown if len(shown) <= width else shown[: width - 1] + "…"


def text_of(path: Path, limit: int = _READ) -> str:
    """At most the last ``limit`` bytes of a file; empty if it cannot be read."""
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - limit))
            return stream.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""


def head_of(path: Path, limit: int = 1 << 20) -> str:
    """At most the first ``limit`` bytes of a file; empty if it cannot be read."""
    try:
        with path.open("rb") as stream:
            return stream.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""


def tail(path: Path, lines: int = 15) -> str:
    """The last meaningful lines, or ``(the log is empty)``."""
    found = [neutral(line) for line in text_of(path).splitlines() if line.strip() and not _noise(line)]
    return "\n".join(found[-lines:]) or "(the log is empty)"


def cause(path: Path) -> str:
    """The first error near the end that does not refer to another error."""
    errors = [line for line in text_of(path).splitlines() if _ERROR.search(line)][-20:]
    first_hand = [line for line in errors if not _SECOND_HAND.search(line)]
    chosen = first_hand or errors
    return neutral(chosen[0].strip()) if chosen else ""


def _noise(line: str) -> bool:
    """Whether nanobind prints this line at every exit."""
    return "nanobind: " in line or line.lstrip().startswith("- leaked ") or "skipped remainder" in line
