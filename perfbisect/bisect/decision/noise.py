"""Launches as the model sees them, and the noise before any level is known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfbisect.bisect.decision.model import USUAL_NOISE, Event, Measured, NoisePrior, PositionLaunch
from perfbisect.stats.robust import (
    DEGREES_OF_FREEDOM,
    Array,
    log_heavy_tailed,
    robust_location,
    run_scale,
)
from perfbisect.stats.two_sample import Scale

_ALIKE = 0.01
"""Scale of the prior of a slot's offset within its machine, a Cauchy: devices of one kind in one machine are
alike to about a per cent, and those that are not may differ by any amount."""

_MACHINES_ALIKE = 0.08
"""... and of a machine's offset: devices of one kind in several machines differ by 8 % on average (Sinha et
al., *Not All GPUs Are Created Equal*, SC22, arXiv 2208.11035)."""

_NOISE = 0.02
"""Prior noise of a launch's centre, worth :data:`_NOISE_COUNT` launches."""

_NOISE_COUNT = 4.0

_ROUNDS = 12


def slot_offsets(
    slots: Sequence[str],
    index: Sequence[int],
    centers: Array,
    machines: Sequence[str] = (),
    measure: str = "",
) -> tuple[Array, Array]:
    """The offset of each launch's slot and its standard error (log scale), launch by launch.

    ``slots``, ``index`` and ``centers``: where each launch was made, of which position, and the centre of
    its runs; ``machines``: whose slot it is, empty for a job of one machine. ``measure``: the slot of offset
    0; by default that with most launches of positions that others have measured too (the first, of several).
    The error of a slot that shares no position with it, also by way of others, is infinite. The fit is that
    of levels of positions and offsets of slots, with a Student-t noise and the prior of an offset, by
    reweighted least squares. The slots of a machine share its offset, and each but its first has one of its
    own within it.
    """
    names = list(dict.fromkeys(slots))
    offset, error = np.zeros(len(centers)), np.zeros(len(centers))
    if len(names) < 2:
        return offset, error
    slot = np.array([names.index(name) for name in slots])
    place = np.array(index)
    shared = [p for p in sorted(set(index)) if len(set(slot[place == p])) > 1]
    used = np.isin(place, shared)
    counts = [int(np.sum(used & (slot == k))) for k in range(len(names))]
    first = names.index(measure) if measure else int(np.argmax(counts))
    known = _linked(first, slot[used], place[used])
    # A slot that no chain of shared positions links to the measure has no offset that could be fitted.
    used &= np.isin(slot, sorted(known))
    owners = dict(zip(slots, machines, strict=True)) if machines else {}
    order = [first, *sorted(known - {first}, key=lambda k: (-counts[k], k))]
    parts, scales = _parts([owners.get(names[k], "") for k in order], order)
    found, covariance = _fit(slot[used], place[used], centers[used], parts, scales)
    for k in range(len(names)):
        here = slot == k
        if k in parts:
            offset[here] = float(parts[k] @ found)
            error[here] = _INFLATED * math.sqrt(float(parts[k] @ covariance @ parts[k]))
        else:
            error[here] = math.inf
    return offset, error


def _parts(owners: Sequence[str], order: Sequence[int]) -> tuple[dict[int, Array], Array]:
    """What each slot's offset is the sum of, as a row over the unknowns, and the prior scale of each unknown.

    ``order``: the slots, the measure first; ``owners``: the machine of each.
    """
    machines = list(dict.fromkeys(owners))
    firsts = {order[owners.index(name)] for name in machines}
    own = sorted(set(order) - firsts)
    scales = np.array([_MACHINES_ALIKE] * (len(machines) - 1) + [_ALIKE] * len(own))
    rows = {}
    for k, owner in zip(order, owners, strict=True):
        rows[k] = np.zeros(len(scales))
        if owner != machines[0]:
            rows[k][machines.index(owner) - 1] = 1.0
        if k in own:
            rows[k][len(machines) - 1 + own.index(k)] = 1.0
    return rows, scales


def _linked(first: int, slot: Array, place: Array) -> set[int]:
    """The slots that share a position with the first one, or with one that does."""
    known = {first}
    while True:
        reached = set(place[np.isin(slot, sorted(known))])
        more = {int(k) for k in slot[np.isin(place, sorted(reached))]} | known
        if more == known:
            return known
        known = more


def _fit(
    slot: Array, place: Array, y: Array, parts: Mapping[int, Array], scales: Array
) -> tuple[Array, Array]:
    """The unknowns that offsets are made of, and their covariance under a Gaussian noise."""
    if not len(scales):
        return np.zeros(0), np.zeros((0, 0))
    places = np.unique(place)
    rows = np.array([parts[int(k)] for k in slot])
    design = np.concatenate([place[:, None] == places[None], rows], axis=1).astype(float)
    free = len(places)
    origin = float(np.median(y))
    # The prior is nearly flat in the first turn: it must not shrink the offset of a slot with half the speed.
    weight, prior = np.ones(len(y)), np.full(len(scales), 1e-6)
    noise = _NOISE
    for _ in range(_ROUNDS):
        normal = design.T @ (design * weight[:, None]) / noise**2
        normal[range(free, len(normal)), range(free, len(normal))] += prior
        solved = np.linalg.solve(normal, design.T @ (weight * (y - origin)) / noise**2)
        rest = y - origin - design @ solved
        left = max(0.0, len(y) - normal.shape[0])
        spread = float(weight @ rest**2)
        noise = math.sqrt((spread + _NOISE_COUNT * _NOISE**2) / (left + _NOISE_COUNT))
        # Student-t noise and Cauchy prior as mixtures of Gaussians: the weights are expected precisions (EM).
        weight = (DEGREES_OF_FREEDOM + 1) / (DEGREES_OF_FREEDOM + (rest / noise) ** 2)
        prior = 2.0 / (scales**2 + solved[free:] ** 2)
    return solved[free:], np.linalg.inv(normal)[free:, free:]


_INFLATED = math.sqrt((DEGREES_OF_FREEDOM + 3) / (DEGREES_OF_FREEDOM + 1))
"""What a Student-t launch of this scale tells of a location, against a Gaussian one (Fisher information)."""

_LAUNCHES = 6
"""Launches with a run at a place before anything is said of that place."""

_ERRORS = 4.0
"""Standard errors that an effect must stand from zero: less is left in the noise."""


def run_order_effects(logs: Sequence[Array]) -> Array:
    """Log offset of run k against the first of its launch, common to all launches; 0 where none is shown.

    ``logs``: the logs of each launch's values in run order. The offset is the median over launches of the
    differences to their first run; its standard error is 1.2533 s / sqrt(m), with s from the median absolute
    deviation over all places (the asymptotic variance of a median, pi/2 that of the mean).
    """
    longest = max((len(launch) for launch in logs), default=0)
    effects = np.zeros(longest)
    places = [np.array([x[k] - x[0] for x in logs if len(x) > k]) for k in range(1, longest)]
    shown = [(k, differences) for k, differences in enumerate(places, 1) if len(differences) >= _LAUNCHES]
    if not shown:
        return effects
    spread = np.concatenate([np.abs(differences - np.median(differences)) for _, differences in shown])
    scale = 1.4826 * float(np.median(spread))
    for k, differences in shown:
        middle = float(np.median(differences))
        if abs(middle) > _ERRORS * 1.2533 * scale / np.sqrt(len(differences)):
            effects[k] = middle
    return effects


SIGMA = 0.00125 * 2.0 ** np.arange(9)
"""Grid of the noise between runs of a launch (log scale): 0.125 % to 32 %."""

TAU = 0.002 * 2.0 ** np.arange(8)
"""Grid of the noise between launches: 0.2 % to 26 %."""


@dataclass(frozen=True)
class LaunchEstimate(PositionLaunch):
    """One server start: the centre of its runs' signed logs, and their spread around it."""

    center: float
    runs: int
    residuals: tuple[float, ...]
    slot: str = ""
    at: float = 0.0
    """Minutes from the first launch."""
    offset_se: float = 0.0
    """Standard error of the slot's offset, which is taken out; infinite where the slot cannot be compared."""
    machine: str = ""
    block: str = ""
    """Launches of one block have an unknown offset in common: those of an A/B that were made on one slot."""

    @property
    def is_usable(self) -> bool:
        """Whether the speed of its slot can be compared."""
        return math.isfinite(self.offset_se)


def launch_centers(seen: Sequence[Measured], scale: Scale) -> tuple[list[Array], Array]:
    """The signed logs of each launch's runs less the effects of run order, and the centre of each launch.

    Of shares the signed values themselves.

    Raises:
        ValueError: no value, or one of which there is no level.
    """
    logs = [_levels(event, scale) for event in seen]
    places = run_order_effects(logs)
    runs = [own - places[: len(own)] for own in logs]
    noise = run_scale(runs)
    return runs, np.array([robust_location(own, noise) for own in runs])


def launches(events: tuple[Event, ...], scale: Scale, in_blocks: bool = False) -> tuple[LaunchEstimate, ...]:
    """The measured events as launches, larger is worse, less the effects of run order and slot.

    ``in_blocks``: of an A/B, where what is not known of a slot's speed is the same on both sides.

    Raises:
        ValueError: no value, or one that is not positive.
    """
    seen = [event for event in events if isinstance(event, Measured)]
    runs, middles = launch_centers(seen, scale)
    indices = [event.index for event in seen]
    machines = [event.machine for event in seen]
    offset, offset_se = slot_offsets([event.slot for event in seen], indices, middles, machines)
    return tuple(
        LaunchEstimate(
            index=event.index,
            purpose=event.purpose,
            center=float(middles[k] - offset[k]),
            runs=len(runs[k]),
            residuals=tuple(sorted(float(v) for v in runs[k] - middles[k])),
            slot=event.slot,
            at=at,
            offset_se=0.0 if in_blocks else float(offset_se[k]),
            machine=event.machine,
            block=event.slot if in_blocks else "",
        )
        for k, (event, at) in enumerate(zip(seen, minutes(events), strict=True))
    )


def minutes(events: tuple[Event, ...]) -> tuple[float, ...]:
    """When each measured launch began its runs, in minutes: as recorded, else one launch after the other."""
    out, clock = [], 0.0
    for event in events:
        if isinstance(event, Measured):
            began = clock + event.build + event.bring + event.launch if event.at is None else event.at
            out.append(began)
            clock = began + event.run
        else:
            clock += event.minutes
    return tuple(out)


def _levels(event: Measured, scale: Scale) -> Array:
    values = np.array(event.values, float)
    least = 0.0 if scale.absolute else np.nextafter(0.0, 1.0)
    if not len(values) or not np.all(np.isfinite(values)) or np.any(values < least):
        raise ValueError(f"position {event.index}: values must be positive and finite: {event.values}")
    return scale.signed(values)


@dataclass(frozen=True)
class WeightedNoise:
    """Pairs of a spread of runs and one of launches, with the probability of each."""

    sigma: Array
    tau: Array
    weight: Array


def launch_variance(sigma: float, tau: float, runs: float) -> float:
    """Variance of the centre of a launch of so many runs."""
    return tau**2 + sigma**2 / runs


def launch_scale(sigma: Array, tau: Array, runs: Array | float, offset_se: Array | float = 0.0) -> Array:
    """Scale of a launch's centre: sqrt(tau^2 + sigma^2 / r), wider by the error of its slot's offset."""
    return np.sqrt(tau * tau + sigma * sigma / runs + offset_se * offset_se)


def _spread(groups: Sequence[Array], scale: Array) -> Array:
    """Log likelihood [scale] of residuals, each group around its own centre; ``scale`` [.., residual].

    The k of a group carry k - 1 free differences, and each has the variance scale^2 (k - 1) / k: so every
    residual counts for that share of one, widened to the full scale.
    """
    sizes = np.array([len(group) for group in groups])
    share = np.repeat((sizes - 1) / sizes, sizes)
    used = share > 0
    scale = np.broadcast_to(scale, (len(scale), len(share)))[:, used]
    z = np.concatenate(groups)[used] / (np.sqrt(share[used]) * scale)
    return np.asarray((log_heavy_tailed(z) - np.log(scale)) @ share[used])


def likely_noise(
    data: tuple[LaunchEstimate, ...], noise: NoisePrior = USUAL_NOISE, keep: float = 1e-3
) -> WeightedNoise:
    """The grid of noise, less what the spread within launches and between launches of one position rules out.

    Only pairs below ``keep`` of the best are dropped. The weights are of the prior and of the spread within
    launches: levels and repeats are counted by the full model.
    """
    s, t = (a.ravel() for a in np.meshgrid(SIGMA, TAU, indexing="ij"))
    known = -0.5 * (np.log(s / noise.runs) / noise.runs_sd) ** 2
    known -= 0.5 * (np.log(t / noise.launches) / noise.launches_sd) ** 2
    within = [np.array(launch.residuals) for launch in data]
    known += np.repeat(_spread(within, np.asarray(SIGMA[:, None])), len(TAU))
    places = [[x for x in data if x.index == index] for index in {launch.index for launch in data}]
    centers = [np.array([launch.center for launch in here]) for here in places]
    apart = [middles - robust_location(middles) for middles in centers]
    sizes = [len(here) for here in places]
    runs = np.repeat([np.mean([launch.runs for launch in here]) for here in places], sizes)
    errors = np.repeat([np.mean([launch.offset_se**2 for launch in here]) for here in places], sizes)
    total = known + _spread(apart, launch_scale(s[:, None], t[:, None], runs, np.sqrt(errors)))
    kept = total > total.max() + math.log(keep)
    weight = np.exp(known[kept] - known[kept].max())
    return WeightedNoise(s[kept], t[kept], weight / weight.sum())
