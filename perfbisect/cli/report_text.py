"""A report as it is typed: its text, or ``@FILE`` that holds it."""

from __future__ import annotations

import re
from pathlib import Path

from perfbisect.errors import UsageError

_FILE = re.compile(r"@\S+")
"""A whole text of one word: a report that begins by addressing somebody has more."""


def report_text(typed: str) -> str:
    """The text of a report, or the one in the file that ``@FILE`` names.

    A bare path of a file that is there is refused, unless it is the name of a result: that says all.

    :raises UsageError: the file cannot be read, or the @ is missing.
    """
    if _FILE.fullmatch(typed):
        return _read(Path(typed[1:]).expanduser())
    if "\n" not in typed and not typed.endswith(".json") and _is_file(typed):
        raise UsageError(
            f"{typed!r} is the name of a file, not what a report says",
            where=typed,
            next_step=f"write an @ before it: @{typed}",
        )
    return typed


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the report cannot be read: {error}", where=path, next_step="@FILE names a file of text"
        ) from None
