"""The same search for a slow commit by several tools: right, wrong, no name, GPU minutes, launches.

    python -m scripts.head_to_head --seeds 100 --procs 2
    python -m scripts.head_to_head --worlds "30 %" --rules "git;perfbisect" --json

A launch's value depends on the seed, the position and how often it was launched alone: every rule sees the
same numbers. The rules of other tools are written here after their sources, in their likeness; git-bayesect
is its own package (``pip install git-bayesect==1.2`` beside this one; without it its row is left out).
docs/method/peers.md reads the table.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean, median
from typing import Any

import numpy as np
from scipy.stats import mannwhitneyu

from perfbisect.bisect.decision.decide import next_action
from perfbisect.bisect.decision.model import Event, Measured, Plan, SearchOutcome, Skipped, Wait
from perfbisect.model.attempt import Costs
from scripts.bars import bounds
from scripts.simulation import choose, parser, print_head, print_row, sessions

COSTS = Costs(build=4.0, launch=3.0, run=1.5)
BUDGET = 900.0


@dataclass(frozen=True)
class World:
    """Shares, not per cent. ``step``: of the culprit, anywhere in the history; 0: nothing changed."""

    step: float
    n: int = 64
    sigma: float = 0.01
    tau: float = 0.015
    outliers: float = 0.0
    """Share of launches that something else makes 5 to 40 % slower."""
    skips: float = 0.0
    """Share of changes that cannot be served; the ends can."""


WORLDS: dict[str, World] = {
    "32 commits, 5 %": World(0.05, 32),
    "32 commits, 10 %": World(0.10, 32),
    "32 commits, 2 %, noise 0.7 and 0.7 %": World(0.02, 32, 0.007, 0.007),
    "128 commits, 5 %": World(0.05, 128),
    "128 commits, 10 %, runs 3 %": World(0.10, 128, 0.03),
    "128 commits, 30 %": World(0.30, 128),
    "128 commits, 100 %, runs 3 %": World(1.0, 128, 0.03),
    "500 commits, 30 %, runs 3 %": World(0.30, 500, 0.03),
    "64 commits, 10 %, a tenth of launches slowed, a fifth skipped": World(
        0.10, 64, 0.02, outliers=0.1, skips=0.2
    ),
    "64 commits, no change, runs 2 %": World(0.0, 64, 0.02),
}


@dataclass
class Machine:
    """Launches the positions 0..n of a world, and counts what it costs."""

    world: World
    seed: int
    minutes: float = 0.0
    made: Counter[int] = field(default_factory=Counter)

    @property
    def culprit(self) -> int | None:
        place = int(np.random.default_rng([self.seed, 1]).integers(1, self.world.n + 1))
        return place if self.world.step else None

    def is_testable(self, index: int) -> bool:
        if index in (0, self.world.n, self.culprit, (self.culprit or 1) - 1):
            return True
        return bool(np.random.default_rng([self.seed, 2, index]).random() >= self.world.skips)

    def launch(self, index: int, runs: int = 1) -> tuple[float, ...]:
        """Values of a fresh launch, larger is worse; none where the change cannot be served."""
        world, number = self.world, self.made[index]
        self.made[index] += 1
        self.minutes += COSTS.launch + (0.0 if number else COSTS.build)
        if not self.is_testable(index):
            return ()
        self.minutes += COSTS.run * runs
        draw = np.random.default_rng([self.seed, 3, index, number])
        level = world.tau * draw.normal() + math.log1p(world.step) * (index >= (self.culprit or world.n + 1))
        slowed, by = draw.random(2)
        level += math.log1p(0.05 + 0.35 * by) * (slowed < world.outliers)
        return tuple(float(x) for x in 100 * np.exp(level + world.sigma * draw.normal(size=12)[:runs]))

    def value(self, index: int, launches: int = 1) -> float | None:
        """The median of fresh launches of one run; None where the change cannot be served."""
        values = [value for _ in range(launches) for value in self.launch(index)]
        return median(values) if values else None


Rule = Callable[[Machine], int | None]
"""Returns the position that it names, or None."""


def halves(machine: Machine, is_bad: Callable[[int], bool | None]) -> int | None:
    """The binary search of git bisect: a change that cannot be tested is passed over for its neighbour."""
    low, high, skipped = 0, machine.world.n, set[int]()
    while high - low > 1:
        middle = (low + high) // 2
        near = sorted(set(range(low + 1, high)) - skipped, key=lambda index: abs(index - middle))
        if not near:
            return None
        bad = is_bad(near[0])
        if bad is None:
            skipped.add(near[0])
        elif bad:
            high = near[0]
        else:
            low = near[0]
    return high


def git_bisect(machine: Machine, launches: int = 1, pairs: int = 0) -> int | None:
    """Bad above the middle of the two ends as measured; then so many fresh pairs that must agree."""
    n = machine.world.n
    good, bad = machine.value(0, launches), machine.value(n, launches)
    assert good is not None and bad is not None
    # With pairs, as `cheap` of the method's review has it: ends must be 15 % apart.
    if bad <= good * (1.15 if pairs else 1.0):
        return None
    middle = math.sqrt(good * bad)

    def is_bad(index: int) -> bool | None:
        value = machine.value(index, launches)
        return None if value is None else value > middle

    culprit = halves(machine, is_bad)
    if culprit is None:
        return None
    again = [is_bad(culprit - side) is (side == 0) for _ in range(pairs) for side in (0, 1)]
    return culprit if all(again) else None


def vllm_ascend(machine: Machine, threshold: float = 0.97) -> int | None:
    """Throughput below ``threshold`` of a fixed baseline fails, a failure is run once more, and one that
    then passes is a skip (vllm-ascend, tools/bisect). The baseline is the true level of the good end."""

    def is_bad(index: int) -> bool | None:
        for again in (False, True):
            value = machine.value(index)
            if value is None:
                return None
            if value <= 100 / threshold:
                return None if again else False
        return True

    if is_bad(machine.world.n) is not True or is_bad(0) is not False:
        return None
    return halves(machine, is_bad)


def pytorch(machine: Machine, threshold: float = 1.1) -> int | None:
    """One run a commit, and a half is bad where its end is 10 % above its start (pytorch/benchmark)."""
    first, last = machine.value(0), machine.value(machine.world.n)
    assert first is not None and last is not None
    low, high = (0, first), (machine.world.n, last)
    if last <= threshold * first:
        return None
    while high[0] - low[0] > 1:
        inside = range(low[0] + 1, high[0])
        order = sorted(inside, key=lambda index: abs(index - (low[0] + high[0]) // 2))
        found = next(((i, value) for i in order if (value := machine.value(i)) is not None), None)
        if found is None:
            return None
        if found[1] > threshold * low[1]:
            high = found
        elif high[1] > threshold * found[1]:
            low = found
        else:
            return None
    return high[0]


def pinpoint(machine: Machine) -> int | None:
    """Ten attempts a commit, twice as many while Mann and Whitney's p is between the two limits, then halves
    between commits that differ (Chromium's Pinpoint: different below 0.01, alike above 0.4, at most 40)."""
    values: dict[int, list[float]] = {}

    def sample(index: int, count: int) -> list[float] | None:
        known = values.setdefault(index, [])
        while len(known) < count:
            value = machine.value(index)
            if value is None:
                return None
            known.append(value)
        return known[:count]

    def differs(low: int, high: int) -> bool | None:
        p = 1.0
        for count in (10, 20, 40):
            a, b = sample(low, count), sample(high, count)
            if a is None or b is None:
                return None
            p = float(mannwhitneyu(a, b).pvalue)
            if not 0.01 <= p <= 0.4:
                break
        return p < 0.01

    ends = [0, machine.world.n]
    if not differs(*ends):
        return None
    return halves(machine, lambda index: differs(0, index))


def git_bayesect(machine: Machine, sure: float = 0.95) -> int | None:
    """The package's posterior over a pass or fail, here against the middle of the measured ends; it stops at
    ``sure``. Its positions count from the newest."""
    package: Any = importlib.import_module("git_bayesect")
    n = machine.world.n
    good, bad = machine.value(0), machine.value(n)
    assert good is not None and bad is not None
    if bad <= good:
        return None
    middle = math.sqrt(good * bad)
    bisector = package.Bisector([1.0] * n)
    # The last of the newest positions that fail is the culprit: position n - k is its k-th from 0.
    while machine.minutes < BUDGET:
        chance = np.asarray(bisector.distribution)
        if chance.max() >= sure:
            return n - int(chance.argmax())
        newest = int(bisector.select())
        value = machine.value(n - newest)
        bisector.record(newest, None if value is None else value > middle)
    return None


def perfbisect(machine: Machine) -> int | None:
    """The product's decision, nothing assumed."""
    plan, events = Plan(n=machine.world.n, costs=COSTS, budget=BUDGET), list[Event]()
    while not isinstance(action := next_action(plan, events), SearchOutcome):
        assert not isinstance(action, Wait), "there is one machine, and it is free"
        is_built, before = bool(machine.made[action.index]), machine.minutes
        values = machine.launch(action.index, action.runs)
        spent = machine.minutes - before
        if not values:
            events.append(Skipped(action.index, action.purpose, spent))
            continue
        build = 0.0 if is_built else COSTS.build
        minutes = (build, COSTS.launch, COSTS.run * len(values))
        events.append(Measured(action.index, action.purpose, values, *minutes, trial=action.trial))
    return action.culprits[0] if action.verdict == "found" and len(action.culprits) == 1 else None


RULES: dict[str, Rule] = {
    "git bisect, 1 launch": git_bisect,
    "git bisect, 3 launches": partial(git_bisect, launches=3),
    "git bisect, 1 launch, a fresh pair": partial(git_bisect, pairs=1),
    "git-bayesect": git_bayesect,
    "vllm-ascend's rule": vllm_ascend,
    "PyTorch's rule": pytorch,
    "Pinpoint's engine": pinpoint,
    "perfbisect": perfbisect,
}


@dataclass(frozen=True)
class Session:
    """``verdict``: of the name; ``launches``: fresh starts of the engine."""

    verdict: str
    minutes: float
    launches: int


def session(world: World, rule: str, seed: int) -> Session:
    """One search."""
    machine = Machine(world, seed)
    named = RULES[rule](machine)
    verdict = "none" if named is None else "right" if named == machine.culprit else "wrong"
    return Session(verdict, machine.minutes, machine.made.total())


def rows(world: str, results: Iterator[tuple[str, list[Session]]]) -> Iterator[dict[str, Any]]:
    """A row of each rule."""
    for rule, made in results:
        counts = Counter(one.verdict for one in made)
        yield {
            "world": world,
            "rule": rule,
            "sessions": len(made),
            **{name: counts[name] for name in ("right", "wrong", "none")},
            "wrong_interval": bounds(counts["wrong"], len(made), 0.025),
            "minutes": fmean(one.minutes for one in made),
            "launches": fmean(one.launches for one in made),
        }


def cells(row: dict[str, Any]) -> Sequence[str]:
    """The row as it is printed."""
    share = {name: f"{100 * row[name] / row['sessions']:.0f}" for name in ("right", "wrong", "none")}
    low, high = (f"{100 * bound:.0f}" for bound in row["wrong_interval"])
    wrong = f"{share['wrong']} ({low} to {high})"
    return (
        row["world"], row["rule"], share["right"], wrong, share["none"],
        f"{row['minutes']:.0f}", f"{row['launches']:.0f}",
    )  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Print the table; returns the exit code."""
    made = parser(__doc__, seeds=100)
    made.add_argument("--rules", default="", help="parts of names, separated by semicolons")
    made.add_argument("--json", action="store_true", help="a line of JSON for each row")
    options = made.parse_args(argv)
    rules = list(choose(RULES, options.rules, "rule"))
    if "git-bayesect" in rules and importlib.util.find_spec("git_bayesect") is None:
        print("git-bayesect is not installed: its rows are left out", file=sys.stderr)
        rules.remove("git-bayesect")
    if not options.json:
        print_head("world", "rule", "right %", "wrong % (95 % interval)", "no name %", "GPU min", "launches")
    for name, world in choose(WORLDS, options.worlds).items():
        for row in rows(name, sessions({rule: partial(session, world, rule) for rule in rules}, options)):
            if options.json:
                print(json.dumps(row), flush=True)
            else:
                print_row(cells(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
