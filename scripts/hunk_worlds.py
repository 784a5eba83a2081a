"""Does the search of hunks hold what it says? Simulated commits; nothing else is needed.

    python -m scripts.hunk_worlds --seeds 200 --procs 2
    python -m scripts.hunk_worlds --worlds "interaction" --seeds 20 --first 1000

A commit of so many groups of hunks with a step of 10 % (or as said, or none), noise of 3 % between runs and
1.5 % between launches, at most two runs a launch. The decision is that of a job; docs/method/hunks.md has the
table.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from perfbisect.bisect.decision.model import Measured, Plan
from perfbisect.explain.hunk_search import (
    HunkEvent,
    HunkOutcome,
    NextNode,
    Node,
    NodeLaunch,
    NodeUnusable,
    next_launch,
    node_results,
)
from scripts.simulation import choose, parser, percent, print_head, print_row, sessions

LAUNCH, RUN = 1.0, 0.3
"""Minutes."""

DRIFT_LAUNCHES = 4
"""Launches for which the machine stays as it is."""

BAR = 0.02
"""The most of all sessions in which a wrong group may be named."""


@dataclass(frozen=True)
class HunkWorld:
    """A commit. ``shares``: of the step that each carrier has, drawn among the groups.

    ``kind`` of several carriers: their shares add up; with ``either`` the step is there while one of them is,
    so that only taking back all removes it. ``drift``: of the machine, every four launches;
    ``outliers``: share of launches that are 10 % slower; ``unusable``: of groups that do not run without.
    """

    groups: int = 8
    step: float = 0.10
    shares: tuple[float, ...] = (1.0,)
    kind: Literal["sum", "either"] = "sum"
    sigma: float = 0.03
    tau: float = 0.015
    drift: float = 0.0
    outliers: float = 0.0
    unusable: float = 0.0


WORLDS: dict[str, HunkWorld] = {
    "one carrier of 3": HunkWorld(groups=3),
    "one carrier of 8": HunkWorld(),
    "one carrier of 16": HunkWorld(groups=16),
    "one carrier of 40": HunkWorld(groups=40),
    "one carrier of 8, drift of 5 %": HunkWorld(drift=0.05),
    "one carrier of 8, 5 % outliers": HunkWorld(outliers=0.05),
    "one carrier of 8, a quarter unusable": HunkWorld(unusable=0.25),
    "one carrier of 8, step of 5 %": HunkWorld(step=0.05),
    "one carrier of 8, step of 20 %": HunkWorld(step=0.20),
    "80 % and 20 % of 8": HunkWorld(shares=(0.8, 0.2)),
    "two carriers of 8": HunkWorld(shares=(0.5, 0.5)),
    "interaction of two of 8": HunkWorld(shares=(1.0, 1.0), kind="either"),
    "no step, 8": HunkWorld(step=0.0),
    "no step, 40": HunkWorld(groups=40, step=0.0),
}


@dataclass
class HunkSession:
    """One search. ``right``: the carrier was named, or nothing where there is no one carrier."""

    verdict: str = ""
    reason: str = ""
    right: bool = False
    wrong: bool = False
    """A group was named that has less than half of the step."""
    covered: bool | None = None
    """The 95 % interval of the named group's effect holds the true one."""
    launches: int = 0


@dataclass
class HunkSimulation:
    """A world with its drawings made."""

    world: HunkWorld
    rng: np.random.Generator

    def __post_init__(self) -> None:
        world = self.world
        drawn = self.rng.permutation(world.groups)
        self.carriers = {int(g): s for g, s in zip(drawn, world.shares, strict=False)}
        others = [int(g) for g in drawn[len(world.shares) :]]
        self.unusable = {g for g in others if self.rng.random() < world.unusable}
        self.drift = 0.0

    def removed(self, node: Node) -> float:
        """What taking back a node removes, on the scale of logs."""
        step = math.log1p(self.world.step)
        if self.world.kind == "either":
            return step if set(self.carriers) <= set(node) else 0.0
        return step * sum(share for group, share in self.carriers.items() if group in node)

    def launch(self, action: NextNode, count: int) -> NodeLaunch:
        """The ``count``-th launch of the search."""
        world, rng = self.world, self.rng
        if count % DRIFT_LAUNCHES == 0:
            self.drift = rng.normal(0, world.drift)
        level = math.log1p(world.step) + self.drift + rng.normal(0, world.tau) - self.removed(action.node)
        level += 0.1 if rng.random() < world.outliers else 0.0
        values = 14 * np.exp(level + rng.normal(0, world.sigma, action.runs))
        minutes = {"launch": LAUNCH, "run": RUN * action.runs}
        made = Measured(0, action.purpose, tuple(map(float, values)), **minutes, trial=action.trial)
        return NodeLaunch(action.node, made)

    def search(self, plan: Plan) -> tuple[HunkOutcome, list[HunkEvent]]:
        events: list[HunkEvent] = []
        while True:
            action = next_launch(plan, events)
            if isinstance(action, HunkOutcome):
                return action, events
            if len(action.node) == 1 and action.node[0] in self.unusable:
                events.append(NodeUnusable(action.node, "it does not serve"))
            else:
                events.append(self.launch(action, len(events)))


def play(world: HunkWorld, seed: int) -> HunkSession:
    """One search in a world."""
    made = HunkSimulation(world, np.random.default_rng([seed, 32_452_843]))
    plan = Plan(world.groups, min_effect=0.03, budget=math.inf, max_runs=2)
    outcome, events = made.search(plan)
    found = outcome.verdict == "found"
    step = math.log1p(world.step)
    is_most = bool(step) and made.removed(outcome.node) >= 0.5 * step - 1e-9
    has_one = bool(step) and world.kind == "sum" and max(world.shares) > 0.5
    session = HunkSession(
        outcome.verdict, outcome.reason, launches=sum(isinstance(x, NodeLaunch) for x in events)
    )
    session.wrong = found and not is_most
    session.right = (found and is_most) if has_one else not found or is_most
    if found:
        effect = node_results(plan, events)[outcome.node].effect
        session.covered = effect.low <= math.expm1(-made.removed(outcome.node)) <= effect.high
    return session


def row(name: str, played: list[HunkSession]) -> list[str]:
    """A row of the table."""
    shared, together = (sum(x.reason == reason for x in played) for reason in ("shared", "interaction"))
    launches = [x.launches for x in played]
    return [
        name,
        percent(x.right for x in played),
        f"{sum(x.wrong for x in played)} of {len(played)}",
        *(
            percent(x.verdict == verdict for x in played)
            for verdict in ("found", "no single group", "too small")
        ),
        f"{shared} / {together}",
        percent(x.covered for x in played if x.covered is not None),
        f"{np.median(launches):.0f}",
        f"{np.quantile(launches, 0.9):.0f}",
    ]


def main(argv: list[str] | None = None) -> int:
    """Print the table; returns the exit code."""
    options = parser(__doc__, seeds=100).parse_args(argv)
    worlds = choose(WORLDS, options.worlds)
    print_head(
        *("world", "right %", "wrong group", "found %", "no single group %", "too small %"),
        *("shared / interaction", "covered %", "launches, median", "90 %"),
    )
    wrong = count = 0
    for name, played in sessions({name: partial(play, world) for name, world in worlds.items()}, options):
        print_row(row(name, played))
        wrong, count = wrong + sum(session.wrong for session in played), count + len(played)
    print(f"\nwrong groups: {wrong} of {count}; bar {BAR:.0%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
