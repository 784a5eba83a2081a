"""A simulated bench for the tests of the bisection: a history with steps, noise, skips, prices and slots."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from perfbisect.bisect.decision.decide import next_action
from perfbisect.bisect.decision.model import (
    Event,
    Measured,
    NextLaunch,
    Pending,
    Plan,
    SearchOutcome,
    Skipped,
    Wait,
)


@dataclass
class Bench:
    """``steps``: position -> log step (worse is positive); ``sigma``, ``tau``: noise of runs and launches.

    ``speed``: each slot's log shift. Launches take their minutes; events come in the order in which they end.
    """

    plan: Plan
    steps: Mapping[int, float]
    sigma: float
    tau: float
    seed: int
    untestable: frozenset[int] = frozenset()
    contaminated: float = 0.0
    base: float = 100.0
    speed: Mapping[str, float] = field(default_factory=lambda: {"": 0.0})
    events: list[Event] = field(default_factory=list)
    asked: list[tuple[str, NextLaunch]] = field(default_factory=list)
    clock: float = 0.0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    @property
    def actions(self) -> list[NextLaunch]:
        return [action for _, action in self.asked]

    def answer(self, action: NextLaunch, slot: str = "") -> Event:
        new = all(getattr(event, "index", None) != action.index for event in self.events)
        build = self.plan.costs.build if new else 0.0
        if action.index in self.untestable:
            return Skipped(action.index, action.purpose, build + self.plan.costs.launch / 2, slot)
        level = math.fsum(step for at, step in self.steps.items() if at <= action.index)
        level += self.rng.normal(0, self.tau)
        if self.rng.random() < self.contaminated:
            level += math.log1p(self.rng.uniform(0.05, 0.4))
        runs = level + self.speed.get(slot, 0.0) + self.rng.normal(0, self.sigma, action.runs)
        values = tuple(float(v) for v in self.base * np.exp(self.plan.sign * runs))
        costs = self.plan.costs
        run, at = costs.run * action.runs, self.clock + build + costs.launch if slot else None
        return Measured(
            action.index, action.purpose, values, build, costs.launch, run, slot, at, trial=action.trial
        )

    def play(self, most: int = 600) -> SearchOutcome:
        """Ask and answer until it is done. :raises AssertionError: it does not end."""
        free, running = list(self.speed), []
        for _ in range(most):
            for slot in list(free):
                pending = [Pending(a.index, a.purpose, a.runs, s, a.trial) for _, _, s, a, _ in running]
                action = next_action(self.plan, self.events, pending, slot, tuple(self.speed))
                if isinstance(action, SearchOutcome):
                    return action
                if isinstance(action, Wait):
                    continue
                free.remove(slot)
                self.asked.append((slot, action))
                event = self.answer(action, slot)
                heapq.heappush(running, (self.clock + event.minutes, len(self.asked), slot, action, event))
            assert running, "every slot waits, and nothing is under way"
            self.clock, _, slot, _, event = heapq.heappop(running)
            self.events.append(event)
            free.append(slot)
        raise AssertionError(f"not done after {most} events")
