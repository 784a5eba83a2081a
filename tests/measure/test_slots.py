"""Attempts on a slot: its cores, its devices and no others; what strays voids the attempt."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from perfbisect.environments.base import Environment
from perfbisect.errors import UsageError
from perfbisect.machine import devices
from perfbisect.machine.interference import InterferenceLimits as MachineLimits
from perfbisect.machine.slots import Slot
from perfbisect.measure.attempt import read_attempt
from perfbisect.measure.executor import PhaseLimits
from perfbisect.system import processes
from tests.machine import fake_smi
from tests.measure.pretend import ENGINE, Watch, attempt, cell, environment, failure

ZERO = "GPU-00000000-aaaa-bbbb-cccc-0123456789a0"
FIVE = "GPU-00000005-aaaa-bbbb-cccc-0123456789a5"
LEASED = Slot("zero", (ZERO,), env={"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0"})

# The torch of a machine whose devices are those that CUDA_VISIBLE_DEVICES names.
TORCH = """
import os, types
_seen = [f"0000000{n}-aaaa-bbbb-cccc-0123456789a{n}" for n in os.environ["CUDA_VISIBLE_DEVICES"].split(",")]
def _device(index):
    told = {"name": "NVIDIA H200", "major": 9, "minor": 0, "multi_processor_count": 132}
    return types.SimpleNamespace(uuid=_seen[index], **told)
__version__ = "2.13.0"
version = types.SimpleNamespace(cuda="13.0", hip=None)
backends = types.SimpleNamespace(cudnn=types.SimpleNamespace(version=lambda: 91000))
distributed = types.SimpleNamespace(is_available=lambda: False)
get_num_threads = lambda: 4
cuda = types.SimpleNamespace(
    is_available=lambda: True, device_count=lambda: len(_seen), get_device_properties=_device,
    mem_get_info=lambda index: (150_000_000_000, 150_754_820_096),
)
"""


class Box:
    """A machine with eight devices, told by a stand-in of the driver's command on PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "eight"
        shutil.copytree(fake_smi.MACHINES / "eight", self.folder)
        (folder / "bin").mkdir()
        fake_smi.install(folder / "bin", self.folder)
        (folder / "site").mkdir()
        (folder / "site" / "torch.py").write_text(TORCH)
        self.site = folder / "site"
        self.computes()

    def computes(self, *rows: tuple[int, str, int]) -> None:
        """Process, device and MiB of what computes now."""
        lines = [f"{pid}, {uuid}, {memory}\n" for pid, uuid, memory in rows]
        (self.folder / "processes.csv").write_text("pid, gpu_uuid, used_memory\n" + "".join(lines))

    def uses(self, uuid: str, memory: int) -> None:
        path = self.folder / "gpu.csv"
        header, *rows = path.read_text().splitlines()
        at = header.split(", ").index("memory.used")
        changed = [row.split(", ") for row in rows]
        for row in changed:
            if uuid in row:
                row[at] = str(memory)
        path.write_text("\n".join([header, *(", ".join(row) for row in changed)]) + "\n")

    def engine(self, folder: Path, **env: str) -> Environment:
        return environment(folder, PYTHONPATH=f"{ENGINE}:{self.site}", **env)


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    made = Box(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    devices.gpus.cache_clear()
    yield made
    devices.gpus.cache_clear()


def server(watch: Watch) -> int:
    """A process of the attempt: the engine's core is born a moment later."""
    return int(watch.launched["pid"])


def test_server_and_client_run_on_their_cores(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    slot = Slot("s", server_cores=(cores[0],), client_cores=(cores[-1],), env={"PRETEND_MARK": "slot"})
    seen: dict[str, set[frozenset[int]]] = {}

    def look(watch: Watch) -> None:
        rows = processes.tree(watch.launched["token"], watch.launched["pid"], watch.launched["created"])
        for row in rows:
            kind = "engine" if row.name.startswith("VLLM::") or row.pid == watch.launched["pid"] else "client"
            seen.setdefault(kind, set()).add(frozenset(os.sched_getaffinity(row.pid)))

    made = attempt(tmp_path, slot=slot, watch=Watch(at={"warm": look}))
    assert made.failure is None
    assert seen == {"engine": {frozenset({cores[0]})}, "client": {frozenset({cores[-1]})}}
    assert sorted(os.sched_getaffinity(0)) == cores
    for command in ("server", "client"):
        assert made.provenance.facts[command]["env"]["PRETEND_MARK"] == "slot"
    assert made.slot == "s"
    assert read_attempt(tmp_path / "attempt") == made


def test_engine_sees_what_is_leased(tmp_path: Path, box: Box) -> None:
    watch = Watch(at={"launch": lambda watch: box.computes((server(watch), ZERO, 129_000))})
    made = attempt(tmp_path, box.engine(tmp_path), slot=LEASED, watch=watch, shell={**os.environ})
    assert made.failure is None, made.failure
    facts = made.provenance.facts
    assert facts["server"]["env"]["CUDA_VISIBLE_DEVICES"] == "0"
    known = r"NVIDIA H200 x 1, driver 570\.133\.20(, nvcc)?, cpu "
    assert re.match(known, made.provenance.machine_class)
    assert facts["torch"]["version"] == "2.13.0" and len(facts["torch"]["devices"]) == 1
    (device,) = made.runs[0].facts["sampled"]["devices"]
    assert device["uuid"] == ZERO and device["foreign"] == {}


def test_engine_of_a_cell_that_reserves_none_sees_none(tmp_path: Path, box: Box) -> None:
    made = attempt(tmp_path, box.engine(tmp_path), shell={**os.environ})
    assert made.failure is None, made.failure
    assert made.provenance.facts["server"]["env"]["CUDA_VISIBLE_DEVICES"] == ""
    assert "H200" not in made.provenance.machine_class


def test_stage_outside_the_slot_starts_no_server(tmp_path: Path, box: Box) -> None:
    watch, staged = Watch(), cell(gpus=1, stage_overrides={"1": {"devices": "1"}})
    with pytest.raises(UsageError, match=r"stage_overrides\.1\.devices: stage 1: devices '1' names '1'"):
        attempt(tmp_path, box.engine(tmp_path), slot=LEASED, watch=watch, workload=staged)
    (tmp_path / "deploy.yaml").write_text("stages:\n  - devices: '0,1'\n")
    (tmp_path / "vllm").mkdir()
    engine = replace(box.engine(tmp_path), engine_file=str(tmp_path / "vllm" / "__init__.py"))
    theirs = cell(gpus=1, deploy_yaml="deploy.yaml")
    found = failure(attempt(tmp_path, engine, slot=LEASED, watch=watch, workload=theirs))
    assert (found.phase, found.fault, found.log) == ("launch", "change", f"{tmp_path}/deploy.yaml:2")
    assert not watch.launched


@pytest.mark.parametrize("phase", ["launch", "warm"])
def test_engine_on_a_device_outside_its_slot_voids_the_attempt(tmp_path: Path, box: Box, phase: str) -> None:
    """Limits may be off: this is no limit."""
    watch = Watch(at={phase: lambda watch: box.computes((server(watch), FIVE, 129_000))})
    made = attempt(tmp_path, box.engine(tmp_path), slot=LEASED, watch=watch)
    found = failure(made)
    assert (found.phase, found.fault) == ("first_request" if phase == "launch" else "bench", "machine")
    assert "used a device outside its slot" in found.reason and FIVE in found.reason


def test_process_of_others_on_a_leased_device_voids_the_attempt(tmp_path: Path, box: Box) -> None:
    def come(watch: Watch) -> None:
        box.computes((server(watch), ZERO, 129_000), (os.getppid(), ZERO, 9_000))

    limits = MachineLimits(foreign_cpu=None, steal=None, available=None, memory_pressure=None)
    made = attempt(
        tmp_path, box.engine(tmp_path), slot=LEASED, watch=Watch(at={"warm": come}), limits_of_machine=limits
    )
    assert (failure(made).phase, failure(made).fault) == ("bench", "machine")
    assert "others computed on device" in failure(made).reason


def test_memory_that_somebody_holds_is_waited_for(tmp_path: Path, box: Box) -> None:
    box.uses(ZERO, 90_000)
    limits = PhaseLimits(memory=0.5, stop=1.0)
    made = attempt(tmp_path, box.engine(tmp_path), slot=LEASED, limits=limits)
    assert (failure(made).phase, failure(made).fault) == ("launch", "machine")
    assert "90000 of 143771 MiB are in use" in failure(made).reason
    box.uses(ZERO, 4)
    assert attempt(tmp_path, box.engine(tmp_path), slot=LEASED, limits=limits).failure is None


def test_torch_that_sees_other_devices_is_the_machines(tmp_path: Path, box: Box) -> None:
    wrong = Slot("zero", (ZERO,), env={"CUDA_VISIBLE_DEVICES": "5"})
    made = attempt(tmp_path, box.engine(tmp_path), slot=wrong)
    assert (failure(made).phase, failure(made).fault) == ("launch", "machine")
    assert "torch sees" in failure(made).reason


@pytest.mark.processes
def test_slot_with_a_slow_device_is_slow(tmp_path: Path, box: Box) -> None:
    """Its name stands with the numbers, so that a model can take the slot out."""
    slow = Slot("five", (FIVE,), env={"CUDA_VISIBLE_DEVICES": "5"})
    made = attempt(tmp_path / "five", box.engine(tmp_path, PRETEND_SLOW_DEVICES="5:4"), slot=slow)
    assert made.failure is None and made.slot == "five"
    assert made.runs[0].values["tpot:median"] > 15.0, "of 20; a busy machine only adds"
