"""Changes that are no step: slow paths, which levels only imitate, and nights apart from their level."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr

from perfbisect.series.detection.evidence import INNER
from perfbisect.series.detection.noise import FLOOR, smooth
from perfbisect.stats.robust import Array

RAMP = 8  # nights that a drift must take at least: a shorter one cannot be told from a step
_DECISIVE = 3.0  # log likelihood by which a drift must fit better than steps
_KNOTS = 40  # nights at which a drift may begin or end: all, or that many over a long stretch
LONGEST = INNER - 1  # nights that a transient may last
_NOTABLE = 4.0  # scales from its level beyond which a night may belong to a transient
_WILD = 5.0  # scales beyond which a night shows that this series has wild nights
_NEAR = 15  # nights on either side that tell the scale around a night
_FEW = 6.0  # A scale that n nights tell is taken to be wider by the share _FEW / n
_GAUSSIAN = 1.4826  # standard deviation of Gaussian values over their median absolute deviation
_T3_MAD = 1.134  # scale of a Student-t3 as the median absolute deviation estimates it


@dataclass(frozen=True)
class Ramp:
    """A drift: ``begin`` is the first night that left the old level, ``end`` the first at the new one;
    ``step``: the whole change, in logs, and its standard ``error``."""

    begin: int
    end: int
    step: float
    error: float


def fit_ramp(values: Array, steps: tuple[int, ...]) -> Ramp | None:
    """The drift in ``values`` (signed logs, wild nights cut) that fits decisively better than the levels that
    change at ``steps``; None where none does.

    Least squares with the noise profiled out; a place costs log m, a level half of it (Schwarz), and gains
    count less where one night remembers the one before: (1 - r) / (1 + r) of m nights are independent.
    """
    m = len(values)
    if m < RAMP + 4:
        return None
    levels = np.split(values, steps)
    rest = np.concatenate([part - part.mean() for part in levels])
    square = max(float(rest @ rest), 1e-300)
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
    price = (2 - count) * math.log(m) + 0.5 * (1 - count) * math.log(m)
    if gain - price < _DECISIVE:
        return None
    error = math.sqrt(float(squares[best]) / max(1, m - 4) / float(power[best]) * (1 + memory) / (1 - memory))
    return Ramp(int(low[best]) + 1, int(high[best]), float(slope[best]), error)


@dataclass(frozen=True)
class Transient:
    """Nights ``begin`` to ``end`` (excluded) that lie apart from the level of their neighbours.

    ``step``: their median distance from the level, in logs, and its standard ``error``. ``p``: probability of
    such a run anywhere in a series of that length without one.
    """

    begin: int
    end: int
    step: float
    error: float
    p: float


def transients(values: Array, changes: tuple[int, ...]) -> tuple[Transient, ...]:
    """Runs of one to :data:`LONGEST` nights apart from the level between ``changes``, with their p.

    A night's p is the tail of a Student-t3 at its distance, and besides the share of the other nights of the
    series that are far out: where wild nights are usual, one more is no news. Distances are in scales of the
    other nights around it, or of all others where that is larger.
    """
    n = len(values)
    parts = np.split(values, changes)
    rest = np.concatenate([part - np.median(part) for part in parts])
    away = np.abs(rest)
    far = away > _NOTABLE * _GAUSSIAN * np.maximum(np.maximum(smooth(away, _NEAR), np.median(away)), FLOOR)
    out = []
    begin = 0
    while begin < n:
        end = begin + 1
        if far[begin]:
            while end < n and end not in changes and far[end] and rest[end] * rest[begin] > 0:
                end += 1
            if end - begin <= LONGEST:
                out.append(_transient(rest, begin, end))
        begin = end
    return tuple(out)


def _transient(rest: Array, begin: int, end: int) -> Transient:
    n = len(rest)
    run = np.s_[begin:end]
    away = np.abs(rest)
    others = np.delete(away, run)
    near = np.concatenate([away[max(0, begin - _NEAR) : begin], away[end : end + _NEAR]])
    scale = max(float(np.median(others)), float(np.median(near)), 0.25 * float(np.mean(others)), FLOOR)
    scale *= _GAUSSIAN * (1 + _FEW / n)
    wild = float(np.sum(others > _WILD * scale)) / n
    each = np.minimum(1.0, 2 * stdtr(3, -away[run] / scale / _T3_MAD) + wild)
    p = min(1.0, n * 2.0 * float(np.prod(each / 2)))
    error = scale * math.sqrt(1 / (end - begin) + 1.6 / n)
    return Transient(begin, end, float(np.median(rest[run])), error, p)
