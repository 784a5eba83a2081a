"""Score perfbisect's comparison on simulated launches whose truth is known.

    python -m scripts.comparison --seeds 400 --procs 2

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
from collections.abc import Mapping
from pathlib import Path

for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")
if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np  # noqa: E402

from perfbisect.stats.ab_test import AbLaunch, AbTest, Side, judge_blocks, next_side  # noqa: E402

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
    options = parser.parse_args(argv)
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
