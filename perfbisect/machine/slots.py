"""Slots: disjoint parts of a machine on which launches run in parallel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from perfbisect.errors import MachineError, UsageError
from perfbisect.machine import devices as all_devices
from perfbisect.machine.devices import Gpu
from perfbisect.machine.profile import CUDA, Machine, Profile, machine
from perfbisect.machine.topology import Topology, parts, read_topology

LEAST_CORES = 2
"""Minimum physical cores of a slot: server and client must not share one."""
_CLIENT_SHARE, _MAX_CLIENT_CORES = 4, 8
"""The client gets a quarter of a slot's physical cores, at most eight."""

Core = tuple[int, ...]


@dataclass(frozen=True)
class Slot:
    """A set of devices with the cores local to them.

    ``devices``: UUIDs; ``server_cores``, ``client_cores``: disjoint, empty without pinning; ``env``:
    variables that restrict an engine to these devices.
    """

    name: str
    devices: tuple[str, ...] = ()
    server_cores: tuple[int, ...] = ()
    client_cores: tuple[int, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def cores(self) -> tuple[int, ...]:
        """All its processors; empty without pinning."""
        return tuple(sorted({*self.server_cores, *self.client_cores}))


def machine_of(slot: Slot, shell: Mapping[str, str], profile: Profile = CUDA) -> Machine:
    """The machine as an attempt on a slot uses it, with its machine class."""
    return machine({**shell, **slot.env}, profile, part=len(slot.cores))


class TooFewDevicesError(UsageError):
    """The machine has too few devices of one kind."""


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
        TooFewDevicesError: too few devices of one kind.
        MachineError: too few cores.
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
        return _of_cores(topology, workers, bool(pin) or workers > 1, profile.none_of(hardware.gpus))
    shares = topology.shares(everything)
    chosen = _groups(hardware.gpus, gpus, workers, topology, shares, set(avoid), profile.variable)
    others = len(all_devices.usable(everything)) > gpus
    pinned = pin if pin is not None else workers > 1 or others
    return tuple(
        _of_devices(group, shares, pinned, pin is True or workers > 1, profile.mask(group))
        for group in chosen
    )


def _of_cores(topology: Topology, workers: int, pinned: bool, mask: Mapping[str, str]) -> tuple[Slot, ...]:
    """Slots of cores; ``mask`` hides the machine's devices."""
    if not pinned:
        return (Slot("", env=mask),)
    count, needed = len(topology.cores), workers * LEAST_CORES
    if count < needed:
        threads = f" ({len(topology.processors)} processors)" if len(topology.processors) > count else ""
        enough = count // LEAST_CORES
        fewer = f"--workers {enough}{', on the whole machine' if enough == 1 else ''}; or " if enough else ""
        raise MachineError(
            f"{workers} worker(s) need {needed} physical cores, {LEAST_CORES} each (one for the server, one "
            f"for the client: on one they would measure each other); this process may use {count}{threads}",
            next_step=f"{fewer}a machine with {needed} physical cores",
        )
    ordered = sorted(topology.cores, key=lambda core: (topology.node(core), core))
    return tuple(
        _pinned(f"cores{group[0][0]}-{group[-1][0]}", (), group, mask) for group in parts(ordered, workers)
    )


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
        f"{workers} worker(s) with {size} device(s) each need {workers * size} devices of one kind; "
        f"there {f'are {len(devices)} visible: {listed}' if devices else 'is none visible'}"
    )
    if size > 1 and any(gpu.parent for gpu in devices):
        problem += "; a process computes on one MIG instance at most, so these do not count for several"
    raise TooFewDevicesError(
        problem,
        next_step=f"{'ask for fewer workers, or ' if workers > 1 else ''}look at {variable} and the devices "
        "that the driver lists (perfbisect doctor); --dry-run needs none",
    )


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


def _of_devices(
    group: Sequence[Gpu],
    shares: Mapping[str, tuple[Core, ...]],
    pinned: bool,
    required: bool,
    mask: Mapping[str, str],
) -> Slot:
    """A slot of devices; ``required``: too few cores to pin are an error."""
    name = "+".join(gpu.label for gpu in group)
    uuids = tuple(gpu.uuid for gpu in group)
    cores = sorted(core for uuid in uuids for core in shares.get(uuid, ()))
    if pinned and len(cores) >= LEAST_CORES:
        return _pinned(name, uuids, cores, mask)
    if pinned and required:
        raise MachineError(
            f"{name} has {len(cores)} physical core(s) near to it that no other device shares; server and "
            f"client need {LEAST_CORES}",
            next_step="ask for fewer workers, or use a machine with more cores",
        )
    return Slot(name, uuids, env=mask)


def _pinned(name: str, uuids: tuple[str, ...], cores: Sequence[Core], env: Mapping[str, str]) -> Slot:
    clients = max(1, min(len(cores) // _CLIENT_SHARE, _MAX_CLIENT_CORES))
    return Slot(
        name,
        uuids,
        server_cores=tuple(sorted(cpu for core in cores[:-clients] for cpu in core)),
        client_cores=tuple(sorted(cpu for core in cores[-clients:] for cpu in core)),
        env=env,
    )
