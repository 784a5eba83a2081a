"""Does a bisection over several machines hold what it says? Simulated fleets; nothing else is needed.

    python -m scripts.fleet_worlds --seeds 100 --procs 2
    python -m scripts.fleet_worlds --worlds "outlier;grid" --seeds 20 --first 1000

A history of 128 changes with one step of 10 % (or as said, or none), noise of 3 % between runs and 1.5 %
between launches, on machines whose speeds differ with a standard deviation of 7 %. The decision, the rule
that puts machines out of use and the replication are those of a job; docs/method/calibration.md says how to
read the table.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import get_args

import numpy as np

from perfbisect.bisect.decision import confirm
from perfbisect.bisect.decision.ahead import likely_next
from perfbisect.bisect.decision.machines import (
    home_machine,
    machine_offsets,
    made_elsewhere,
    outlying_machines,
)
from perfbisect.bisect.decision.model import (
    Event,
    Lost,
    Measured,
    NextLaunch,
    Pending,
    Plan,
    Reason,
    SearchOutcome,
)
from perfbisect.bisect.decision.noise import launches
from perfbisect.bisect.decision.state import SearchState
from perfbisect.model.attempt import Costs
from scripts.calibrate import CLAIMS, measured, search
from scripts.simulation import choose, parser, percent, print_head, print_row, sessions


@dataclass(frozen=True)
class Fleet:
    """A world. Shares, not per cent. ``sd``: of the machines' speeds (log)."""

    machines: int = 4
    step: float = 0.10
    n: int = 128
    sigma: float = 0.03
    tau: float = 0.015
    sd: float = 0.07
    outlier: float = 1.0
    """How many times as long the last machine takes beside its draw."""
    only: int | None = None
    """The one machine that has the step; None: all."""
    builds: int | None = None
    """Environments that another machine builds at once, on demand and ahead; None: as many as there are
    machines; 0: the machine that launches builds, and none ahead."""


WORLDS: dict[str, Fleet] = {
    "1 machine": Fleet(machines=1, builds=0),
    "1 machine beside one that builds": Fleet(machines=1),
    "2 machines": Fleet(machines=2),
    "4 machines": Fleet(),
    "4 machines, outlier of 1.5": Fleet(outlier=1.5),
    "4 machines, 5 %": Fleet(step=0.05),
    "4 machines, no change": Fleet(step=0.0),
    "4 machines, outlier of 1.5, no change": Fleet(step=0.0, outlier=1.5),
    "2 machines, step on one": Fleet(machines=2, only=0),
    "4 machines, step on one": Fleet(only=0),
    "4 machines, step of 30 % on one": Fleet(step=0.3, only=0),
}

GRID = ((32, 5, 1), (32, 5, 3), (32, 10, 3), (64, 0, 1), (128, 5, 3), (128, 10, 10), (500, 10, 3))
"""The cells of :mod:`scripts.yardstick` on such a fleet: changes, step and noise of a run in per cent."""

WORLDS |= {
    f"grid: {n} changes, {d} %, noise {s} %": Fleet(n=n, step=d / 100, sigma=s / 100, outlier=1.5)
    for n, d, s in GRID
}

BARS = ("1 machine", "4 machines", 0.40, 1.75)
"""A world and the one it is compared with, with the largest ratios of wall clock and of GPU minutes."""


@dataclass
class FleetSession:
    """One bisection. ``replicated``: what the second machine said, "" where nothing was asked of it."""

    verdict: str = ""
    right: bool = False
    wrong: bool = False
    """Other changes than the culprit were named, alone or as a set."""
    differs: bool | None = None
    """The interval of the whole change excludes zero."""
    alone: bool = False
    """It was said that the ends differ on one machine alone: on that of the world, if it has one."""
    out: tuple[int, ...] = ()
    """Machines that were put out of use."""
    replicated: str = ""
    wall: float = 0.0
    """Minutes until the verdict of the search ..."""
    gpu: float = 0.0
    wall_after: float = 0.0
    """... and until the end of the replication."""
    gpu_after: float = 0.0


@dataclass
class FleetSimulation:
    """A world with its drawings made, and the job that bisects it."""

    world: Fleet
    rng: np.random.Generator
    culprit: int = 0
    speeds: tuple[float, ...] = ()
    plan: Plan = field(default_factory=lambda: Plan(n=1))
    events: list[Event] = field(default_factory=list)
    built: dict[int, float] = field(default_factory=dict)
    """When the environment of a position is there, in minutes: built once, and brought to every machine."""
    building: list[float] = field(default_factory=list)
    """When what is built ahead will be there."""
    out: set[str] = field(default_factory=set)
    clock: float = 0.0
    running: dict[str, float] = field(default_factory=dict)
    """Machine -> the minute at which its launch began."""
    cut: float = 0.0
    """Minutes of launches that were under way at the verdict."""

    def __post_init__(self) -> None:
        world = self.world
        self.culprit = int(self.rng.integers(1, world.n + 1))
        drawn = self.rng.normal(0, world.sd, world.machines)
        drawn[-1] += math.log(world.outlier)
        self.speeds = tuple(float(speed) for speed in drawn)
        self.plan = Plan(n=world.n, costs=Costs())

    @property
    def machines(self) -> list[str]:
        """The machines in use, a slot each."""
        names = [f"m{k}" for k in range(self.world.machines)]
        return [name for name in names if name not in self.out]

    @property
    def known(self) -> Plan:
        """The plan with what is built: a launch there costs no build."""
        return replace(self.plan, cached=frozenset(x for x, at in self.built.items() if at <= self.clock))

    def launch(
        self, action: NextLaunch, machine: str, at: float, others: Sequence[Pending] | None = None
    ) -> Measured:
        """``others``: what else the search has under way; None: it has ended."""
        world, k = self.world, int(machine[1:])
        build = max(0.0, self.built.setdefault(action.index, at + self.plan.costs.build) - at)
        self.running[machine] = at
        has_step = action.index >= self.culprit and world.only in (None, k)
        level = self.speeds[k] + (math.log1p(world.step) if has_step else 0.0)
        runs = level + self.rng.normal(0, world.tau) + self.rng.normal(0, world.sigma, action.runs)
        launched = measured(action, runs, build, self.plan.costs, at, machine, machine)
        if others is not None:
            self.build_ahead(launched, others)
        return launched

    def build_ahead(self, launched: Measured, others: Sequence[Pending]) -> None:
        """What :mod:`perfbisect.bisect.job` does when a launch begins."""
        most = self.world.machines if self.world.builds is None else self.world.builds
        self.building = [at for at in self.building if at > self.clock]
        if len(self.building) >= most:
            return
        for position in likely_next(self.known, self.events, launched, others, self.machines):
            if position not in self.built and len(self.building) < most:
                self.built[position] = self.clock + self.plan.costs.build
                self.building.append(self.built[position])

    def search(self) -> SearchOutcome:
        """Launches on every machine as it becomes free, until there is a verdict."""
        for action, minute in search(lambda: self.known, self.events, lambda: self.machines, self.launch):
            self.clock = minute
            if isinstance(action, SearchOutcome):
                self.cut = sum(self.clock - began for began in self.running.values())
                return action
            if isinstance(action, Measured):
                del self.running[action.machine]
                if action.machine in self.out:
                    self.events[-1] = Lost(action.minutes)
                self.put_out()
        raise AssertionError("a bisection ends")

    def put_out(self) -> None:
        """What :mod:`perfbisect.bisect.job` does with machines that are unlike the others."""
        for offset in outlying_machines(machine_offsets(self.events, self.plan.n, self.plan.scale)):
            self.out.add(offset.machine)
            self.events[:] = [
                Lost(x.minutes) if isinstance(x, Measured) and x.machine == offset.machine else x
                for x in self.events
            ]

    def replicate(self, outcome: SearchOutcome) -> tuple[str, float]:
        """What :mod:`perfbisect.bisect.checks` does: what the other machines say, and the minutes."""
        step = outcome.confirmed
        assert step is not None
        state, added = SearchState.from_events(self.plan, tuple(self.events)), list[Measured]()
        trial = [x for x in self.events if isinstance(x, Measured) and x.trial is not None][-1].trial
        assert state.whole is not None
        assert trial is not None
        first = [x for x in self.events if isinstance(x, Measured) and x.trial == trial]
        look = confirm.expected(state.whole)
        home = home_machine(launches(tuple(first), self.plan.scale, in_blocks=True), step, look)
        other = next((name for name in self.machines if name != home), None)
        while True:
            made = launches((*first, *added), self.plan.scale, in_blocks=True)
            parent, culprit = made_elsewhere(made, step, home)
            said = confirm.elsewhere(parent, culprit, look)
            if other is None or (said is not None and len(added) % 2 == 0):
                break
            index = confirm.turn(step.parent, step.culprit, len(added))
            added.append(
                self.launch(NextLaunch(index, "replicate", trial.runs, Reason("pair")), other, self.clock)
            )
        return said or "", sum(event.minutes for event in added)


def play(world: Fleet, seed: int) -> FleetSession:
    """One bisection of a world."""
    made = FleetSimulation(world, np.random.default_rng([seed, 15_485_863]))
    outcome = made.search()
    session = FleetSession(outcome.verdict, out=tuple(sorted(int(name[1:]) for name in made.out)))
    found = outcome.verdict == "found"
    is_culprit = bool(world.step) and made.culprit in outcome.culprits
    session.right = found == bool(world.step) and found == is_culprit
    session.wrong = outcome.verdict in CLAIMS and not is_culprit
    session.alone = any(
        note.kind == "ends differ on one machine" and world.only in (None, int(note.machines[0][1:]))
        for note in outcome.notes
    )
    if outcome.whole is not None:
        session.differs = outcome.whole.low * outcome.whole.high > 0
    session.wall, session.gpu = made.clock, sum(event.minutes for event in made.events) + made.cut
    minutes = 0.0
    if found:
        session.replicated, minutes = made.replicate(outcome)
    return replace(session, wall_after=session.wall + minutes, gpu_after=session.gpu + minutes)


def _row(name: str, world: Fleet, played: list[FleetSession]) -> list[str]:
    last = world.machines - 1
    words = [x.replicated for x in played if x.replicated]
    has_outlier = world.outlier != 1
    expected = {last} if has_outlier else set()
    return [
        name,
        percent(x.right for x in played),
        f"{sum(x.wrong for x in played)} of {len(played)}",
        percent(x.differs for x in played if x.differs is not None and not world.step),
        percent(x.verdict == "found" for x in played),
        percent(x.alone or x.replicated == "absent" for x in played),
        " / ".join(str(words.count(word)) for word in get_args(confirm.Elsewhere)),
        percent(last in x.out for x in played if has_outlier),
        str(sum(not expected.issuperset(x.out) for x in played)),
        *(f"{_mean(played, name):.0f}" for name in ("gpu", "wall", "gpu_after", "wall_after")),
    ]


def _mean(played: list[FleetSession], name: str) -> float:
    return float(np.mean([getattr(session, name) for session in played]))


def bar_lines(played: dict[str, list[FleetSession]]) -> list[str]:
    """What the sessions say of the bars: a line each, for the worlds that were played."""
    lines = []
    everywhere = {name: x for name, x in played.items() if WORLDS[name].only is None}
    count = sum(map(len, everywhere.values()))
    wrong = sum(session.wrong for sessions in everywhere.values() for session in sessions)
    if count:
        lines.append(f"wrong names: {wrong} of {count}; bar 1 %")
    same = [x for name, sessions in everywhere.items() if not WORLDS[name].step for x in sessions]
    if same:
        different = sum(bool(session.differs) for session in same)
        lines.append(f"no change called different: {different} of {len(same)}; bar 5 %")
    one, several, wall, gpu = BARS
    if one in played and several in played:
        for name, most in (("wall", wall), ("gpu", gpu)):
            search, after = (
                _mean(played[several], minutes) / _mean(played[one], minutes)
                for minutes in (name, f"{name}_after")
            )
            lines.append(
                f"{several} / {one}, {name} minutes: {search:.2f}, with the replication {after:.2f}; "
                f"bar {most:.2f}"
            )
    return lines


def main(argv: list[str] | None = None) -> int:
    """Print the table and the bars; returns the exit code."""
    options = parser(__doc__, seeds=100).parse_args(argv)
    worlds = choose(WORLDS, options.worlds)
    print_head(
        *("world", "right %", "wrong name", "whole differs %", "found %", "one machine told %"),
        *("other machines: " + " / ".join(get_args(confirm.Elsewhere)), "outlier out %", "others out"),
        *("GPU min", "wall min", "with replication: GPU min", "wall min"),
    )
    played: dict[str, list[FleetSession]] = {}
    trials = {name: partial(play, world) for name, world in worlds.items()}
    for name, own in sessions(trials, options):
        played[name] = own
        print_row(_row(name, worlds[name], own))
    print("\n" + "\n".join(bar_lines(played)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
