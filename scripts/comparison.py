"""Score perfbisect's comparison on simulated launches whose truth is known.

    python -m scripts.comparison --seeds 400 --procs 2
    python -m scripts.comparison --guards --seeds 400 --procs 2
    python -m scripts.comparison --metrics --seeds 400 --procs 2
    python -m scripts.comparison --ideal

``Comparison`` is the interface that others may drive: ``next()`` says whose fresh launch is next,
``update(side, value)`` tells it (``'skip'``: there was none), ``result()`` the verdict with its interval.
"""

from __future__ import annotations

import math
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from perfbisect.bisect.result import GUARD_ERROR
from perfbisect.stats.ab_test import (
    BLOCK_SIZE,
    MISSED,
    AbLaunch,
    AbTest,
    Side,
    judge_blocks,
    next_side,
    side_of_launch,
)
from perfbisect.stats.sequential import stopping_boundaries
from perfbisect.stats.two_sample import LaunchNoise, differ
from scripts.simulation import choose, parser, percent, print_head, print_row, sessions

SKIPS = 3
"""Launches in a row without a value after which a comparison gives up."""

WORLDS: dict[str, dict[str, float]] = {
    "no change": {"d": 0.0},
    "5 % slower": {"d": 0.05},
    "3 % slower": {"d": 0.03},
    "no change, 5 % of launches contaminated": {"d": 0.0, "outliers": 0.05},
    "5 % slower, 5 % of launches contaminated": {"d": 0.05, "outliers": 0.05},
    "no change, drift of 3 %": {"d": 0.0, "drift": 0.03},
    "no change, heavy tails": {"d": 0.0, "tails": 3.0},
    "40 % slower, noise 0.7 %": {"d": 0.4, "sigma": 0.005, "tau": 0.005},
    "no change, noise 11 %": {"d": 0.0, "sigma": 0.10, "tau": 0.05},
    "15 % slower, noise 2 %": {"d": 0.15, "sigma": 0.016, "tau": 0.012},
}
KNOWN: dict[str, float] = {"degrees": 20}
WORLDS |= {f"noise known: {name}": world | KNOWN for name, world in WORLDS.items()} | {
    f"noise {grown:g} times what is known: {name}": WORLDS[name] | KNOWN | {"then": 1 / grown}
    for grown in (0.7, 1.5, 2.0, 3.0)
    for name in ("no change", "3 % slower", "5 % slower")
}
"""Launch noise is tau between launches and sigma within, 1.5 and 2 per cent unless said.

``degrees``: of freedom that earlier launches have for their noise, which was ``then`` times as large.
"""


class Comparison:
    """A comparison of two sides, one value a launch, larger is worse.

    ``costs`` is accepted for the sake of the interface: launches of both sides cost the same.
    """

    def __init__(
        self,
        costs: Mapping[str, float] | None = None,
        min_effect: float = 0.03,
        seed: int = 0,
        noise: LaunchNoise | None = None,
    ) -> None:
        del costs
        self.question = AbTest(min_effect=min_effect, seed=seed, noise=noise)
        self.seen: list[AbLaunch] = []
        self.skipped = 0

    def next(self) -> Side | None:
        """Whose fresh launch is next; None where the verdict stands."""
        return None if self.skipped >= SKIPS else next_side(self.question, self.seen)

    def update(self, side: Side, value: float | str) -> None:
        """The value of a launch, or ``'skip'``: the same side is asked for again."""
        if isinstance(value, str):
            self.skipped += 1
            return
        self.skipped = 0
        self.seen.append(AbLaunch(side, (float(value),)))

    def result(self) -> tuple[str, float, float, float]:
        """Verdict, effect (B / A - 1) and its 95 % interval."""
        told = judge_blocks(self.question, self.seen)
        return told.word, told.effect, told.low, told.high


def session(world: Mapping[str, float], seed: int) -> tuple[str, bool, int]:
    """One comparison in a world: the verdict, whether the interval holds the truth, launches."""
    rng = np.random.default_rng([seed, 20011])
    d, tau, sigma = world["d"], world.get("tau", 0.015), world.get("sigma", 0.02)
    drift, minutes = world.get("drift", 0.0), 4.5
    keep = math.exp(-minutes / 180.0)
    wander = rng.normal() * drift
    known = None
    if degrees := world.get("degrees"):
        found = math.sqrt(rng.chisquare(degrees) / degrees)
        known = LaunchNoise(math.hypot(tau, sigma) * world.get("then", 1.0) * found, degrees)
    comparison = Comparison(seed=seed, noise=known)
    while (side := comparison.next()) is not None:
        wander = keep * wander + math.sqrt(1 - keep * keep) * drift * rng.normal()
        tails = world.get("tails")
        noise = rng.standard_t(tails) / math.sqrt(tails / (tails - 2)) if tails else rng.normal()
        log = wander + math.hypot(tau, sigma) * float(noise)
        if rng.random() < world.get("outliers", 0.0):
            log += rng.uniform(0.05, 0.40)
        comparison.update(side, 100.0 * math.exp(log + (math.log1p(d) if side == "b" else 0.0)))
    word, _, low, high = comparison.result()
    return word, low <= d <= high, len(comparison.seen)


GUARDS, GUARD_EFFECT = 3, 0.01
"""Guards of a job, and their smallest effect."""

GUARD_WORLDS = tuple((noise, shift) for shift in (0.0, -0.1) for noise in (0.01, 0.05, 0.2))
"""Noise of a launch, and by how much the first guard of B differs."""

PAIRS = (2, 3, 4)


def guards_of_bisection(pairs: int, noise: float, shift: float, seed: int) -> tuple[bool, bool]:
    """Whether a guard moved in an A/B of so many pairs: by its ranks, and by the rule of a bisection.

    By its ranks: the medians differ by more than the smallest effect, and no launch of one side lies among
    those of the other. The two ends, of two launches each, show the noise too.
    """
    rng = np.random.default_rng([seed, 20012])
    by_ranks = by_rule = False
    for guard in range(GUARDS):
        a, b, good, bad = (noise * rng.normal(size=count) for count in (pairs, pairs, 2, 2))
        b += math.log1p(shift) if guard == 0 else 0.0
        far = abs(math.expm1(float(np.median(b) - np.median(a)))) > GUARD_EFFECT
        by_ranks |= far and bool(a.max() < b.min() or b.max() < a.min())
        by_rule |= differ((a, b, good, bad), math.log1p(GUARD_EFFECT), GUARD_ERROR / GUARDS)
    return by_ranks, by_rule


def guards_of_comparison(noise: float, shift: float, seed: int) -> tuple[bool, bool]:
    """Whether a guard is called different at any of ten looks: each by itself, and with a shared error."""
    rng = np.random.default_rng([seed, 20013])
    alone = shared = False
    for guard in range(GUARDS):
        test = AbTest(min_effect=GUARD_EFFECT, seed=seed)
        seen: list[AbLaunch] = []
        while len(seen) < BLOCK_SIZE * test.blocks and not shared:
            side = side_of_launch(test, len(seen))
            level = math.log1p(shift) if guard == 0 and side == "b" else 0.0
            seen.append(AbLaunch(side, (math.exp(level + noise * rng.normal()),)))
            if len(seen) % BLOCK_SIZE == 0 and _is_different(test, seen):
                alone = True
                shared = _is_different(replace(test, tests=GUARDS), seen)
    return alone, shared


def _is_different(test: AbTest, seen: list[AbLaunch]) -> bool:
    return judge_blocks(test, seen).word in ("regression", "improvement")


METRIC_WORLDS = tuple((count, share) for share in (0.0, 0.8) for count in (1, 3, 5))
"""Metrics that are judged together, and the share of their variance that they have in common."""


def several_metrics(count: int, common: float, seed: int) -> tuple[bool, bool, bool, int]:
    """Equal sides: whether any differs, each by itself and together; whether all are the same; launches."""
    rng = np.random.default_rng([seed, 20014])
    noise, alone = math.hypot(0.015, 0.02), False
    test = AbTest(seed=seed, tests=count)
    seen: list[list[AbLaunch]] = [[] for _ in range(count)]
    while True:
        for _ in range(BLOCK_SIZE):
            side, shared = side_of_launch(test, len(seen[0])), rng.normal()
            for launches in seen:
                off = math.sqrt(common) * shared + math.sqrt(1 - common) * rng.normal()
                launches.append(AbLaunch(side, (math.exp(noise * off),)))
        words = [judge_blocks(test, launches).word for launches in seen]
        alone |= any(
            word != "same" and _is_different(replace(test, tests=1), launches)
            for word, launches in zip(words, seen, strict=True)
        )
        if "inconclusive" not in words or len(seen[0]) == BLOCK_SIZE * test.blocks:
            different = {"regression", "improvement"} & set(words)
            return alone, bool(different), set(words) == {"same"}, len(seen[0])


IDEAL_NOISE, IDEAL_EFFECT, IDEAL_SESSIONS = 0.025, 0.03, 200_000
"""A noise that is known exactly, the smallest effect, and simulated comparisons."""

IDEAL_FROM = 3
"""First look at which so many launches can be the same."""


def ideal_same(boundary: Sequence[float], estimates: NDArray[np.float64], level: float) -> NDArray[np.int_]:
    """Launches until an interval of normal launches lies within the smallest effect; 0: it never does.

    ``estimates`` [comparison, look]: errors of B - A at each look; ``boundary``: half the interval in
    standard errors; ``level``: the true B - A.
    """
    looks = np.arange(1, len(boundary) + 1)
    # A block of two launches a side has the variance of one launch.
    half = np.array(boundary) * IDEAL_NOISE / np.sqrt(looks)
    is_within = np.abs(level + estimates) + half < math.log1p(IDEAL_EFFECT)
    return np.asarray(np.where(is_within.any(1), BLOCK_SIZE * (is_within.argmax(1) + 1), 0))


def _ideal_table(_: Namespace) -> None:
    """Print how many launches `same` takes at least, where the noise is normal and known exactly."""
    looks = AbTest().blocks
    sums = np.random.default_rng(20015).normal(0, IDEAL_NOISE, (IDEAL_SESSIONS, looks)).cumsum(1)
    estimates, edge = sums / np.arange(1, looks + 1), math.log1p(IDEAL_EFFECT)

    def constant(bound: float) -> list[float]:
        return [math.inf] * (IDEAL_FROM - 1) + [bound] * (looks - IDEAL_FROM + 1)

    def least(error: float) -> list[float]:
        def excess(bound: float) -> float:
            return float((ideal_same(constant(bound), estimates, edge) > 0).mean()) - error

        return constant(brentq(excess, 1.0, 4.0, xtol=1e-3))

    rows = {
        "the interval of 95 % at every look": stopping_boundaries(looks, MISSED),
        "a constant one from the third look on": least(0.025),
        "the same, of two one-sided tests of 5 %": least(0.05),
    }
    print_head("interval", "a step of 3 % is the same %", "launches where nothing changed")
    for name, boundary in rows.items():
        wrong = ideal_same(boundary, estimates, edge) > 0
        launches = ideal_same(boundary, estimates, 0.0)
        mean = np.where(launches > 0, launches, BLOCK_SIZE * looks).mean()
        print_row([name, f"{100 * wrong.mean():.1f}", f"{mean:.1f}"])


def _worlds_table(options: Namespace) -> None:
    """Print the verdicts, and how often the interval holds the truth."""
    verdicts = ("regression", "improvement", "same", "inconclusive")
    trials = {name: partial(session, world) for name, world in choose(WORLDS, options.worlds).items()}
    within = [f"within {options.within} blocks %"] if options.within else []
    print_head("world", *(f"{verdict} %" for verdict in verdicts), "interval holds %", "launches", *within)
    for name, rows in sessions(trials, options):
        words, held, launches = zip(*rows, strict=True)
        shares = [percent((word == verdict for word in words), 1) for verdict in verdicts]
        early = [percent((n <= BLOCK_SIZE * options.within for n in launches), 1) for _ in within]
        print_row([name, *shares, percent(held, 1), f"{np.mean(launches):.1f}", *early])


def _metrics_table(options: Namespace) -> None:
    """Print how often any metric of equal sides is called different, whatever the others are."""
    print_head("metrics", "in common %", "each by itself %", "together %", "all the same %", "launches")
    trials = {world: partial(several_metrics, *world) for world in METRIC_WORLDS}
    for (count, common), rows in sessions(trials, options):
        *words, launches = zip(*rows, strict=True)
        shares = [percent(column, 1) for column in words]
        print_row([str(count), f"{100 * common:.0f}", *shares, f"{np.mean(launches):.1f}"])


def _guards_table(options: Namespace) -> None:
    """Print how often one of the guards is called different: wrongly where the difference is 0."""
    ways = {f"bisection, {pairs} pairs": partial(guards_of_bisection, pairs) for pairs in PAIRS}
    ways["comparison, 10 blocks"] = partial(guards_of_comparison)
    jobs = product(choose(ways, options.worlds, "job"), GUARD_WORLDS)
    print_head("job", "noise %", "difference %", "before %", "after %")
    trials = {(job, *world): partial(ways[job], *world) for job, world in jobs}
    for (job, noise, shift), rows in sessions(trials, options):
        shares = [percent(column, 1) for column in zip(*rows, strict=True)]
        print_row([job, f"{100 * noise:.0f}", f"{100 * shift:.0f}", *shares])


def main(argv: list[str] | None = None) -> int:
    """Print a table; returns the exit code."""
    made = parser(__doc__, seeds=400)
    made.set_defaults(table=_worlds_table)
    for option, table, text in (
        ("--guards", _guards_table, f"how often one of {GUARDS} guards moved"),
        ("--metrics", _metrics_table, "how often one of several metrics differs"),
        ("--ideal", _ideal_table, "how many launches `same` takes at least"),
    ):
        made.add_argument(option, dest="table", action="store_const", const=table, help=text)
    made.add_argument("--within", type=int, help="also how often a comparison ends within so many blocks")
    options = made.parse_args(argv)
    options.table(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
