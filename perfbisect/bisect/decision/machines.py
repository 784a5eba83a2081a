"""The machines of a fleet against each other: by how much each is slower, which are unlike the others, and
whether the ends or a step differ on one alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from perfbisect.bisect.decision import confirm
from perfbisect.bisect.decision.model import Comparison, Event, Measured
from perfbisect.bisect.decision.noise import (
    LaunchEstimate,
    launch_centers,
    likely_noise,
    slot_offsets,
)
from perfbisect.stats.robust import Array
from perfbisect.stats.two_sample import Scale

UNLIKE = math.log(1.3)
"""Difference (log) beyond which a machine is not what the others are: machines in order differ by 8 % on
average and by 22 % at most, outliers by half (arXiv 2208.11035)."""

LEAST_MACHINES = 3
"""Of two machines that differ it is not known which is the odd one."""

MAX_END_PAIRS = 6
"""Pairs of the ends on one machine after which nothing more is asked of it."""

_DOUBT = math.log(3.0)
"""Likelihood ratio from which the ends may differ on one machine alone."""

_CLEARLY = 3.0
"""Standard errors that an offset must lie beyond :data:`UNLIKE`: it is looked at after every launch."""


@dataclass(frozen=True)
class MachineOffset:
    """By how much a machine is slower than the middle one of all, for any change (log, larger is worse).

    ``error``: its standard error; infinite where the machine shares no position with the others.
    ``at_ends``: by how much it is slower at either end alone, the lesser of the two, or 0 where the signs
    differ; None before one of its slots has measured both ends.
    """

    machine: str
    launches: int
    offset: float
    error: float
    at_ends: float | None

    def relative(self, scale: Scale) -> tuple[float, float, float]:
        """The offset as an effect in the metric's own direction, and its 95 % interval."""
        low, high = self.offset - 1.96 * self.error, self.offset + 1.96 * self.error
        ends = sorted(map(scale.effect, (low, high)))
        return scale.effect(self.offset), ends[0], ends[1]


def machine_offsets(events: Sequence[Event], last: int, scale: Scale) -> tuple[MachineOffset, ...]:
    """The offsets of a job's machines, in the order of their first launches; none of a job of one machine.

    ``last``: the position of the later end. The middle machine has offset 0; of an even number it is the
    faster one of the two.
    """
    seen = [event for event in events if isinstance(event, Measured)]
    if len({event.machine for event in seen}) < 2:
        return ()
    _, centers = launch_centers(seen, scale)
    first = _offsets(seen, centers, last, "")
    usable = sorted((x for x in first if math.isfinite(x[1].error)), key=lambda x: x[1].offset)
    middle, _ = usable[(len(usable) - 1) // 2]
    return tuple(offset for _, offset in _offsets(seen, centers, last, middle))


def _offsets(
    seen: Sequence[Measured], centers: Array, last: int, measure: str
) -> list[tuple[str, MachineOffset]]:
    """Each machine's offset, after the slot that knows it best; ``measure``: the slot of offset 0."""
    lesser = _at_ends(seen, centers, last)
    slots, machines = [event.slot for event in seen], [event.machine for event in seen]
    offset, error = slot_offsets(slots, [event.index for event in seen], centers, machines, measure)
    rows = []
    for machine in dict.fromkeys(machines):
        own = [k for k, name in enumerate(machines) if name == machine]
        best = min(own, key=lambda k: error[k])
        value = MachineOffset(machine, len(own), float(offset[best]), float(error[best]), lesser.get(machine))
        rows.append((slots[best], value))
    return rows


def _at_ends(seen: Sequence[Measured], centers: Array, last: int) -> dict[str, float]:
    """The lesser of each machine's differences from the middle machine at the two ends.

    Of each machine the first slot that has measured both.
    """
    levels: dict[str, tuple[float, float]] = {}
    for slot in dict.fromkeys(event.slot for event in seen):
        made = [(event, float(x)) for event, x in zip(seen, centers, strict=True) if event.slot == slot]
        sides = [[x for event, x in made if event.index == end] for end in (0, last)]
        if all(sides):
            levels.setdefault(made[0][0].machine, (median(sides[0]), median(sides[1])))
    middle = [median(level[end] for level in levels.values()) for end in (0, 1)] if levels else []
    lesser = {}
    for machine, level in levels.items():
        apart = [level[end] - middle[end] for end in (0, 1)]
        # Faster at one end and slower at the other is not a machine's speed: the change has another effect
        # there.
        lesser[machine] = min(apart, key=abs) if apart[0] * apart[1] > 0 else 0.0
    return lesser


def outlying_machines(offsets: Sequence[MachineOffset]) -> tuple[MachineOffset, ...]:
    """The machines that are clearly unlike most others: faults of the machine, and no evidence.

    Only machines that have measured both ends are judged, and only while more than half of these are alike.
    A machine is an outlier at both ends: what it is at one of them alone may be a step that only it has.
    """
    judged = [x for x in offsets if x.at_ends is not None and math.isfinite(x.error)]
    alike = [x for x in judged if abs(x.offset) <= UNLIKE]
    if len(judged) < LEAST_MACHINES or 2 * len(alike) <= len(judged):
        return ()
    return tuple(
        x for x in judged if abs(x.offset) - _CLEARLY * x.error > UNLIKE and abs(x.at_ends or 0.0) > UNLIKE
    )


@dataclass(frozen=True)
class MachineEnds:
    """The ends as one machine measured them: bad against good there, and on all others.

    ``ratio``: ln of P(its launches | step) / P(its launches | no step), for a step of any relevant size;
    ``ratio_elsewhere``: that of all others. ``good``, ``bad``: its launches; ``others``: the other machines.
    """

    machine: str
    others: tuple[str, ...]
    good: tuple[LaunchEstimate, ...]
    bad: tuple[LaunchEstimate, ...]
    ratio: float
    ratio_elsewhere: float
    there: Comparison
    elsewhere: Comparison

    @property
    def pairs(self) -> int:
        return min(len(self.good), len(self.bad))

    @property
    def is_told(self) -> bool:
        """Whether the ends differ on this machine alone, by the rule of an A/B for each machine."""
        # Any machine may pass by chance: the log of their number is Bonferroni's correction.
        enough = confirm.DECIDED + math.log(1 + len(self.others))
        is_apart = self._is_apart(self.there.low)
        return self.pairs >= confirm.LEAST_PAIRS and self.ratio > enough and is_apart

    @property
    def is_doubtful(self) -> bool:
        """Whether more launches of the ends on this machine may tell that they differ on it alone."""
        differs = self.ratio > _DOUBT and self._is_apart(self.there.effect)
        return differs and not self.is_told and self.pairs < MAX_END_PAIRS

    def _is_apart(self, effect: float) -> bool:
        """Whether an effect is beyond what the other machines allow, and these rather show none."""
        return effect > self.elsewhere.high and self.ratio_elsewhere < 0


def ends_by_machine(data: Sequence[LaunchEstimate], last: int, min_effect: float) -> tuple[MachineEnds, ...]:
    """The ends on each machine of a fleet that has measured both, where others have; larger is worse.

    ``data``: launches whose slots can be compared.
    """
    # A machine's offset is the same at both ends: its error cancels in their difference.
    ends = [replace(launch, offset_se=0.0) for launch in data if launch.index in (0, last)]
    machines = tuple(dict.fromkeys(launch.machine for launch in ends))
    if len(machines) < 2:
        return ()
    look = _any_step(ends, machines, min_effect)
    rows = []
    for machine in machines:
        own, rest = (
            [[x for x in ends if x.index == end and (x.machine == machine) == here] for end in (0, last)]
            for here in (True, False)
        )
        if not all([*own, *rest]):
            continue
        rows.append(
            MachineEnds(
                machine=machine,
                others=tuple(name for name in machines if name != machine),
                good=tuple(own[0]),
                bad=tuple(own[1]),
                ratio=confirm.log_ratio(own[0], own[1], look),
                ratio_elsewhere=confirm.log_ratio(rest[0], rest[1], look),
                there=confirm.compare(own[0], own[1], look, Scale()),
                elsewhere=confirm.compare(rest[0], rest[1], look, Scale()),
            )
        )
    return tuple(rows)


def _any_step(
    ends: list[LaunchEstimate], machines: tuple[str, ...], min_effect: float
) -> confirm.EffectPrior:
    """Steps from the smallest relevant one on, and the noise of launches of one end on one machine."""
    levels = {launch.index: k for k, launch in enumerate(ends)}
    apart = [
        replace(launch, index=levels[launch.index] * len(machines) + machines.index(launch.machine))
        for launch in ends
    ]
    steps = math.log1p(min_effect) * 2.0 ** np.arange(6.0)
    return confirm.EffectPrior(steps, np.full(6, 1 / 6), likely_noise(tuple(apart)))


Sides = tuple[list[LaunchEstimate], list[LaunchEstimate]]
"""The launches of the parent, and those of the culprit."""


def home_machine(made: Sequence[LaunchEstimate], step: Comparison, look: confirm.EffectPrior) -> str:
    """The machine whose own launches of an A/B show its step most: the others must show it without them."""
    ratios: dict[str, float] = {}
    for machine in dict.fromkeys(launch.machine for launch in made if launch.purpose == "confirm"):
        own = [launch for launch in made if launch.machine == machine and launch.purpose == "confirm"]
        parent, culprit = _paired(own, step)
        ratios[machine] = confirm.log_ratio(parent, culprit, look) if parent else -math.inf
    return max(ratios, key=ratios.__getitem__)


def made_elsewhere(made: Sequence[LaunchEstimate], step: Comparison, home: str) -> Sides:
    """The launches of an A/B on all machines but one, of the slots that have both sides."""
    return _paired([launch for launch in made if launch.machine != home], step)


def _paired(made: Sequence[LaunchEstimate], step: Comparison) -> Sides:
    parent, culprit = ([x for x in made if x.index == index] for index in (step.parent, step.culprit))
    both = {x.slot for x in parent} & {x.slot for x in culprit}
    return [x for x in parent if x.slot in both], [x for x in culprit if x.slot in both]
