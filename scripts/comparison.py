"""Score perfbisect's comparison on simulated launches whose truth is known.

    python -m scripts.comparison --seeds 400 --procs 2
    python -m scripts.comparison --guards --seeds 400 --procs 2
    python -m scripts.comparison --metrics --seeds 400 --procs 2

``Comparison`` is the interface that others may drive: ``next()`` says whose fresh launch is next,
``update(side, value)`` tells it (``'skip'``: there was none), ``result()`` the verdict with its interval.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")
if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np  # noqa: E402

from perfbisect.bisect.documents import GUARD_ERROR  # noqa: E402
from perfbisect.stats.ab_test import (  # noqa: E402
    BLOCK_SIZE,
    AbLaunch,
    AbTest,
    Side,
    judge_blocks,
    next_side,
    side_of_launch,
)
from perfbisect.stats.two_sample import differ  # noqa: E402

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
}
"""Launch noise is tau between launches and sigma within, 1.5 and 2 per cent unless said."""


class Comparison:
    """A comparison of two sides, one value a launch, larger is worse.

    ``costs`` is accepted for the sake of the interface: launches of both sides cost the same.
    """

    def __init__(
        self, costs: Mapping[str, float] | None = None, min_effect: float = 0.03, seed: int = 0
    ) -> None:
        del costs
        self.question = AbTest(min_effect=min_effect, seed=seed)
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
    comparison = Comparison(seed=seed)
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


def _metrics_table(seeds: range, procs: int) -> int:
    """Print how often any metric of equal sides is called different, whatever the others are."""
    print("| metrics | in common % | each by itself % | together % | all the same % | launches |")
    print("|---|---|---|---|---|---|", flush=True)
    with multiprocessing.get_context("spawn").Pool(procs) as pool:
        for count, common in METRIC_WORLDS:
            rows = pool.starmap(several_metrics, [(count, common, seed) for seed in seeds], chunksize=4)
            alone, together, same = (f"{100 * sum(row[k] for row in rows) / len(rows):.1f}" for k in range(3))
            launches = sum(row[3] for row in rows) / len(rows)
            cells = (str(count), f"{100 * common:.0f}", alone, together, same, f"{launches:.1f}")
            print(f"| {' | '.join(cells)} |", flush=True)
    return 0


def _guards_table(seeds: range, procs: int, only: list[str]) -> int:
    """Print how often one of the guards is called different: wrongly where the difference is 0."""
    print("| job | noise % | difference % | before % | after % |")
    print("|---|---|---|---|---|", flush=True)
    ways: dict[str, Callable[[float, float, int], tuple[bool, bool]]] = {
        f"bisection, {pairs} pairs": partial(guards_of_bisection, pairs) for pairs in PAIRS
    }
    ways["comparison, 10 blocks"] = guards_of_comparison
    with multiprocessing.get_context("spawn").Pool(procs) as pool:
        for job, (noise, shift) in product(ways, GUARD_WORLDS):
            if not only or any(text in job for text in only):
                rows = pool.starmap(ways[job], [(noise, shift, seed) for seed in seeds], chunksize=4)
                before, after = (f"{100 * sum(x) / len(rows):.1f}" for x in zip(*rows, strict=True))
                print(f"| {job} | {100 * noise:.0f} | {100 * shift:.0f} | {before} | {after} |", flush=True)
    return 0


def _job(job: tuple[str, int]) -> tuple[str, bool, int]:
    name, seed = job
    return session(WORLDS[name], seed)


def main(argv: list[str] | None = None) -> int:
    """Print the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=400)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--procs", type=int, default=1)
    parser.add_argument("--world", action="append", default=[], help="a part of a name")
    parser.add_argument("--guards", action="store_true", help=f"how often one of {GUARDS} guards moved")
    parser.add_argument("--metrics", action="store_true", help="how often one of several metrics differs")
    options = parser.parse_args(argv)
    if options.metrics:
        return _metrics_table(range(options.first, options.first + options.seeds), options.procs)
    if options.guards:
        seeds = range(options.first, options.first + options.seeds)
        return _guards_table(seeds, options.procs, options.world)
    names = [name for name in WORLDS if not options.world or any(text in name for text in options.world)]
    if not names:
        raise SystemExit(f"no such world; known: {', '.join(WORLDS)}")
    print("| world | regression % | improvement % | same % | inconclusive % | interval holds % | launches |")
    print("|---|---|---|---|---|---|---|", flush=True)
    with multiprocessing.get_context("spawn").Pool(options.procs) as pool:
        for name in names:
            seeds = range(options.first, options.first + options.seeds)
            rows = pool.map(_job, [(name, seed) for seed in seeds], chunksize=4)
            words = Counter(word for word, _, _ in rows)
            shares = [
                f"{100 * words[word] / len(rows):.1f}"
                for word in ("regression", "improvement", "same", "inconclusive")
            ]
            held = 100 * sum(inside for _, inside, _ in rows) / len(rows)
            launches = sum(count for _, _, count in rows) / len(rows)
            print(f"| {name} | {' | '.join(shares)} | {held:.1f} | {launches:.1f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
