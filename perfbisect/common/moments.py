"""Moments as text: ISO 8601 with a zone."""

from __future__ import annotations

from datetime import datetime, timezone


def moment(text: str) -> datetime:
    """ISO 8601 with its zone -> a moment. :raises ValueError: it has none."""
    found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if found.tzinfo is None:
        raise ValueError(f"{text!r} does not say its zone")
    return found


def stamp(when: datetime) -> str:
    """A moment as a point has it: UTC, to the second."""
    return when.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
