"""JSON of other programs and of users, within limits."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import ItemsView, Iterator, Mapping
from typing import Any

DEEPEST = 100
"""Levels of nesting that a document may have."""

WRONG_SHAPE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What code raises that reads a document of another shape."""

_LONGEST_INTEGER = 18
"""Digits of a whole number that is kept exactly."""

_LONE_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""An escape that may be half of a pair; such a half has no UTF-8."""

_HALF = re.compile("[\ud800-\udfff]")


def parse_json(text: str | bytes) -> object:
    """The value of a JSON text.

    A whole number beyond 18 digits becomes a float, an infinite one beyond 308: Python's would be exact and
    no float. Half of a surrogate pair becomes its escape as text.

    Raises:
        ValueError: no JSON, or nested deeper than ``DEEPEST`` levels.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8-sig")
    try:
        value = json.loads(
            text, parse_int=lambda digits: int(digits) if len(digits) <= _LONGEST_INTEGER else float(digits)
        )
        if _LONE_SURROGATE.search(text):
            halves = json.dumps(value, ensure_ascii=False)
            value = json.loads(_HALF.sub(lambda half: rf"\\u{ord(half[0]):04x}", halves))
    except RecursionError:
        raise _too_deep() from None
    # Counting brackets is cheap, and only a text with that many can be too deep.
    level: list[Any] = [value] if text.count("[") + text.count("{") > DEEPEST else []
    for _ in range(DEEPEST + 1):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
    if level:
        raise _too_deep()
    return value


def compact(value: Any, known: dict[str, str], packed: str = "") -> Any:
    """The same value in less memory.

    Each text is one object with its equals among ``known``, to which it is added. ``packed``: objects of this
    name are packed.
    """
    if isinstance(value, str):
        return known.setdefault(value, value)
    if isinstance(value, dict):
        return {
            known.setdefault(name, name): PackedObject(inner)
            if name == packed and isinstance(inner, dict)
            else compact(inner, known, packed)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [compact(inner, known, packed) for inner in value]
    return value


class PackedObject(Mapping[str, Any]):
    """An object of JSON that is kept compressed and parsed at each look: for what is rarely read."""

    __slots__ = ("_packed",)

    def __init__(self, value: Mapping[str, Any]) -> None:
        self._packed = zlib.compress(json.dumps(value, separators=(",", ":")).encode(), level=1)

    def unpacked(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(zlib.decompress(self._packed))
        return value

    def __getitem__(self, name: str) -> Any:
        return self.unpacked()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.unpacked())

    def __len__(self) -> int:
        return len(self.unpacked())

    def items(self) -> ItemsView[str, Any]:
        """Its members, parsed once and not for each."""
        return self.unpacked().items()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and self.unpacked() == dict(other.items())

    __hash__ = None  # type: ignore[assignment]


def _too_deep() -> ValueError:
    return ValueError(f"nested deeper than {DEEPEST} levels")
