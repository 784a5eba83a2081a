"""Differences of functions between two sides, each of a few profile launches.

The unit of replication is the launch. Two of them show little of their own noise, so it is shared: the
relative noise between launches of one side is pooled over all functions with a prior, and a function's own
adds to it (a moderated t test after Smyth, doi:10.2202/1544-6115.1027). Within a launch, counting noise and
the scatter of its windows count, whichever is larger. A bootstrap over two launches has three resamples.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, variance
from typing import Final, Literal, TypeVar

import numpy as np

from perfbisect.explain.diff import DiffPlace
from perfbisect.explain.stacks import (
    MAIN_THREAD,
    FunctionKey,
    StackSample,
    process_role,
    working,
)
from perfbisect.jobs.documents import Document

KeyT = TypeVar("KeyT", bound=Hashable)

FALSE_DISCOVERY_RATE: Final = 0.05
RELEVANT_SHARE: Final = 0.01
"""Growth that counts, at least: share of the busy time of a step."""

LEAST_SAMPLES: Final = 10
"""Samples of a function on one side, at least, for a test."""

_PRIOR_NOISE = 0.10
"""Relative noise of a function's time between launches, before any launch is seen."""

_PRIOR_WEIGHT = 4.0
"""Degrees of freedom of the prior; functions of a launch move together, many count no more than twice it."""

_LEAST_NOISE = 0.02
_CHI_MEDIAN = 0.4549
"""Median of the chi-squared distribution with one degree of freedom."""

_LEVELS = 3
"""Callers above a function below which its time may have moved."""


@dataclass(frozen=True)
class ProfileWindow:
    """Samples of ``seconds`` of one launch, in which the engine made ``steps`` steps."""

    samples: tuple[StackSample, ...]
    seconds: float
    steps: float

    @property
    def milliseconds(self) -> float:
        """Of one sample, per step; a main thread is in every sampling, idle or not."""
        seen: Counter[str] = Counter()
        for sample in self.samples:
            if sample.thread == MAIN_THREAD:
                seen[sample.process] += sample.count
        samplings = max(seen.values(), default=0)
        # py-spy samples all threads of a process at once: the main thread counts how often.
        return self.seconds * 1000.0 / samplings / self.steps if samplings and self.steps > 0 else math.nan


SampledLaunch = tuple[ProfileWindow, ...]
"""A profile launch: what was sampled in it."""


@dataclass(frozen=True)
class LaunchReading:
    """A time of one launch in ms a step. ``variance``: of its sampling; ``samples``: behind it."""

    mean: float
    variance: float
    samples: float = math.inf


class TimeDifference(Document):
    """A time on both sides in ms a step, with the 95 % interval of the difference."""

    before: float
    after: float
    difference: float
    low: float
    high: float


class FunctionGrowth(TimeDifference):
    """A function with its own ms a step on both sides.

    ``growth``: the difference without what came from ``moved_from``, others below one caller. ``q``: the
    false discovery rate at which it counts. ``place``: where it meets the diff, empty for one that did not
    grow beyond chance.
    """

    path: str
    function: str
    q: float
    growth: float
    significant: bool
    new: bool
    moved_from: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()
    place: DiffPlace | Literal[""] = ""

    @property
    def key(self) -> FunctionKey:
        return self.path, self.function


@dataclass(frozen=True)
class FunctionComparison:
    """Own times of all functions that work, on both sides, the largest growth first.

    ``total``: of all of them together; ``launches``: of each side.
    """

    functions: tuple[FunctionGrowth, ...]
    total: TimeDifference
    launches: tuple[int, int]

    @property
    def grown(self) -> tuple[FunctionGrowth, ...]:
        """Functions that grew beyond chance and by a share that counts, the largest growth first."""
        least = RELEVANT_SHARE * self.total.before
        found = [f for f in self.functions if f.significant and f.growth > least]
        return tuple(sorted(found, key=lambda f: (-f.growth, f.key)))

    def with_places(self, places: Mapping[FunctionKey, DiffPlace]) -> FunctionComparison:
        """With where functions that grew meet the diff."""
        rows = (row.model_copy(update={"place": places.get(row.key, "")}) for row in self.functions)
        return replace(self, functions=tuple(rows))


Reduce = Callable[[Sequence[StackSample]], Iterable[StackSample]]
"""Which samples are work, and which line they count for."""


def compare_functions(
    a: Sequence[SampledLaunch],
    b: Sequence[SampledLaunch],
    reduce_a: Reduce = working,
    reduce_b: Reduce = working,
) -> FunctionComparison:
    """Own time of each function on both sides.

    Raises:
        ValueError: a side has no launch, or a launch no sample or no step.
    """
    work = [[_work(launch, reduce) for launch in side] for side, reduce in ((a, reduce_a), (b, reduce_b))]
    if not all(work):
        raise ValueError("each side needs a profile launch")
    own = [[_readings(launch, _own) for launch in side] for side in work]
    sums = [[_readings(launch, lambda _: "total") for launch in side] for side in work]
    ((total, _),) = compare_times(sums[0], sums[1]).values()
    seen: tuple[Counter[FunctionKey], Counter[FunctionKey]] = (Counter(), Counter())
    processes: defaultdict[FunctionKey, set[str]] = defaultdict(set)
    for counts, side in zip(seen, work, strict=True):
        for sample in (sample for launch in side for window in launch for sample in window.samples):
            counts[_own(sample)] += sample.count
            processes[_own(sample)].add(process_role(sample.process))
    # A function that was hardly sampled can show nothing, and each test makes the correction stricter.
    tested = {
        key: found
        for key, found in compare_times(own[0], own[1]).items()
        if max(counts[key] for counts in seen) >= LEAST_SAMPLES
    }
    rates = false_discovery_rates(p for _, p in tested.values())
    rows = [
        FunctionGrowth(
            **dict(time),
            path=key[0],
            function=key[1],
            q=q,
            growth=time.difference,
            significant=q <= FALSE_DISCOVERY_RATE,
            new=not seen[0][key],
            processes=tuple(sorted(processes[key])),
        )
        for (key, (time, _)), q in zip(tested.items(), rates, strict=True)
    ]
    ranked = tuple(sorted(_with_moves(rows, *work), key=lambda row: (-row.growth, row.key)))
    return FunctionComparison(ranked, total, (len(a), len(b)))


def mean_times(
    side: Sequence[SampledLaunch], reduce: Reduce, name: Callable[[StackSample], KeyT]
) -> dict[KeyT, float]:
    """Mean over launches of ms a step, by what samples are named."""
    launches = [_readings(_work(launch, reduce), name) for launch in side]
    keys = dict.fromkeys(key for launch in launches for key in launch)
    return {key: fmean(launch[key].mean if key in launch else 0.0 for launch in launches) for key in keys}


def false_discovery_rates(probabilities: Iterable[float]) -> list[float]:
    """The smallest false discovery rate at which each difference is significant (Benjamini and Hochberg)."""
    from scipy.stats import false_discovery_control

    p = list(probabilities)
    return [float(rate) for rate in false_discovery_control(p)] if p else []


def compare_times(
    a: Sequence[Mapping[KeyT, LaunchReading]], b: Sequence[Mapping[KeyT, LaunchReading]]
) -> dict[KeyT, tuple[TimeDifference, float]]:
    """Differences of times, each with the probability of one as large by chance.

    What a launch does not have took no time in it.
    """
    # Imported here: scipy.stats takes 60 MB and a second, and the status of every job imports this module.
    from scipy.stats import t

    keys = list(dict.fromkeys(key for launch in (*a, *b) for key in launch))
    noise = launch_noise((a, b))
    sides = [[_side([_reading(launch, key) for launch in side], noise) for key in keys] for side in (a, b)]
    # A moderated t: the prior of the noise counts as so many degrees of freedom more.
    degrees = _PRIOR_WEIGHT + len(a) + len(b) - 2
    means = [np.array([mean for mean, _ in side]) for side in sides]
    spread = np.sqrt([left[1] + right[1] for left, right in zip(*sides, strict=True)])
    difference = means[1] - means[0]
    reach = t.ppf(0.975, degrees) * spread
    p = np.minimum(1.0, 2 * t.sf(np.abs(difference) / spread, degrees))
    columns = (means[0], means[1], difference, difference - reach, difference + reach, p)
    found = {}
    for key, row in zip(keys, zip(*columns, strict=True), strict=True):
        *times, chance = map(float, row)
        found[key] = TimeDifference(**dict(zip(TimeDifference.model_fields, times, strict=True))), chance
    return found


def launch_noise(sides: Sequence[Sequence[Mapping[KeyT, LaunchReading]]]) -> float:
    """Relative noise between launches of one side, pooled over what was sampled often enough."""
    squares = []
    for side in sides:
        for key in dict.fromkeys(key for launch in side for key in launch):
            readings = [_reading(launch, key) for launch in side]
            mean = fmean(reading.mean for reading in readings)
            if len(readings) < 2 or mean <= 0 or min(r.samples for r in readings) < LEAST_SAMPLES:
                continue
            # Scatter from sampling alone is not noise between launches.
            sampling = fmean(reading.variance for reading in readings)
            squares.append((variance(r.mean for r in readings) - sampling) / mean**2)
    if not squares:
        return _PRIOR_NOISE
    # The median: one function that jumps would dominate the mean of squares.
    seen = max(0.0, median(squares) / _CHI_MEDIAN)
    weight = min(float(len(squares)), 2 * _PRIOR_WEIGHT)
    return max(
        _LEAST_NOISE, math.sqrt((_PRIOR_WEIGHT * _PRIOR_NOISE**2 + weight * seen) / (_PRIOR_WEIGHT + weight))
    )


def _reading(launch: Mapping[KeyT, LaunchReading], key: KeyT) -> LaunchReading:
    """What a launch does not have was seen less than once."""
    found = launch.get(key)
    if found is not None:
        return found
    one = min((own.mean / own.samples for own in launch.values() if own.samples), default=0.0)
    # Never zero: differences are divided by their spread.
    return LaunchReading(0.0, max(one, 1e-9) ** 2, 0.0)


def _side(readings: Sequence[LaunchReading], noise: float) -> tuple[float, float]:
    """Mean of a side, and its variance."""
    mean = fmean(reading.mean for reading in readings)
    expected = fmean(reading.variance for reading in readings) + (noise * mean) ** 2
    own = len(readings) - 1
    scatter = variance(reading.mean for reading in readings) if own else 0.0
    pooled = (_PRIOR_WEIGHT * expected + own * scatter) / (_PRIOR_WEIGHT + own)
    # That a few launches agree by chance is no knowledge.
    return mean, max(pooled, expected if own < 3 else 0.0) / len(readings)


@dataclass(frozen=True)
class _Work:
    """Working samples of a window, and the ms a step that one of them stands for."""

    samples: tuple[StackSample, ...]
    milliseconds: float
    steps: float


def _work(launch: SampledLaunch, reduce: Reduce) -> tuple[_Work, ...]:
    windows = tuple(_Work(tuple(reduce(w.samples)), w.milliseconds, w.steps) for w in launch)
    if not windows or any(math.isnan(window.milliseconds) for window in windows):
        raise ValueError("a launch of a profile has no samples or no steps")
    return windows


def _own(sample: StackSample) -> FunctionKey:
    return sample.frames[-1].key


def _readings(launch: Sequence[_Work], name: Callable[[StackSample], KeyT]) -> dict[KeyT, LaunchReading]:
    """Times of one launch by what samples are named."""
    counts: defaultdict[KeyT, list[int]] = defaultdict(lambda: [0] * len(launch))
    for at, window in enumerate(launch):
        for sample in window.samples:
            counts[name(sample)][at] += sample.count
    steps = sum(window.steps for window in launch)
    readings = {}
    for key, seen in counts.items():
        each = [n * window.milliseconds for n, window in zip(seen, launch, strict=True)]
        spent = sum(own * window.steps for own, window in zip(each, launch, strict=True))
        # Counting noise: the variance of a Poisson count is the count.
        chance = sum(
            n * (window.milliseconds * window.steps) ** 2 for n, window in zip(seen, launch, strict=True)
        )
        # Two windows are too few to estimate their scatter.
        scatter = variance(each) / len(each) if len(each) > 2 else 0.0
        readings[key] = LaunchReading(spent / steps, max(chance / steps**2, scatter), sum(seen))
    return readings


def _with_moves(
    rows: Sequence[FunctionGrowth], a: Sequence[Sequence[_Work]], b: Sequence[Sequence[_Work]]
) -> tuple[FunctionGrowth, ...]:
    """Growth of a function that others below the same caller lost is moved, not new."""
    left = {row.key: -row.difference for row in rows if row.significant and row.difference < 0}
    if not left:
        return tuple(rows)
    before, after = _below(a), _below(b)
    moved: dict[FunctionKey, FunctionGrowth] = {}
    for row in sorted(rows, key=lambda row: -row.difference):
        key = row.key
        if not row.significant or row.difference <= 0:
            continue
        for caller in sorted((c for c in after if key in after[c]), key=lambda c: -after[c][key]):
            lost = {
                other: min(left[other], before[caller].get(other, 0.0) - after[caller].get(other, 0.0))
                for other in left
                if other in before.get(caller, {})
            }
            lost = {other: ms for other, ms in lost.items() if ms > 0}
            amount = min(row.difference, sum(lost.values()))
            if amount <= 0:
                continue
            part = amount / sum(lost.values())
            for other, ms in lost.items():
                left[other] -= ms * part
            sources = sorted(lost, key=lambda other: (-lost[other], other))
            moved[key] = row.model_copy(
                update={
                    "growth": row.difference - amount,
                    "moved_from": tuple(f"{path} {name}" for path, name in sources),
                }
            )
            break
    return tuple(moved.get(row.key, row) for row in rows)


def _below(side: Sequence[Sequence[_Work]]) -> dict[FunctionKey, dict[FunctionKey, float]]:
    """Caller -> function -> its own time a step in stacks in which the caller is at most three levels up."""
    found: defaultdict[FunctionKey, defaultdict[FunctionKey, float]] = defaultdict(lambda: defaultdict(float))
    for launch in side:
        steps = sum(window.steps for window in launch) * len(side)
        for window in launch:
            for sample in window.samples:
                callers = {frame.key for frame in sample.frames[-1 - _LEVELS : -1]} - {_own(sample)}
                for caller in callers:
                    found[caller][_own(sample)] += sample.count * window.milliseconds * window.steps / steps
    return {caller: dict(own) for caller, own in found.items()}
