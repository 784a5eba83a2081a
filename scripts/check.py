"""How often a check against a level says the wrong word, in simulated launches whose truth is known.

    python -m scripts.check --seeds 60

Noise of 2.5 % a launch, eight recorded launches, at most twenty new ones, a limit of 5 %; against a revision
at most ten blocks. The two wrong words are those of a commit on the limit: each is promised in 2.5 % at most.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial
from itertools import product

import numpy as np

from perfbisect.experiments.claims import EffectRange
from perfbisect.stats import ab_test, threshold
from scripts.simulation import choose, parser, percent, print_head, print_row, sessions

LIMIT, NOISE, MOST, RECORDED = 0.05, 0.025, 20, 8
BLOCKS = 10
TAIL = 3.0
"""Degrees of freedom of launches with heavy tails."""

Launch = Callable[[float], float]

WORLDS = {
    f"{reference} {commit}{', heavy tails' if tails else ''}": (reference, tails, share)
    for reference, tails, (commit, share) in product(
        ("revision", "baseline"),
        (False, True),
        (("unchanged", 0.0), ("on the limit", LIMIT), ("twice the limit", 2 * LIMIT)),
    )
}
"""What a commit is checked against, whether launches have heavy tails, and how much slower it is."""


def launches(seed: int, tails: bool) -> Launch:
    """Level -> a launch of it, its log."""
    rng = np.random.default_rng([seed, 77])
    spread = math.sqrt(TAIL / (TAIL - 2))
    return lambda at: at + NOISE * float(rng.standard_t(TAIL) / spread if tails else rng.normal())


def against_level(launch: Launch, at: float) -> tuple[str, int]:
    """The word and the launches of one check, of a commit ``at`` above the baseline."""
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
    allowed = EffectRange(-math.inf, LIMIT)
    seen: list[ab_test.AbLaunch] = []
    while True:
        for _ in range(ab_test.BLOCK_SIZE):
            side = ab_test.side_of_launch(question, len(seen))
            seen.append(ab_test.AbLaunch(side, (math.exp(launch(at if side == "b" else 0.0)),)))
        told = ab_test.judge_blocks(question, seen)
        word = allowed.settles(told.low, told.high)
        if word != "inconclusive" or len(seen) >= ab_test.BLOCK_SIZE * BLOCKS:
            return {"holds": "passed", "refuted": "failed"}.get(word, word), len(seen)


def check(reference: str, tails: bool, share: float, seed: int) -> tuple[str, int]:
    """The word and the launches of one check."""
    launch, at = launches(seed, tails), math.log1p(share)
    if reference == "revision":
        return against_revision(launch, at, seed)
    return against_level(launch, at)


def main(argv: list[str] | None = None) -> int:
    """Print the table; returns the exit code."""
    options = parser(__doc__, seeds=400).parse_args(argv)
    trials = {name: partial(check, *world) for name, world in choose(WORLDS, options.worlds).items()}
    words = ("failed", "passed", "inconclusive")
    print_head("against", "the commit", *(f"{word} %" for word in words), "launches")
    for name, rows in sessions(trials, options):
        shares = [percent((row[0] == word for row in rows), 1) for word in words]
        print_row([*name.split(" ", 1), *shares, f"{np.mean([row[1] for row in rows]):.1f}"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
