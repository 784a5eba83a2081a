"""Shipped files: beside the package in a checkout, inside it once installed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

from perfbisect.errors import PerfbisectError

_PACKAGE = Path(__file__).resolve().parent
_INSTALLED = {
    "cells": "_cells",
    "dashboards": "_dashboards",
    "pretend": "_pretend",
    ".claude/skills/perf-bisect": "_skill",
}
"""Folder of the checkout -> its name inside the installed package (see setup.py)."""


def cells_folder() -> Path:
    """The shipped cell files. :raises PerfbisectError: they are not installed."""
    return shipped_folder("cells")


def sources_digest() -> str:
    """Digest of perfbisect's own code: what was computed by other code may be another answer."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        digest.update(f"{path.relative_to(_PACKAGE)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def shipped_folder(name: Literal["cells", "dashboards", "pretend", ".claude/skills/perf-bisect"]) -> Path:
    """A folder of shipped files, by its path in the checkout. :raises PerfbisectError: it is missing."""
    places = (_PACKAGE / _INSTALLED[name], _PACKAGE.parent / name)
    for place in places:
        if place.is_dir():
            return place
    raise PerfbisectError(
        f"this installation has no {name}: neither {places[0]} nor {places[1]} exists",
        next_step="reinstall perfbisect from a wheel or a checkout",
    )
