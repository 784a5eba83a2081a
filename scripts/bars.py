"""Check the published bars with fresh seeds: shares that are claimed, each with its binomial bound.

    python -m scripts.bars                          # every area, a new seed, which is printed
    python -m scripts.bars --only detection --seed 7 --scale 0.1 --procs 2

A bar is missed where the one-sided 95 % bound (Clopper and Pearson) of what was counted excludes the claim,
in a first sample and again in a second: of claims that hold exactly, one in 400 is called missed. An area is
a module with ``EXPERIMENTS``.
"""

from __future__ import annotations

import importlib
import os
import secrets
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.pool import Pool
from typing import Literal

import numpy as np
from scipy.special import betaincinv

from scripts.simulation import parser, print_head, print_row, process_pool

AREAS: Mapping[str, str] = {
    "bisect": "scripts.bisect_bars",
    "detection": "scripts.detection_bars",
}
ERROR = 0.05  # probability of a bound on the wrong side of the truth


@dataclass(frozen=True)
class Bar:
    """A claim: the event occurs in ``bound`` this ``share`` of the trials."""

    claim: str
    bound: Literal["at most", "at least"]
    share: float

    def is_missed(self, events: int, trials: int) -> bool:
        low, high = bounds(events, trials)
        return low > self.share if self.bound == "at most" else high < self.share


@dataclass(frozen=True)
class Experiment:
    """Trials of one kind. ``trial``: a seed -> for each of ``bars`` whether its event occurred, None where
    the trial says nothing of it; a module's function, or a partial of one."""

    name: str
    trials: int
    trial: Callable[[int], Sequence[bool | None]]
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Count:
    """What was counted of one bar. ``missed``: in the first sample and the second."""

    experiment: str
    bar: Bar
    events: int
    trials: int
    missed: bool


def bounds(events: int, trials: int, error: float = ERROR) -> tuple[float, float]:
    """One-sided bounds of a share, lower and upper, each wrong with ``error`` (Clopper and Pearson)."""
    low = float(betaincinv(events, trials - events + 1, error)) if events else 0.0
    high = float(betaincinv(events + 1, trials - events, 1 - error)) if events < trials else 1.0
    return low, high


def seeds(seed: int, name: str, sample: int, trials: int) -> list[int]:
    """The seeds of an experiment's trials: others for every seed, name and sample."""
    state = np.random.SeedSequence([seed, zlib.crc32(name.encode()), sample]).generate_state(trials)
    return [int(word) for word in state]


def check(experiments: Sequence[Experiment], seed: int, scale: float, pool: Pool) -> Iterator[Count]:
    """Counts every bar; those that a first sample excludes once more."""
    for experiment in experiments:
        trials = max(1, round(scale * experiment.trials))
        first = _sample(experiment, seeds(seed, experiment.name, 0, trials), pool)
        second: list[tuple[int, int]] | None = None
        for index, bar in enumerate(experiment.bars):
            events, counted = first[index]
            missed = bar.is_missed(events, counted)
            if missed:
                second = second or _sample(experiment, seeds(seed, experiment.name, 1, trials), pool)
                missed = bar.is_missed(*second[index])
                events, counted = events + second[index][0], counted + second[index][1]
            yield Count(experiment.name, bar, events, counted, missed)


def _sample(experiment: Experiment, own_seeds: Sequence[int], pool: Pool) -> list[tuple[int, int]]:
    """Events and trials of each bar."""
    answers = list(zip(*pool.imap(experiment.trial, own_seeds, chunksize=4), strict=True))
    if len(answers) != len(experiment.bars):
        raise ValueError(f"{experiment.name}: {len(answers)} answers to {len(experiment.bars)} bars")
    known = [[answer for answer in column if answer is not None] for column in answers]
    return [(sum(column), len(column)) for column in known]


def main(argv: list[str] | None = None) -> int:
    """Print the counts; 1 if a bar is missed."""
    made = parser(__doc__)
    made.add_argument("--seed", type=int, help="default: drawn and printed")
    made.add_argument("--only", action="append", choices=list(AREAS), default=[], help="an area")
    made.add_argument("--scale", type=float, default=1.0, help="factor on the numbers of trials")
    made.add_argument("--procs", type=int, default=len(os.sched_getaffinity(0)))
    options = made.parse_args(argv)
    seed = secrets.randbelow(2**31) if options.seed is None else options.seed
    print(f"seed {seed}\n")
    print_head("area", "world", "claim", "counted", "95 % bounds", "")
    missed = 0
    with process_pool(options.procs) as pool:
        for area in options.only or AREAS:
            experiments: Sequence[Experiment] = importlib.import_module(AREAS[area]).EXPERIMENTS
            for count in check(experiments, seed, options.scale, pool):
                low, high = bounds(count.events, count.trials)
                bar, share = count.bar, 100 * count.events / max(1, count.trials)
                cells = [area, count.experiment, f"{bar.claim}: {bar.bound} {100 * bar.share:g} %"]
                cells += [f"{count.events} of {count.trials} = {share:.1f} %"]
                cells += [f"{100 * low:.1f} to {100 * high:.1f} %", "**missed**" if count.missed else "holds"]
                print_row(cells)
                missed += count.missed
    print(f"\n{missed} missed" if missed else "\nevery bar holds")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
