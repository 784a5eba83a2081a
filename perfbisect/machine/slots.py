"""Slots: disjoint sets of devices and the cores near to them, on which launches run in parallel."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfbisect.common.quantities import counted
from perfbisect.errors import MachineError, UsageError
from perfbisect.machine import devices as all_devices
from perfbisect.machine.devices import Gpu
from perfbisect.machine.profile import CUDA, Machine, Profile, machine

LEAST_CORES = 2
"""Minimum physical cores of a slot: server and client must not share one."""
_CLIENT_SHARE, _MAX_CLIENT_CORES = 4, 8
"""The client gets a quarter of a slot's physical cores, at most eight."""

Core = tuple[int, ...]

SYS = Path("/sys")
_NEAR = re.compile(r"^GPU(\d+)\s")
_LIST = re.compile(r"^\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*$")


@dataclass(frozen=True)
class Topology:
    """The logical processors that this process may use.

    ``cores``: processors of each physical core. ``nodes``: NUMA node of a processor. ``near``: processors
    local to a device, by UUID; missing if unknown.
    """

    cores: tuple[Core, ...]
    nodes: Mapping[int, int] = field(default_factory=dict)
    near: Mapping[str, frozenset[int]] = field(default_factory=dict)

    @property
    def processors(self) -> tuple[int, ...]:
        return tuple(sorted(cpu for core in self.cores for cpu in core))

    def node(self, core: Sequence[int]) -> int:
        """NUMA node of a physical core; 0 if unknown."""
        return self.nodes.get(core[0], 0)

    def shares(self, devices: Sequence[Gpu]) -> dict[str, tuple[Core, ...]]:
        """Divide the physical cores local to devices among those devices.

        The division is the same in every process, so that disjoint sets of devices have disjoint cores. If
        the locality of a device is unknown, all devices share all cores.
        """
        whole = [gpu for gpu in devices if not gpu.parent]
        places: dict[frozenset[int], list[Gpu]] = {}
        for gpu in whole:
            places.setdefault(self.near.get(gpu.uuid, frozenset()), []).append(gpu)
        # Places that overlap in part cannot be divided one by one.
        if frozenset() in places or len(frozenset().union(*places)) != sum(map(len, places)):
            places = {frozenset(): whole}
        shares: dict[str, tuple[Core, ...]] = {}
        for place, gpus in places.items():
            cores = [core for core in self.cores if not place or place.issuperset(core)]
            for gpu, part in zip(gpus, parts(cores, len(gpus)), strict=True):
                shares[gpu.uuid] = part
                instances = [other.uuid for other in devices if other.parent == gpu.uuid]
                shares.update(zip(instances, parts(part, len(instances)), strict=True))
        return shares


def parts(cores: Sequence[Core], count: int) -> tuple[tuple[Core, ...], ...]:
    """Split cores into ``count`` equal runs; the remainder is unused."""
    each = len(cores) // count if count else 0
    return tuple(tuple(cores[n * each : (n + 1) * each]) for n in range(count))


def read_topology(devices: Iterable[Gpu] = (), *, ask: Callable[[], str] = str, root: Path = SYS) -> Topology:
    """Read the topology from ``/sys``, for the processors that this process may use.

    ``ask``: runs ``nvidia-smi topo -m``, if ``/sys`` does not have a device.
    """
    allowed = os.sched_getaffinity(0)
    whole = [gpu for gpu in devices if not gpu.parent]
    shown = {}
    for gpu in whole:
        domain, _, rest = gpu.bus.lower().partition(":")
        # The kernel's name of 00000000:9D:00.0 is 0000:9d:00.0.
        name = f"{domain.lstrip('0'):0>4}:{rest}"
        shown[gpu.uuid] = _cpus(root / "bus/pci/devices" / name / "local_cpulist") if gpu.bus else ()
    affinity = parse_matrix(ask()) if any(not shown.get(gpu.uuid) for gpu in whole) else {}
    near = {
        gpu.uuid: frozenset(shown.get(gpu.uuid) or affinity.get(gpu.index, ())) & allowed for gpu in whole
    }
    nodes = {
        cpu: int(folder.name.removeprefix("node"))
        for folder in sorted((root / "devices/system/node").glob("node[0-9]*"))
        for cpu in _cpus(folder / "cpulist")
    }
    cores = set()
    for cpu in allowed:
        together = _cpus(root / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        # In a container only some threads of a core may be usable.
        cores.add(tuple(sorted({cpu, *together} & allowed)))
    return Topology(tuple(sorted(cores)), nodes, {uuid: cpus for uuid, cpus in near.items() if cpus})


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


def parse_matrix(text: str) -> dict[int, tuple[int, ...]]:
    """Parse ``nvidia-smi topo -m``: processors local to each device, by index (column ``CPU Affinity``).

    The header is underlined by escape sequences, which touch its first word.
    """
    head = next((line for line in text.splitlines() if "CPU Affinity" in line), "")
    # Columns are counted: their number differs with devices and network cards, their order does not.
    before = len(re.findall(r"(?:GPU|NIC|mlx5_|CPU)\d+\b", head.partition("CPU Affinity")[0]))
    local = {}
    for line in text.splitlines():
        row = _NEAR.match(line)
        cells = line.split()
        if row and len(cells) > before + 1 and _LIST.match(cells[before + 1]):
            local[int(row[1])] = parse_cpus(cells[before + 1])
    return local


@dataclass(frozen=True)
class Slot:
    """A set of devices with the cores local to them.

    ``devices``: UUIDs; ``server_cores``, ``client_cores``: disjoint, empty without pinning; ``env``:
    variables that restrict an engine to these devices. ``machine``: of a fleet, empty for this machine; the
    names of slots differ across machines.
    """

    name: str
    devices: tuple[str, ...] = ()
    server_cores: tuple[int, ...] = ()
    client_cores: tuple[int, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    machine: str = ""

    @property
    def cores(self) -> tuple[int, ...]:
        """All its processors; empty without pinning."""
        return tuple(sorted({*self.server_cores, *self.client_cores}))


def machine_of(slot: Slot, shell: Mapping[str, str], profile: Profile = CUDA) -> Machine:
    """The machine as an attempt on a slot uses it, with its machine class."""
    return machine({**shell, **slot.env}, profile, part=len(slot.cores))


def plan_slots(
    hardware: Machine,
    *,
    gpus: int,
    workers: int,
    pin: bool | None = None,
    avoid: Collection[str] = (),
    everything: Sequence[Gpu] | None = None,
    topology: Topology | None = None,
    profile: Profile = CUDA,
) -> tuple[Slot, ...]:
    """Plan ``workers`` disjoint slots of ``gpus`` devices each, all of one kind, with their local cores.

    ``hardware.gpus``: the visible devices; ``everything``: all devices, each with its share of local cores,
    so that slots of different users do not overlap; by default listed by ``profile``. ``avoid``: UUIDs in
    use, taken last. ``pin`` None: pin with several workers, or if the machine has devices outside the slot.
    One worker without devices or pinning gets ``Slot("")``, the whole machine.

    Raises:
        MachineError: too few devices of one kind, or too few cores.
    """
    if workers < 1 or gpus < 0:
        raise UsageError(f"{workers} workers with {gpus} devices each: at least 1 worker, at least 0 devices")
    smi = profile.smi()
    if everything is None:
        everything = profile.list_devices()
        readings = all_devices.readings(smi) if gpus else ()
        avoid = {*avoid, *(reading.uuid for reading in readings if reading.in_use)}
    topology = read_topology(everything, ask=lambda: smi.text("topo", "-m")) if topology is None else topology
    if gpus == 0:
        mask = profile.none_of(hardware.gpus)
        if not pin and workers == 1:
            return (Slot("", env=mask),)
        count, needed = len(topology.cores), workers * LEAST_CORES
        if count < needed:
            threads = f" ({len(topology.processors)} processors)" if len(topology.processors) > count else ""
            enough = count // LEAST_CORES
            whole = ", on the whole machine" if enough == 1 else ""
            fewer = f"--workers {enough}{whole}; or " if enough else ""
            raise MachineError(
                f"{counted(workers, 'worker')} need {needed} physical cores, {LEAST_CORES} each (one for the "
                f"server, one for the client: on one they would measure each other); this process may use "
                f"{count}{threads}",
                next_step=f"{fewer}a machine with {needed} physical cores",
            )
        # Sorted by NUMA node, so that few slots span two of them.
        ordered = sorted(topology.cores, key=lambda core: (topology.node(core), core))
        groups = parts(ordered, workers)
        return tuple(_pinned(f"cores{group[0][0]}-{group[-1][0]}", (), group, mask) for group in groups)
    shares = topology.shares(everything)
    chosen = _groups(hardware.gpus, gpus, workers, topology, shares, set(avoid), profile.variable)
    # Another job may run on the other devices: without pinning, both would use the same cores.
    others = len(all_devices.usable(everything)) > gpus
    pinned = pin if pin is not None else workers > 1 or others
    slots = []
    for group in chosen:
        name, uuids = "+".join(gpu.label for gpu in group), tuple(gpu.uuid for gpu in group)
        cores = sorted(core for uuid in uuids for core in shares.get(uuid, ()))
        if pinned and len(cores) >= LEAST_CORES:
            slots.append(_pinned(name, uuids, cores, profile.mask(group)))
        elif pinned and (pin or workers > 1):
            raise MachineError(
                f"{name} has {counted(len(cores), 'physical core')} near to it that no other device shares; "
                f"server and client need {LEAST_CORES}",
                next_step="ask for fewer workers, or use a machine with more cores",
            )
        else:
            slots.append(Slot(name, uuids, env=profile.mask(group)))
    return tuple(slots)


def _groups(
    devices: Sequence[Gpu],
    size: int,
    workers: int,
    topology: Topology,
    shares: Mapping[str, tuple[Core, ...]],
    avoid: Collection[str],
    variable: str,
) -> list[tuple[Gpu, ...]]:
    """Groups of devices of one kind, within a NUMA node if possible.

    A process can use one MIG instance only, so larger groups consist of whole devices.
    """
    fitting = [gpu for gpu in devices if not gpu.mig and (size == 1 or not gpu.parent)]
    best: list[tuple[Gpu, ...]] = []
    # All slots of a job are of one kind: launches on them are compared.
    for kind in dict.fromkeys((gpu.name, gpu.driver) for gpu in fitting):
        alike = [gpu for gpu in fitting if (gpu.name, gpu.driver) == kind]
        groups = _chunks([gpu for gpu in alike if gpu.uuid not in avoid], size, topology, shares)
        taken = {gpu for group in groups for gpu in group}
        groups += _chunks([gpu for gpu in alike if gpu not in taken], size, topology, shares)
        best = max(best, groups, key=len)
        if len(best) >= workers:
            return best[:workers]
    counts = Counter(gpu.name for gpu in devices)
    listed = ", ".join(f"{name} x {count}" for name, count in counts.items())
    problem = (
        f"{counted(workers, 'worker')} with {counted(size, 'device')} each need "
        f"{counted(workers * size, 'device')} of one kind; "
        f"there {f'are {len(devices)} visible: {listed}' if devices else 'is none visible'}"
    )
    if size > 1 and any(gpu.parent for gpu in devices):
        problem += "; a process computes on one MIG instance at most, so these do not count for several"
    advice = f"look at {variable} and the devices that the driver lists (perfbisect doctor)"
    fewer = "ask for fewer workers, or " if workers > 1 and devices else ""
    raise MachineError(problem, next_step=f"{fewer}{advice}; --dry-run shows the plan without them")


def _chunks(
    alike: Sequence[Gpu], size: int, topology: Topology, shares: Mapping[str, tuple[Core, ...]]
) -> list[tuple[Gpu, ...]]:
    nodes: dict[int, list[Gpu]] = {}
    for gpu in sorted(alike, key=lambda gpu: (gpu.index, gpu.instance or 0)):
        share = shares.get(gpu.uuid, ())
        nodes.setdefault(topology.node(share[0]) if share else 0, []).append(gpu)
    groups: list[tuple[Gpu, ...]] = []
    left: list[Gpu] = []
    for _, near in sorted(nodes.items()):
        whole = len(near) // size * size
        groups += _split(near[:whole], size)
        left += near[whole:]
    return groups + _split(left, size)


def _split(gpus: Sequence[Gpu], size: int) -> list[tuple[Gpu, ...]]:
    return [tuple(gpus[start : start + size]) for start in range(0, len(gpus) - size + 1, size)]


def _pinned(name: str, uuids: tuple[str, ...], cores: Sequence[Core], env: Mapping[str, str]) -> Slot:
    # The client must not wait for a core: its delay would be measured as the server's.
    clients = max(1, min(len(cores) // _CLIENT_SHARE, _MAX_CLIENT_CORES))
    return Slot(
        name,
        uuids,
        server_cores=tuple(sorted(cpu for core in cores[:-clients] for cpu in core)),
        client_cores=tuple(sorted(cpu for core in cores[-clients:] for cpu in core)),
        env=env,
    )
