"""Samples other load during an attempt and discards what it affected."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

from perfbisect.errors import PerfbisectError, UsageError
from perfbisect.machine.devices import Gpu, Smi
from perfbisect.machine.interference import UNJUDGED, InterferenceLimits, interference_reason
from perfbisect.machine.sampler import Sampler
from perfbisect.machine.slots import Slot
from perfbisect.measure.faults import ATTEMPT_ERRORS, DiscardedRunError
from perfbisect.system.ports import SharedPortError
from perfbisect.system.processes import Process

VARIABLE = "PERFBISECT_LIMITS"

_NEXT = "none needed, it is measured again; or end other processes on this machine"


@dataclass(frozen=True)
class InterferenceMonitor:
    """Samples one attempt's slot and discards runs under foreign load."""

    slot: Slot
    limits: InterferenceLimits
    ours: Callable[[], Iterable[Process]]
    smi: Smi
    devices: Sequence[Gpu]
    """All devices of the machine."""

    @contextmanager
    def sample(self, *, measured: bool) -> Iterator[dict[str, Any]]:
        """Sample what happens meanwhile; the yielded facts are filled at its end.

        What is not ``measured`` (a start, a warm run) is discarded for device conflicts only. A failure under
        load is discarded in any case.

        Raises:
            DiscardedRunError: a limit was exceeded, whether it succeeded or not.
        """
        limits = self.limits if measured else replace(UNJUDGED, device_memory=self.limits.device_memory)
        sampler = Sampler(self.ours, slot=self.slot, smi=self.smi, known=self.devices)
        facts: dict[str, Any] = {}
        try:
            with sampler:
                yield facts
        except (DiscardedRunError, SharedPortError):
            raise
        except ATTEMPT_ERRORS as error:
            reason = interference_reason(sampler.summary(), self.limits)
            if reason is None:
                raise
            message = error.message if isinstance(error, PerfbisectError) else str(error)
            raise DiscardedRunError(
                f"discarded: {reason}; meanwhile: {message}",
                where=getattr(error, "where", None),
                next_step=_NEXT,
            ) from error
        samples = sampler.summary()
        facts |= samples.facts(self.limits)
        reason = interference_reason(samples, limits)
        if reason:
            raise DiscardedRunError(f"discarded: {reason}", next_step=_NEXT)


def machine_limits(text: str) -> InterferenceLimits:
    """Parse ``PERFBISECT_LIMITS``: empty for defaults, ``off``, or ``foreign_cpu=0.5,steal=off``."""
    if text.strip() == "off":
        return UNJUDGED
    known = {field.name for field in fields(InterferenceLimits)}
    chosen: dict[str, float | None] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.partition("=")
        try:
            chosen[name] = None if value == "off" and name != "burst" else float(value)
        except ValueError:
            raise UsageError(f"{VARIABLE}: {part!r} is not NAME=NUMBER or NAME=off") from None
        if name not in known:
            raise UsageError(f"{VARIABLE}: no limit {name!r}; there are {', '.join(sorted(known))}")
    return replace(InterferenceLimits(), **chosen)  # type: ignore[arg-type]
