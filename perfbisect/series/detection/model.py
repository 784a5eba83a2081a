"""Where a series of nights changed: how sure, since when, by how much, and of what shape.

``detect`` judges one series at a stated rate of false alarms; ``series/detection/fdr.py`` many together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from perfbisect.series.detection.evidence import INNER, LAST, size
from perfbisect.series.detection.noise import LEAST, step_density
from perfbisect.series.detection.search import Found, Survey, calm, place_prior, survey
from perfbisect.series.detection.shapes import Ramp, Transient, ramp, transients
from perfbisect.stats.robust import Array
from perfbisect.stats.two_sample import Scale

Shape = Literal["step", "drift", "transient"]

ALPHA = 0.01
"""Share of series without a change in which ``detect`` tells one."""

SET = 0.95
"""Probability of the set of places and of the interval of the size."""

FEWEST = INNER + LAST
"""Nights below which nothing can be judged."""

_WIDE = 2.5
"""Standard errors of a drift's or a transient's size that make its interval: few nights tell them."""

WEEK = 7
"""Days after which a change that was undone is two changes; undone within them, a transient."""

_SHARP = 2
"""Places of a change so sure that no drift is asked for."""

_TINY = 1e-12

_POWER = 0.84
"""Standard normal quantile of four cases in five."""

_DOUBT = 1.5
"""log evidence that not knowing the noise costs a step in the middle of a series, by simulation."""

SAFETY = 0.09
"""p of an evidence E is SAFETY / E. Markov's inequality alone gives 1 / E; that far fewer series without a
change reach E is counted in docs/method/detection.md."""


@dataclass(frozen=True)
class SeriesValues:
    """The values of one metric of one cell, one a night, oldest first.

    :param values: in the metric's unit; positive, or shares where ``absolute``.
    :param nights: ordinal of each night (days since any fixed day), ascending; gaps are missing nights.
    :param sign: +1 where a larger value is worse, -1 where it is better.
    :param min_effect: smallest effect worth telling: a ratio (0.03), a difference where ``absolute``.
    :param group: the kind of server start that its values came from: series of one group are one vote.
    :param absolute: changes are differences and not ratios (shares, which may be zero).
    :raises ValueError: unlike numbers of values and nights, or nights that do not ascend.
    """

    key: str
    values: tuple[float, ...]
    nights: tuple[int, ...]
    sign: int = 1
    min_effect: float = 0.0
    group: str = ""
    absolute: bool = False

    def __post_init__(self) -> None:
        if len(self.values) != len(self.nights):
            raise ValueError(f"{self.key}: {len(self.values)} values of {len(self.nights)} nights")
        if np.any(np.diff(self.nights) <= 0):
            raise ValueError(f"{self.key}: nights must ascend")

    @property
    def refusal(self) -> str:
        """Why it cannot be judged; empty where it can."""
        if len(self.values) < FEWEST:
            return f"{len(self.values)} nights: at least {FEWEST} are needed"
        if not np.all(np.isfinite(self.values)):
            return "a value is not finite"
        if not self.absolute and min(self.values) <= 0:
            return "a value is not positive"
        return ""

    @property
    def signed(self) -> Array:
        """What is judged: the values on their :attr:`scale`."""
        return self.scale.signed(np.array(self.values, float))

    @property
    def scale(self) -> Scale:
        """Logs, of shares the shares themselves; larger is worse."""
        return Scale(self.sign, self.absolute)


@dataclass(frozen=True)
class ChangePoint:
    """One change in one series."""

    key: str
    index: int
    """The first night of the new level (of the drift, of the transient): an index into the series."""
    until: int | None
    """The first night at the new level after a drift, or back from a transient; None of a step, and where it
    has not ended."""
    places: tuple[int, ...]
    """The indices that hold the true first night with a probability of :data:`SET`, ascending."""
    window: tuple[int, int]
    """The last night surely before it and the first one surely after it: ordinals."""
    shape: Shape
    effect: float
    """New over old level, less 1 (0.05: 5 % more); a difference of shares where the series is absolute."""
    low: float
    high: float
    """Ends of the interval of the effect, of probability :data:`SET`."""
    worse: bool
    p: float
    """Probability that a series of that length without a change shows one so clear, at any place ..."""
    local: float
    """... and at that night, where something else names it."""
    telling: bool
    """At least the smallest effect worth telling."""


@dataclass(frozen=True)
class JudgedSeries:
    """A series with all that its own nights say of it."""

    breaks: tuple[ChangePoint, ...]
    p: float
    """The smallest p of anything in it, told or not."""
    smallest: float
    """The smallest step that such a series would show in four of five cases, in its middle (a ratio, or a
    difference where absolute)."""
    evidence: Array
    """log e(k) of a change before night k, lasting or not [n]: 0 where nothing can be said."""


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
    """The changes of one series that are told at the rate ``alpha``, ascending; those below the smallest
    effect worth telling are among them and say so.

    :raises ValueError: the series cannot be judged; :attr:`Series.refusal` says why.
    """
    return judge_series(series, alpha).breaks


def judge_series(series: SeriesValues, alpha: float = ALPHA) -> JudgedSeries:
    """The changes of one series that are told at the rate ``alpha``, and what it says besides.

    :raises ValueError: the series cannot be judged.
    """
    if series.refusal:
        raise ValueError(f"{series.key}: {series.refusal}")
    values = series.signed
    seen = survey(values, needed(alpha))
    passing = transients(values, tuple(f.index for f in seen.found))
    told = [_passing(series, x) for x in passing if x.p <= alpha]
    breaks = sorted([*_lasting(series, values, seen), *told], key=lambda b: b.index)
    p = min([p_value(seen.best), *(x.p for x in passing)])
    evidence = seen.evidence.copy()
    for x in passing:
        evidence[x.begin] = max(evidence[x.begin], e_value(x.p / len(values)))
    return JudgedSeries(tuple(breaks), p, smallest(series, seen.scale, alpha), evidence)


def smallest(series: SeriesValues, scale: float, alpha: float = ALPHA) -> float:
    """The smallest step in the middle of a series that is told in four of five cases at the rate ``alpha``,
    where a night's noise has that ``scale`` (in logs), is Gaussian and forgets.

    Where the scale has to be estimated, the log evidence of a step of z standard errors at a known place is
    about (n - 2) / 2 log(1 + z² / (n - 2)), less the price of its size and what not knowing the noise's
    memory and tails costs; a place costs what its prior is below one.
    """
    n = len(series.values)
    free = n - 2
    error = scale * math.sqrt(n / ((n // 2) * (n - n // 2)))
    fixed = needed(alpha) - float(place_prior(n)[n // 2]) + _DOUBT
    step = 4.0 * error
    for _ in range(20):
        density = step_density(max(step, 1.001 * LEAST * scale), scale)
        price = max(0.0, fixed - math.log(density * error * math.sqrt(2 * math.pi)))
        step = error * (math.sqrt(free * math.expm1(2 * price / free)) + _POWER)
    return step if series.absolute else math.expm1(step)


def _lasting(series: SeriesValues, values: Array, seen: Survey) -> list[ChangePoint]:
    """Steps, the drifts that runs of steps in one direction were, and the transients that were undone."""
    steps = [size(f.t, f.start, f.end, f.weighed, f.noise) for f in seen.found]
    calmed = calm(values, seen.scale)
    out: list[ChangePoint] = []
    i = 0
    while i < len(steps):
        if _undone(series, seen.found[i : i + 2], steps[i : i + 2]):
            out.append(_step(series, *steps[i], *seen.found[i : i + 2]))
            i += 2
            continue
        j = i + 1
        while j < len(steps) and steps[j][0] * steps[i][0] > 0:
            if _undone(series, seen.found[j : j + 2], steps[j : j + 2]):
                break
            j += 1
        run = seen.found[i:j]
        start, end = run[0].offset + run[0].start, run[-1].offset + run[-1].end
        sharp = len(run) == 1 and len(run[0].weighed.likely(SET)) <= _SHARP
        slope = None if sharp else ramp(calmed[start:end], tuple(f.index - start for f in run))
        if slope:
            p = min(p_value(f.log_evidence) for f in run)
            out.append(_drift(series, slope, start, p))
        else:
            out += [_step(series, *s, f) for f, s in zip(run, steps[i:j], strict=True)]
        i = j
    return out


def _undone(
    series: SeriesValues, found: Sequence[Found], steps: Sequence[tuple[float, float, float]]
) -> bool:
    """Whether the second of two changes took back, soon, as much as the first may have been."""
    if len(found) < 2:
        return False
    (_, low, high), (back, _, _) = steps
    days = series.nights[found[1].index] - series.nights[found[0].index]
    return days <= WEEK and low <= -back <= high


def _step(
    series: SeriesValues, step: float, low: float, high: float, f: Found, undone: Found | None = None
) -> ChangePoint:
    """A change that lasts, or the transient that ended with its undoing."""
    places = tuple(int(k) + f.offset for k in f.weighed.likely(SET))
    best = max(f.log_evidence, undone.log_evidence) if undone else f.log_evidence
    until = undone.index if undone else None
    shape: Shape = "transient" if undone else "step"
    p = p_value(best), p_value(f.weighed.at(f.place))
    return _break(series, f.index, until, places, shape, (step, low, high), *p)


def _drift(series: SeriesValues, slope: Ramp, start: int, p: float) -> ChangePoint:
    begin, end = start + slope.begin, start + slope.end
    size = (slope.step, slope.step - _WIDE * slope.error, slope.step + _WIDE * slope.error)
    until = end if end < len(series.values) - 1 else None
    return _break(series, begin, until, tuple(range(begin, end + 1)), "drift", size, p, p)


def _passing(series: SeriesValues, x: Transient) -> ChangePoint:
    until = x.end if x.end < len(series.values) else None
    size = (x.step, x.step - _WIDE * x.error, x.step + _WIDE * x.error)
    return _break(series, x.begin, until, (x.begin,), "transient", size, x.p, x.p / len(series.values))


def _break(
    series: SeriesValues,
    index: int,
    until: int | None,
    places: tuple[int, ...],
    shape: Shape,
    size: tuple[float, float, float],
    p: float,
    local: float,
) -> ChangePoint:
    nights = series.nights
    effect, *ends = (series.scale.effect(x) for x in size)
    return ChangePoint(
        key=series.key,
        index=index,
        until=until,
        places=places,
        window=(nights[max(0, places[0] - 1)], nights[min(len(nights) - 1, places[-1])]),
        shape=shape,
        effect=effect,
        low=min(ends),
        high=max(ends),
        worse=size[0] > 0,
        p=p,
        local=min(p, local),
        telling=abs(effect) >= series.min_effect,
    )
