"""Samples of devices: what they do, who else computes on them, and whether ours stay on theirs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from perfbisect.system import devices
from perfbisect.system.devices import Gpu, Tenant
from perfbisect.system.nvidia_smi import Smi
from perfbisect.system.processes import process
from perfbisect.system.sampled import DeviceSampled, Series

_FIELDS = ("clock", "temperature", "power", "used", "utilization")


class DeviceSamples:
    """Collects samples of the devices ``uuids``; of a MIG instance those of the device it is on."""

    def __init__(self, smi: Smi, known: Sequence[Gpu], uuids: Sequence[str]) -> None:
        self._smi = smi
        parents = {gpu.uuid: gpu.parent for gpu in known if gpu.parent}
        self._leased = frozenset(uuids) | {parents[uuid] for uuid in uuids if uuid in parents}
        self._looked = tuple(dict.fromkeys(parents.get(uuid, uuid) for uuid in uuids))
        self._shared = frozenset(parents[uuid] for uuid in uuids if uuid in parents)
        self._values: dict[str, dict[str, list[float]]] = {}
        self._reasons: dict[str, dict[str, int]] = {}
        self._foreign: dict[str, dict[str, float | None]] = {}
        self._strayed: dict[str, None] = {}
        self.samples = 0
        self.hidden = False

    @property
    def strayed(self) -> tuple[str, ...]:
        """Processes of ours on devices that are not theirs."""
        return tuple(self._strayed)

    def take(self, ours: Callable[[], Collection[int]]) -> None:
        """One look. ``ours``: the process ids of the attempt now."""
        for reading in devices.readings(self._smi, self._looked):
            ratio = (
                reading.sm_clock / reading.max_sm_clock
                if reading.sm_clock is not None and reading.max_sm_clock
                else None
            )
            told = (ratio, reading.temperature, reading.power, reading.used, reading.utilization)
            into = self._values.setdefault(reading.uuid, {})
            for name, value in zip(_FIELDS, told, strict=True):
                if value is not None:
                    into.setdefault(name, []).append(value)
            counts = self._reasons.setdefault(reading.uuid, {})
            for reason in reading.reasons:
                counts[reason] = counts.get(reason, 0) + 1
        self.samples += 1
        tenants = devices.tenants(self._smi)
        mine = ours() if tenants else ()  # after the driver: who is on a device was born before
        self.hidden = not any(tenant.pid in mine for tenant in tenants)
        if not self.hidden:
            self._whose(tenants, mine)

    def _whose(self, tenants: Sequence[Tenant], ours: Collection[int]) -> None:
        for tenant in tenants:
            row = process(tenant.pid)
            if row is None:  # it has ended since
                continue
            inside = tenant.uuid in self._leased
            if tenant.pid in ours and not inside:
                self._strayed.setdefault(f"{row} on {tenant.uuid}")
            elif inside and tenant.pid not in ours and tenant.uuid not in self._shared:
                into = self._foreign.setdefault(tenant.uuid, {})
                before = into.get(str(row))
                into[str(row)] = tenant.memory if before is None else max(before, tenant.memory or 0.0)

    def sampled(self) -> tuple[DeviceSampled, ...]:
        """What was seen, a device each."""
        return tuple(self._device(uuid) for uuid in self._looked)

    def _device(self, uuid: str) -> DeviceSampled:
        values: Mapping[str, list[float]] = self._values.get(uuid, {})
        series = {name: Series(tuple(values.get(name, ()))) for name in _FIELDS}
        counts = self._reasons.get(uuid, {})
        return DeviceSampled(
            uuid,
            reasons={name: round(count / self.samples, 4) for name, count in counts.items()},
            foreign=dict(self._foreign.get(uuid, {})),
            **series,
        )
