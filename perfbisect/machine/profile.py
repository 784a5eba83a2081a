"""Machine files: how devices are listed and selected on a kind of machine, and what a server needs."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import psutil
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from perfbisect import resources
from perfbisect.common.suggest import hint
from perfbisect.common.yaml_source import load, validate
from perfbisect.errors import MachineError, UsageError
from perfbisect.machine import devices
from perfbisect.machine.device_commands import (
    CommandSmi,
    DeviceQueries,
    DeviceQuery,
    DriverQuery,
    MemoryQuery,
    ProcessQuery,
)
from perfbisect.machine.devices import Gpu, Smi, gpus, visible
from perfbisect.model.cell import Words

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)
_VARIABLE = re.compile(r"^[A-Za-z_]\w*$")
_FOLDER = "machines"


class DeviceSelection(BaseModel):
    """The variable that restricts an engine to some devices, and further variables."""

    model_config = _STRICT

    variable: str
    env: dict[str, str] = {}

    @field_validator("variable")
    @classmethod
    def _name(cls, value: str) -> str:
        if not _VARIABLE.match(value):
            raise ValueError("no name of a variable")
        return value


class LaunchCommandFile(BaseModel):
    """A command in front of the server's; ``lost``: its exit codes (signals below 0) for a lost lease."""

    model_config = _STRICT

    command: Words = Field(min_length=1)
    lost: tuple[int, ...] = Field(default=(75,), strict=False)


class MachineFile(BaseModel):
    """The content of a machine file."""

    model_config = _STRICT

    name: str
    devices: DeviceQuery | Literal["nvidia-smi", "none"]
    driver: DriverQuery | None = None
    memory: MemoryQuery | None = None
    tenants: ProcessQuery | None = None
    select: DeviceSelection | None = None
    platform: str = ""
    """Section of a vLLM-Omni deploy YAML that applies to it (``platforms: npu: ...``)."""
    env: dict[str, str] = {}
    serve_args: dict[str, str | int | float | bool] = {}
    lease: LaunchCommandFile | None = None

    @model_validator(mode="after")
    def _fits(self) -> MachineFile:
        own = isinstance(self.devices, DeviceQuery)
        if not own and (self.driver or self.memory or self.tenants):
            raise ValueError(
                f"driver, memory and tenants belong to a command's devices, not {self.devices!r}"
            )
        if self.devices != "none" and self.select is None:
            raise ValueError("select is missing: the variable that chooses devices")
        return self


def machine_names() -> tuple[str, ...]:
    """Names of the machine files that are shipped."""
    return tuple(sorted(path.stem for path in (resources.cells_folder() / _FOLDER).glob("*.yaml")))


def machine_path(name: str) -> Path:
    """The file of a machine: a path, or the name of one that is shipped.

    :raises UsageError: there is none.
    """
    if name in machine_names():
        return resources.cells_folder() / _FOLDER / f"{name}.yaml"
    path = Path(name).expanduser()
    if path.is_file():
        return path.absolute()
    raise UsageError(
        f"no machine {name!r}: neither a file nor one of {', '.join(machine_names())}"
        f"{hint(name, machine_names())}",
        next_step="--machine NAME, or the path of a machine file (docs/machine.md)",
    )


def load_machine(name: str) -> MachineFile:
    """Load a machine file.

    :raises UsageError: there is none of that name.
    :raises LocatedError: its content is wrong.
    """
    return validate(load(machine_path(name)), MachineFile)


@dataclass(frozen=True)
class LaunchCommand:
    """A command in front of the server's, such as a queue's wrapper.

    ``{gpus}`` is replaced by the number of the slot's devices, ``{devices}`` by their indices. ``lost``: its
    exit codes for a lease that was not granted or taken away; below 0: signals.
    """

    command: tuple[str, ...] = ()
    lost: tuple[int, ...] = (75,)


@dataclass(frozen=True)
class Profile:
    """A kind of machine.

    ``source``: what lists devices: NVIDIA's driver, nothing, or the commands of ``queries``. ``variable`` is
    set to the indices of the selected devices, together with ``beside``. ``platform``: section of a
    vLLM-Omni deploy YAML. ``env`` and ``serve_args`` are defaults of every server; the cell overrides them.
    """

    name: str = "cuda"
    source: Literal["nvidia-smi", "none", "commands"] = "nvidia-smi"
    variable: str = "CUDA_VISIBLE_DEVICES"
    beside: Mapping[str, str] = field(default_factory=lambda: {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    platform: str = "cuda"
    env: Mapping[str, str] = field(default_factory=dict)
    serve_args: Mapping[str, object] = field(default_factory=dict)
    lease: LaunchCommand = LaunchCommand()
    queries: DeviceQueries | None = None

    @property
    def mark(self) -> str:
        """Its part of the machine class: servers started in other ways are not comparable."""
        plain = self.source != "commands" and not self.env and not self.serve_args
        words = [f"{key}={value}" for key, value in sorted({**self.env, **self.serve_args}.items())]
        return "" if plain else " ".join((self.name, *words))

    def smi(self) -> Smi | None:
        """The device listing; None: NVIDIA's driver."""
        if self.source == "nvidia-smi":
            return None
        if self.queries is None or self.source == "none":
            return Smi(command=None)
        return CommandSmi(
            command=shutil.which(self.queries.devices.command[0]), queries=self.queries, name=self.name
        )

    def devices(self) -> tuple[Gpu, ...]:
        """All devices of the machine; empty if none are listed."""
        smi = self.smi()
        return devices.gpus() if smi is None else devices.list_devices(smi)

    def mask(self, group: Sequence[Gpu]) -> dict[str, str]:
        """Variables that restrict an engine to a group of devices, in this order.

        Whole devices are selected by index: most vLLM versions parse integers and fail on a UUID (vLLM issues
        13815, 41848). CUDA's indices equal the driver's in PCI order only. A MIG instance has no index.
        """
        if any(gpu.parent for gpu in group):
            return {self.variable: ",".join(gpu.uuid for gpu in group)}
        return {**self.beside, self.variable: ",".join(str(gpu.index) for gpu in group)}

    def none_of(self, devices: Sequence[Gpu]) -> dict[str, str]:
        """Variables that hide all devices; none if there are no devices."""
        return self.mask(()) if devices else {}

    def before(self, count: int, env: Mapping[str, str]) -> tuple[str, ...]:
        """The launch command in front of the server's, on a slot of ``count`` devices.

        :raises MachineError: the command is not installed.
        """
        if not self.lease.command:
            return ()
        command = self.lease.command[0]
        if shutil.which(command) is None:
            raise MachineError(
                f"the lease command {command!r} of machine {self.name!r} is not installed",
                next_step="install it, or correct lease.command in the machine's file",
            )
        values = {"gpus": str(count), "devices": env.get(self.variable, "")}
        return tuple(
            re.sub(r"\{(gpus|devices)\}", lambda match: values[match[1]], word) for word in self.lease.command
        )


CUDA = Profile()


def profile_of(file: MachineFile) -> Profile:
    """The profile that a machine file describes."""
    select = file.select
    listed = file.devices
    return Profile(
        name=file.name,
        source="commands" if isinstance(listed, DeviceQuery) else listed,
        variable=select.variable if select else CUDA.variable,
        beside=select.env if select else {},
        platform=file.platform,
        env=file.env,
        serve_args=file.serve_args,
        lease=LaunchCommand(file.lease.command, file.lease.lost) if file.lease else LaunchCommand(),
        queries=DeviceQueries(listed, file.driver, file.memory, file.tenants)
        if isinstance(listed, DeviceQuery)
        else None,
    )


_LEAST_DISK = 64 * 1024 * 1024


@dataclass(frozen=True)
class Machine:
    """Constant properties of this machine. ``memory`` in bytes; ``cores``: those this process may use."""

    host: str
    cpu: str
    cores: int
    memory: int
    kernel: str
    gpus: tuple[Gpu, ...]
    mark: str = ""
    """The profile's part of the machine class."""
    part: int = 0
    """Processors of the attempt's slot; 0: all."""

    @property
    def kind(self) -> str:
        """The machine class: attempts of different classes are never compared.

        Without devices it names the processors, and how many of them the slot has.
        """
        mark = f", {self.mark}" if self.mark else ""
        if not self.gpus:
            share = f"{self.part} of {self.cores}" if self.part else f"{self.cores}"
            return f"{self.cpu} x {share}{mark}"
        names = Counter(gpu.name for gpu in self.gpus)
        devices = " + ".join(f"{name} x {count}" for name, count in sorted(names.items()))
        drivers = "/".join(sorted({gpu.driver for gpu in self.gpus if gpu.driver}))
        return f"{devices}{f', driver {drivers}' if drivers else ''}{mark}"

    def facts(self) -> dict[str, Any]:
        return {**asdict(self), "machine_class": self.kind}


def machine(shell: Mapping[str, str], profile: Profile = CUDA, *, part: int = 0) -> Machine:
    """Describe this machine, with the devices that the profile's variable in ``shell`` leaves visible.

    ``part``: number of processors of an attempt; 0: all.
    """
    return Machine(
        host=platform.node(),
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        memory=psutil.virtual_memory().total,
        kernel=platform.release(),
        gpus=visible(profile.devices() if profile.smi() else gpus(), shell.get(profile.variable)),
        mark=profile.mark,
        part=part,
    )


def _cpu_model() -> str:
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
        for label in ("model name", "Model", "Hardware"):
            if found := re.search(rf"^{label}\s*:\s*(.+)$", text, re.MULTILINE):
                return " ".join(found[1].split())
    return platform.machine() or "unknown CPU"


def oom_kills() -> int:
    """Number of processes killed for memory since boot; 0 if unknown."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text("ascii").splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return 0


def check_room(folder: Path) -> None:
    """:raises MachineError: the disk under ``folder`` has no room for an attempt's files."""
    free = shutil.disk_usage(folder).free
    if free < _LEAST_DISK:
        raise MachineError(
            f"{folder}: {free // 2**20} MiB free, an attempt needs {_LEAST_DISK // 2**20} MiB for its files",
            next_step="free some disk, or give another --state folder",
            code="disk_full",
        )
