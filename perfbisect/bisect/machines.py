"""The machines of a bisection on a fleet as its journal has them: which were put out of use, and why."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import TypeAdapter

from perfbisect.bisect.decision.machines import UNLIKE, MachineOffset
from perfbisect.bisect.plan import BisectPlan
from perfbisect.common.quantities import percent
from perfbisect.jobs.journal import Journal, JournalEvent
from perfbisect.jobs.replay import LaunchRecord

_OFFSET = TypeAdapter(MachineOffset)


def machines_out(events: Sequence[JournalEvent]) -> dict[str, MachineOffset]:
    """The machines that were put out of use, with their offsets of then."""
    seen = [_OFFSET.validate_python(dict(event.data)) for event in events if event.kind == "machine"]
    return {offset.machine: offset for offset in seen}


def put_out(journal: Journal, offset: MachineOffset) -> None:
    """Record that a machine is out of use."""
    journal.append("machine", _OFFSET.dump_python(offset, mode="json"))


def why_out(offset: MachineOffset, plan: BisectPlan) -> str:
    """Why a machine is out of use."""
    effect, low, high = offset.relative(plan.search.sign)
    direction = "slower" if plan.ref.metric.sign * effect > 0 else "faster"
    return (
        f"{offset.machine} is {direction} than the other machines for any change: {plan.ref.metric.display} "
        f"{percent(effect)} (95 % interval {percent(low)} to {percent(high)}), and machines of one class "
        f"differ by less than {percent(math.expm1(UNLIKE), False)}"
    )


def discard_launches(
    journal: Journal, records: Sequence[LaunchRecord], offset: MachineOffset, plan: BisectPlan
) -> None:
    """Record that what a machine measured is no evidence."""
    for launch in records:
        if launch.machine == offset.machine and launch.end == "finished":
            journal.append("discarded", {"attempt": launch.attempt_id, "reason": why_out(offset, plan)})
