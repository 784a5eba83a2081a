"""CPU topology: physical cores, NUMA nodes, and the processors local to each device."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfbisect.machine.devices import Gpu

SYS = Path("/sys")
_NEAR = re.compile(r"^GPU(\d+)\s")
_LIST = re.compile(r"^\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*$")


@dataclass(frozen=True)
class Topology:
    """The logical processors that this process may use.

    ``cores``: processors of each physical core. ``nodes``: NUMA node of a processor. ``near``: processors
    local to a device, by UUID; missing if unknown.
    """

    cores: tuple[tuple[int, ...], ...]
    nodes: Mapping[int, int] = field(default_factory=dict)
    near: Mapping[str, frozenset[int]] = field(default_factory=dict)

    @property
    def processors(self) -> tuple[int, ...]:
        return tuple(sorted(cpu for core in self.cores for cpu in core))

    def node(self, core: Sequence[int]) -> int:
        """NUMA node of a physical core; 0 if unknown."""
        return self.nodes.get(core[0], 0)

    def shares(self, devices: Sequence[Gpu]) -> dict[str, tuple[tuple[int, ...], ...]]:
        """Divide the physical cores local to devices among those devices.

        The division is the same in every process, so that disjoint sets of devices have disjoint cores. If
        the locality of a device is unknown, all devices share all cores.
        """
        whole = [gpu for gpu in devices if not gpu.parent]
        places: dict[frozenset[int], list[Gpu]] = {}
        for gpu in whole:
            places.setdefault(self.near.get(gpu.uuid, frozenset()), []).append(gpu)
        if frozenset() in places or len(frozenset().union(*places)) != sum(map(len, places)):
            places = {frozenset(): whole}
        shares: dict[str, tuple[tuple[int, ...], ...]] = {}
        for place, gpus in places.items():
            cores = [core for core in self.cores if not place or place.issuperset(core)]
            for gpu, part in zip(gpus, parts(cores, len(gpus)), strict=True):
                shares[gpu.uuid] = part
                instances = [other.uuid for other in devices if other.parent == gpu.uuid]
                shares.update(zip(instances, parts(part, len(instances)), strict=True))
        return shares


def parts(cores: Sequence[tuple[int, ...]], count: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Split cores into ``count`` equal runs; the remainder is unused."""
    each = len(cores) // count if count else 0
    return tuple(tuple(cores[n * each : (n + 1) * each]) for n in range(count))


def read_topology(devices: Iterable[Gpu] = (), *, ask: Callable[[], str] = str, root: Path = SYS) -> Topology:
    """Read the topology from ``/sys``, for the processors that this process may use.

    ``ask``: runs ``nvidia-smi topo -m``, if ``/sys`` does not have a device.
    """
    allowed = os.sched_getaffinity(0)
    whole = [gpu for gpu in devices if not gpu.parent]
    shown = {
        gpu.uuid: _cpus(root / "bus/pci/devices" / bus_folder(gpu.bus) / "local_cpulist")
        for gpu in whole
        if gpu.bus
    }
    affinity = parse_matrix(ask()) if any(not shown.get(gpu.uuid) for gpu in whole) else {}
    near = {
        gpu.uuid: frozenset(shown.get(gpu.uuid) or affinity.get(gpu.index, ())) & allowed for gpu in whole
    }
    nodes = {
        cpu: int(folder.name.removeprefix("node"))
        for folder in sorted((root / "devices/system/node").glob("node[0-9]*"))
        for cpu in _cpus(folder / "cpulist")
    }
    return Topology(_physical(allowed, root), nodes, {uuid: cpus for uuid, cpus in near.items() if cpus})


def _physical(allowed: Collection[int], root: Path) -> tuple[tuple[int, ...], ...]:
    cores = set()
    for cpu in allowed:
        together = _cpus(root / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add(tuple(sorted({cpu, *together} & set(allowed))))
    return tuple(sorted(cores))


def _cpus(path: Path) -> tuple[int, ...]:
    try:
        return parse_cpus(path.read_text("ascii"))
    except (OSError, ValueError):
        return ()


def parse_cpus(text: str) -> tuple[int, ...]:
    """Parse a CPU list (``0-3,8``); ValueError if it is none."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return tuple(numbers)


def bus_folder(bus: str) -> str:
    """The kernel's name of a PCI address: ``00000000:9D:00.0`` -> ``0000:9d:00.0``."""
    domain, _, rest = bus.lower().partition(":")
    return f"{domain[-4:] if domain.startswith('0000') else domain}:{rest}"


def parse_matrix(text: str) -> dict[int, tuple[int, ...]]:
    """Parse ``nvidia-smi topo -m``: processors local to each device, by index (column ``CPU Affinity``)."""
    head = next((line for line in text.splitlines() if "CPU Affinity" in line), "")
    before = len(re.findall(r"\b(?:GPU|NIC|mlx5_|CPU)\d+\b", head.partition("CPU Affinity")[0]))
    local = {}
    for line in text.splitlines():
        row = _NEAR.match(line)
        cells = line.split()
        if row and len(cells) > before + 1 and _LIST.match(cells[before + 1]):
            local[int(row[1])] = parse_cpus(cells[before + 1])
    return local
