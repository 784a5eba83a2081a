"""Nights as numbers: days since 1970-01-01, so that a missing night is a gap."""

from __future__ import annotations

from datetime import date
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

_FIRST = date(1970, 1, 1)


def day_number(night: str) -> int:
    """``2026-04-12`` -> days since 1970-01-01."""
    return (date.fromisoformat(night) - _FIRST).days


def night_of(number: int) -> str:
    """Days since 1970-01-01 -> ``2026-04-12``."""
    return date.fromordinal(_FIRST.toordinal() + number).isoformat()


Night = Annotated[
    int,
    BeforeValidator(lambda night: day_number(night) if isinstance(night, str) else night),
    PlainSerializer(night_of),
    WithJsonSchema({"type": "string", "pattern": r"^\d{4}-\d\d-\d\d$"}),
]
"""A night, in JSON as ``2026-04-12``."""
