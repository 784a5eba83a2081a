"""Durations, ages, sizes, shares and times as users write them, and numbers as they are shown."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime, timezone

_NUMBER = r"(\d+(?:\.\d+)?)"
_DURATION = re.compile(rf"(?:{_NUMBER}h)?(?:{_NUMBER}m(?:in)?)?")
_WITH_UNIT = re.compile(rf"{_NUMBER}\s*([a-z]+)")
_SHARE = re.compile(rf"{_NUMBER}\s*%")

HOURS = {"h": 1.0, "d": 24.0, "w": 168.0}
BYTES = {unit + rest: 1e3 ** (1 + "kmgt".index(unit)) for unit in "kmgt" for rest in ("", "b", "i", "ib")}
"""Unit -> bytes, in steps of a thousand."""


def parse_minutes(text: str) -> float:
    """Minutes of a duration. :raises ValueError: not a duration, or zero."""
    found = _DURATION.fullmatch(text.strip().lower().replace(" ", ""))
    if not found or not any(found.groups()):
        raise ValueError(f"{text!r} is not a duration; write 3h, 90m or 1h30m")
    minutes = 60 * float(found[1] or 0) + float(found[2] or 0)
    if minutes <= 0:
        raise ValueError(f"{text!r} is no time at all")
    return minutes


def parse_quantity(text: str, units: Mapping[str, float], what: str) -> float:
    """A number with one of these units.

    :raises ValueError: it is none; the message says ``what`` it is not.
    """
    found = _WITH_UNIT.fullmatch(text.strip().lower())
    if not found or found[2] not in units:
        raise ValueError(f"{text!r} is no {what}")
    return float(found[1]) * units[found[2]]


def parse_size(text: str) -> float:
    """Bytes. :raises ValueError: not a size."""
    return parse_quantity(text, BYTES, "size; write 50G, 500M or 1.5T")


def parse_share(text: str) -> float:
    """``5%`` -> 0.05. :raises ValueError: not a share between 0 and 100 %."""
    found = _SHARE.fullmatch(text.strip())
    if not found or not 0 < float(found[1]) < 100:
        raise ValueError(f"{text!r} is no share; write 5%")
    return float(found[1]) / 100


def moment(text: str) -> datetime:
    """Read an ISO 8601 time. :raises ValueError: not a time, or one without a zone."""
    # Python 3.10 cannot read a Z.
    found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if found.tzinfo is None:
        raise ValueError(f"{text!r} does not say its zone")
    return found


def stamp(when: datetime) -> str:
    """ISO 8601 in UTC, to the second."""
    # strftime does not pad a year to four digits.
    return when.astimezone(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


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


def whole_percent(share: float) -> str:
    """0.973 -> ``97 %``."""
    return f"{100 * share:.0f} %"


def probability(value: float) -> str:
    """Two digits, at most 0.99; ``<0.01`` for small positive values."""
    return f"{min(0.99, value):.2f}" if value == 0 or value >= 0.01 else "<0.01"


def minutes(value: float) -> str:
    """``12 s``, ``3.2 min``, ``2 h 05 min``."""
    if value < 1:
        return f"{value * 60:.0f} s"
    if value < 100:
        return f"{value:.1f} min"
    # Rounded before the division: 119.7 minutes are 2 h 00 min, not 1 h 60 min.
    hours, rest = divmod(round(value), 60)
    return f"{hours} h {rest:02d} min"


LEAST_SHARE_LOST = 0.001
"""Of the budget: what is lost below it is not worth a word."""


def spent_text(used: float, budget: float, lost: float) -> str:
    """``12.3 min of 3 h 00 min, 4.1 min (2.3 % of the budget) discarded or failed``; 0: no budget."""
    text = minutes(used) + (f" of {minutes(budget)}" if budget else "")
    share_lost = lost / (budget or used) if lost else 0.0
    if share_lost < LEAST_SHARE_LOST:
        return text
    share = percent(share_lost, False)
    return f"{text}, {minutes(lost)} ({share}{' of the budget' if budget else ''}) discarded or failed"


def counted(count: int, noun: str) -> str:
    """``1 alert``, ``3 launches``; ``2 more series``."""
    if count == 1 or noun.endswith("series"):
        return f"{count} {noun}"
    return f"{count} {noun}{'es' if noun.endswith(('ch', 's')) else 's'}"
