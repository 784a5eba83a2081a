"""Probes torch and its devices in the environment under test; torch is never imported here."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from perfbisect.errors import MachineError
from perfbisect.machine.slots import Slot
from perfbisect.system import logs, processes
from perfbisect.system.processes import StopRequested, never

_MARK = "perfbisect-torch: "
_LIMIT = 180.0

PROGRAM = f"""
import json, sys

def attempt(call):
    try:
        return call()
    except Exception as error:
        return f"{{type(error).__name__}}: {{error}}"

def device(torch, index):
    properties = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    return {{
        "name": properties.name,
        "capability": f"{{properties.major}}.{{properties.minor}}",
        "total": total,
        "free": free,
        "processors": properties.multi_processor_count,
        "uuid": str(getattr(properties, "uuid", "") or ""),
    }}

def nccl(torch):
    if not torch.distributed.is_available() or not torch.distributed.is_nccl_available():
        return None
    version = torch.cuda.nccl.version()
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)

def main():
    import torch
    available = torch.cuda.is_available()
    told = {{
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "available": available,
        "cudnn": attempt(torch.backends.cudnn.version) if available else None,
        "nccl": attempt(lambda: nccl(torch)) if available else None,
        "threads": torch.get_num_threads(),
        "devices": [attempt(lambda i=i: device(torch, i)) for i in range(torch.cuda.device_count())]
        if available else [],
    }}
    print({_MARK!r} + json.dumps(told))

try:
    main()
except ImportError as error:
    print({_MARK!r} + json.dumps({{"error": str(error)}}))
"""
"""Script for the interpreter under test; it creates and drops a CUDA context."""


@dataclass(frozen=True)
class TorchDevice:
    """A device in torch; memory in bytes; ``uuid`` is empty with an older torch."""

    name: str
    capability: str
    total: int
    free: int
    processors: int
    uuid: str


@dataclass(frozen=True)
class Torch:
    """Versions (empty: absent), and devices by logical index.

    ``error``: why torch does not import; ``failed``: errors of unusable devices.
    """

    version: str = ""
    cuda: str = ""
    hip: str = ""
    cudnn: str = ""
    nccl: str = ""
    available: bool = False
    threads: int = 0
    devices: tuple[TorchDevice, ...] = ()
    failed: tuple[str, ...] = ()
    error: str = ""

    def facts(self) -> dict[str, Any]:
        """Facts for the provenance, without free memory."""
        facts = asdict(self)
        for device in facts["devices"]:
            del device["free"]
        return facts


def probe(
    interpreter: Path,
    env: Mapping[str, str],
    folder: Path,
    *,
    limit: float = _LIMIT,
    asked: StopRequested = never,
) -> Torch:
    """Probe the torch of an interpreter. ``env``: its process environment, with the slot's.

    :raises MachineError: no valid answer within ``limit`` seconds.
    :raises Interrupted: ``asked`` returned true.
    """
    log = folder / "torch-probe.log"
    log.unlink(missing_ok=True)
    ended = processes.run(
        [str(interpreter), "-c", PROGRAM],
        env=env,
        cwd=folder,
        log=log,
        token=secrets.token_hex(16),
        timeout=limit,
        asked=asked,
    )
    found = parse(logs.text_of(log))
    if found is None:
        how = f"did not end within {limit:.0f} s" if ended.timed_out else f"ended with exit code {ended.code}"
        said = logs.cause(log) or logs.tail(log, 3)
        raise MachineError(
            f"the probe of torch with {interpreter} {how} without a result: {said}",
            where=log,
            output=said,
        )
    log.unlink(missing_ok=True)
    return found


def parse(text: str) -> Torch | None:
    """Find the result in the output; None if there is none."""
    for line in reversed(text.splitlines()):
        if line.startswith(_MARK):
            try:
                told = json.loads(line.removeprefix(_MARK))
            except ValueError:
                return None
            return _torch(told) if isinstance(told, dict) else None
    return None


def _torch(told: Mapping[str, Any]) -> Torch:
    def text(name: str) -> str:
        return "" if told.get(name) is None else str(told[name])

    rows = told.get("devices") or []
    return Torch(
        version=text("torch"),
        cuda=text("cuda"),
        hip=text("hip"),
        cudnn=text("cudnn"),
        nccl=text("nccl"),
        available=told.get("available") is True,
        threads=int(told.get("threads") or 0),
        devices=tuple(_device(row) for row in rows if isinstance(row, dict)),
        failed=tuple(str(row) for row in rows if not isinstance(row, dict)),
        error=text("error"),
    )


def _device(row: Mapping[str, Any]) -> TorchDevice:
    return TorchDevice(
        name=str(row.get("name", "")),
        capability=str(row.get("capability", "")),
        total=int(row.get("total") or 0),
        free=int(row.get("free") or 0),
        processors=int(row.get("processors") or 0),
        uuid=str(row.get("uuid", "")),
    )


def disagreement(found: Torch, slot: Slot) -> str:
    """How torch's devices differ from the slot's; empty if they are equal, in order.

    Only the number is compared if torch reports no UUIDs, or for MIG instances.
    """
    if not slot.devices:
        return ""
    if found.error or not found.available:
        return (
            f"slot {slot.name} has {len(slot.devices)} device(s), torch sees none: {found.error or 'no CUDA'}"
        )
    if len(found.devices) != len(slot.devices):
        seen = [*(device.uuid or device.name for device in found.devices), *found.failed]
        return (
            f"slot {slot.name} has {len(slot.devices)} device(s), torch sees {len(seen)}: "
            f"{', '.join(seen) or 'none'}"
        )
    for wanted, device in zip(slot.devices, found.devices, strict=True):
        known = device.uuid and wanted.startswith("GPU-")
        if known and _bare(device.uuid) != _bare(wanted):
            return f"slot {slot.name} has {wanted}, torch sees {device.uuid} in its place"
    return ""


def _bare(uuid: str) -> str:
    """A UUID as torch writes it, without the prefix."""
    return uuid.removeprefix("GPU-").lower()
