"""Which changes of level a series holds: candidates by a cheap scan, each kept only on its own evidence.

What kind of noise a series has is told by all its nights: a stretch is weighed with the kinds of noise that
the other nights speak for. All changes together have to stand against none as well: levels that follow every
wave leave noise without memory behind.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from perfbisect.series.detection.evidence import INNER, LAST, ChangeEvidence, Likelihoods, level, likelihoods
from perfbisect.series.detection.noise import FINE, Tables, kinds, likely, scale_of, smooth, tables
from perfbisect.stats.robust import Array, log_sum_exp

_WIDTHS = (3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128)
"""Nights on either side whose means are compared to find candidates."""

_CANDIDATE = 3.0
"""Standard errors between those means that make a candidate: it costs time, never a false alarm."""

NEW_SHARE = 0.5
"""Share of the prior that lies on the newest places ..."""

NEWEST = 6
"""... which are so many."""

_NEAR = 1e-4
"""Probability of a place below which a change says nothing of it: the nights around do."""

_ROUNDS = 4
"""Rounds of dropping and adding; the changes of a series that need more are close to no change."""

LONG = 600
"""Nights above which a series is judged in pieces ..."""

PIECE, OVERLAP = 400, 40
"""... of so many nights, which share so many ..."""

REACH = 32
"""... and a change by so many nights on either side."""

_GRID = 16
"""Nights by which that stretch moves with the change: it need not be weighed again for every night."""

FULL = kinds()
"""Kinds of noise of a series ..."""

COARSE, COARSE_FINE = kinds((0.0, 0.5), (0.7, 0.3), (0.7, 0.3), (0.04,), (0.8, 1.25)), 0.25
"""... and of a piece of a long one, with the scales between two of its levels."""


@dataclass(frozen=True)
class Found:
    """A change, with what the nights between its neighbours say of it. Indices are of its piece of the
    series, which begins ``offset`` nights into it."""

    t: Tables
    offset: int
    start: int
    end: int
    place: int
    weighed: ChangeEvidence
    log_evidence: float
    """For a change in the whole series, under the prior of :func:`place_prior`."""
    noise: Array
    """log weights of the families of noise, from the other nights."""

    @property
    def index(self) -> int:
        return self.offset + self.place


@dataclass(frozen=True)
class Survey:
    """All that the nights of a series say of changes of level."""

    found: tuple[Found, ...]
    best: float
    """The largest log evidence of any change, found or not."""
    evidence: Array
    """log e(k) of a change before night k [n]: 0 where nothing can be said."""
    scale: float
    """Scale of a night."""


def calm(values: Array, scale: float) -> Array:
    """The values, with nights far from their neighbours' median cut to three scales from it."""
    middle = smooth(values)
    return np.asarray(middle + np.clip(values - middle, -3 * scale, 3 * scale))


def candidates(calmed: Array, scale: float) -> list[int]:
    """Places where the means of the nights before and after differ, as far as the next such place."""
    n = len(calmed)
    sums = np.concatenate([[0.0], np.cumsum(calmed)])
    strength, reach = np.zeros(n + 1), np.ones(n + 1, int)
    for width in _WIDTHS:
        if 2 * width > n:
            break
        k = np.arange(width, n - width + 1)
        apart = np.abs(sums[k + width] - 2 * sums[k] + sums[k - width]) / math.sqrt(2 * width) / scale
        better = apart > strength[k]
        strength[k[better]], reach[k[better]] = apart[better], width
    chosen: list[int] = []
    strong = np.flatnonzero(strength >= _CANDIDATE)
    strong = strong[np.argsort(-strength[strong], kind="stable")]
    rooms = np.maximum(4, reach[strong] // 2)
    for k, room in zip(strong.tolist(), rooms.tolist(), strict=True):
        at = bisect_left(chosen, k)
        if (at and k - chosen[at - 1] < room) or (at < len(chosen) and chosen[at] - k < room):
            continue
        chosen.insert(at, k)
    return _apart(chosen, sums, scale)


def _apart(chosen: list[int], sums: Array, scale: float) -> list[int]:
    """Those of the places between which the means differ, the weakest dropped first."""
    n = len(sums) - 1
    while chosen:
        bounds = np.array([0, *chosen, n])
        nights = np.diff(bounds)
        means = np.diff(sums[bounds]) / nights
        apart = np.abs(np.diff(means)) / scale / np.sqrt(1 / nights[1:] + 1 / nights[:-1])
        weakest = int(np.argmin(apart))
        if apart[weakest] >= _CANDIDATE:
            break
        chosen = chosen[:weakest] + chosen[weakest + 1 :]
    return chosen


def place_prior(nights: int) -> Array:
    """log prior of a change before each night of a series: even over all, and a share more for the newest,
    since the series is looked at every morning."""
    prior = np.full(nights, (1 - NEW_SHARE) / nights)
    newest = np.s_[max(0, nights - LAST - NEWEST + 1) : max(0, nights - LAST + 1)]
    prior[newest] += NEW_SHARE / NEWEST
    return np.asarray(np.log(prior))


@dataclass
class _Search:
    t: Tables
    offset: int
    prior: Array
    """log prior of a change before each night of the piece."""
    threshold: float
    candidates: list[int]
    reach: int
    """Nights on either side of a change that are weighed."""
    seen: dict[tuple[int, int], Likelihoods] = field(default_factory=dict)
    levels: dict[tuple[int, int], Array] = field(default_factory=dict)

    def weighed(self, start: int, end: int, noise: Array) -> ChangeEvidence:
        if (start, end) not in self.seen:
            self.seen[start, end] = likelihoods(self.t, start, end)
        return self.seen[start, end].weighed(noise)

    def between(self, start: int, end: int, noise: Array) -> Found | None:
        """The change that is most likely in a stretch; None where the stretch is too short for any."""
        weighed = self.weighed(start, end, noise)
        logs = weighed.under(self.prior)
        if logs == -math.inf:
            return None
        return Found(self.t, self.offset, start, end, weighed.best, weighed, logs, noise)

    def noise(self, bounds: list[int], low: int, high: int) -> Array:
        """log weights of the families of noise, from the levels between ``bounds`` but those from the bound
        number ``low`` to the bound number ``high``."""
        out = self.t.prior
        for start, end in [*pairwise(bounds[: low + 1]), *pairwise(bounds[high:])]:
            if (start, end) not in self.levels:
                self.levels[start, end] = level(self.t, start, end)
            out = out + self.levels[start, end]
        return np.asarray(out - out.max())

    def around(self, place: int, start: int, end: int, noise: Array) -> Found | None:
        """The change near ``place``, which lies alone between ``start`` and ``end``."""
        middle = place - place % _GRID
        return self.between(max(start, middle - self.reach), min(end, middle + _GRID + self.reach), noise)

    def beside(self, places: list[int]) -> list[Found | None]:
        """Each of several changes, given the others."""
        bounds = [0, *places, len(self.t.values)]
        return [
            self.around(k, bounds[i], bounds[i + 2], self.noise(bounds, i, i + 2))
            for i, k in enumerate(places)
        ]

    def together(self, places: list[int]) -> float:
        """log evidence of several changes against none: of each, given those before it. Not asked of a piece
        of a long series, whose many levels tell its noise."""
        n = len(self.t.values)
        if len(places) < 2 or self.reach < n:
            return math.inf
        total = 0.0
        for i, k in enumerate(places):
            bounds = [0, *places[:i], n]
            weighed = self.weighed(bounds[i], n, self.noise(bounds, i, i + 1))
            logs = weighed.logs + self.prior[weighed.places]
            near = logs[np.abs(weighed.places - k) < INNER]
            total += float(log_sum_exp(near)) if len(near) else -math.inf
        return total

    def pruned(self, places: list[int]) -> list[Found]:
        """The changes that stand on their own evidence, and together against none: the weakest is dropped
        while they do not."""
        kept: list[Found] = []
        for _ in range(2 * len(places) + _ROUNDS):
            found = self.beside(places)
            told = [f.log_evidence if f else -math.inf for f in found]
            if told and min(*told, self.together(places)) < self.threshold:
                weakest = int(np.argmin(told))
                places = places[:weakest] + places[weakest + 1 :]
                continue
            kept = [f for f in found if f]
            moved = sorted({f.place for f in kept})
            if moved == places:
                break
            places = moved
        return kept

    def within(self, found: list[Found]) -> list[Found]:
        """What is most likely between the changes that are known."""
        bounds = [0, *(f.place for f in found), len(self.t.values)]
        return [
            f
            for i, (a, b) in enumerate(pairwise(bounds))
            if self.worth(a, b) and (f := self.between(a, b, self.noise(bounds, i, i + 1)))
        ]

    def worth(self, start: int, end: int) -> bool:
        """Whether a stretch is weighed although no candidate lies in it: not in a long series."""
        return self.reach >= len(self.t.values) or any(start < k < end for k in self.candidates)

    def run(self) -> tuple[list[Found], list[Found]]:
        """The changes found, and what is most likely between them."""
        found = self.pruned(self.candidates)
        for _ in range(_ROUNDS):
            rest = self.within(found)
            more = {f.place for f in rest if f.log_evidence >= self.threshold}
            if not more:
                break
            found = self.pruned(sorted({f.place for f in found} | more))
        return found, self.within(found)


def _rests(values: Array, places: list[int]) -> tuple[Array, ...]:
    """The values less their median, and less the medians between ``places``."""
    alone = values - np.median(values)
    parts = [part - np.median(part) for part in np.split(values, places)]
    return (alone, np.concatenate(parts)) if places else (alone,)


def survey(values: Array, threshold: float) -> Survey:
    """The changes of level whose log evidence is at least ``threshold``, ascending.

    A series of more than :data:`LONG` nights is judged in pieces that overlap, with fewer kinds of noise, and
    only where a scan finds a candidate.
    """
    n = len(values)
    length, shared, reach, which = (PIECE, OVERLAP, REACH, COARSE) if n > LONG else (n, 0, n, FULL)
    prior = place_prior(n)
    found: list[Found] = []
    evidence, best, spans = np.zeros(n), -math.inf, []
    for offset in range(0, max(1, n - shared), length - shared):
        part = values[offset : offset + length]
        scale = scale_of(part)
        calmed = calm(part, scale)
        likely_places = candidates(calmed, scale)
        fineness = COARSE_FINE if n > LONG else min(FINE, 2.0 / math.sqrt(n))
        t = tables(part, likely(_rests(part, likely_places), scale, which), fineness)
        low = offset + (shared // 2 if offset else 0)
        high = offset + len(part) - (shared // 2 if offset + len(part) < n else 0)
        own, rest = _Search(
            t, offset, prior[offset : offset + len(part)], threshold, likely_places, reach
        ).run()
        own = [f for f in own if low <= f.index < high]
        found += own
        best = max([best, *(f.log_evidence for f in [*own, *rest])])
        for f in [*rest, *own]:
            at = offset + f.weighed.places
            inside = (at >= low) & (at < high) & ((f.weighed.posterior > _NEAR) | (f in rest))
            evidence[at[inside]] = f.weighed.logs[inside]
        spans.append(t.scale)
    return Survey(tuple(found), best, evidence, float(np.median(spans)))
