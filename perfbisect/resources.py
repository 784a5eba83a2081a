"""Where the shipped files are: beside the package in a checkout, inside it once installed."""

from __future__ import annotations

from pathlib import Path

from perfbisect.errors import PerfbisectError

_PACKAGE = Path(__file__).resolve().parent
_INSTALLED = {"cells": "_cells", "dashboards": "_dashboards", ".claude/skills/perf-bisect": "_skill"}
"""A folder of the checkout -> its name inside the installed package (setup.py puts it there)."""


def cells_folder() -> Path:
    """The shipped cell files. :raises PerfbisectError: an installation without them."""
    return _folder("cells")


def dashboards_folder() -> Path:
    """The shipped dashboards. :raises PerfbisectError: an installation without them."""
    return _folder("dashboards")


def skill_folder() -> Path:
    """The skill for agents. :raises PerfbisectError: an installation without it."""
    return _folder(".claude/skills/perf-bisect")


def _folder(name: str) -> Path:
    places = (_PACKAGE / _INSTALLED[name], _PACKAGE.parent / name)
    for place in places:
        if place.is_dir():
            return place
    raise PerfbisectError(
        f"this installation has no {name}: neither {places[0]} nor {places[1]} is there",
        next_step="install perfbisect again, from a wheel or a checkout",
    )
