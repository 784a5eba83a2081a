"""What a Python program prints of its settings, taken apart without evaluating any of it."""

from __future__ import annotations

import re
from collections.abc import Iterator

_OPENING, _CLOSING = "([{<", ")]}>"
_PAIR = re.compile(r"""\s*['"]?([A-Za-z_][\w.-]*)['"]?\s*[=:]\s*(.*)""", re.DOTALL)
_NESTED = re.compile(r"(?:[A-Za-z_]\w*\(|\{)(.*)[)}]", re.DOTALL)
_ENUM = re.compile(r"<\w+\.(\w+): .*>", re.DOTALL)
_DEEPEST = 6


def leaves(text: str, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """``a=1, b=C(d={'e': <F.G: 2>})`` -> ``("a", "1"), ("b.d.e", "G")``; what is no pair is left out.

    Lists stay whole; a name of an enumeration stands for its member.
    """
    for part in _parts(text):
        pair = _PAIR.fullmatch(part)
        if pair is None:
            continue
        name, value = prefix + pair[1], pair[2].strip()
        inner = _NESTED.fullmatch(value)
        if inner and depth < _DEEPEST and _PAIR.match(inner[1]):
            yield from leaves(inner[1], name + ".", depth + 1)
        else:
            yield name, plain(value)


def plain(value: str) -> str:
    """A printed value without quotes, enumeration or the name of its module: ``torch.bfloat16``."""
    enum = _ENUM.fullmatch(value)
    if enum:
        return enum[1]
    return value.strip("'\"").removeprefix("torch.")


def _parts(text: str) -> Iterator[str]:
    """The text between commas that stand in no bracket and no quotes."""
    depth, quote, start = 0, "", 0
    for at, character in enumerate(text):
        if quote:
            if character == quote and text[at - 1] != "\\":
                quote = ""
        elif character in "'\"":
            quote = character
        elif character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        elif character == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]
