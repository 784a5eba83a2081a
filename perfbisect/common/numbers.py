"""Numbers for display: few digits, with units."""

from __future__ import annotations

import math


def number(value: float | None, digits: int = 4) -> str:
    """A value with so many significant digits; ``-`` for None."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{places}f}"


def with_unit(value: float | None, unit: str) -> str:
    """``14.20 ms``; a share as a percentage."""
    if value is not None and unit == "share":
        return f"{number(value * 100, 3)} %"
    return number(value) if value is None else f"{number(value)} {unit}"


def percent(share: float, signed: bool = True) -> str:
    """0.123 -> ``+12.3 %``."""
    return f"{share * 100:+.1f} %" if signed else f"{share * 100:.1f} %"


def probability(value: float) -> str:
    """Two digits, at most 0.99; ``<0.01`` for small positive values."""
    return f"{min(0.99, value):.2f}" if value == 0 or value >= 0.01 else "<0.01"


def minutes(value: float) -> str:
    """``12 s``, ``3.2 min``, ``2 h 05 min``."""
    if value < 1:
        return f"{value * 60:.0f} s"
    if value < 100:
        return f"{value:.1f} min"
    hours, rest = divmod(round(value), 60)
    return f"{hours} h {rest:02d} min"
