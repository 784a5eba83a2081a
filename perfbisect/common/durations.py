"""``3h``, ``1h30m``, ``30d``, ``50G``, ``5%``: durations, ages, sizes and shares as they are written."""

from __future__ import annotations

import re
from datetime import datetime, timezone

_PARTS = re.compile(r"^(?:(?P<h>\d+(?:\.\d+)?)h)?(?:(?P<m>\d+(?:\.\d+)?)m(?:in)?)?$")


def parse_minutes(text: str) -> float:
    """Minutes. :raises ValueError: not a duration, or none at all."""
    found = _PARTS.match(text.strip().lower().replace(" ", ""))
    if not found or not (found["h"] or found["m"]):
        raise ValueError(f"{text!r} is not a duration; write 3h, 90m or 1h30m")
    minutes = 60 * float(found["h"] or 0) + float(found["m"] or 0)
    if minutes <= 0:
        raise ValueError(f"{text!r} is no time at all")
    return minutes


_AGE = re.compile(r"^(?P<n>\d+(?:\.\d+)?)(?P<unit>d|h|w)$")
_SIZE = re.compile(r"^(?P<n>\d+(?:\.\d+)?)\s*(?P<unit>[KMGT])i?B?$", re.IGNORECASE)
_HOURS = {"h": 1.0, "d": 24.0, "w": 168.0}
_BYTES = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


def parse_age(text: str) -> float:
    """Hours. :raises ValueError: not an age."""
    found = _AGE.match(text.strip().lower())
    if not found:
        raise ValueError(f"{text!r} is no age; write 30d, 2w or 12h")
    return float(found["n"]) * _HOURS[found["unit"]]


def parse_size(text: str) -> int:
    """Bytes, a thousand to the next unit. :raises ValueError: not a size."""
    found = _SIZE.match(text.strip())
    if not found:
        raise ValueError(f"{text!r} is no size; write 50G, 500M or 1.5T")
    return int(float(found["n"]) * _BYTES[found["unit"].lower()])


_SHARE = re.compile(r"^(?P<n>\d+(?:\.\d+)?)\s*%$")


def parse_share(text: str) -> float:
    """``5%`` -> 0.05. :raises ValueError: no share between 0 and 100 per cent."""
    found = _SHARE.match(text.strip())
    if not found or not 0 < float(found["n"]) < 100:
        raise ValueError(f"{text!r} is no share; write 5%")
    return float(found["n"]) / 100


def moment(text: str) -> datetime:
    """ISO 8601 with its zone -> a moment. :raises ValueError: it has none."""
    found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if found.tzinfo is None:
        raise ValueError(f"{text!r} does not say its zone")
    return found


def stamp(when: datetime) -> str:
    """A moment as a point has it: UTC, to the second."""
    return when.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
