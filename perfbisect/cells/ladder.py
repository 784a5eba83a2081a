"""Paired lists: one cell file -> the documents of its cells, before they are validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LADDERS = ("num_prompts", "max_concurrency", "request_rate")
"""Fields that may be lists: zipped place by place, a single value serves every place."""


class LadderError(ValueError):
    """Lists that cannot be paired; ``field`` is the one to mend."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True)
class Rung:
    """One cell of a file: its document, and what is added to the name (``@c64-n512``, or nothing)."""

    suffix: str
    document: dict[str, object]
    place: int | None = None
    """The index in the lists, for messages about one of their values."""


def expand(document: Mapping[str, object]) -> tuple[Rung, ...]:
    """A cell file's document -> one document a cell.

    :raises LadderError: lists of different lengths, an empty one, or two places of the same name.
    """
    lists = {name: value for name in LADDERS if isinstance(value := document.get(name), list)}
    if not lists:
        return (Rung("", dict(document)),)
    first, *others = lists
    length = len(lists[first])
    for name in lists:
        if not lists[name]:
            raise LadderError(name, "is an empty list")
    for name in others:
        if len(lists[name]) != length:
            raise LadderError(
                name,
                f"has {len(lists[name])} values where {first} has {length}: paired lists are of one length",
            )
    rungs: list[Rung] = []
    for place in range(length):
        single = {**document, **{name: values[place] for name, values in lists.items()}}
        rungs.append(Rung(_suffix(single), single, place))
    names = [rung.suffix for rung in rungs]
    for suffix in names:
        if names.count(suffix) > 1:
            raise LadderError(first, f"gives two cells the name {suffix}")
    return tuple(rungs)


def _suffix(document: Mapping[str, object]) -> str:
    """The place by its numbers; what is no number is told later with its line: it must not spoil the name."""
    parts: list[str] = []
    if document.get("max_concurrency") is not None:
        parts.append(f"c{_number(document['max_concurrency'])}")
    rate = document.get("request_rate")
    if isinstance(rate, (int, float)) and rate != float("inf"):
        parts.append(f"r{float(rate)}")
    elif not parts:
        parts.append("rinf")
    parts.append(f"n{_number(document.get('num_prompts'))}")
    return "@" + "-".join(parts)


def _number(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value) if isinstance(value, int) else "x"
