"""Slots: which devices and cores, what the engine sees, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.errors import MachineError, UsageError
from perfbisect.machine import devices
from perfbisect.machine.devices import Gpu, Smi
from perfbisect.machine.profile import Machine, Profile
from perfbisect.machine.slots import Slot, Topology, machine_of, plan_slots
from tests.machine import fake_smi

Known = Callable[[str], tuple[Gpu, ...]]


@pytest.fixture
def known(tmp_path: Path) -> Known:
    return lambda name: devices.list_devices(Smi(fake_smi.install(tmp_path, fake_smi.MACHINES / name)))


def here(gpus: Sequence[Gpu] = (), cores: int = 96) -> Machine:
    return Machine("host", "cpu", cores, 2**40, "6.1", tuple(gpus))


def cores(count: int, threads: int = 1) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(core + count * thread for thread in range(threads)) for core in range(count))


def sockets(gpus: Sequence[Gpu]) -> Topology:
    """96 cores with two threads, half of the devices near to either half."""
    first = frozenset({*range(48), *range(96, 144)})
    second = frozenset({*range(48, 96), *range(144, 192)})
    whole = [gpu for gpu in gpus if not gpu.parent]
    near = {gpu.uuid: first if n < len(whole) / 2 else second for n, gpu in enumerate(whole)}
    nodes = {**dict.fromkeys(first, 0), **dict.fromkeys(second, 1)}
    return Topology(cores(96, 2), nodes, near)


def plan(
    gpus: Sequence[Gpu], size: int, workers: int, mask: str | None = None, **more: object
) -> tuple[Slot, ...]:
    return plan_slots(
        here(devices.visible(gpus, mask)),
        gpus=size,
        workers=workers,
        everything=gpus,
        topology=sockets(gpus),
        **more,  # type: ignore[arg-type]
    )


def test_two_of_eight_devices_each(known: Known) -> None:
    gpus = known("eight")
    slots = plan(gpus, 2, 4)
    assert [slot.name for slot in slots] == ["gpu0+gpu1", "gpu2+gpu3", "gpu4+gpu5", "gpu6+gpu7"]
    third = slots[2]
    assert third.devices == (gpus[4].uuid, gpus[5].uuid)
    assert third.env == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "4,5"}
    # 24 cores of the second socket, every fourth for the client, both threads of a core together.
    assert third.server_cores == (*range(48, 66), *range(144, 162))
    assert third.client_cores == (*range(66, 72), *range(162, 168))


def test_used_devices_are_taken_last(known: Known) -> None:
    gpus = known("eight")
    used = {gpus[0].uuid, gpus[3].uuid}
    assert [slot.name for slot in plan(gpus, 1, 6, avoid=used)] == [f"gpu{n}" for n in (1, 2, 4, 5, 6, 7)]
    assert [slot.name for slot in plan(gpus, 2, 4, avoid=used)] == [
        "gpu1+gpu2", "gpu4+gpu5", "gpu6+gpu7", "gpu0+gpu3"
    ]  # fmt: skip
    assert len(plan(gpus, 1, 8, avoid=used)) == 8, "somebody else's device is waited for"
    within_a_socket = [slot.name for slot in plan(gpus, 3, 2)]
    assert within_a_socket == ["gpu0+gpu1+gpu2", "gpu4+gpu5+gpu6"]


def test_what_is_not_given_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: Known
) -> None:
    gpus = known("eight")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(devices, "gpus", lambda: gpus)
    slots = plan_slots(here(gpus), gpus=1, workers=1, pin=False, avoid={gpus[0].uuid})
    assert slots[0].name == "gpu1"
    several = plan_slots(here(gpus[1:4]), gpus=1, workers=1, pin=False, avoid={gpus[1].uuid})
    assert several[0].name == "gpu3", "the driver says that somebody computes on gpu2"


def test_mask_of_the_user_is_kept_and_moves_no_core(known: Known) -> None:
    """The share of a device is the same whoever asks, so that two users' slots never overlap."""
    gpus = known("eight")
    (mine,) = plan(gpus, 1, 1, mask="6")
    assert mine.devices == (gpus[6].uuid,) and mine.env["CUDA_VISIBLE_DEVICES"] == "6"
    assert mine == plan(gpus, 1, 8)[6]


def test_all_devices_are_the_whole_machine(known: Known) -> None:
    """Nobody else can use a device meanwhile: nothing needs to be pinned."""
    (slot,) = plan(known("eight"), 8, 1)
    assert len(slot.devices) == 8 and slot.cores == ()
    (pinned,) = plan(known("eight"), 8, 1, pin=True)
    assert len(pinned.client_cores) == 2 * 8 and len(pinned.cores) == 192


def test_one_device_of_several_is_pinned_unless_refused(known: Known) -> None:
    assert plan(known("eight"), 1, 1)[0].cores != ()
    assert plan(known("eight"), 1, 1, pin=False)[0].cores == ()
    assert plan(known("laptop"), 1, 1)[0].cores == ()


def test_instances(known: Known) -> None:
    gpus = known("mig")
    slots = plan(gpus, 1, 2)
    assert [slot.name for slot in slots] == ["gpu0.0", "gpu0.1"], "of one kind: two times 3g.40gb"
    assert slots[1].env == {"CUDA_VISIBLE_DEVICES": slots[1].devices[0]}
    assert slots[1].devices == ("MIG-20000001-aaaa-5bbb-8ccc-0123456789c1",)
    assert not set(slots[0].cores) & set(slots[1].cores)
    assert plan(gpus, 1, 1, mask="1")[0].name == "gpu1"


@pytest.mark.parametrize(
    "machine, size, workers, mask, said",
    [
        ("eight", 2, 5, None, "5 workers with 2 devices each need 10 devices of one kind; there are 8"),
        ("eight", 2, 1, "3", "there are 1 visible: NVIDIA H200 x 1"),
        ("eight", 1, 1, "", "there is none visible"),
        ("laptop", 1, 2, None, "there are 1 visible: NVIDIA GeForce RTX 3060 Laptop GPU x 1"),
        ("mig", 1, 3, None, "need 3 devices of one kind; there are 4 visible"),
        ("mig", 2, 1, None, "one MIG instance at most"),
        ("broken", 1, 1, None, "there is none visible"),
        ("eight", 1, 0, None, "at least 1 worker"),
    ],
)
def test_too_few_devices(
    known: Known, machine: str, size: int, workers: int, mask: str | None, said: str
) -> None:
    with pytest.raises(UsageError if "at least" in said else MachineError) as raised:
        plan(known(machine), size, workers, mask)
    assert said in str(raised.value)


def test_devices_with_too_few_cores(known: Known) -> None:
    gpus = known("eight")
    few = Topology(cores(8))
    with pytest.raises(MachineError, match=r"has 1 physical core near"):
        plan_slots(here(gpus), gpus=1, workers=2, everything=gpus, topology=few)
    (slot,) = plan_slots(here(gpus), gpus=1, workers=1, everything=gpus, topology=few)
    assert slot.cores == (), "nobody asked for it: alone on the machine instead"


def test_cores_where_there_are_no_devices() -> None:
    big = Topology(cores(8, 2))
    none = here()
    assert plan_slots(none, gpus=0, workers=1, everything=(), topology=big) == (Slot(""),)
    one, two = plan_slots(none, gpus=0, workers=2, everything=(), topology=big)
    assert (one.server_cores, one.client_cores) == ((0, 1, 2, 8, 9, 10), (3, 11))
    assert (two.server_cores, two.client_cores) == ((4, 5, 6, 12, 13, 14), (7, 15))
    assert one.devices == () and one.env == {}
    (pinned,) = plan_slots(none, gpus=0, workers=1, pin=True, everything=(), topology=Topology(cores(2)))
    assert (pinned.server_cores, pinned.client_cores) == ((0,), (1,))


def test_too_few_cores() -> None:
    with pytest.raises(MachineError) as raised:
        plan_slots(here(), gpus=0, workers=3, everything=(), topology=Topology(cores(5)))
    assert "3 workers need 6 physical cores, 2 each" in raised.value.message
    assert raised.value.message.endswith("this process may use 5")
    assert raised.value.next_step == "--workers 2; or a machine with 6 physical cores"


def test_without_a_device_reserved_none_is_seen(known: Known) -> None:
    gpus = known("eight")
    (whole,) = plan_slots(here(gpus), gpus=0, workers=1, everything=gpus, topology=Topology(cores(8)))
    assert (whole.name, whole.devices, whole.env["CUDA_VISIBLE_DEVICES"]) == ("", (), "")
    for slot in plan_slots(here(gpus), gpus=0, workers=2, everything=gpus, topology=Topology(cores(8))):
        assert slot.env["CUDA_VISIBLE_DEVICES"] == ""


def test_parts_of_one_machine_are_of_one_class_and_the_whole_of_another() -> None:
    slots = plan_slots(here(), gpus=0, workers=2, everything=(), topology=Topology(cores(8, 2)))
    none = Profile(name="cuda", devices="none")
    one, two, whole = (machine_of(slot, {}, none) for slot in (*slots, Slot("")))
    assert one.kind == two.kind == f"{whole.cpu} x 8 of {whole.cores}"
    assert whole.kind == f"{whole.cpu} x {whole.cores}"
    smaller = plan_slots(here(), gpus=0, workers=4, everything=(), topology=Topology(cores(8, 2)))
    assert machine_of(smaller[0], {}, none).kind == f"{whole.cpu} x 4 of {whole.cores}"


@given(st.integers(1, 6), st.integers(1, 12), st.integers(1, 2), st.integers(1, 64))
def test_slots_are_disjoint(size: int, workers: int, threads: int, count: int) -> None:
    """Whatever is asked: disjoint devices, disjoint cores, a core for each side, or a refusal."""
    gpus = [Gpu("x", 1, "1", f"GPU-{n}", n) for n in range(8)]
    try:
        slots = plan_slots(
            here(gpus), gpus=size, workers=workers, everything=gpus, topology=Topology(cores(count, threads))
        )
    except (UsageError, MachineError):
        assert size * workers > 8 or count // 8 * size < 2
        return
    assert len(slots) == workers
    held = [uuid for slot in slots for uuid in slot.devices]
    assert len(held) == len(set(held)) == size * workers
    used = [cpu for slot in slots for cpu in (*slot.server_cores, *slot.client_cores)]
    assert len(used) == len(set(used))
    assert all(bool(slot.server_cores) == bool(slot.client_cores) for slot in slots)
    assert workers == 1 or all(slot.cores for slot in slots)
