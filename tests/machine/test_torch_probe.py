"""The probe of torch: its program run by a real interpreter, against a torch of the test's making."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from perfbisect.errors import MachineError
from perfbisect.machine import torch_probe
from perfbisect.machine.slots import Slot

CUDA = """
__version__ = "2.9.0+cu130"
class version: cuda = "13.0"; hip = None
class backends:
    class cudnn:
        version = staticmethod(lambda: 91300)
class distributed:
    is_available = is_nccl_available = staticmethod(lambda: True)
class _Properties:
    def __init__(self, index):
        self.name, self.major, self.minor = "NVIDIA H200", 9, 0
        self.multi_processor_count = 132
        self.uuid = f"0000000{index}-aaaa-bbbb-cccc-0123456789a{index}"
def _properties(index):
    if index == 2:
        raise RuntimeError("CUDA error: out of memory")
    return _Properties(index)
class cuda:
    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: DEVICES)
    get_device_properties = staticmethod(_properties)
    mem_get_info = staticmethod(lambda index: (150 * 2**30, 141 * 10**9))
    class nccl:
        version = staticmethod(lambda: (2, 27, 7))
def get_num_threads(): return 48
print("a library that greets")
"""

CPU = """
__version__ = "2.13.0+cpu"
class version: cuda = None
class cuda:
    is_available = staticmethod(lambda: False)
    device_count = staticmethod(lambda: 0)
def get_num_threads(): return 2
"""

ONE = {
    "name": "NVIDIA H200",
    "capability": "9.0",
    "total": 141 * 10**9,
    "processors": 132,
    "uuid": "00000000-aaaa-bbbb-cccc-0123456789a0",
}


def ask(folder: Path, torch: str, limit: float = 30.0) -> Mapping[str, Any]:
    (folder / "torch.py").write_text(torch)
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder)}
    return torch_probe.probe(Path(sys.executable), env, folder, limit=limit)


def test_torch_with_devices(tmp_path: Path) -> None:
    found = ask(tmp_path, CUDA.replace("DEVICES", "3"))
    one, two = found["devices"]
    assert one == ONE and two["uuid"].endswith("a1")
    assert {name: found[name] for name in found if name != "devices"} == {
        "version": "2.9.0+cu130",
        "cuda": "13.0",
        "hip": "",
        "cudnn": "91300",
        "nccl": "2.27.7",
        "available": True,
        "threads": 48,
        "failed": ["RuntimeError: CUDA error: out of memory"],
    }
    assert not (tmp_path / "torch-probe.log").exists()


def test_torch_without_devices(tmp_path: Path) -> None:
    found = ask(tmp_path, CPU)
    assert (found["version"], found["available"], found["devices"]) == ("2.13.0+cpu", False, [])


def test_no_torch(tmp_path: Path) -> None:
    found = ask(tmp_path, "raise ImportError('libcudart.so.12: cannot open shared object file')")
    assert found == {"error": "libcudart.so.12: cannot open shared object file"}


@pytest.mark.parametrize(
    "torch, limit, said",
    [
        ("import os; os._exit(7)", 30.0, "exit code 7"),
        ("raise SystemError('x')", 30.0, "SystemError"),
        ("import time; time.sleep(60)", 0.3, "did not end within 0 s"),
    ],
)
def test_torch_that_gives_no_result(tmp_path: Path, torch: str, limit: float, said: str) -> None:
    with pytest.raises(MachineError, match=said) as raised:
        ask(tmp_path, torch, limit)
    assert raised.value.where == str(tmp_path / "torch-probe.log")


def test_a_torch_that_sees_no_device_is_the_machines_fault(tmp_path: Path) -> None:
    """As with a driver that is too old for it; a torch for other devices is what the change brought."""
    blind = CUDA.replace(
        "is_available = staticmethod(lambda: True)", "is_available = staticmethod(lambda: False)"
    )
    (tmp_path / "torch.py").write_text(blind)
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    slot = Slot("gpu0", ("GPU-1",))
    with pytest.raises(
        MachineError, match=r"torch 2\.9\.0\+cu130, built for CUDA 13\.0, sees no device"
    ) as raised:
        torch_probe.torch_facts(Path(sys.executable), env, slot, tmp_path)
    assert raised.value.code == "device_failed"
    assert "variant=" in raised.value.next
    assert torch_probe.torch_facts(Path(sys.executable), env, Slot("cpu"), tmp_path)["available"] is False
    (tmp_path / "torch.py").write_text(CPU)
    assert torch_probe.torch_facts(Path(sys.executable), env, slot, tmp_path)["cuda"] == ""


@pytest.mark.parametrize("text", ["", "hello\n", "perfbisect-torch: {", "perfbisect-torch: []"])
def test_text_that_is_no_answer(text: str) -> None:
    assert torch_probe.parse(text) is None


@pytest.mark.parametrize(
    "uuids, slot, problem",
    [
        ([ONE["uuid"]], "GPU-00000000-AAAA-bbbb-cccc-0123456789a0", ""),
        ([""], "GPU-00000000-aaaa-bbbb-cccc-0123456789a0", ""),
        ([ONE["uuid"]], "MIG-1", ""),
        ([], "GPU-1", ""),  # the change may be the cause
        ([ONE["uuid"]], "GPU-00000001-aaaa-bbbb-cccc-0123456789a1", "in its place"),
        ([ONE["uuid"], ""], "GPU-00000000-aaaa-bbbb-cccc-0123456789a0", "torch sees 2"),
    ],
)
def test_what_torch_sees_is_the_slot(uuids: list[str], slot: str, problem: str) -> None:
    devices = [{"name": "NVIDIA H200", "uuid": uuid} for uuid in uuids]
    torch = {"available": bool(devices), "devices": devices, "failed": []}
    found = torch_probe.disagreement(torch, Slot("one", (slot,)))
    assert problem in found and bool(problem) == bool(found)
