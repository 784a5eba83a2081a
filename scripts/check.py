"""How often a check against a level says the wrong word, in simulated launches whose truth is known.

    python -m scripts.check --seeds 60

Noise of 2.5 % a launch, eight recorded launches, at most twenty new ones, a limit of 5 %; against a revision
at most ten blocks. The two wrong words are those of a commit on the limit: each is promised in 2.5 % at most.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")
if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np  # noqa: E402

from perfbisect.compare.claims import no_worse  # noqa: E402
from perfbisect.stats import ab_test, threshold  # noqa: E402

LIMIT, NOISE, MOST, RECORDED = 0.05, 0.025, 20, 8
BLOCKS = 10
TAIL = 3.0
"""Degrees of freedom of launches with heavy tails."""

Launch = Callable[[float], float]


def launches(seed: int, tails: bool) -> Launch:
    """Level -> a launch of it, its log."""
    rng = np.random.default_rng([seed, 77])
    spread = math.sqrt(TAIL / (TAIL - 2))
    return lambda at: at + NOISE * float(rng.standard_t(TAIL) / spread if tails else rng.normal())


def against_level(launch: Launch, at: float, ends: bool) -> tuple[str, int]:
    """The word and the launches of one check, of a commit ``at`` above the good level."""
    if ends:
        step = 2 * math.log1p(LIMIT)
        good, bad = ([launch(x) for _ in range(RECORDED // 2)] for x in (0.0, step))
        line = threshold.threshold_between(good, bad)
    else:
        line = threshold.threshold_above([launch(0.0) for _ in range(RECORDED)], math.log1p(LIMIT))
    made: list[float] = []
    while True:
        made += [launch(at) for _ in range(threshold.STEP)]
        told = threshold.judge_threshold(line, made, MOST)
        if told.settled:
            return {"beyond": "failed", "within": "passed"}.get(told.word, told.word), len(made)


def against_revision(launch: Launch, at: float, seed: int) -> tuple[str, int]:
    """The same, both measured in turn."""
    question = ab_test.AbTest(blocks=BLOCKS, seed=seed)
    allowed = no_worse(LIMIT, 1)
    seen: list[ab_test.AbLaunch] = []
    while True:
        for _ in range(ab_test.BLOCK_SIZE):
            side = ab_test.side_of_launch(question, len(seen))
            seen.append(ab_test.AbLaunch(side, (math.exp(launch(at if side == "b" else 0.0)),)))
        told = ab_test.judge_blocks(question, seen)
        word = allowed.settles(told.low, told.high)
        if word != "inconclusive" or len(seen) >= ab_test.BLOCK_SIZE * BLOCKS:
            return {"holds": "passed", "refuted": "failed"}.get(word, word), len(seen)


def rows(seeds: range, only: str) -> Iterator[tuple[str, str, Counter[str], float]]:
    """Each world whose name holds the text ``only``, with its words and mean launches."""
    for how in ("revision", "baseline", "ends"):
        for tails in (False, True):
            for name, share in (("unchanged", 0.0), ("on the limit", LIMIT), ("twice the limit", 2 * LIMIT)):
                label = f"{name}{', heavy tails' if tails else ''}"
                if only not in f"{how} {label}":
                    continue
                words: Counter[str] = Counter()
                count = 0
                for seed in seeds:
                    launch, at = launches(seed, tails), math.log1p(share)
                    if how == "revision":
                        word, made = against_revision(launch, at, seed)
                    else:
                        word, made = against_level(launch, at, how == "ends")
                    words[word] += 1
                    count += made
                yield how, label, words, count / len(seeds)


def main(argv: list[str] | None = None) -> int:
    """Print the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=400)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--world", default="", help="a part of a name")
    options = parser.parse_args(argv)
    print("| against | the commit | failed % | passed % | inconclusive % | launches |")
    print("|---|---|---|---|---|---|", flush=True)
    for how, name, words, count in rows(range(options.first, options.first + options.seeds), options.world):
        shares = [f"{100 * words[word] / options.seeds:.1f}" for word in ("failed", "passed", "inconclusive")]
        print(f"| {how} | {name} | {' | '.join(shares)} | {count:.1f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
