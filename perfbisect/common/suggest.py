"""The names that are meant where one is typed that is none."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MOST = 3


def nearest(name: str, known: Iterable[str], cutoff: float = 0.5) -> tuple[str, ...]:
    """The known names most like one, the likeliest first; those that begin with it come before all others.

    Upper and lower case are the same. ``cutoff``: how like they must be, by :mod:`difflib`'s ratio, 0 to 1.
    """
    names = {one.lower(): one for one in reversed(tuple(known))}
    typed = name.strip().lower()
    begun = sorted(one for one in names if typed and one.startswith(typed))
    like = difflib.get_close_matches(typed, names, n=_MOST, cutoff=cutoff)
    return tuple(names[one] for one in dict.fromkeys([*begun, *like]))[:_MOST]


def hint(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """``; nearest: a, b``, to be put behind a message; empty where no known name is like it."""
    near = nearest(name, known, cutoff)
    return f"; nearest: {', '.join(near)}" if near else ""
