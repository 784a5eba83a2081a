"""Output of other programs: bounded excerpts without secrets, and the most likely cause of a failure."""

from __future__ import annotations

import re
from pathlib import Path

from perfbisect.common.text import line as safe_line
from perfbisect.redaction import without_secrets

_READ = 256 * 1024
_LONGEST_SECRET = 4096
_ERROR = re.compile(
    r"(?:^|[\s:])(?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)|Killed|CUDA error)\b(?::|$)"
)
_SECOND_HAND = re.compile(
    r"See (?:the )?(?:root cause|stack trace|error) (?:above|trace)|See root cause|core initialization failed"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NOISE = re.compile(r"nanobind: |^\s*- leaked |skipped remainder")
"""What nanobind prints at every exit."""


def without_colours(text: str) -> str:
    """Another program's output as a terminal without colours shows it."""
    return _COLOUR.sub("", text)


def excerpt(text: str, width: int = 300) -> str:
    """One line of another program's output, without colours and secrets, cut to ``width`` characters."""
    return safe_line(without_secrets(without_colours(text)).expandtabs(), width)


def excerpt_lines(text: str, most: int = 2000) -> str:
    """The last ``most`` characters of another program's output, line by line as :func:`excerpt` shows it."""
    shown = without_secrets(without_colours(text)).strip()[-most:]
    return "\n".join(excerpt(line, most) for line in shown.splitlines())


def text_of(path: Path, limit: int = _READ, *, first: bool = False) -> str:
    """About the last ``limit`` bytes of a file without secrets, or the first; empty if it cannot be read."""
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            # More is read and left out: a secret that is cut is not recognised.
            most = limit + _LONGEST_SECRET
            stream.seek(0 if first else max(0, size - most))
            text = without_secrets(stream.read(most).decode("utf-8", "replace"))
    except OSError:
        return ""
    if size <= most:
        return text
    return text[:-_LONGEST_SECRET] if first else text[_LONGEST_SECRET:]


def tail(path: Path, lines: int = 15) -> str:
    """The last meaningful lines, or ``(the log is empty)``."""
    meaningful = [line for line in text_of(path).splitlines() if line.strip() and not _NOISE.search(line)]
    return "\n".join(map(excerpt, meaningful[-lines:])) or "(the log is empty)"


def cause(path: Path) -> str:
    """The first error near the end that does not refer to another error; empty without errors."""
    # The first of the last ones: later errors of an engine are mostly consequences, much earlier ones did no
    # harm.
    errors = [line for line in text_of(path).splitlines() if _ERROR.search(line)][-20:]
    first_hand = [line for line in errors if not _SECOND_HAND.search(line)]
    return next((excerpt(line.strip()) for line in first_hand or errors), "")
