"""perfbisect's detector beside Apache Otava's on the same series: F1, unchanged series with an alarm, delay.

    pip install --no-deps apache-otava==0.8.0
    python -m scripts.detection_peers --data ../shared/data --series 100 --seed 20261126

Otava pins an older numpy, which its analysis does not need: hence ``--no-deps``. Without it its rows are left
out; without the measured series, theirs. A change is right within two nights. Intervals are of 95 %: of F1
and of the median delay by a bootstrap over series, of shares by Clopper and Pearson.
docs/method/detection.md reads the tables.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from perfbisect.series.detection.model import ALPHA
from scripts.bars import bounds
from scripts.detection import SETS, noise, rows, steps_of, unplanted
from scripts.nightly_rules import NEAR, NIGHTS, alarms_ever, nights_until, simulated
from scripts.simulation import SHARED, parser, print_head, print_row

Detector = Callable[[Sequence[float]], Sequence[int]]
"""Values of a series -> the first night of each new level."""


def perfbisect(values: Sequence[float], rate: float = ALPHA) -> Sequence[int]:
    return [point.index for point in steps_of(values, rate)]


def otava(values: Sequence[float]) -> Sequence[int]:
    """With the package's defaults: windows of 50 nights, p of at most 0.001, any size."""
    package: Any = importlib.import_module("otava.analysis")
    points, _ = package.compute_change_points(list(map(float, values)))
    return [int(point.index) for point in points]


DETECTORS: dict[str, Detector] = {
    "perfbisect": perfbisect,
    "perfbisect at a rate of 0.01 %": partial(perfbisect, rate=0.0001),
    "Apache Otava": otava,
}

KINDS = ("gauss", "t3", "ar0.5", "outliers")
"""Noise of the generated series, of about 2 %."""

SIZES = (0.03, 0.05, 0.10, 0.20)
"""Steps that are planted here, of either sign."""

EDGE, APART = 6, 10
"""Nights of the first and the last level at least, and of one between two steps."""

RESAMPLES = 1000


@dataclass(frozen=True)
class Planted:
    """A series, and the first nights of its new levels."""

    values: Sequence[float]
    places: Sequence[int] = ()


def plant(values: Sequence[float], rng: np.random.Generator) -> Planted:
    """The series with none, one or two steps, equally likely."""
    count = int(rng.integers(3))
    places = [0, 0]
    while len(places) != count or any(b - a < APART for a, b in pairwise(places)):
        places = sorted(int(p) for p in rng.integers(EDGE, len(values) - EDGE + 1, size=count))
    changed = np.array(values, float)
    for place in places:
        changed[place:] *= 1 + float(rng.choice(SIZES) * rng.choice([-1, 1]))
    return Planted(changed.tolist(), places)


def sets(data: Path, count: int, seed: int) -> Iterator[tuple[str, list[Planted], list[Sequence[float]]]]:
    """Name, series with steps in some, and unchanged series of each set."""
    if (data / "series").is_dir():
        for name in SETS:
            labelled = rows(data, name)
            yield (
                name,
                [Planted(row["values"], row["truth"]) for row in labelled],
                list(map(unplanted, labelled)),
            )
        # In the other direction of time these windows are new to whatever was chosen by the labelled ones.
        rng = np.random.default_rng(seed)
        windows = [unplanted(row)[::-1] for row in rows(data, "contiguous")]
        yield "contiguous, reversed", [plant(window, rng) for window in windows], list(windows)
    for kind in KINDS:
        rng = np.random.default_rng([seed, sum(map(ord, kind))])
        made = [(100 * np.exp(noise(kind, NIGHTS, rng))).tolist() for _ in range(count)]
        yield f"generated, {kind}", [plant(values, rng) for values in made], made


def matches(detector: Detector, series: Planted) -> tuple[int, int, int]:
    """Changes found, false ones, missed ones. Places are far apart: no change is near to two of them."""
    reported = detector(series.values)
    found = sum(any(abs(night - place) <= NEAR for night in reported) for place in series.places)
    return found, len(reported) - found, len(series.places) - found


def f1(counts: np.ndarray) -> float:
    """Of rows of :func:`matches`."""
    found, false, missed = counts.sum(axis=0)
    return float(2 * found / max(1, 2 * found + false + missed))


def median(nights: np.ndarray) -> float:
    """One of the values, so that a change that was never seen may count as infinitely late."""
    return float(np.quantile(nights, 0.5, method="inverted_cdf"))


def with_interval(values: np.ndarray, statistic: Callable[[np.ndarray], float], digits: int) -> str:
    """The statistic of the series, and its bootstrap interval."""
    rng = np.random.default_rng(0)
    draws = [statistic(values[rng.integers(len(values), size=len(values))]) for _ in range(RESAMPLES)]
    low, high = np.quantile(draws, (0.025, 0.975), method="inverted_cdf")
    return f"{statistic(values):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def share(flags: Sequence[bool]) -> str:
    """Per cent of flags that are set, and its interval."""
    low, high = (100 * bound for bound in bounds(sum(flags), len(flags), 0.025))
    return f"{100 * sum(flags) / len(flags):.1f} % ({low:.1f} to {high:.1f})"


def is_reported(detector: Detector, values: Sequence[float], since: int) -> bool:
    """Whether a change is reported since a night, or near to it."""
    return any(night >= since - NEAR for night in detector(values))


def delays(detector: Detector, series: Sequence[Sequence[float]]) -> Sequence[str]:
    """Share of unchanged series that ever alarm; of steps of 5 and 10 % nights until reported, and missed."""
    alarm = partial(is_reported, detector)
    cells = [share([alarms_ever(alarm, values) for values in series])]
    for step in (0.05, 0.10):
        nights = np.array([nights_until(alarm, values, step) or math.inf for values in series])
        cells += [with_interval(nights, median, 0), share(np.isinf(nights).tolist())]
    return cells


def accuracy_table(detectors: Mapping[str, Detector], data: Path, count: int, seed: int) -> None:
    print_head("series", "detector", "P", "R", "F1", "unchanged with an alarm")
    for name, changed, quiet in sets(data, count, seed):
        for who, detector in detectors.items():
            counts = np.array([matches(detector, series) for series in changed])
            found, false, missed = counts.sum(axis=0)
            ratios = [f"{found / max(1, found + other):.2f}" for other in (false, missed)]
            alarms = share([bool(detector(values)) for values in quiet])
            print_row([name, who, *ratios, with_interval(counts, f1, 2), alarms])


def delay_table(detectors: Mapping[str, Detector], count: int, seed: int) -> None:
    print()
    steps = [f"step of {step}: {what}" for step in ("5 %", "10 %") for what in ("median nights", "missed")]
    print_head("detector", "unchanged, ever an alarm in 49 nights", *steps)
    series = simulated(count, seed)
    for who, detector in detectors.items():
        print_row([who, *delays(detector, series)])


def main(argv: list[str] | None = None) -> int:
    """Print the tables; returns the exit code."""
    made = parser(__doc__)
    made.add_argument("--data", type=Path, default=SHARED / "data", help="the folder that holds series/")
    made.add_argument("--series", type=int, default=100, help="generated ones of each kind")
    made.add_argument("--seed", type=int, default=20261126)
    options = made.parse_args(argv)
    detectors = dict(DETECTORS)
    if importlib.util.find_spec("otava") is None:
        print("Apache Otava is not installed: its rows are left out", file=sys.stderr)
        del detectors["Apache Otava"]
    accuracy_table(detectors, options.data, options.series, options.seed)
    delay_table(detectors, options.series, options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
