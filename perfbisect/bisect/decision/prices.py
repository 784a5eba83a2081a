"""Minutes of builds, launches and runs as observed, and what has been spent."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace

from perfbisect.bisect.decision.model import Event, Lost, Plan, Skipped
from perfbisect.model.attempt import Costs

_LEAST = 1e-3
"""Minutes below which a price makes no difference (and must not divide by zero)."""


@dataclass(frozen=True)
class Prices:
    """Minutes of a build, a launch and a run as observed so far, the plan's before that; what is built
    already."""

    build: float
    launch: float
    run: float
    built: frozenset[int]
    spent: float

    def visit(self, index: int, runs: int) -> float:
        """Expected minutes of a fresh launch at a position with so many runs."""
        return (0.0 if index in self.built else self.build) + self.launch + runs * self.run

    def under_way(self, launches: tuple[tuple[int, int], ...]) -> float:
        """Expected minutes of the launches (position and runs) under way."""
        built, minutes = self, 0.0
        for index, runs in launches:
            minutes += built.visit(index, runs)
            built = built.with_builds((index,))
        return minutes

    def with_builds(self, positions: tuple[int, ...]) -> Prices:
        """The same, where these positions are built as well."""
        return replace(self, built=self.built | frozenset(positions))

    def best_runs(self, sigma: float, tau: float, most: int) -> int:
        """Runs a launch that give the most precise level a minute: sqrt(launch / run) * sigma / tau, 1 to
        ``most``.

        It minimises (launch + r run) (tau^2 + sigma^2 / r) over r (two-stage sampling, Cochran 1977, 10.6).
        """
        return max(1, min(most, round(math.sqrt(self.launch / self.run) * sigma / tau)))


def observed(plan: Plan, events: tuple[Event, ...]) -> Prices:
    """Fold the events' minutes: medians of builds, launches and runs where there are any."""
    builds, starts, runs = [], [], []
    built, spent = set(plan.cached), 0.0
    for event in events:
        if isinstance(event, Lost):
            spent += event.minutes
            continue
        built.add(event.index)
        if isinstance(event, Skipped):
            spent += event.minutes
            continue
        spent += event.build + event.launch + event.run
        if event.build > 0:
            builds.append(event.build)
        if event.launch > 0:
            starts.append(event.launch)
        if event.run > 0:
            runs.append(event.run / len(event.values))
    costs: Costs = plan.costs
    return Prices(
        build=_price(builds, costs.build),
        launch=_price(starts, costs.launch),
        run=_price(runs, costs.run),
        built=frozenset(built),
        spent=spent,
    )


def _price(seen: list[float], expected: float) -> float:
    return max(_LEAST, statistics.median(seen) if seen else expected)
