"""What a slot does: launches on one set of devices may all be faster or slower than those on another.

A shift of the log, one a slot: a device of half the speed doubles every time, whatever the change. Each slot
measures both ends of the range, so the shift is known from positions that several slots have measured, and
from nothing else: what a slot does to one change alone cannot be told from the change, and is left to the
A/B, which stays on one slot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from perfbisect.core.stats import DEGREES, Array

_ALIKE = 0.01
"""Scale of the prior of a shift, a Cauchy: devices of one kind are alike to about a per cent, and those that
are not may differ by any amount."""

_NOISE = 0.02
"""Prior noise of a launch's centre, worth :data:`_NOISE_COUNT` launches."""

_NOISE_COUNT = 4.0

_ROUNDS = 12


def slot_shifts(slots: Sequence[str | None], index: Sequence[int], centers: Array) -> tuple[Array, Array]:
    """The shift of each launch's slot and its standard error (log scale), launch by launch.

    ``slots``, ``index`` and ``centers``: where each launch was made, of which position, and the centre of
    its runs. The slot with most launches of positions that others have measured too (the first, of several)
    is the measure: its shift is 0; None, for launches of earlier jobs, never is. The error of a slot that
    shares no position with it, also by way of others, is infinite. The fit is that of levels of positions
    and shifts of slots, with a Student-t noise and the prior of a shift, by reweighted least squares.
    """
    names = list(dict.fromkeys(slots))
    shift, error = np.zeros(len(centers)), np.zeros(len(centers))
    if len(names) < 2:
        return shift, error
    slot = np.array([names.index(name) for name in slots])
    place = np.array(index)
    shared = [p for p in sorted(set(index)) if len(set(slot[place == p])) > 1]
    used = np.isin(place, shared)
    first = int(
        np.argmax([np.sum(used & (slot == k)) - 1e9 * (name is None) for k, name in enumerate(names)])
    )
    known = _linked(first, slot[used], place[used])
    used &= np.isin(slot, sorted(known))
    others = [k for k in sorted(known) if k != first]
    found, doubt = _fit(slot[used], place[used], centers[used], others)
    for k in range(len(names)):
        here = slot == k
        if k in others:
            shift[here], error[here] = found[others.index(k)], doubt[others.index(k)]
        elif k != first:
            error[here] = math.inf
    return shift, error


def _linked(first: int, slot: Array, place: Array) -> set[int]:
    """The slots that share a position with the first one, or with one that does."""
    known = {first}
    while True:
        reached = set(place[np.isin(slot, sorted(known))])
        more = {int(k) for k in slot[np.isin(place, sorted(reached))]} | known
        if more == known:
            return known
        known = more


def _fit(slot: Array, place: Array, y: Array, others: list[int]) -> tuple[Array, Array]:
    """Shifts of the ``others`` and their standard errors."""
    if not others:
        return np.zeros(0), np.zeros(0)
    places = np.unique(place)
    design = np.concatenate(
        [place[:, None] == places[None], slot[:, None] == np.array(others)[None]], axis=1
    ).astype(float)
    free = len(places)
    origin = float(np.median(y))
    weight, prior = np.ones(len(y)), np.full(len(others), 1e-6)
    noise = _NOISE
    for _ in range(_ROUNDS):
        normal = design.T @ (design * weight[:, None]) / noise**2
        normal[range(free, len(normal)), range(free, len(normal))] += prior
        solved = np.linalg.solve(normal, design.T @ (weight * (y - origin)) / noise**2)
        rest = y - origin - design @ solved
        left = max(0.0, len(y) - normal.shape[0])
        spread = float(weight @ rest**2)
        noise = math.sqrt((spread + _NOISE_COUNT * _NOISE**2) / (left + _NOISE_COUNT))
        weight = (DEGREES + 1) / (DEGREES + (rest / noise) ** 2)
        prior = 2.0 / (_ALIKE**2 + solved[free:] ** 2)
    # What a Student-t launch of this scale tells of a location, against a Gaussian one (Fisher information).
    inflated = math.sqrt((DEGREES + 3) / (DEGREES + 1))
    return solved[free:], inflated * np.sqrt(np.diag(np.linalg.inv(normal))[free:])
