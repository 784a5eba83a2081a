"""Durations, ages and sizes as options of a command."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from perfbisect.core.durations import parse_minutes, parse_share

if TYPE_CHECKING:
    _Base = click.ParamType[float]
else:  # generic only from click 8.2 on
    _Base = click.ParamType


class Typed(_Base):
    """A number with its unit, read by a function that says what is wrong with it."""

    def __init__(self, name: str, read: Callable[[str], float]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float | int):
            return value
        try:
            return self._read(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Minutes(Typed):
    """A duration, as minutes."""

    def __init__(self) -> None:
        super().__init__("duration", parse_minutes)


class Percent(Typed):
    """A part of the whole, as a share."""

    def __init__(self) -> None:
        super().__init__("percent", parse_share)
