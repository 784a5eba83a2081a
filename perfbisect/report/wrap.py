"""Lines that fit a terminal."""

from __future__ import annotations

import re

from rich.cells import cell_len

_WORD = re.compile(r"\s*\S+")
_WHOLE = re.compile(r"\s*(serve|bench|next:|where:|log:|stop:|report:|folder:|perfbisect|git)\s")
"""Commands and places: a terminal folds them so that they can be copied whole, we would break them."""
_FURTHER = 4


def fitted(text: str, width: int) -> list[str]:
    """A line as lines of at most ``width`` columns, broken between words, the rest indented further.

    A word that is wider stays whole, as do commands and text of several lines.
    """
    if cell_len(text) <= width or "\n" in text or _WHOLE.match(text):
        return [text]
    indent = " " * min(len(text) - len(text.lstrip()) + _FURTHER, max(0, width // 2))
    out, row = [], ""
    for word in _WORD.findall(text):
        if row.strip() and cell_len(row + word) > width:
            out.append(row)
            row = indent + word.lstrip()
        else:
            row += word
    return [*out, row]
