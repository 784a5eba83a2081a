"""The probe of torch: its program run by a real interpreter, against a torch of the test's making."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from perfbisect.errors import MachineError
from perfbisect.machine import torch_probe
from perfbisect.machine.slots import Slot
from perfbisect.machine.torch_probe import Torch, TorchDevice

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

ONE = TorchDevice("NVIDIA H200", "9.0", 141 * 10**9, 132, "00000000-aaaa-bbbb-cccc-0123456789a0")


def ask(folder: Path, torch: str | None, limit: float = 30.0) -> Torch:
    env = {"PATH": os.environ["PATH"]}
    if torch is not None:
        (folder / "torch.py").write_text(torch)
        env["PYTHONPATH"] = str(folder)
    return torch_probe.probe(Path(sys.executable), env, folder, limit=limit)


def test_torch_with_devices(tmp_path: Path) -> None:
    found = ask(tmp_path, CUDA.replace("DEVICES", "3"))
    assert (found.version, found.cuda, found.hip, found.cudnn) == ("2.9.0+cu130", "13.0", "", "91300")
    assert (found.nccl, found.available, found.threads, found.error) == ("2.27.7", True, 48, "")
    assert found.devices[0] == ONE and found.devices[1].uuid.endswith("a1")
    assert found.failed == ("RuntimeError: CUDA error: out of memory",)
    assert not (tmp_path / "torch-probe.log").exists()


def test_torch_without_devices(tmp_path: Path) -> None:
    assert ask(tmp_path, CPU) == Torch(version="2.13.0+cpu", threads=2)


def test_no_torch(tmp_path: Path) -> None:
    found = ask(tmp_path, "raise ImportError('libcudart.so.12: cannot open shared object file')")
    assert found == Torch(error="libcudart.so.12: cannot open shared object file")


@pytest.mark.parametrize(
    "torch, said", [("import os; os._exit(7)", "exit code 7"), ("raise SystemError('x')", "SystemError")]
)
def test_torch_that_ends_the_interpreter(tmp_path: Path, torch: str, said: str) -> None:
    with pytest.raises(MachineError, match=said) as raised:
        ask(tmp_path, torch)
    assert raised.value.where == str(tmp_path / "torch-probe.log")


def test_torch_that_hangs(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="did not end within 0 s"):
        ask(tmp_path, "import time; time.sleep(60)", limit=0.3)


@pytest.mark.parametrize("text", ["", "hello\n", "perfbisect-torch: {", "perfbisect-torch: []"])
def test_text_that_is_no_answer(text: str) -> None:
    assert torch_probe.parse(text) is None


def torch(*devices: TorchDevice, **more: object) -> Torch:
    return Torch(version="2.9", available=bool(devices), devices=devices, **more)  # type: ignore[arg-type]


def test_what_torch_sees_is_the_slot() -> None:
    slot = Slot("gpu0", ("GPU-00000000-AAAA-bbbb-cccc-0123456789a0",))
    other = Slot("gpu1", ("GPU-00000001-aaaa-bbbb-cccc-0123456789a1",))
    old = TorchDevice("NVIDIA H200", "9.0", 1, 1, "")
    assert torch_probe.disagreement(torch(ONE), slot) == ""
    assert torch_probe.disagreement(torch(old), slot) == ""
    assert torch_probe.disagreement(torch(), Slot("")) == ""
    assert "in its place" in torch_probe.disagreement(torch(ONE), other)
    assert "torch sees 2" in torch_probe.disagreement(torch(ONE, old), slot)
    assert torch_probe.disagreement(torch(), slot) == "", "the change may be the cause"
    assert torch_probe.disagreement(torch(ONE), Slot("gpu0.0", ("MIG-1",))) == ""
