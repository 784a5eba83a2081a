"""Changes of level in a series: candidates by a cheap scan, each kept only on its own evidence.

All nights show what kind of noise a series has: a stretch is weighed with the kinds of noise that the other
nights support. All changes together must also stand against none: levels that follow every wave leave noise
without memory behind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from perfbisect.series.detection.likelihood import (
    FINE,
    FLOOR,
    INNER,
    OUTER,
    ChangeEvidence,
    Likelihoods,
    Tables,
    kinds,
    level,
    likelihoods,
    likely,
    scale_of,
    smooth,
    step_size,
    tables,
)
from perfbisect.stats.robust import Array, log_sum_exp

_WIDTHS = (3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128)  # nights on either side whose means are compared
_CANDIDATE = 3.0  # standard errors between those means that make a candidate
_EARLY = 0.4  # prior of a place with fewer than INNER nights before it, relative to that of others
NEW_SHARE, NEWEST = 0.5, 6  # share of the prior on the newest places, and their number
_NEAR = 1e-4  # probability of a place below which the nights around a change are the evidence for it
_ROUNDS = 4  # rounds of dropping and adding; the changes of a series that need more are close to no change

LONG = 600  # nights above which a series is judged in pieces
PIECE, OVERLAP = 400, 40  # nights of a piece, and those that two share
REACH = 32  # nights on either side by which a change of a piece is judged ...
_GRID = 16  # ... and by which that stretch moves with the change, so that it is weighed once
FULL = kinds()  # kinds of noise of a series ...
COARSE = kinds((0.0, 0.5), (0.7, 0.3), (0.7, 0.3), (0.04,), (0.8, 1.25))  # ... and of a piece of a long one
COARSE_FINE = 0.25  # scales between two levels of a piece


@dataclass(frozen=True)
class LevelChange:
    """A change of level, with the evidence of the nights ``start`` to ``end`` between its neighbours.

    Indices are of its piece, which begins ``offset`` nights into the series. ``log_evidence``: under
    :func:`place_prior`. ``noise``: log weights of the families of noise, from the other nights.
    """

    tables: Tables
    offset: int
    start: int
    end: int
    evidence: ChangeEvidence
    log_evidence: float
    noise: Array

    @property
    def place(self) -> int:
        return self.evidence.best

    @property
    def index(self) -> int:
        return self.offset + self.place

    @cached_property
    def size(self) -> tuple[float, float, float]:
        """The step with its interval, in logs."""
        return step_size(self.tables, self.start, self.end, self.evidence, self.noise)


@dataclass(frozen=True)
class SearchResult:
    """Changes of level, and the ``scale`` of a night.

    ``best``: the largest log evidence of any change, kept or not; ``evidence``: log e(k) of a change before
    night k [n], 0 where it is unknown.
    """

    changes: tuple[LevelChange, ...]
    best: float
    evidence: Array
    scale: float


def clip_outliers(values: Array, scale: float) -> Array:
    """The values, with nights far from their neighbours' median cut to three scales from it."""
    middle = smooth(values)
    return np.asarray(middle + np.clip(values - middle, -3 * scale, 3 * scale))


def candidates(clipped: Array, scale: float) -> list[int]:
    """Places where the means of the nights before and after differ, as far as the next such place."""
    n = len(clipped)
    sums = np.concatenate([[0.0], np.cumsum(clipped)])
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
    # Two candidates nearer than this are one step that windows of several widths found.
    rooms = np.maximum(4, reach[strong] // 2)
    for k, room in zip(strong.tolist(), rooms.tolist(), strict=True):
        if all(abs(k - other) >= room for other in chosen):
            chosen.append(k)
    chosen.sort()
    # Between the places the means must differ, too; the weakest is dropped first.
    while chosen:
        bounds = np.array([0, *chosen, n])
        nights = np.diff(bounds)
        means = np.diff(sums[bounds]) / nights
        apart = np.abs(np.diff(means)) / scale / np.sqrt(1 / nights[1:] + 1 / nights[:-1])
        weakest = int(np.argmin(apart))
        if apart[weakest] >= _CANDIDATE:
            break
        del chosen[weakest]
    return chosen


def place_prior(nights: int) -> Array:
    """log prior of a change before each night of a series: even over all but the first, which are a short
    level's, and a share more for the newest, since the series is judged every morning."""
    prior = np.full(nights, (1 - NEW_SHARE) / nights)
    # Not zero, so that a step after two to four nights is dated to its night; rarer than elsewhere.
    prior[:INNER] *= _EARLY
    newest = np.s_[max(0, nights - OUTER - NEWEST + 1) : max(0, nights - OUTER + 1)]
    prior[newest] += NEW_SHARE / NEWEST
    return np.asarray(np.log(prior))


@dataclass
class _PieceSearch:
    """The search in one piece of a series.

    ``prior``: log prior of a change before each night. ``reach``: nights weighed on either side of one.
    """

    tables: Tables
    offset: int
    prior: Array
    threshold: float
    candidates: list[int]
    reach: int
    _likelihoods: dict[tuple[int, int, int], Likelihoods] = field(default_factory=dict)
    _levels: dict[tuple[int, int], Array] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether the piece is a whole series, which is weighed everywhere."""
        return self.reach >= len(self.tables.values)

    def run(self) -> tuple[list[LevelChange], list[LevelChange]]:
        """The changes, and what is most likely between them."""
        changes = self._prune(self.candidates)
        for _ in range(_ROUNDS):
            new = {c.place for c in self._between(changes) if c.log_evidence >= self.threshold}
            if not new:
                break
            changes = self._prune(sorted({c.place for c in changes} | new))
        return self._place(changes), self._between(changes)

    def _prune(self, places: list[int]) -> list[LevelChange]:
        """The changes that stand on their own evidence, and together against none."""
        kept: list[LevelChange] = []
        # Each round drops one change or moves some: two rounds a change suffice, and cycles end.
        for _ in range(2 * len(places) + _ROUNDS):
            changes = self._changes_at(places)
            evidence = [change.log_evidence if change else -math.inf for change in changes]
            if evidence and min(*evidence, self._joint_evidence(places)) < self.threshold:
                # One at a time: without the weakest the others have longer stretches and may stand.
                weakest = int(np.argmin(evidence))
                places = places[:weakest] + places[weakest + 1 :]
                continue
            kept = [change for change in changes if change]
            moved = sorted({change.place for change in kept})
            if moved == places:
                break
            places = moved
        return kept

    def _place(self, changes: list[LevelChange]) -> list[LevelChange]:
        """The same changes, where the level between two may last less than :data:`INNER` nights.

        The least length decides whether there is a change; kept here, it would move the place of one that is
        sure.
        """
        bounds = [0, *(change.place for change in changes), len(self.tables.values)]
        placed = list(changes)
        for _ in range(_ROUNDS if len(changes) > 1 else 0):
            before = list(bounds)
            for i, change in enumerate(changes):
                start, end = self._stretch(bounds, i)
                noise = self._noise(bounds, i, i + 2)
                evidence = self._evidence(start, end, noise, OUTER)
                placed[i] = replace(change, start=start, end=end, evidence=evidence, noise=noise)
                bounds[i + 1] = placed[i].place
            if bounds == before:
                break
        return placed

    def _stretch(self, bounds: Sequence[int], i: int) -> tuple[int, int]:
        """The nights by which the change at ``bounds[i + 1]`` is weighed: between its neighbours."""
        middle = bounds[i + 1] - bounds[i + 1] % _GRID
        return max(bounds[i], middle - self.reach), min(bounds[i + 2], middle + _GRID + self.reach)

    def _changes_at(self, places: list[int]) -> list[LevelChange | None]:
        """Each of several changes, given the others."""
        bounds = [0, *places, len(self.tables.values)]
        changes = []
        for i in range(len(places)):
            start, end = self._stretch(bounds, i)
            changes.append(self._likeliest(start, end, self._noise(bounds, i, i + 2)))
        return changes

    def _between(self, changes: Sequence[LevelChange]) -> list[LevelChange]:
        """What is most likely between changes; in a long series only where a candidate lies."""
        bounds = [0, *(change.place for change in changes), len(self.tables.values)]
        likeliest = [
            self._likeliest(start, end, self._noise(bounds, i, i + 1))
            for i, (start, end) in enumerate(pairwise(bounds))
            if self.is_whole or any(start < k < end for k in self.candidates)
        ]
        return [change for change in likeliest if change]

    def _likeliest(self, start: int, end: int, noise: Array) -> LevelChange | None:
        """The most likely change in a stretch; None where the stretch is too short for any."""
        evidence = self._evidence(start, end, noise)
        logs = evidence.under(self.prior)
        if logs == -math.inf:
            return None
        return LevelChange(self.tables, self.offset, start, end, evidence, logs, noise)

    def _evidence(self, start: int, end: int, noise: Array, inner: int = INNER) -> ChangeEvidence:
        if (start, end, inner) not in self._likelihoods:
            self._likelihoods[start, end, inner] = likelihoods(self.tables, start, end, inner)
        return self._likelihoods[start, end, inner].evidence(noise)

    def _noise(self, bounds: list[int], low: int, high: int) -> Array:
        """log weights of the families of noise, from all levels but those between two of the bounds."""
        out = self.tables.prior
        # The stretch itself is left out: a step in it would look like noise with memory.
        for start, end in [*pairwise(bounds[: low + 1]), *pairwise(bounds[high:])]:
            if (start, end) not in self._levels:
                self._levels[start, end] = level(self.tables, start, end)
            out = out + self._levels[start, end]
        return np.asarray(out - out.max())

    def _joint_evidence(self, places: list[int]) -> float:
        """log evidence of several changes against none: of each, given those before it.

        Infinite in a piece of a long series, whose many levels show its noise.
        """
        n = len(self.tables.values)
        if len(places) < 2 or not self.is_whole:
            return math.inf
        total = 0.0
        for i, place in enumerate(places):
            bounds = [0, *places[:i], n]
            evidence = self._evidence(bounds[i], n, self._noise(bounds, i, i + 1))
            logs = evidence.logs + self.prior[evidence.places]
            near = logs[np.abs(evidence.places - place) < INNER]
            total += float(log_sum_exp(near)) if len(near) else -math.inf
        return total


def search(values: Array, threshold: float, least: float = FLOOR) -> SearchResult:
    """The changes of level whose log evidence is at least ``threshold``, ascending.

    ``least``: the smallest scale of a night.
    A series of more than :data:`LONG` nights is judged in pieces that overlap, with fewer kinds of noise, and
    only where a scan finds a candidate.
    """
    n = len(values)
    length, shared, reach, families = (PIECE, OVERLAP, REACH, COARSE) if n > LONG else (n, 0, n, FULL)
    fineness = COARSE_FINE if n > LONG else min(FINE, 2.0 / math.sqrt(n))
    prior = place_prior(n)
    changes: list[LevelChange] = []
    evidence, best, scales = np.zeros(n), -math.inf, []
    for offset in range(0, max(1, n - shared), length - shared):
        part = values[offset : offset + length]
        scale = scale_of(part, least)
        places = candidates(clip_outliers(part, scale), scale)
        kept = likely(_residuals(part, places), scale, families)
        piece = _PieceSearch(
            tables=tables(part, kept, fineness, least),
            offset=offset,
            prior=prior[offset : offset + len(part)],
            threshold=threshold,
            candidates=places,
            reach=reach,
        )
        own, between = piece.run()
        # Each piece reports the middle of what it shares: a change near an edge has too few nights there.
        low = offset + (shared // 2 if offset else 0)
        high = offset + len(part) - (shared // 2 if offset + len(part) < n else 0)
        own = [change for change in own if low <= change.index < high]
        changes += own
        best = max([best, *(change.log_evidence for change in [*own, *between])])
        # Around a kept change only its own likely nights count: every place next to it would look changed.
        for change, least in [*((c, -1.0) for c in between), *((c, _NEAR) for c in own)]:
            at = offset + change.evidence.places
            inside = (at >= low) & (at < high) & (change.evidence.posterior > least)
            evidence[at[inside]] = change.evidence.logs[inside]
        scales.append(piece.tables.scale)
    return SearchResult(tuple(changes), best, evidence, float(np.median(scales)))


def _residuals(values: Array, places: list[int]) -> tuple[Array, ...]:
    """The values less their median, and less the medians between ``places``."""
    alone = values - np.median(values)
    parts = [part - np.median(part) for part in np.split(values, places)]
    return (alone, np.concatenate(parts)) if places else (alone,)
