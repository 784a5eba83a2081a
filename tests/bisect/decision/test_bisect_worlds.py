"""Simulated worlds, seeded: it is right nearly always, and a wrong name is rare."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

import pytest

from perfbisect.bisect.decision.model import Plan
from tests.bisect.worlds import Bench
from tests.long import mostly_long


def play(count, n, steps, sigma, tau, contaminated=0.0, skip=frozenset(), right=frozenset()):
    words = Counter()
    covered = found = 0
    for seed in range(count):
        world = Bench(Plan(n=n), steps, sigma, tau, 1000 + seed, skip, contaminated)
        end = world.play()
        words["right" if right & set(end.culprits) and end.verdict == "found" else end.verdict] += 1
        if end.verdict == "found" and len(steps) == 1:
            found += 1
            true = 2.718281828459045 ** next(iter(steps.values())) - 1
            covered += end.confirmed.low <= true <= end.confirmed.high
    return words, covered, found


@pytest.mark.parametrize(
    ("steps", "sigma", "tau", "contaminated", "missed"),
    mostly_long(
        [
            ({21: 0.10}, 0.03, 0.015, 0.0, 1),
            ({2: 0.05}, 0.01, 0.015, 0.0, 1),
            ({64: 0.5}, 0.005, 0.003, 0.0, 1),
            ({40: 0.4}, 0.1, 0.1, 0.0, 2),
            ({33: 0.10}, 0.02, 0.01, 0.08, 1),
        ],
        short=[({21: 0.10}, 0.03, 0.015, 0.0, 1), ({33: 0.10}, 0.02, 0.01, 0.08, 1)],
    ),
)
def test_one_step(steps, sigma, tau, contaminated, missed):
    words, covered, found = play(8, 64, steps, sigma, tau, contaminated, right=set(steps))
    assert words["found"] == 0
    assert words["right"] >= 7
    assert covered >= found - missed


def test_no_change_blames_nobody():
    words, _, _ = play(20, 40, {}, 0.015, 0.015)
    assert words["found"] == 0
    assert words["not reproduced"] + words["too small"] >= 18


def test_a_step_half_undone_later_is_named():
    words, _, _ = play(6, 40, {12: 0.05, 30: -0.025}, 0.01, 0.008, right={12})
    assert words["found"] == 0
    assert words["right"] >= 5


@dataclass
class Drifting(Bench):
    """A bench whose machine is slower and faster again by a few per cent, over hours."""

    def answer(self, action, slot=""):
        event = super().answer(action, slot)
        minute = sum(e.minutes for e in self.events)
        level = math.exp(0.025 * math.sin(minute / 70 + self.seed))
        return replace(event, values=tuple(v * level for v in event.values))


@pytest.mark.processes
def test_a_drift_of_the_machine_is_seen_through():
    words = Counter()
    for seed in range(5):
        world = Drifting(Plan(n=64), {33: 0.03}, 0.01, 0.008, 2000 + seed)
        end = world.play()
        words["right" if end.verdict == "found" and 33 in end.culprits else end.verdict] += 1
    assert words["found"] == 0
    assert words["right"] >= 4
