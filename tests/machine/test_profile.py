"""Machine files, and what is wrong in them with its line."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from perfbisect.errors import LocatedError, MachineError
from perfbisect.machine import devices, profile
from perfbisect.machine.devices import Gpu
from perfbisect.machine.profile import (
    CUDA,
    LaunchCommand,
    Machine,
    Profile,
    load_machine,
    load_profile,
    machine,
    machine_names,
    machine_path,
)
from perfbisect.machine.slots import Topology, plan_slots

TEXT = r"""name: spyre
devices:
  command: [aiu-smi, -l]
  each: '^(?P<index>\d+) (?P<name>\S+)'
memory:
  command: aiu-smi
  each: '(?P<index>\d+): (?P<used>\d+)/(?P<total>\d+)'
tenants:
  command: [aiu-smi]
  each: '(?P<index>\d+) (?P<pid>\d+)'
select:
  variable: AIU_DEVICES
env:
  VLLM_PLUGINS: spyre
serve_args:
  max-num-seqs: 4
lease:
  command: [queue-run, '--gpus={gpus}', --]
  lost: [75, -15]
"""


def written(folder: Path, text: str) -> str:
    (folder / "machine.yaml").write_text(text)
    return str(folder / "machine.yaml")


def test_those_that_are_shipped_are_right() -> None:
    assert machine_names() == ("ascend", "cpu", "cuda", "rocm", "spyre")
    for name in machine_names():
        assert load_machine(name).name == name
        assert machine_path(name).is_file()
    assert load_machine("cuda") == CUDA


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("name: spyre\n", "", 1, "name: is missing"),
        ("(?P<index>", "(?P<uuid>", 2, "no group (?P<index>...) to select a device by"),
        (r"(?P<name>\S+)'", r"\S+'", 2, "no group (?P<name>...)"),
        (r"'^(?P<index>\d+) (?P<name>\S+)'", r"'(?P<name>\S+)'", 2, "no group says which device"),
        (r"(?P<name>\S+)'", r"(?P<nam>\S+)'", 2, "unknown group 'nam'; known: uuid, index, chip, name"),
        (r"'^(?P<index>\d+) (?P", r"'^((?P<index>\d+) (?P", 2, "no regular expression"),
        (r"(?P<pid>\d+)'", r"\d+'", 8, "no group (?P<pid>...)"),
        ("variable: AIU_DEVICES", "variable: 1X", 12, "no name of a variable"),
        ("  max-num-seqs: 4", "  max-num-seqs: [4]", 16, "serve_args.max-num-seqs"),
        ("lost: [75, -15]", "lost: [x]", 19, "lease.lost"),
        ("env:", "envs:", 13, "envs"),
    ],
)
def test_mistakes(tmp_path: Path, old: str, new: str, line: int, said: str) -> None:
    with pytest.raises(LocatedError) as raised:
        load_machine(written(tmp_path, TEXT.replace(old, new, 1)))
    assert (said in str(raised.value), raised.value.line) == (True, line), str(raised.value)


def test_memory_of_a_driver_that_tells_it_itself(tmp_path: Path) -> None:
    text = "name: x\ndevices: none\ntenants:\n  command: [a]\n  each: '(?P<index>.)(?P<pid>.)'\n"
    with pytest.raises(LocatedError, match="belong to a command's devices, not 'none'"):
        load_machine(written(tmp_path, text))
    with pytest.raises(LocatedError, match="select is missing"):
        load_machine(written(tmp_path, "name: x\ndevices: nvidia-smi\n"))


A2, A3 = ((Path(__file__).parent / "npu" / name).read_text() for name in ("a2.txt", "a3.txt"))
"""What ``npu-smi info`` prints: one chip a card, and two."""
BIG = Topology(tuple((n,) for n in range(32)))


@pytest.fixture
def ascend() -> Profile:
    return load_machine("ascend")


ROCM = """
============================ ROCm System Management Interface ============================
====================================== Product Info ======================================
GPU[0]\t\t: Card Series: \t\tAMD Instinct MI300X
GPU[0]\t\t: Card Model: \t\t0x74a1
GPU[0]\t\t: GFX Version: \t\tgfx942
GPU[1]\t\t: Card series:          AMD Instinct MI300X
==========================================================================================
Driver version: 6.10.5
GPU[0]\t\t: VRAM Total Memory (B): 206141652992
GPU[0]\t\t: VRAM Total Used Memory (B): 297795584
GPU[1]\t\t: VRAM Total Memory (B): 206141652992
GPU[1]\t\t: VRAM Total Used Memory (B): 61234741248
================================== End of ROCm SMI Log ===================================
"""
SPYRE = """0000:1a:00.0 Processing accelerators: IBM Spyre Accelerator (rev 02)
0000:3c:00.0 Processing accelerators: IBM Spyre Accelerator (rev 02)
0000:5e:00.0 Bridge: IBM Device 1234
"""


Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a command on the path that prints a text, whatever it is asked, and ends with a code."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def command(name: str, output: str, code: int = 0) -> None:
        asked = '[ "$1" = info ] || exit 2' if name == "npu-smi" else ":"
        (tmp_path / name).write_text(f"#!/bin/sh\n{asked}\ncat <<'EOF'\n{output}EOF\nexit {code}\n")
        (tmp_path / name).chmod(0o755)

    return command


def test_devices_of_amd(install: Install) -> None:
    install("rocm-smi", ROCM)
    rocm = load_profile("")
    first, second = rocm.list_devices()
    assert (first.name, first.memory, first.driver, first.index) == (
        "AMD Instinct MI300X",
        196592,
        "6.10.5",
        0,
    )
    assert [reading.used for reading in devices.readings(rocm.smi())] == [284, 58398]
    assert rocm.mask((second, first)) == {"HIP_VISIBLE_DEVICES": "1,0"}
    assert [gpu.index for gpu in machine({"HIP_VISIBLE_DEVICES": "1"}, rocm).gpus] == [1]


def test_devices_of_ibm(install: Install) -> None:
    install("lspci", SPYRE)
    spyre = load_machine("spyre")
    found = spyre.list_devices()
    assert [(gpu.index, gpu.uuid, gpu.name) for gpu in found] == [
        (0, "0000:1a:00.0", "IBM Spyre Accelerator"),
        (1, "0000:3c:00.0", "IBM Spyre Accelerator"),
    ]
    assert spyre.mask(found) == {"SPYRE_DEVICES": "0,1", "AIU_WORLD_SIZE": "2"}
    assert spyre.env == {"VLLM_PLUGINS": "sendnn_inference"}


def test_devices_of_another_maker(install: Install, ascend: Profile) -> None:
    install("npu-smi", A2)
    first, second = ascend.list_devices()
    assert (first.name, first.memory, first.driver, first.bus) == ("910B3", 65536, "24.1.rc3", "0000:81:00.0")
    assert (first.uuid, first.index, first.label) == ("ascend-4.0", 0, "gpu0")
    assert (second.uuid, second.index) == ("ascend-5.0", 1)
    here = machine({}, ascend)
    assert here.kind == f"910B3 x 2, driver 24.1.rc3, cpu {here.cpu}, ascend VLLM_PLUGINS=ascend"
    assert [gpu.uuid for gpu in machine({"ASCEND_RT_VISIBLE_DEVICES": "1"}, ascend).gpus] == ["ascend-5.0"]


def test_what_they_do_and_who_is_on_them(install: Install, ascend: Profile) -> None:
    install("npu-smi", A2)
    smi = ascend.smi()
    busy, free = devices.readings(smi)
    assert (busy.used, busy.total, busy.utilization) == (61234, 65536, 37)
    assert (busy.power, busy.temperature) == (95.1, 48)
    assert (free.uuid, free.used) == ("ascend-5.0", 3377)
    assert devices.readings(smi, ["ascend-5.0"]) == (free,)
    assert [(t.pid, t.uuid, t.memory) for t in devices.tenants(smi)] == [
        (20311, "ascend-4.0", 57801.0),
        (20477, "ascend-4.0", 134.0),
    ]


def test_two_chips_a_card_are_two_devices(install: Install, ascend: Profile) -> None:
    install("npu-smi", A3)
    found = ascend.list_devices()
    assert [(gpu.uuid, gpu.index) for gpu in found] == [
        *(("ascend-0.0", 0), ("ascend-0.1", 1), ("ascend-1.0", 2), ("ascend-1.1", 3)),
    ]
    smi = ascend.smi()
    assert [reading.power for reading in devices.readings(smi)] == [171.9, None, 168.2, None]
    assert [tenant.uuid for tenant in devices.tenants(smi)] == ["ascend-1.0"]


def test_slots_are_chosen_by_its_variable(install: Install, ascend: Profile) -> None:
    install("npu-smi", A3)
    here = machine({}, ascend)
    one, two = plan_slots(here, gpus=1, workers=2, topology=BIG, profile=ascend)
    assert [dict(slot.env) for slot in (one, two)] == [
        {"ASCEND_RT_VISIBLE_DEVICES": "1"},
        {"ASCEND_RT_VISIBLE_DEVICES": "3"},
    ], "free devices first: the driver alone holds 5 % of a third of them"
    assert one.devices == ("ascend-0.1",)


def test_a_driver_that_fails_has_no_devices(
    install: Install, monkeypatch: pytest.MonkeyPatch, ascend: Profile
) -> None:
    install("npu-smi", A2, code=3)
    assert ascend.list_devices() == ()
    monkeypatch.setenv("PATH", "/nonexistent")
    assert ascend.list_devices() == ()
    smi = ascend.smi()
    assert "npu-smi cannot be started" in smi.devices(("uuid",)).problem


def test_the_words_before_the_server() -> None:
    def behind(*command: str) -> Profile:
        return CUDA.model_copy(update={"lease": LaunchCommand(command=command)})

    words = behind("env", "-u", "X", "N={gpus}", "D={devices}", "{other}").before(
        2, {"CUDA_VISIBLE_DEVICES": "4,5"}
    )
    assert words == ("env", "-u", "X", "N=2", "D=4,5", "{other}")
    assert CUDA.before(2, {}) == ()
    with pytest.raises(MachineError, match="lease command 'no-such-queue'"):
        behind("no-such-queue").before(1, {})


H200 = Gpu("NVIDIA H200", 143771, "570.86.15", "GPU-1111")
OTHER = Gpu("NVIDIA H200", 143771, "570.86.15", "GPU-2222")
L4 = Gpu("NVIDIA L4", 23034, "570.86.15", "GPU-3333")


def test_machine_without_devices_is_named_by_its_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: ())
    here = profile.machine({})
    assert here.kind.endswith(f" x {len(os.sched_getaffinity(0))}")
    assert here.cpu and here.cpu in here.kind
    assert here.memory > 2**20
    facts = here.facts()
    assert facts["machine_class"] == here.kind
    assert facts["kernel"] == os.uname().release


def test_processor_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty name is not that of the next line."""
    said = "processor\t: 0\nmodel name\t:\nstepping\t: 3\nHardware\t: QEMU  virt\n"
    monkeypatch.setattr(Path, "read_text", lambda *_: said)
    assert profile.machine({}).cpu == "QEMU virt"


@pytest.mark.parametrize(
    ("cgroup", "events", "count"),
    [
        ("0::/pod/one\n", "low 0\noom 9\noom_kill 2\n", 2),
        ("4:memory:/one\n0::/\n", None, 7),
        ("", None, 7),
    ],
)
def test_processes_killed_for_memory_are_those_of_our_group(
    tmp_path: Path, cgroup: str, events: str | None, count: int
) -> None:
    group = tmp_path / "sys/fs/cgroup/pod/one"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(cgroup)
    (tmp_path / "proc/vmstat").write_text("nr_free_pages 1\noom_kill 7\n")
    if events is not None:
        (group / "memory.events").write_text(events)
    assert profile.oom_kills(tmp_path) == count


def test_class_tells_machines_apart() -> None:
    def kind(*gpus: Gpu) -> str:
        return Machine("h", "cpu", 8, 1, "6.1", gpus).kind

    assert kind() == "cpu x 8"
    assert kind(H200, OTHER) == kind(OTHER, H200) == "NVIDIA H200 x 2, driver 570.86.15, cpu cpu"
    assert kind(L4, H200) == "NVIDIA H200 x 1 + NVIDIA L4 x 1, driver 570.86.15, cpu cpu"
    assert kind(Gpu(H200.name, 1, "580.1", "x")) != kind(H200)


def test_the_class_says_whether_kernels_can_be_compiled(tmp_path: Path) -> None:
    for name in ("nvidia-smi", "nvcc"):
        (tmp_path / name).touch(0o755)
    compiling = machine({"PATH": str(tmp_path)})
    assert compiling.nvcc == str(tmp_path / "nvcc")
    assert (
        machine({"PATH": "/nowhere"}).nvcc,
        machine({"PATH": str(tmp_path)}, load_machine("cpu")).nvcc,
    ) == ("", "")
    classes = [replace(compiling, cpu="cpu", gpus=(H200,), nvcc=nvcc).kind for nvcc in ("", "/usr/bin/nvcc")]
    assert classes == [f"NVIDIA H200 x 1, driver 570.86.15{nvcc}, cpu cpu" for nvcc in ("", ", nvcc")]
