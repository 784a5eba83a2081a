"""Does the bisection hold what it says? Simulated worlds with what real machines add; nothing else is needed.

    python -m scripts.calibrate --seeds 100 --procs 2
    python -m scripts.calibrate --worlds "half speed; environment" --seeds 400 --first 1000

Every world has one step of 10 % (or as said, or none) somewhere in a history of 64 changes, noise of 2 %
between runs and 1.5 % between launches, and one thing that the model does not know of, or must find out.
docs/method/calibration.md reads the tables.
"""

from __future__ import annotations

import heapq
import math
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median

import numpy as np

from perfbisect.bisect.decision.decide import beliefs, next_action
from perfbisect.bisect.decision.model import (
    Comparison,
    Event,
    Lost,
    Measured,
    NextLaunch,
    Pending,
    Plan,
    SearchOutcome,
    Skipped,
    Wait,
)
from perfbisect.model.attempt import Costs
from perfbisect.model.metric import METRICS, Metric
from scripts.bars import bounds
from scripts.simulation import choose, parser, percent, print_head, print_row, sessions

SETS = (0.5, 0.8, 0.95)

CLAIMS = ("found", "narrowed", "gradual")
"""Outcomes that say of some commits that the culprit is among them, or that there is none."""

SAID = (0.0, 0.5, 0.8, 0.9, 0.95, 0.97, 0.98, 1.0)
"""Edges of the probabilities told, in the table of whether they were true."""


@dataclass(frozen=True)
class World:
    """Shares, not per cent. ``step``: of the culprit, anywhere in the history; 0: nothing changed."""

    step: float = 0.10
    n: int = 64
    sigma: float = 0.02
    tau: float = 0.015
    environment: float = 0.0
    """Standard deviation of what the one build of each change adds to all its launches (log)."""
    is_compiled: bool = False
    """Whether the bisection knows that each change has compiled files of its own."""
    build_modes: tuple[float, float] = (0.0, 0.0)
    """How much slower builds in the slower of two modes are, and the share of builds in it ..."""
    launch_modes: tuple[float, float] = (0.0, 0.0)
    """... and the same of launches."""
    slow_share: float = 1.0
    """Share of the launches from the culprit on that the step slows."""
    further: int = 0
    """How many other changes make as large a step."""
    slope: float = 0.0
    """Change over the whole range, a little at every position."""
    fails: float = 0.0
    """Share of tries of a launch that fail; a change that fails twice in turn is skipped."""
    place: tuple[float, ...] = ()
    """What the second, third, ... run of every launch adds; the last also to later ones."""
    lost: float = 0.0
    """Share of launches that the machine loses, at a random minute."""
    outliers: float = 0.0
    """Share of launches that something else makes 5 to 40 % slower."""
    slots: tuple[float, ...] = (0.0,)
    """How much slower each slot is: 1.0 takes twice as long."""
    elsewhere: float | None = None
    """The step as it is on every slot but the first; None: the same."""
    counts: tuple[int, bool] | None = None
    """Of an exact channel: how many other changes move it, and whether the culprit does."""
    beside: tuple[float, bool, float] | None = None
    """Of a channel with noise: its step, whether it is the culprit's, and the share of the launch's noise
    that it has in common with the searched metric."""


WORLDS: dict[str, World] = {
    "plain": World(),
    "plain, 5 %, sigma 3 %": World(step=0.05, sigma=0.03),
    "no change": World(step=0.0),
    "environment 0.5 %": World(environment=0.005),
    "environment 0.5 %, 5 %": World(step=0.05, environment=0.005),
    "environment 0.5 %, no change": World(step=0.0, environment=0.005),
    "environment 1 %": World(environment=0.01),
    "environment 1 %, no change": World(step=0.0, environment=0.01),
    "builds, sd 1 %, step 5 %": World(step=0.05, environment=0.01),
    "builds in modes 3 % apart, p 0.2, step 5 %": World(step=0.05, build_modes=(0.03, 0.2)),
    "builds in modes 3 % apart, p 0.2, no change": World(step=0.0, build_modes=(0.03, 0.2)),
    "builds in modes 3 % apart, p 0.5, step 5 %": World(step=0.05, build_modes=(0.03, 0.5)),
    "builds in modes 3 % apart, p 0.5, no change": World(step=0.0, build_modes=(0.03, 0.5)),
    "slow in half of the launches, step 20 %": World(step=0.2, slow_share=0.5),
    "slow in a fifth of the launches, step 50 %": World(step=0.5, slow_share=0.2),
    "launches in modes 8 % apart, p 0.5, step 5 %": World(step=0.05, launch_modes=(0.08, 0.5)),
    "launches in modes 8 % apart, p 0.5, no change": World(step=0.0, launch_modes=(0.08, 0.5)),
    "tries fail in 30 %, step 5 %": World(step=0.05, fails=0.3),
    "tries fail in 50 %, step 5 %": World(step=0.05, fails=0.5),
    "two steps of 7 %": World(step=0.07, further=1),
    "three steps of 5 %": World(step=0.05, further=2),
    "slope of 5 %": World(step=0.0, slope=0.05),
    "slope of 10 %": World(step=0.0, slope=0.10),
    "place +5 %": World(step=0.05, place=(0.05,)),
    "place -10 %, -12 %, no change": World(step=0.0, place=(-0.10, -0.12)),
    "a third of launches lost": World(lost=0.33),
    "a tenth of launches slowed": World(outliers=0.10),
    "128 changes, 1 slot": World(n=128, sigma=0.03),
    "128 changes, 2 slots": World(n=128, sigma=0.03, slots=(0.0,) * 2),
    "128 changes, 4 slots": World(n=128, sigma=0.03, slots=(0.0,) * 4),
    "2 slots, half speed": World(slots=(0.0, 1.0)),
    "2 slots, half speed, 5 %, sigma 3 %": World(step=0.05, sigma=0.03, slots=(0.0, 1.0)),
    "2 slots, half speed, no change": World(step=0.0, slots=(0.0, 1.0)),
    "2 slots, 3 % slower, 5 %": World(step=0.05, slots=(0.0, 0.03)),
    "4 slots, 0, 1, 3, 100 % slower": World(slots=(0.0, 0.01, 0.03, 1.0)),
    "2 slots, half speed, half the step there": World(slots=(0.0, 1.0), elsewhere=0.05),
}
_QUIET = World(step=0.02, sigma=0.007, tau=0.007)
WORLDS |= {
    f"quiet, step 2 %{name}": replace(_QUIET, **channel)
    for name, channel in {
        "": {},
        "; a count moves with it alone": {"counts": (0, True)},
        "; a count moves with it and three others": {"counts": (3, True)},
        "; a count moves with three others": {"counts": (3, False)},
        "; a metric moves by 3 %": {"beside": (0.03, True, 0.3)},
        "; a metric of the same noise does not move": {"beside": (0.0, True, 1.0)},
        "; a metric moves by 5 % elsewhere": {"beside": (0.05, False, 0.3)},
    }.items()
}
WORLDS |= {
    f"compiled: {name}": replace(world, is_compiled=True)
    for name, world in WORLDS.items()
    if world.environment or world.build_modes[1] or name.startswith(("plain", "no change", "slope"))
}


@dataclass
class Session:
    """What one bisection told, and whether it was so. None: there was nothing to tell of."""

    word: str
    right: bool
    """It was named, or where there was none, no commit was blamed."""
    held: int = 0
    """Commits of an outcome that holds a culprit, 1 of a slope that is one; 0: it does not."""
    before: tuple[bool, ...] | None = None
    """The sets before the first A/B hold the culprit."""
    during: list[tuple[bool, ...]] = field(default_factory=list)
    """... and after each launch of the search."""
    step: bool | None = None
    """The interval of the A/B holds the step that the culprit made ..."""
    built: bool | None = None
    """... and that of the two environments that were compared."""
    whole: bool | None = None
    """The interval of the whole change holds what the two ends' environments differ by."""
    gpu: float = 0.0
    wall: float = 0.0
    said: tuple[float, bool] | None = None
    """The probability told of the commits of the outcome, or of a slope, and whether it was so."""


@dataclass
class Bench:
    """A world with its drawings made, and the minutes that launches take."""

    world: World
    rng: np.random.Generator
    culprit: int
    drawn: np.ndarray
    costs: Costs
    built: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    """Changes whose last try failed."""
    moves: tuple[int, ...] = ()
    """Changes that move a channel."""
    further: tuple[int, ...] = ()
    """Other changes that make the step, too; ``drawn`` has them."""

    def level(self, index: int, slot: int) -> float:
        world = self.world
        step = world.step if slot == 0 or world.elsewhere is None else world.elsewhere
        shift = math.log1p(world.slots[slot])
        return float(self.drawn[index]) + shift + (math.log1p(step) if index >= self.culprit else 0.0)

    def launch(self, action: NextLaunch, slot: int, at: float) -> Event:
        world, rng = self.world, self.rng
        build = 0.0 if action.index in self.built else self.costs.build
        minutes = build + self.costs.launch + action.runs * self.costs.run
        if rng.random() < world.lost:
            return Lost(minutes * rng.random())
        self.built.add(action.index)
        if world.fails and rng.random() < world.fails:
            if action.index in self.failed:
                self.failed.remove(action.index)
                minutes = build + self.costs.launch / 2
                return Skipped(action.index, action.purpose, minutes, _name(slot, world))
            self.failed.add(action.index)
            return Lost(build + self.costs.launch / 2)
        self.failed.discard(action.index)
        level = self.level(action.index, slot) + rng.normal(0, world.tau)
        if action.index >= self.culprit and world.slow_share < 1 and rng.random() >= world.slow_share:
            level -= math.log1p(world.step)
        if world.launch_modes[1] and rng.random() < world.launch_modes[1]:
            level += math.log1p(world.launch_modes[0])
        if rng.random() < world.outliers:
            level += math.log1p(rng.uniform(0.05, 0.4))
        steps = [math.log1p(share) for share in world.place] or [0.0]
        places = [0.0, *(steps[min(k, len(steps)) - 1] for k in range(1, action.runs))]
        noise = rng.normal(0, world.sigma, action.runs)
        runs = level + np.array(places) + noise
        event = measured(action, runs, build, self.costs, at, _name(slot, world))
        own = level - self.level(action.index, slot)
        return replace(event, channels=self.channels(action.index, own + noise))

    def channels(self, index: int, noise: np.ndarray) -> tuple[tuple[float, ...], ...]:
        """The values of further metrics of a launch; ``noise``: of its runs' searched metric (log)."""
        world, found = self.world, []
        if world.counts is not None:
            found.append((1000.0 + 20 * sum(index >= at for at in self.moves),))
        if world.beside is not None:
            step, is_here, share = world.beside
            at = self.culprit if is_here else self.moves[0]
            own = self.rng.normal(0, world.tau) + self.rng.normal(0, world.sigma, len(noise))
            mixed = math.sqrt(share) * noise + math.sqrt(1 - share) * own
            found.append(tuple(map(float, 50 * np.exp(mixed + math.log1p(step) * (index >= at)))))
        return tuple(found)


def measured(
    action: NextLaunch, logs: np.ndarray, build: float, costs: Costs, at: float, slot: str, machine: str = ""
) -> Measured:
    """A launch begun at minute ``at`` whose runs have these logs."""
    values = tuple(float(v) for v in 100 * np.exp(logs))
    began, run = at + build + costs.launch, action.runs * costs.run
    given = (build, costs.launch, run, slot, began, machine, action.trial)
    return Measured(action.index, action.purpose, values, *given)


def _name(slot: int, world: World) -> str:
    return f"slot {slot}" if len(world.slots) > 1 else ""


def prepare(world: World, seed: int) -> tuple[Bench, Plan]:
    """A world with its drawings made, and the plan of its bisection."""
    rng = np.random.default_rng([seed, 104_729])
    culprit = int(rng.integers(1, world.n + 1))
    drawn = rng.normal(0, world.environment, world.n + 1)
    if world.build_modes[1]:
        drawn += math.log1p(world.build_modes[0]) * (rng.random(world.n + 1) < world.build_modes[1])
    drawn += math.log1p(world.slope) * np.linspace(0, 1, world.n + 1)
    bench = Bench(world, rng, culprit, drawn, Costs())
    if world.further:
        others = [i for i in range(1, world.n + 1) if i != culprit]
        bench.further = tuple(map(int, rng.choice(others, world.further, replace=False)))
        for at in bench.further:
            drawn[at:] += math.log1p(world.step)
    binaries = tuple(map(str, range(world.n + 1))) if world.is_compiled else ()
    channels: tuple[Metric, ...] = ()
    if world.counts is not None or world.beside is not None:
        others, is_here = world.counts or (1, False)
        drawn_moves = rng.choice([i for i in range(1, world.n + 1) if i != culprit], others, replace=False)
        bench.moves = (*map(int, drawn_moves), *([culprit] if is_here else []))
        channels = (METRICS["kv_cache_tokens" if world.counts else "output_throughput"],)
    return bench, Plan(n=world.n, costs=bench.costs, binaries=binaries, channels=channels)


def play(world: World, seed: int) -> Session:
    """One bisection, its launches on the world's slots as they become free."""
    bench, plan = prepare(world, seed)
    culprit = bench.culprit
    session = Session("", False)
    events: list[Event] = []
    names = [_name(slot, world) for slot in range(len(world.slots))]
    launch = partial(_launch_on, bench, names)
    for action, now in search(lambda: plan, events, lambda: names, launch):
        if isinstance(action, SearchOutcome):
            session.wall = now
            session.gpu = sum(event.minutes for event in events)
            return _judge(session, bench, action)
        if isinstance(action, Measured) and action.purpose == "search" and world.step:
            session.during.append(_held(plan, events, culprit))
        if isinstance(action, NextLaunch) and action.purpose == "confirm" and session.before is None:
            session.before = _held(plan, events, culprit) if world.step else None
    raise AssertionError("a bisection ends")


def _launch_on(
    bench: Bench, names: list[str], action: NextLaunch, name: str, at: float, others: Sequence[Pending]
) -> Event:
    del others
    return bench.launch(action, names.index(name), at)


def search(
    plan: Callable[[], Plan],
    events: list[Event],
    slots: Callable[[], Sequence[str]],
    launch: Callable[[NextLaunch, str, float, Sequence[Pending]], Event],
) -> Iterator[tuple[NextLaunch | Event | SearchOutcome, float]]:
    """Every decision and every event, with the minute; ends with a verdict.

    ``plan``: with what is built; ``slots``: those in use; ``launch``: an action, its slot, the minute and
    what else is under way -> what becomes of it.
    """
    running: list[tuple[float, int, str, NextLaunch, Event]] = []
    free, clock, count = list(slots()), 0.0, 0
    while True:
        for slot in [name for name in free if name in slots()]:
            pending = [Pending(a.index, a.purpose, a.runs, s, a.trial) for _, _, s, a, _ in running]
            action = next_action(plan(), events, pending, slot, slots())
            if isinstance(action, SearchOutcome):
                yield action, clock
                return
            if isinstance(action, Wait):
                continue
            yield action, clock
            event = launch(action, slot, clock, pending)
            count += 1
            heapq.heappush(running, (clock + event.minutes, count, slot, action, event))
            free.remove(slot)
        clock, _, slot, _, event = heapq.heappop(running)
        events.append(event)
        free.append(slot)
        yield event, clock


def _held(plan: Plan, events: list[Event], culprit: int) -> tuple[bool, ...]:
    """Whether the smallest sets of so much probability (given a change) hold the culprit."""
    p = np.array(beliefs(plan, events).p)
    order = np.argsort(-p, kind="stable")
    ahead = np.cumsum(p[order]) / p.sum()
    place = int(np.flatnonzero(order == culprit)[0])
    return tuple(bool(place == 0 or ahead[place - 1] < level) for level in SETS)


def _judge(session: Session, bench: Bench, outcome: SearchOutcome) -> Session:
    world, named = bench.world, {bench.culprit, *bench.further}.intersection(outcome.culprits)
    session.word = outcome.verdict
    found, claims = outcome.verdict == "found", outcome.verdict in CLAIMS
    held = len(outcome.culprits) if world.step and named else 0
    if outcome.verdict == "gradual":
        held = int(world.slope > 0)
    session.held = held if claims else 0
    is_change = bool(world.step or world.slope)
    session.right = held > 0 and (found or not world.step) if is_change else not claims
    if outcome.culprits or outcome.verdict == "gradual":
        session.said = outcome.probability, held > 0
    if outcome.whole is not None and world.elsewhere is None:
        session.whole = _covers(outcome.whole, bench.level(world.n, 0) - bench.level(0, 0))
    if found and session.right and outcome.confirmed is not None and world.elsewhere is None:
        culprit = min(named)
        truth = bench.level(culprit, 0) - bench.level(culprit - 1, 0)
        session.step = _covers(outcome.confirmed, math.log1p(world.step))
        session.built = _covers(outcome.confirmed, truth)
    return session


def _covers(told: Comparison, truth: float) -> bool:
    return told.low <= math.expm1(truth) <= told.high


def row(name: str, played: list[Session]) -> list[str]:
    """A row of the table."""
    wrong = sum(s.word in CLAIMS and not s.held for s in played)
    narrowed = [s.held for s in played if s.word == "narrowed"]
    sizes = [held for held in narrowed if held]
    before = [s.before for s in played if s.before is not None]
    during = [held for s in played for held in s.during]
    return [
        name,
        percent(s.right for s in played),
        f"{wrong} of {len(played)}",
        f"{len(sizes)} of {len(narrowed)}, {median(sizes):g}" if sizes else f"0 of {len(narrowed)}",
        percent(s.word == "not reproduced" for s in played),
        " / ".join(percent(held[k] for held in before) for k in range(len(SETS))),
        " / ".join(percent(held[k] for held in during) for k in range(len(SETS))),
        percent(s.step for s in played if s.step is not None),
        percent(s.built for s in played if s.built is not None),
        percent(s.whole for s in played if s.whole is not None),
        f"{np.mean([s.gpu for s in played]):.0f}",
        f"{np.mean([s.wall for s in played]):.0f}",
    ]


def reliability(played: Iterable[Session]) -> Iterator[list[str]]:
    """Rows of what was told of commits and slopes, by outcome and probability, and how often it was true."""
    told: dict[tuple[str, int], list[tuple[float, bool]]] = defaultdict(list)
    for session in played:
        if session.said is not None:
            told[session.word, bisect_right(SAID[1:-1], session.said[0])].append(session.said)
    for (word, part), answers in sorted(told.items()):
        true = sum(is_true for _, is_true in answers)
        low, high = bounds(true, len(answers), 0.025)
        yield [
            word,
            f"{SAID[part]:g} to {SAID[part + 1]:g}",
            str(len(answers)),
            f"{np.mean([p for p, _ in answers]):.3f}",
            f"{true / len(answers):.3f}",
            f"{low:.3f} to {high:.3f}",
        ]


def main(argv: list[str] | None = None) -> int:
    """Print the tables; returns the exit code."""
    options = parser(__doc__, seeds=100).parse_args(argv)
    worlds = choose(WORLDS, options.worlds)
    print_head(
        *("world", "right %", "wrong", "narrowed: holds it, median size", "not reproduced %"),
        *("50/80/95 % sets before the A/B", "during the search"),
        *("A/B: the step %", "A/B: what was built %", "whole %", "GPU min", "wall min"),
    )
    everything: list[Session] = []
    for name, played in sessions({name: partial(play, world) for name, world in worlds.items()}, options):
        print_row(row(name, played))
        everything += played
    print()
    print_head("outcome", "probability told", "told", "mean", "true", "95 % interval")
    for cells in reliability(everything):
        print_row(cells)
    return 0


if __name__ == "__main__":
    sys.exit(main())
