"""What measuring costs, in minutes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """Minutes that a build, a launch (start, readiness, discarded run, stop) and a run take: expected, then
    as observed."""

    build: float = 4.0
    launch: float = 3.0
    run: float = 1.5
