"""The cores of this machine: which share a physical core, a NUMA node, and which are near to a device."""

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
    """The logical processors this process may use.

    ``cores``: those that share a physical core, together, in order. ``nodes``: a processor's NUMA node.
    ``near``: of a device, by UUID, the processors next to it; missing where the machine does not tell.
    """

    cores: tuple[tuple[int, ...], ...]
    nodes: Mapping[int, int] = field(default_factory=dict)
    near: Mapping[str, frozenset[int]] = field(default_factory=dict)

    @property
    def processors(self) -> tuple[int, ...]:
        return tuple(sorted(cpu for core in self.cores for cpu in core))

    def node(self, core: Sequence[int]) -> int:
        """The NUMA node of a physical core; 0 if it is not told."""
        return self.nodes.get(core[0], 0)

    def shares(self, devices: Sequence[Gpu]) -> dict[str, tuple[tuple[int, ...], ...]]:
        """The physical cores that each device brings: those near to it, divided among the devices there.

        Every process that sees the same machine divides alike, so that disjoint sets of devices have
        disjoint cores, whoever leases them. A device whose place is not known shares all cores.
        """
        whole = [gpu for gpu in devices if not gpu.parent]
        places: dict[frozenset[int], list[Gpu]] = {}
        for gpu in whole:
            places.setdefault(self.near.get(gpu.uuid, frozenset()), []).append(gpu)
        if frozenset() in places or _overlap(places):
            places = {frozenset(): whole}
        found: dict[str, tuple[tuple[int, ...], ...]] = {}
        for place, here in places.items():
            cores = [core for core in self.cores if not place or place.issuperset(core)]
            for gpu, part in zip(here, parts(cores, len(here)), strict=True):
                instances = [one for one in devices if one.parent == gpu.uuid]
                found[gpu.uuid] = part
                found.update(
                    {one.uuid: own for one, own in zip(instances, parts(part, len(instances)), strict=True)}
                )
        return found


def _overlap(places: Collection[frozenset[int]]) -> bool:
    return len(frozenset().union(*places)) != sum(map(len, places))


def parts(cores: Sequence[tuple[int, ...]], count: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """``count`` runs of neighbouring cores of equal length; what is left over belongs to none."""
    each = len(cores) // count if count else 0
    return tuple(tuple(cores[n * each : (n + 1) * each]) for n in range(count))


def read_topology(devices: Iterable[Gpu] = (), *, ask: Callable[[], str] = str, root: Path = SYS) -> Topology:
    """This machine as ``/sys`` tells it, of the processors this process may use.

    ``ask``: what ``nvidia-smi topo -m`` prints, asked where ``/sys`` does not show a device.
    """
    allowed = os.sched_getaffinity(0)
    whole = [gpu for gpu in devices if not gpu.parent]
    shown = {
        gpu.uuid: _cpus(root / "bus/pci/devices" / bus_folder(gpu.bus) / "local_cpulist")
        for gpu in whole
        if gpu.bus
    }
    told = parse_matrix(ask()) if any(not shown.get(gpu.uuid) for gpu in whole) else {}
    near = {gpu.uuid: frozenset(shown.get(gpu.uuid) or told.get(gpu.index, ())) & allowed for gpu in whole}
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
    """The kernel's list (``0-3,8``) -> processors. :raises ValueError: it is none."""
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return tuple(found)


def bus_folder(bus: str) -> str:
    """The driver's ``00000000:9D:00.0`` as the kernel names it: ``0000:9d:00.0``."""
    domain, _, rest = bus.lower().partition(":")
    return f"{domain[-4:] if domain.startswith('0000') else domain}:{rest}"


def parse_matrix(text: str) -> dict[int, tuple[int, ...]]:
    """``nvidia-smi topo -m`` -> the processors near to each device, by index (column ``CPU Affinity``).

    The columns before it are as many as there are devices and network cards; after it come the NUMA nodes.
    """
    head = next((line for line in text.splitlines() if "CPU Affinity" in line), "")
    before = len(re.findall(r"\b(?:GPU|NIC|mlx5_|CPU)\d+\b", head.partition("CPU Affinity")[0]))
    found = {}
    for line in text.splitlines():
        row = _NEAR.match(line)
        cells = line.split()
        if row and len(cells) > before + 1 and _LIST.match(cells[before + 1]):
            found[int(row[1])] = parse_cpus(cells[before + 1])
    return found
