"""Several slots that work on one simulated bisection, event by event."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np

from perfbisect.bisect.decision.decide import next_action
from perfbisect.bisect.decision.model import (
    Event,
    Measured,
    NextLaunch,
    Pending,
    SearchEnd,
    SearchOutcome,
    Skipped,
    Wait,
)
from tests.bisect.worlds import Bench


@dataclass
class SlotSimulation:
    """``speed``: each slot's log shift. Launches take their minutes; answers come in the order in which they
    end."""

    bench: Bench
    speed: dict[str, float]
    clock: float = 0.0
    events: list[Event] = field(default_factory=list)
    asked: list[tuple[str, NextLaunch]] = field(default_factory=list)
    waits: int = 0

    def play(self, most: int = 600) -> SearchOutcome:
        free, running = list(self.speed), []
        for _ in range(most):
            for slot in list(free):
                pending = [Pending(a.index, a.runs, a.purpose, s) for _, _, s, a, _ in running]
                action = next_action(self.bench.plan, self.events, pending, slot, tuple(self.speed))
                if isinstance(action, SearchEnd):
                    return action.outcome
                if isinstance(action, Wait):
                    self.waits += 1
                    continue
                free.remove(slot)
                self.asked.append((slot, action))
                event = self.answer(slot, action)
                heapq.heappush(running, (self.clock + minutes(event), len(self.asked), slot, action, event))
            assert running, "every slot waits, and nothing is under way"
            self.clock, _, slot, _, event = heapq.heappop(running)
            self.events.append(event)
            free.append(slot)
        raise AssertionError(f"not done after {most} events")

    def answer(self, slot: str, action: NextLaunch) -> Event:
        self.bench.events = self.events
        event = self.bench.answer(action)
        if isinstance(event, Skipped):
            return Skipped(event.index, event.purpose, event.minutes, slot)
        shift = np.exp(self.bench.plan.sign * self.speed[slot])
        values = tuple(float(v * shift) for v in event.values)
        at = self.clock + event.build + event.launch
        return Measured(event.index, event.purpose, values, event.build, event.launch, event.run, slot, at)


def minutes(event: Event) -> float:
    return event.minutes if isinstance(event, Skipped) else event.build + event.launch + event.run
