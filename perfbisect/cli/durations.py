"""``3h``, ``90m``, ``1h30m``: durations as they are typed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    _Base = click.ParamType[float]
else:  # generic only from click 8.2 on
    _Base = click.ParamType

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


class Minutes(_Base):
    """A duration, as minutes."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            return parse_minutes(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
