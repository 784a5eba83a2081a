"""The machines of a fleet against each other: by how much each is slower, and which are unlike the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfbisect.bisect.decision.model import Event, Measured
from perfbisect.bisect.decision.noise import launch_centers, slot_offsets

UNLIKE = math.log(1.3)
"""Difference (log) beyond which a machine is not what the others are: machines in order differ by 8 % on
average and by 22 % at most, outliers by half (arXiv 2208.11035)."""

LEAST_MACHINES = 3
"""Of two machines that differ it is not known which is the odd one."""

_CLEARLY = 3.0
"""Standard errors that an offset must lie beyond :data:`UNLIKE`: it is looked at after every launch."""


@dataclass(frozen=True)
class MachineOffset:
    """By how much a machine is slower than the middle one of all, for any change (log, larger is worse).

    ``error``: its standard error; infinite where the machine shares no position with the others.
    ``sees_ends``: one of its slots has measured both ends.
    """

    machine: str
    launches: int
    offset: float
    error: float
    sees_ends: bool

    def relative(self, sign: int) -> tuple[float, float, float]:
        """The offset as a relative difference in the metric's own direction, and its 95 % interval."""
        low, high = self.offset - 1.96 * self.error, self.offset + 1.96 * self.error
        ends = sorted(math.expm1(sign * v) for v in (low, high))
        return math.expm1(sign * self.offset), ends[0], ends[1]


def machine_offsets(events: Sequence[Event], last: int, sign: int) -> tuple[MachineOffset, ...]:
    """The offsets of a job's machines, in the order of their first launches; none of a job of one machine.

    ``last``: the position of the later end. The middle machine has offset 0; of an even number it is the
    faster one of the two.
    """
    seen = [event for event in events if isinstance(event, Measured)]
    if len({event.machine for event in seen}) < 2:
        return ()
    _, centers = launch_centers(seen, sign)
    first = _offsets(seen, centers, last, "")
    usable = sorted((x for x in first if math.isfinite(x[1].error)), key=lambda x: x[1].offset)
    middle, _ = usable[(len(usable) - 1) // 2]
    return tuple(offset for _, offset in _offsets(seen, centers, last, middle))


def _offsets(
    seen: Sequence[Measured], centers: np.ndarray, last: int, measure: str
) -> list[tuple[str, MachineOffset]]:
    """Each machine's offset, after the slot that knows it best; ``measure``: the slot of offset 0."""
    slots, machines = [event.slot for event in seen], [event.machine for event in seen]
    offset, error = slot_offsets(slots, [event.index for event in seen], centers, machines, measure)
    rows = []
    for machine in dict.fromkeys(machines):
        own = [k for k, name in enumerate(machines) if name == machine]
        best = min(own, key=lambda k: error[k])
        by_slot = {slots[k]: {seen[j].index for j in own if slots[j] == slots[k]} for k in own}
        sees_ends = any({0, last} <= positions for positions in by_slot.values())
        value = MachineOffset(machine, len(own), float(offset[best]), float(error[best]), sees_ends)
        rows.append((slots[best], value))
    return rows


def outlying_machines(offsets: Sequence[MachineOffset]) -> tuple[MachineOffset, ...]:
    """The machines that are clearly unlike most others: faults of the machine, and no evidence.

    Only machines that have measured both ends are judged, and only while more than half of these are alike.
    """
    judged = [x for x in offsets if x.sees_ends and math.isfinite(x.error)]
    alike = [x for x in judged if abs(x.offset) <= UNLIKE]
    if len(judged) < LEAST_MACHINES or 2 * len(alike) <= len(judged):
        return ()
    return tuple(x for x in judged if abs(x.offset) - _CLEARLY * x.error > UNLIKE)
