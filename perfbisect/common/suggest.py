"""Suggestions for mistyped names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MOST = 3


def nearest(name: str, known: Iterable[str], cutoff: float = 0.5) -> tuple[str, ...]:
    """At most three similar names, ignoring case: those with this prefix, then by :mod:`difflib`'s ratio."""
    names = {candidate.lower(): candidate for candidate in reversed(tuple(known))}
    typed = name.strip().lower()
    prefixed = sorted(candidate for candidate in names if typed and candidate.startswith(typed))
    similar = difflib.get_close_matches(typed, names, n=_MOST, cutoff=cutoff)
    return tuple(names[candidate] for candidate in dict.fromkeys([*prefixed, *similar]))[:_MOST]


def hint(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """``; nearest: a, b``, the end of a message; empty without similar names."""
    near = nearest(name, known, cutoff)
    return f"; nearest: {', '.join(near)}" if near else ""
