"""Paired lists: one cell file -> the documents of its cells, before validation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LADDERS = ("num_prompts", "max_concurrency", "request_rate")
"""Fields that may be lists: paired by position; a single value applies to every position."""


class LadderError(ValueError):
    """Lists that cannot be paired; ``field``: the one to fix."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True)
class Rung:
    """A cell of a file: its document, the suffix of its name (``@c64-n512``, or none) and its position."""

    suffix: str
    document: dict[str, object]
    place: int | None = None


def expand(document: Mapping[str, object]) -> tuple[Rung, ...]:
    """One document per cell. :raises LadderError: unequal or empty lists, or two cells of one name."""
    lists = {name: value for name in LADDERS if isinstance(value := document.get(name), list)}
    if not lists:
        return (Rung("", dict(document)),)
    first = next(iter(lists))
    length = len(lists[first])
    for name, values in lists.items():
        if not values:
            raise LadderError(name, "is an empty list")
    for name, values in lists.items():
        if len(values) != length:
            lengths = f"has {len(values)} values where {first} has {length}"
            raise LadderError(name, f"{lengths}: paired lists are of one length")
    rungs: dict[str, Rung] = {}
    for place in range(length):
        single = {**document, **{name: values[place] for name, values in lists.items()}}
        suffix = _suffix(single)
        if suffix in rungs:
            raise LadderError(first, f"gives two cells the name {suffix}")
        rungs[suffix] = Rung(suffix, single, place)
    return tuple(rungs.values())


def _suffix(document: Mapping[str, object]) -> str:
    """The position by its numbers; an invalid value, which validation rejects later, is ``x``."""
    users, rate = document.get("max_concurrency"), document.get("request_rate")
    parts = [f"c{_number(users)}"] if users is not None else []
    if isinstance(rate, (int, float)) and rate != float("inf"):
        parts.append(f"r{float(rate)}")
    elif not parts:
        parts.append("rinf")
    return "@" + "-".join([*parts, f"n{_number(document.get('num_prompts'))}"])


def _number(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value) if isinstance(value, int) else "x"
