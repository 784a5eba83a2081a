"""The published bars of the detection of changes (docs/method/detection.md), for :mod:`scripts.bars`."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from perfbisect.series.detection.fdr import detect_all
from scripts.bars import Bar, Experiment
from scripts.detection import EARLY, ONLINE, detect_indices, early_step, noise, series_of, steps_of

NIGHTS = 60
CHANGE = 35  # first night of a step that is planted in a growing series
FIRST_LOOK = 12
NEAR = 2  # nights by which a place may be off
NIGHTLY_NOISE = 0.025


def unchanged(kind: str, nights: int, seed: int) -> tuple[bool]:
    """Whether an unchanged series is reported."""
    return (bool(steps_of(100 * np.exp(noise(kind, nights, np.random.default_rng(seed))))),)


def ever(seed: int) -> tuple[bool]:
    """Whether an unchanged series is ever reported while it grows, night by night."""
    values = 100 * (1 + NIGHTLY_NOISE * np.random.default_rng(seed).normal(size=NIGHTS))
    return (any(detect_indices(values[:n]) for n in range(FIRST_LOOK, NIGHTS + 1)),)


def found(step: float, within: int, seed: int) -> tuple[bool, bool | None]:
    """Whether a step is found at its place while the series grows, and if so, within so many nights."""
    values = 100 * (1 + NIGHTLY_NOISE * np.random.default_rng(seed).normal(size=NIGHTS))
    values[CHANGE:] *= 1 + step
    for n in range(CHANGE + 1, NIGHTS + 1):
        if any(abs(place - CHANGE) <= NEAR for place in detect_indices(values[:n])):
            return True, n - CHANGE <= within
    return False, None


def placed(kind: str, seed: int) -> tuple[bool | None, bool | None]:
    """Whether set of places and interval hold a planted step, where one is reported near to it."""
    rng = np.random.default_rng(seed)
    size = float(rng.choice([0.03, 0.05, 0.1, 0.2]) * rng.choice([-1, 1]))
    place = int(rng.integers(10, NIGHTS - 10))
    logs = noise(kind, NIGHTS, rng)
    logs[place:] += math.log1p(size)
    near = [point for point in steps_of(100 * np.exp(logs)) if abs(point.index - place) <= 8]
    if not near:
        return None, None
    return place in near[0].places, near[0].low <= size <= near[0].high


def early(before: int, seed: int) -> tuple[bool | None, bool | None]:
    """Whether a step of 5 % at noise of 0.5 % or more is dated to its night after so few nights, and whether
    its set of places holds the night; None where it is not reported."""
    told, right, held = early_step(before, 0.01 if seed % 2 else 0.005, (0.05, 0.08, 0.14), seed)
    return (right, held) if told else (None, None)


def false_discovery(kind: str, fdr: float, seed: int) -> tuple[bool]:
    """Whether one of the series reported of forty, drawn at random, is unchanged; half of them changed."""
    rng = np.random.default_rng(seed)
    series, changed = [], set()
    for key in map(str, range(40)):
        logs = noise(kind, NIGHTS, rng)
        if rng.random() < 0.5:
            logs[rng.integers(6, NIGHTS - 6) :] += math.log1p(rng.choice([0.03, 0.05, 0.1]))
            changed.add(key)
        series.append(series_of(100 * np.exp(logs), key))
    alerts = detect_all(series, fdr).alerts
    reported = sorted({point.key for point in alerts if point.shape != "transient"})
    return (bool(reported) and str(rng.choice(reported)) not in changed,)


EXPERIMENTS = (
    *(
        Experiment(
            f"{kind}, {nights} nights, unchanged",
            1000,
            partial(unchanged, kind, nights),
            (Bar("reported", "at most", 0.01),),
        )
        for kind in ("gauss", "laplace", "t3", "ar0.5", "outliers", "unequal")
        for nights in (30, 100)
    ),
    Experiment("49 mornings, unchanged", 300, ever, (Bar("ever reported", "at most", ONLINE),)),
    *(
        Experiment(
            f"step of {step:.0%}, night after night",
            200,
            partial(found, step, within),
            (Bar("found", "at least", 0.9), Bar(f"of these within {within} nights", "at least", 0.5)),
        )
        for step, within in ((0.10, 2), (0.05, 5))
    ),
    *(
        Experiment(
            f"step in {kind}",
            600,
            partial(placed, kind),
            (
                Bar("set of places holds it", "at least", 0.95),
                Bar("interval of the size holds it", "at least", 0.95),
            ),
        )
        for kind in ("gauss", "t3")
    ),
    *(
        Experiment(
            f"step after {before} nights",
            400,
            partial(early, before),
            (Bar("on its night", "at least", 0.95), Bar("set of places holds it", "at least", 0.95)),
        )
        for before in EARLY
    ),
    *(
        Experiment(
            f"40 series of {kind} at a rate of 5 %",
            200,
            partial(false_discovery, kind, 0.05),
            (Bar("false among those reported", "at most", 0.05),),
        )
        for kind in ("gauss", "t3", "ar0.5")
    ),
)
