"""Which position to measure next, and with how many runs: the most information a minute.

Information is the mutual information between a launch's value and where the step is (every gap and side, and
no change), under the posterior's levels; it counts what a fresh launch of an end or of a doubtful position
would tell as well. It is weighed with the chance that the position can be tested at all, and divided by the
minutes expected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise

import numpy as np

from perfbisect.bisect.decision.beliefs import Posterior, leading, nearest
from perfbisect.bisect.decision.channels import TOGETHER
from perfbisect.bisect.decision.model import Visit
from perfbisect.bisect.decision.state import Prices
from perfbisect.stats.robust import Array

_LEAST = 1e-9
"""Information (nats) below which there is nothing to take a share of."""


def between(posterior: Posterior, pending: Sequence[Visit], skips: frozenset[int]) -> tuple[int, ...]:
    """The testable positions at the medians of what measured positions and launches under way divide."""
    cuts = sorted({*posterior.at, *(launch.index for launch in pending)})
    ahead = np.cumsum(posterior.p)
    out = []
    for low, high in pairwise(cuts):
        if high - low < 2 or ahead[high] - ahead[low] < 2e-3:
            continue
        # Rounding must not choose between two sides of a symmetric question.
        aim = int(np.searchsorted(ahead, 0.5 * (ahead[low] + ahead[high]) - 1e-9))
        found = nearest(min(max(aim, low + 1), high - 1), low, high, skips)
        if found is not None:
            out.append(found)
    return tuple(out)


def left_over(posterior: Posterior, pending: Sequence[Visit], where: tuple[int, ...], runs: int) -> Array:
    """Share of its information that a launch of so many runs keeps at each position of ``where``.

    ``pending``: the launches under way. No launch under way: 1.
    """
    if not pending:
        return np.ones(len(where))
    weight = np.concatenate([[posterior.none], posterior.p[1:]])
    alone = _information(weight[None], where, _error(posterior, runs))
    worlds = weight[None]
    for launch in pending:
        wrong = _error(posterior, launch.runs)
        yes = np.where(np.arange(len(weight)) <= launch.index, 1 - wrong, wrong)
        # Without a change both levels are the same: either answer is equally likely.
        yes[0] = 0.5
        worlds = np.concatenate([worlds * yes, worlds * (1 - yes)])
    after = _information(worlds, where, _error(posterior, runs))
    return np.clip(after / np.maximum(alone, _LEAST), 0.0, 1.0)


def _error(posterior: Posterior, runs: int) -> float:
    """Chance that a launch lies on the wrong side of the midpoint between the levels."""
    size = posterior.step_quantiles(0.5)[0]
    scale = math.sqrt(posterior.launch_variance(runs))
    return max(1e-6, 0.5 * math.erfc(size / (2 * math.sqrt(2) * scale)))


def _information(worlds: Array, where: tuple[int, ...], wrong: float) -> Array:
    """Nats that an answer at each position tells, over worlds [answers so far, no change or culprit]."""
    none, total = worlds[:, :1], worlds.sum(1, keepdims=True)
    at = np.array(where)
    ahead = np.cumsum(worlds[:, 1:], axis=1)
    here = np.where(at > 0, ahead[:, np.maximum(at, 1) - 1], 0.0)
    later = ahead[:, -1:] - here
    yes = here * (1 - wrong) + later * wrong + 0.5 * none
    noise = (total - none) * _entropy(np.array(wrong)) + none * math.log(2.0)
    return np.asarray((total * _entropy(yes / np.maximum(total, 1e-300)) - noise).sum(0))


def _entropy(p: Array) -> Array:
    q = np.clip(p, 1e-12, 1 - 1e-12)
    return np.asarray(-(q * np.log(q) + (1 - q) * np.log(1 - q)))


_FRACTIONS = (0.5, 0.3, 0.7, 0.15, 0.85)
"""Where in a gap (by probability) a probe is considered."""

_TIE = 1e-7
"""Rates and shares closer than this are equal: rounding must not choose between two sides of a symmetric
question."""

_RUNS = (1, 2, 3, 4, 6, 8, 12)


@dataclass(frozen=True)
class ProbeChoice:
    index: int
    runs: int
    bits: float
    minutes: float
    share: float = 1.0
    """Bits, as a share of what the best launch would tell if nothing were under way."""


def candidates(posterior: Posterior, skips: frozenset[int]) -> tuple[int, ...]:
    """The measured positions, and in each gap with some probability the testable ones near its quantiles."""
    ahead = np.cumsum(posterior.p)
    out = {i for i in posterior.at if i not in skips}
    first, last, _ = leading(posterior.p, skips)
    out.update(i for i in (first - 1, last) if i not in skips)
    if posterior.build_sd:
        # The nearest other builds on either side of the leading set.
        measured = {*posterior.at, *skips}
        for side in (range(first - 2, posterior.at[0], -1), range(last + 1, posterior.at[-1])):
            out.update(islice((index for index in side if index not in measured), 1))
    for k in range(len(posterior.at) - 1):
        low, high = posterior.at[k], posterior.at[k + 1]
        if high - low < 2 or posterior.gaps[k] < 2e-3:
            continue
        inside = ahead[low + 1 : high + 1] - ahead[low]
        for fraction in _FRACTIONS:
            aim = low + 1 + int(np.searchsorted(inside, fraction * inside[-1] * (1 - _TIE)))
            found = nearest(min(max(aim, low + 1), high - 1), low, high, skips)
            if found is not None:
                out.add(found)
    return tuple(sorted(out))


def testable(index: int, built: frozenset[int], skips: frozenset[int], tried: int) -> float:
    """Chance that a position can be measured: skips come in clusters of about three."""
    if index in built:
        return 1.0
    share = (len(skips) + 0.3) / (tried + len(skips) + 10.0)
    if not skips:
        return 1.0 - share
    distance = min(abs(index - other) for other in skips)
    return 1.0 - max(share, math.pow(0.65, distance + 0.5))


def information(posterior: Posterior, where: tuple[int, ...], variances: Sequence[float]) -> Array:
    """Bits [variance, place] that one launch at each position tells about where the step is.

    ``variances``: of a launch's centre.
    """
    at = np.array(posterior.at)
    place = np.array(where)
    ahead = np.cumsum(posterior.p)
    # Share of each gap's probability for which the position lies at or after the culprit.
    beyond = np.clip(place[:, None], at[None, :-1], at[None, 1:])
    right = ahead[beyond] - ahead[at[:-1]][None]
    left = np.maximum(posterior.gaps[None] - right, 0.0)
    rest = np.broadcast_to([posterior.slope, posterior.none], (len(place), 2))
    weight = np.concatenate([left, right, rest], axis=1)
    mean, spread = posterior.levels_of(place)
    # Places without offsets of their own share their levels.
    kinds, of_kind = np.unique(np.concatenate([mean, spread], axis=1), axis=0, return_inverse=True)
    bits = np.empty((len(variances), len(place)))
    for kind, levels in enumerate(kinds):
        here = of_kind.ravel() == kind
        middle, around = np.split(levels, 2)
        for row, variance in enumerate(variances):
            bits[row, here] = _bits(weight[here], middle, np.sqrt(around + variance))
    bits = np.maximum(bits, 0.0)
    for low, high in posterior.splits:
        # An exact channel tells by one launch on which side it moved.
        inside, own = (low < place) & (place < high), max(float(ahead[high] - ahead[low]), 1e-300)
        side = _entropy((ahead[place[inside]] - ahead[low]) / own) / math.log(2.0)
        bits[:, inside] += TOGETHER * own * side
    return bits


def _bits(weight: Array, mean: Array, sd: Array) -> Array:
    """Information [place] of a value whose mixture has these components, with weights [place, component]."""
    weight = weight / weight.sum(1, keepdims=True)
    # Each hypothesis is a component of the mixture; those without weight would cost the time of the others.
    used = weight.max(0) > 1e-5
    weight, mean, sd = weight[:, used], mean[used], sd[used]
    weight = weight / weight.sum(1, keepdims=True)
    # Fine enough for the narrowest of them.
    low, high = float((mean - 4 * sd).min()), float((mean + 4 * sd).max())
    y = np.linspace(low, high, int(min(640, max(48, 3 * (high - low) / sd.min()))))
    width = y[1] - y[0]
    density = np.exp(-0.5 * ((y[None] - mean[:, None]) / sd[:, None]) ** 2) / sd[:, None]
    density /= density.sum(1, keepdims=True) * width
    mixed = weight @ density
    tiny = 1e-300
    own = -(density * np.log2(np.maximum(density, tiny))).sum(1) * width
    return np.asarray(-(mixed * np.log2(np.maximum(mixed, tiny))).sum(1) * width - weight @ own)


def probe(
    posterior: Posterior,
    prices: Prices,
    skips: frozenset[int],
    max_runs: int,
    pending: Sequence[Visit] = (),
) -> ProbeChoice:
    """The most informative launch per minute; ties go to the earlier position and the fewer runs.

    ``pending``: launches under way, whose answers will take some of it.
    """
    where = candidates(posterior, skips)
    if pending:
        where = tuple(sorted({*where, *between(posterior, pending, skips)}))
    chance = np.array([testable(i, prices.built, skips, len(posterior.at)) for i in where])
    best: ProbeChoice | None = None
    best_rate = alone = -1.0
    counts = sorted({r for r in _RUNS if r < max_runs} | {max_runs})
    told = information(posterior, where, [posterior.launch_variance(runs) for runs in counts])
    for runs, bits in zip(counts, told, strict=True):
        minutes = np.array([prices.visit(i, runs) for i in where])
        alone = max(alone, float(bits.max()))
        bits = bits * left_over(posterior, pending, where, runs)
        rate = bits * chance / minutes
        j = int(np.argmax(rate > rate.max() * (1 - _TIE)))
        if rate[j] > best_rate * (1 + _TIE):
            best_rate, best = float(rate[j]), ProbeChoice(where[j], runs, float(bits[j]), float(minutes[j]))
    assert best is not None
    return replace(best, share=best.bits / alone) if pending and alone > 0 else best
