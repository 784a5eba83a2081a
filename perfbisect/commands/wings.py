"""The wings: parts of perfbisect that the rest does not need. Each registers its commands and experiments."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import Any, Final

PANELS = MEASURE, JOBS, SERIES, SET_UP = "Measure", "Jobs", "Nightly series", "Set up"
"""Panels of the help, in their order."""

Row = tuple[str, str, str, str]
"""A command: its words, panel, short help, and where its function or request is."""

GroupRow = tuple[str, str, str, str, str]
"""A command of commands: name, panel, short help, help and example."""

WINGS: Final = ("comment", "explain", "fleet", "nightly", "dashboard", "mcp")
"""Packages with a :class:`Wing` in their module ``wing``; one that is not there is left out."""


@dataclass(frozen=True)
class Wing:
    """What a wing adds; places are ``module:name`` below ``perfbisect``."""

    commands: tuple[Row, ...]
    groups: tuple[GroupRow, ...] = ()
    experiments: Mapping[str, str] = field(default_factory=dict)
    """Verb in journals -> place."""
    documents: tuple[str, ...] = ()
    """What its experiments report."""
    fleets: str = ""
    """The place of its :class:`perfbisect.commands.fleets.Fleets`."""


@cache
def wings() -> tuple[Wing, ...]:
    """The wings that are there."""
    there = (name for name in WINGS if find_spec(f"perfbisect.{name}") is not None)
    return tuple(load(f"{name}.wing:WING") for name in there)


def documents() -> tuple[str, ...]:
    """What the experiments of the wings report, each as ``module:name``."""
    return tuple(f"perfbisect.{place}" for wing in wings() for place in wing.documents)


def load(place: str) -> Any:
    """The object at a place below ``perfbisect``."""
    return pkgutil.resolve_name(f"perfbisect.{place}")
