"""A report as an option takes it: its text, or ``@FILE`` that holds it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfbisect.errors import UsageError

if TYPE_CHECKING:
    _Base = click.ParamType[str]
else:  # generic only from click 8.2 on
    _Base = click.ParamType

_FILE = re.compile(r"@\S+")
"""A whole text of one word: a report that begins by addressing somebody has more."""


class Report(_Base):
    """The text of a report, or the one in the file that ``@FILE`` names.

    A bare path of a file that is there is refused, unless it is the name of a result: that says all.
    """

    name = "report"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """:raises UsageError: the file cannot be read, or the @ is missing."""
        del param, ctx
        text = str(value)
        if _FILE.fullmatch(text):
            return _read(Path(text[1:]).expanduser())
        if "\n" not in text and not text.endswith(".json") and _is_file(text):
            raise UsageError(
                f"{text!r} is the name of a file, not what a report says",
                where=text,
                next_step=f"write an @ before it: @{text}",
            )
        return text


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
