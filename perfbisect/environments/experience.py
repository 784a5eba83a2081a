"""What building cost before, by the stamps of what was built: prices for the plan."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable

from perfbisect.environments.base import BYTES, Cabinet, Stamp


def earlier(cabinet: Cabinet, builder: str, spec: str) -> tuple[Stamp, ...]:
    """Stamps of a builder: those of the same specification, if there are any, else all."""
    stamps = [stamp for stamp in cabinet.stamps() if stamp.builder == builder and stamp.seconds > 0.0]
    return tuple(stamp for stamp in stamps if stamp.spec == spec) or tuple(stamps)


def median_minutes(stamps: Iterable[Stamp], chosen: Callable[[Stamp], bool] = lambda _: True) -> float | None:
    """Median of what building took, in minutes; None if none is ``chosen``."""
    seconds = [stamp.seconds for stamp in stamps if chosen(stamp)]
    return statistics.median(seconds) / 60.0 if seconds else None


def median_bytes(stamps: Iterable[Stamp]) -> int | None:
    """Median of the bytes that only one environment holds; None if none is known."""
    sizes = [size for stamp in stamps if isinstance(size := stamp.facts.get(BYTES), int)]
    return round(statistics.median(sizes)) if sizes else None


def bytes_of(stamps: Iterable[Stamp], missing: Collection[str]) -> int | None:
    """Bytes that so many environments will take, by their keys; None if none like them was built yet."""
    if not missing:
        return 0
    each = median_bytes(stamps)
    return None if each is None else each * len(missing)
