"""Change points of one series of nights: how sure, since when, by how much, and of what shape.

``detect`` judges one series at a stated rate of false alarms; ``series/detection/fdr.py`` many together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import ClassVar, Literal

import numpy as np
from pydantic import ConfigDict
from scipy.special import bdtr, stdtr

from perfbisect.series.detection.likelihood import (
    FLOOR,
    INNER,
    LEAST,
    OUTER,
    least_scale,
    smooth,
    step_density,
)
from perfbisect.series.detection.machines import machine_offsets
from perfbisect.series.detection.search import LevelChange, SearchResult, clip_outliers, place_prior, search
from perfbisect.stats.robust import Array
from perfbisect.stats.two_sample import Scale

Shape = Literal["step", "drift", "transient"]

Test = Literal["level", "transient"]
"""What a change was found by: evidence for another level, or nights far from theirs."""

Size = tuple[float, float, float]
"""A step with its interval, in logs (or differences of shares)."""

ALPHA = 0.01  # share of series without a change in which ``detect`` reports one
SET = 0.95  # probability of the set of places, and of the interval of a size and of a level
FEWEST = INNER + OUTER  # nights below which nothing can be judged
WEEK = 7  # days after which a change that was undone is two changes; undone within them, a transient

WIDTH = 2.5  # standard errors of the size of a drift or transient that make its interval
_SHARP = 2  # places of a change so sure that no drift is fitted
_TINY = 1e-12
_POWER = 0.84  # standard normal quantile of four cases in five
_UNKNOWN_NOISE = 1.5  # log evidence that not knowing the noise costs a step, by simulation

SAFETY = 0.09
"""p of an evidence E is SAFETY / E. Markov's inequality alone gives 1 / E; that far fewer series without a
change reach E is counted in docs/method/detection.md."""

RAMP = 8  # nights that a drift must take at least: a shorter one cannot be told from a step
_DECISIVE = 3.0  # log likelihood by which a drift must fit better than steps
_KNOTS = 40  # nights at which a drift may begin or end: all, or that many over a long stretch
LONGEST = INNER - 1  # nights that a transient may last
_NOTABLE = 4.0  # scales from its level beyond which a night may belong to a transient
_WILD = 5.0  # scales beyond which a night shows that this series has wild nights
_NEAR = 15  # nights on either side that tell the scale around a night
_FEW = 6.0  # A scale that n nights tell is taken to be wider by the share _FEW / n
GAUSSIAN = 1.4826  # standard deviation of Gaussian values over their median absolute deviation
_T3_MAD = 1.134  # scale of a Student-t3 as the median absolute deviation estimates it


RefusalKind = Literal["few nights", "not finite", "not positive", "covariate", "median again", "derived"]


@dataclass(frozen=True)
class SeriesRefusal:
    """Why a series is not judged. ``nights``: too few; ``of``: metrics that it follows from."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", json_schema_serialization_defaults_required=True
    )

    kind: RefusalKind
    nights: int | None = None
    of: tuple[str, ...] = ()


@dataclass(frozen=True)
class SeriesValues:
    """The values of one metric of one cell, one a night, oldest first.

    ``values``: positive, or shares where ``absolute``. ``nights``: days since any fixed day, ascending.
    ``sign``: +1 where a larger value is worse. ``min_effect``: a ratio (0.03), a difference where
    ``absolute``. ``group``: the kind of server start: series of one group are one vote.
    ``machines``: the one that measured each night, empty where it is not known; none at all: as if all were.
    """

    key: str
    values: tuple[float, ...]
    nights: tuple[int, ...]
    sign: int = 1
    min_effect: float = 0.0
    group: str = ""
    absolute: bool = False
    machines: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.machines and len(self.machines) != len(self.nights):
            raise ValueError(f"{self.key}: {len(self.machines)} machines of {len(self.nights)} nights")
        if len(self.values) != len(self.nights):
            raise ValueError(f"{self.key}: {len(self.values)} values of {len(self.nights)} nights")
        if np.any(np.diff(self.nights) <= 0):
            raise ValueError(f"{self.key}: nights must ascend")

    @property
    def refusal(self) -> SeriesRefusal | None:
        """Why it cannot be judged; None where it can."""
        if len(self.values) < FEWEST:
            return SeriesRefusal("few nights", len(self.values))
        if not np.all(np.isfinite(self.values)):
            return SeriesRefusal("not finite")
        if not self.absolute and min(self.values) <= 0:
            return SeriesRefusal("not positive")
        return None

    @property
    def signed(self) -> Array:
        """Logs, of shares the shares themselves; larger is worse."""
        return self.scale.signed(np.array(self.values, float))

    @property
    def least_scale(self) -> float:
        """The smallest scale of a night, in logs (or a difference of shares)."""
        return FLOOR if self.absolute else least_scale(np.array(self.values, float))

    @property
    def scale(self) -> Scale:
        return Scale(self.sign, self.absolute)


@dataclass(frozen=True)
class ChangePoint:
    """One change in one series; nights are indices.

    ``index``: the first night of the new level, drift or transient. ``until``: the first night after a drift
    or transient; None of a step, and where it has not ended. ``places``: the indices that hold the first
    night with a probability of :data:`SET`. ``effect``: new over old level less 1 (a difference where the
    series is absolute), ``low`` to ``high`` its interval. ``p``: how often a series of that length without a
    change shows one so clear at any place; ``local``: at this one. ``is_relevant``: at least the smallest
    relevant effect. ``test``: what it was found by; a level undone within a week is a transient, too.
    """

    key: str
    index: int
    until: int | None
    places: tuple[int, ...]
    shape: Shape
    effect: float
    low: float
    high: float
    p: float
    local: float
    is_relevant: bool
    test: Test = "level"


@dataclass(frozen=True)
class JudgedSeries:
    """The changes of a series and what its nights say besides.

    ``p``: the smallest of each test. ``smallest``: the step in its middle that would be detected with a
    power of 0.8, a ratio (a difference where absolute). ``evidence``: log e(k) of a change before night k,
    lasting or not [n]; 0 where it is unknown.
    """

    points: tuple[ChangePoint, ...]
    p: Mapping[Test, float]
    smallest: float
    evidence: Array


def p_value(log_evidence: float) -> float:
    """The p of an evidence for a change anywhere in a series."""
    return min(1.0, SAFETY * math.exp(-min(log_evidence, 700.0)))


def e_value(p: float) -> float:
    """log of the e-value of a p: the mean of k p^(k - 1) over k in (0, 1) (Vovk, Wang, *Annals of Statistics*
    49, 2021)."""
    log = math.log(min(max(p, _TINY), 1 - 1e-6))
    return math.log(-math.expm1(log) + math.exp(log) * log) - log - 2 * math.log(-log)


def needed(alpha: float) -> float:
    """The log evidence whose p is ``alpha``."""
    return math.log(SAFETY / alpha)


def detect(series: SeriesValues, alpha: float = ALPHA) -> tuple[ChangePoint, ...]:
    """The changes of one series at the rate ``alpha``, ascending, relevant or not."""
    return judge_series(series, alpha).points


def judge_series(series: SeriesValues, alpha: float = ALPHA) -> JudgedSeries:
    """The changes of one series at the rate ``alpha``, with its evidence.

    :raises ValueError: the series cannot be judged; :attr:`SeriesValues.refusal` says why.
    """
    if series.refusal:
        raise ValueError(f"{series.key} is not judged: {series.refusal.kind}")
    values, least = series.signed, series.least_scale
    # Before any level is looked for: hosts 8 % apart showed steps in up to 85 % of unchanged series.
    values = values - machine_offsets(values, series.machines)
    levels = search(values, needed(alpha), least)
    passing = transients(values, tuple(change.index for change in levels.changes), least)
    evidence = levels.evidence.copy()
    points = _level_changes(series, values, levels)
    for x in passing:
        local = x.p / len(values)
        # A transient counts for joint events as much as its p as an e-value: its likelihood is another
        # model.
        evidence[x.begin] = max(evidence[x.begin], e_value(local))
        if x.p <= alpha:
            until = x.end if x.end < len(series.values) else None
            point = _point(series, x.begin, until, (x.begin,), "transient", x.size, x.p, local)
            points.append(replace(point, test="transient"))
    p: dict[Test, float] = {
        "level": p_value(levels.best),
        "transient": min((x.p for x in passing), default=1.0),
    }
    points.sort(key=lambda point: point.index)
    return JudgedSeries(tuple(points), p, smallest(series, levels.scale, alpha), evidence)


def smallest(series: SeriesValues, scale: float, alpha: float = ALPHA) -> float:
    """The smallest step in the middle of a series that is detected with a power of 0.8 at the rate ``alpha``.

    The noise of a night has that ``scale`` (in logs), is Gaussian and has no memory. Where the scale has to
    be estimated, the log evidence of a step of z standard errors at a known place is about
    (n - 2) / 2 log(1 + z² / (n - 2)), less the price of its size and what not knowing the noise's memory and
    tails costs; a place costs what its prior is below one.
    """
    n = len(series.values)
    free = n - 2
    error = scale * math.sqrt(n / ((n // 2) * (n - n // 2)))
    fixed = needed(alpha) - float(place_prior(n)[n // 2]) + _UNKNOWN_NOISE
    step = 4.0 * error
    for _ in range(20):
        # Just above the smallest step of the prior, whose density below it is zero.
        density = step_density(max(step, 1.001 * LEAST * scale), scale)
        price = max(0.0, fixed - math.log(density * error * math.sqrt(2 * math.pi)))
        step = error * (math.sqrt(free * math.expm1(2 * price / free)) + _POWER)
    return step if series.absolute else math.expm1(step)


def _level_changes(series: SeriesValues, values: Array, levels: SearchResult) -> list[ChangePoint]:
    """Steps, the drifts that runs of steps in one direction were, and the transients that were undone."""
    changes = levels.changes
    clipped = clip_outliers(values, levels.scale)
    points: list[ChangePoint] = []
    i = 0
    while i < len(changes):
        if _is_undone(series, changes[i : i + 2]):
            points.append(_step(series, *changes[i : i + 2]))
            i += 2
            continue
        j = i + 1
        while j < len(changes) and changes[j].size[0] * changes[i].size[0] > 0:
            # A step that is soon undone does not belong to the drift before it.
            if _is_undone(series, changes[j : j + 2]):
                break
            j += 1
        drift = _drift(series, clipped, changes[i:j])
        points += [drift] if drift else [_step(series, change) for change in changes[i:j]]
        i = j
    return points


def _is_undone(series: SeriesValues, changes: Sequence[LevelChange]) -> bool:
    """Whether the second of two changes took back, soon, as much as the first may have been."""
    if len(changes) < 2:
        return False
    (_, low, high), (back, _, _) = (change.size for change in changes)
    days = series.nights[changes[1].index] - series.nights[changes[0].index]
    # In days and not in nights: missing nights do not make a transient of a lasting change.
    return days <= WEEK and low <= -back <= high


def _step(series: SeriesValues, change: LevelChange, undone: LevelChange | None = None) -> ChangePoint:
    """A change that lasts, or the transient that ended with its undoing."""
    places = tuple(int(k) + change.offset for k in change.evidence.likely(SET))
    best = max(change.log_evidence, undone.log_evidence) if undone else change.log_evidence
    until = undone.index if undone else None
    p = p_value(best), p_value(change.evidence.at(change.place))
    shape: Shape = "transient" if undone else "step"
    return _point(series, change.index, until, places, shape, change.size, *p)


def _drift(series: SeriesValues, clipped: Array, run: Sequence[LevelChange]) -> ChangePoint | None:
    """The drift that fits better than a run of steps in one direction."""
    # A single step that is dated to a night or two is not a drift.
    if len(run) == 1 and len(run[0].evidence.likely(SET)) <= _SHARP:
        return None
    start, end = run[0].offset + run[0].start, run[-1].offset + run[-1].end
    ramp = fit_ramp(clipped[start:end], tuple(change.index - start for change in run))
    if ramp is None:
        return None
    p = min(p_value(change.log_evidence) for change in run)
    begin, last = start + ramp.begin, start + ramp.end
    # A drift that reaches the end of the series may go on.
    until = last if last < len(series.values) - 1 else None
    return _point(series, begin, until, tuple(range(begin, last + 1)), "drift", ramp.size, p, p)


def _point(
    series: SeriesValues,
    index: int,
    until: int | None,
    places: tuple[int, ...],
    shape: Shape,
    step: Size,
    p: float,
    local: float,
) -> ChangePoint:
    effect, *ends = (series.scale.effect(x) for x in step)
    return ChangePoint(
        key=series.key,
        index=index,
        until=until,
        places=places,
        shape=shape,
        effect=effect,
        low=min(ends),
        high=max(ends),
        p=p,
        local=min(p, local),
        is_relevant=abs(effect) >= series.min_effect,
    )


@dataclass(frozen=True)
class Excursion:
    """A drift or transient: ``begin`` is its first night, ``end`` the first at the level after it.

    ``step``: in logs, with its standard ``error``. ``p``: probability of such a transient anywhere in a
    series of that length without one.
    """

    begin: int
    end: int
    step: float
    error: float
    p: float = 1.0

    @property
    def size(self) -> Size:
        return self.step, self.step - WIDTH * self.error, self.step + WIDTH * self.error


def fit_ramp(values: Array, steps: tuple[int, ...]) -> Excursion | None:
    """The drift in ``values`` (signed logs, wild nights cut) that fits decisively better than ``steps``.

    Least squares with the noise profiled out; a place costs log m, a level half of it (Schwarz), and gains
    count less where one night remembers the one before: (1 - r) / (1 + r) of m nights are independent.
    """
    m = len(values)
    if m < RAMP + 4:
        return None
    levels = np.split(values, steps)
    rest = np.concatenate([part - part.mean() for part in levels])
    square = max(float(rest @ rest), 1e-300)
    # Noise with memory looks like a path: m nights with memory r count as (1 - r) / (1 + r) m.
    memory = float(np.clip(rest[1:] @ rest[:-1] / square, 0.0, 0.9))
    knots = np.unique(np.linspace(0, m - 1, min(m, _KNOTS)).round().astype(int))
    low, high = (x.ravel() for x in np.meshgrid(knots, knots, indexing="ij"))
    long = high - low >= RAMP
    low, high = low[long], high[long]
    path = np.clip((np.arange(m) - low[:, None]) / (high - low)[:, None], 0.0, 1.0)
    path = path - path.mean(axis=1, keepdims=True)
    power = (path * path).sum(axis=1)
    slope = (path @ values) / power
    around = values - values.mean()
    squares = np.maximum(around @ around - slope * slope * power, 1e-300)
    best = int(np.argmin(squares))
    gain = 0.5 * m * (1 - memory) / (1 + memory) * math.log(square / float(squares[best]))
    count = len(steps)
    # Schwarz: a path has two places and one size, each step has one of both.
    price = (2 - count) * math.log(m) + 0.5 * (1 - count) * math.log(m)
    if gain - price < _DECISIVE:
        return None
    error = math.sqrt(float(squares[best]) / max(1, m - 4) / float(power[best]) * (1 + memory) / (1 - memory))
    return Excursion(int(low[best]) + 1, int(high[best]), float(slope[best]), error)


def transients(values: Array, changes: tuple[int, ...], least: float = FLOOR) -> tuple[Excursion, ...]:
    """Runs of one to :data:`LONGEST` nights apart from the level between ``changes``, with their p.

    A night's p is the tail of a Student-t3 at its distance, and besides the share of the other nights of the
    series that are far out: where wild nights are usual, one more is no news. Distances are in scales of the
    other nights around it, or of all others where that is larger, and at least ``least``.
    """
    n = len(values)
    parts = np.split(values, changes)
    rest = np.concatenate([part - np.median(part) for part in parts])
    away = np.abs(rest)
    # The larger of near and overall noise: after a quiet stretch a usual night is not far away.
    usual = np.maximum(np.maximum(smooth(away, _NEAR), np.median(away)), FLOOR)
    far = away > _NOTABLE * np.maximum(GAUSSIAN * usual, least)
    out = []
    begin = 0
    while begin < n:
        end = begin + 1
        if far[begin]:
            while end < n and end not in changes and far[end] and rest[end] * rest[begin] > 0:
                end += 1
            if end - begin <= LONGEST:
                out.append(_transient(rest, begin, end, least))
        begin = end
    return tuple(out)


def _transient(rest: Array, begin: int, end: int, least: float) -> Excursion:
    n, run, away = len(rest), slice(begin, end), np.abs(rest)
    others = np.delete(away, run)
    near = np.concatenate([away[max(0, begin - _NEAR) : begin], away[end : end + _NEAR]])
    # The mean bounds it where most values are equal and the median distance is zero.
    scale = max(float(np.median(others)), float(np.median(near)), 0.25 * float(np.mean(others)), FLOOR)
    scale = max(scale * (GAUSSIAN * (1 + _FEW / n)), least)
    # Where a tenth of all nights is far away, one more has at least this p, whatever its distance.
    wild = float(np.sum(others > _WILD * scale)) / n
    each = np.minimum(1.0, 2 * stdtr(3, -away[run] / scale / _T3_MAD) + wild)
    # Bonferroni over n first nights, both directions.
    p = min(1.0, n * 2.0 * float(np.prod(each / 2)))
    # 1.6: the variance of a median over that of a mean is pi / 2 for Gaussian nights.
    error = scale * math.sqrt(1 / (end - begin) + 1.6 / n)
    return Excursion(begin, end, float(np.median(rest[run])), error, p)


@dataclass(frozen=True)
class SeriesLevel:
    """The level of a series from point ``first`` to point ``last`` (both included).

    ``value``: the median. ``low`` to ``high`` holds the median of all such nights, whatever their
    distribution, with a probability of at least :data:`SET`; of fewer than six nights these are the least
    and the largest. ``spread``: the robust standard deviation over the value; None of a single night or a
    value of zero.
    """

    first: int
    last: int
    value: float
    low: float
    high: float
    spread: float | None


def levels(values: Sequence[float], cuts: Iterable[int]) -> tuple[SeriesLevel, ...]:
    """The levels of a series; ``cuts`` are the first points of new ones (indices)."""
    edges = sorted({0, len(values), *cuts})
    return tuple(_level(values, first, end) for first, end in pairwise(edges))


def _level(values: Sequence[float], first: int, end: int) -> SeriesLevel:
    ordered = sorted(values[first:end])
    middle = median(ordered)
    # Each value is as likely below the median as above it: the number of those below is binomial.
    outside = 2 * bdtr(np.arange(len(ordered) // 2 + 1), len(ordered), 0.5) <= 1 - SET
    out = max(0, int(outside.sum()) - 1)
    apart = GAUSSIAN * median(abs(value - middle) for value in ordered)
    known = len(ordered) > 1 and middle != 0
    return SeriesLevel(
        first, end - 1, middle, ordered[out], ordered[-1 - out], apart / abs(middle) if known else None
    )
