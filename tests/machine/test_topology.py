"""Cores, NUMA nodes and what is near to a device: a tree like ``/sys``, a text of ``nvidia-smi topo -m``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.machine import devices
from perfbisect.machine.devices import Gpu, Smi
from perfbisect.machine.slots import Topology, parse_cpus, parts, read_topology
from tests.machine import fake_smi

TOPO = (fake_smi.MACHINES / "eight" / "topo.txt").read_text("utf-8")
SIBLINGS = {cpu: (cpu % 96, cpu % 96 + 96) for cpu in range(192)}


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """All processors of the large machine are this process's."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(192)))


@pytest.fixture
def eight(tmp_path: Path) -> tuple[Gpu, ...]:
    return devices.list_devices(Smi(fake_smi.install(tmp_path, fake_smi.MACHINES / "eight")))


def sys_tree(root: Path, gpus: tuple[Gpu, ...] = ()) -> Path:
    """Two sockets of 48 cores with two threads each, devices on either."""
    for cpu, both in SIBLINGS.items():
        folder = root / f"devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(",".join(map(str, both)) + "\n")
    for node, cpus in enumerate(("0-47,96-143", "48-95,144-191")):
        folder = root / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus + "\n")
        for gpu in gpus[4 * node : 4 * node + 4]:
            place = root / "bus/pci/devices" / gpu.bus[4:].lower()
            place.mkdir(parents=True)
            (place / "local_cpulist").write_text(cpus + "\n")
    return root


@pytest.mark.usefixtures("everything")
def test_matrix_of_the_driver_where_the_kernel_shows_no_device(
    tmp_path: Path, eight: tuple[Gpu, ...]
) -> None:
    root = sys_tree(tmp_path / "sys")
    by_kernel = read_topology(eight, root=sys_tree(tmp_path / "other", eight))
    assert read_topology(eight, root=root).near == {}
    assert read_topology(eight, ask=lambda: TOPO, root=root).near == by_kernel.near


@pytest.mark.usefixtures("everything")
def test_devices_divide_what_is_near_to_them(tmp_path: Path, eight: tuple[Gpu, ...]) -> None:
    """48 cores for four devices: 12 each, both threads of a core together."""
    shares = read_topology(eight, root=sys_tree(tmp_path / "sys", eight)).shares(eight)
    assert shares[eight[0].uuid] == tuple((core, core + 96) for core in range(12))
    assert shares[eight[5].uuid] == tuple((core, core + 96) for core in range(60, 72))
    assert len({core for share in shares.values() for core in share}) == 96


def test_process_that_may_use_few_cores(
    tmp_path: Path, eight: tuple[Gpu, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 96, 97, 50})
    found = read_topology(eight, root=sys_tree(tmp_path / "sys", eight))
    assert found.cores == ((0, 96), (1, 97), (2,), (50,))
    assert found.near[eight[0].uuid] == {0, 1, 2, 96, 97}


def test_machine_that_tells_nothing(tmp_path: Path) -> None:
    gpu = Gpu("NVIDIA L4", 1, "1", "GPU-1")
    found = read_topology([gpu], root=tmp_path)
    assert found.processors == tuple(sorted(os.sched_getaffinity(0)))
    assert found.near == {} and found.node(found.cores[0]) == 0
    assert found.shares([gpu]) == {"GPU-1": found.cores}


def test_instances_divide_the_share_of_their_device(tmp_path: Path) -> None:
    known = devices.list_devices(Smi(fake_smi.install(tmp_path, fake_smi.MACHINES / "mig")))
    cores = tuple((core,) for core in range(12))
    shares = Topology(cores).shares(known)
    assert [len(shares[gpu.uuid]) for gpu in known] == [6, 2, 2, 2, 6]
    own = [core for gpu in devices.usable(known) for core in shares[gpu.uuid]]
    assert sorted(own) == list(cores)


def test_places_that_overlap_are_divided_as_one() -> None:
    gpus = [Gpu("x", 1, "1", name, index) for index, name in enumerate("abc")]
    near = {"a": frozenset({0, 1, 2, 3}), "b": frozenset({2, 3}), "c": frozenset({4, 5})}
    shares = Topology(tuple((core,) for core in range(6)), {}, near).shares(gpus)
    assert shares == {"a": ((0,), (1,)), "b": ((2,), (3,)), "c": ((4,), (5,))}


@given(st.sets(st.integers(0, 300)))
def test_list_of_processors_is_read_back(cpus: set[int]) -> None:
    words, left = [], sorted(cpus)
    while left:
        first = last = left.pop(0)
        while left and left[0] == last + 1:
            last = left.pop(0)
        words.append(str(first) if first == last else f"{first}-{last}")
    assert parse_cpus(",".join(words) + "\n") == tuple(sorted(cpus))


@given(st.integers(0, 200), st.integers(0, 12))
def test_parts_are_disjoint_and_equal(cores: int, count: int) -> None:
    made = parts([(core,) for core in range(cores)], count)
    flat = [core for part in made for core in part]
    assert len(made) == count and len(flat) == len(set(flat))
    assert len({len(part) for part in made}) <= 1
    assert count == 0 or cores - len(flat) < count


@pytest.mark.parametrize(
    "bus, folder",
    [
        ("00000000:9D:00.0", "0000:9d:00.0"),
        ("0000000F:01:00.0", "000f:01:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("00000012:00:00.0", "0012:00:00.0"),
    ],
)
def test_name_of_a_device_on_the_bus(bus: str, folder: str, tmp_path: Path) -> None:
    place = tmp_path / "bus/pci/devices" / folder
    place.mkdir(parents=True)
    core = min(os.sched_getaffinity(0))
    (place / "local_cpulist").write_text(f"{core}\n")
    assert read_topology((Gpu("H200", 0, "", "GPU-a", bus=bus),), root=tmp_path).near == {"GPU-a": {core}}
