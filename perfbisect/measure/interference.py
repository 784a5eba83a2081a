"""Interference: waits for free devices before an attempt and samples other load during it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from perfbisect.errors import MachineError, PerfbisectError, UsageError
from perfbisect.machine import devices, interference, torch_probe
from perfbisect.machine.device_memory import wait_for_memory
from perfbisect.machine.devices import Smi
from perfbisect.machine.interference import UNJUDGED, InterferenceLimits
from perfbisect.machine.sampler import Sampler
from perfbisect.machine.slots import Slot
from perfbisect.measure.executor import Sink
from perfbisect.measure.faults import ATTEMPT_ERRORS, DiscardedRunError
from perfbisect.system.ports import SharedPortError
from perfbisect.system.processes import Process, StopRequested

VARIABLE = "PERFBISECT_LIMITS"
MOST_USED = 0.9
"""Default share of device memory that an engine takes."""

_NEXT = "none needed, it is measured again; or end other processes on this machine"


@dataclass(frozen=True)
class InterferenceMonitor:
    """Samples one attempt's slot and discards runs under foreign load."""

    slot: Slot
    limits: InterferenceLimits
    ours: Callable[[], Iterable[Process]]
    smi: Smi | None = None
    """Device queries; None uses the NVIDIA driver."""

    @contextmanager
    def unmeasured(self) -> Iterator[dict[str, Any]]:
        """Sample a start or a warm run: only device conflicts discard it, or a failure under load.

        :raises VoidError: it is void.
        """
        with self._watched(replace(UNJUDGED, device_memory=self.limits.device_memory)) as facts:
            yield facts

    @contextmanager
    def run(self) -> Iterator[dict[str, Any]]:
        """Sample a measured run; the yielded facts are filled at its end.

        :raises VoidError: it is void, whether it succeeded or not.
        """
        with self._watched(self.limits) as facts:
            yield facts

    @contextmanager
    def _watched(self, limits: InterferenceLimits) -> Iterator[dict[str, Any]]:
        sampler = Sampler(self.ours, slot=self.slot, smi=self.smi)
        facts: dict[str, Any] = {}
        try:
            with sampler:
                yield facts
        except (DiscardedRunError, SharedPortError):
            raise
        except ATTEMPT_ERRORS as error:
            why = interference.interference_reason(sampler.summary(), self.limits)
            if why:
                said = error.message if isinstance(error, PerfbisectError) else str(error)
                where = getattr(error, "where", None)
                raise DiscardedRunError(
                    f"void: {why}; meanwhile: {said}", where=where, next_step=_NEXT
                ) from error
            raise
        seen = sampler.summary()
        facts |= seen.facts(self.limits)
        why = interference.interference_reason(seen, limits)
        if why:
            raise DiscardedRunError(f"void: {why}", next_step=_NEXT)


def wait_until_free(
    slot: Slot,
    serve_args: Mapping[str, object],
    *,
    timeout: float,
    asked: StopRequested,
    sink: Sink,
    smi: Smi | None = None,
) -> None:
    """Wait until the slot's devices have the memory that the engine takes.

    Raises:
        MachineError: not within ``timeout`` seconds.
        Interrupted: ``asked`` returned True.
    """
    if slot.devices:
        wanted = serve_args.get("gpu-memory-utilization", MOST_USED)
        share = float(wanted) if isinstance(wanted, int | float) else MOST_USED
        wait_for_memory(
            slot,
            share=share,
            timeout=timeout,
            smi=smi,
            known=None if smi is None else devices.list_devices(smi),
            told=lambda text: sink("wait", {"text": text}),
            asked=asked,
        )


def torch_facts(
    interpreter: Path, env: Mapping[str, str], slot: Slot, folder: Path, asked: StopRequested
) -> dict[str, Any]:
    """Facts of torch in the environment under test and of the slot's devices.

    A torch that fails to import or finds no device is left to the engine: the change may be the cause.

    Raises:
        MachineError: torch sees other devices than the slot's.
        Interrupted: ``asked`` returned True.
    """
    try:
        found = torch_probe.probe(interpreter, env, folder, asked=asked)
    except MachineError as error:
        return {"problem": error.message}
    wrong = torch_probe.disagreement(found, slot) if found.available else ""
    if wrong:
        raise MachineError(wrong, next_step="nvidia-smi -L shows the devices; see CUDA_VISIBLE_DEVICES")
    return found.facts()


def machine_limits(text: str) -> InterferenceLimits:
    """Parse ``PERFBISECT_LIMITS``: empty for defaults, ``off``, or ``foreign_cpu=0.5,steal=off``.

    Raises:
        UsageError: an unknown name or not a number.
    """
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
