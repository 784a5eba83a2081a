"""Machine files: one YAML says how a kind of machine is seen, and what a server needs on it."""

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
from perfbisect.machine.devices import CommandSmi, Gpu, Queries, Query, Smi, gpus, visible
from perfbisect.model.cell import Words

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)
_VARIABLE = re.compile(r"^[A-Za-z_]\w*$")
_FOLDER = "machines"

KEYS = ("uuid", "index", "chip")
"""Groups that say which device is meant, in the command's own count."""
TOLD = (
    *("name", "bus", "driver", "total", "used"),
    *("temperature", "power", "utilization", "clock", "top_clock"),
)
"""Groups that tell of a device: memory in MiB, degrees Celsius, watts, per cent, MHz."""


def _groups(each: str) -> frozenset[str]:
    """:raises ValueError: it is no regular expression."""
    try:
        return frozenset(re.compile(each, re.MULTILINE).groupindex)
    except re.error as error:
        raise ValueError(f"no regular expression: {error}") from None


class Asked(BaseModel):
    """``each`` is searched again and again in what ``command`` prints; its groups are named."""

    model_config = _STRICT

    command: Words = Field(min_length=1)
    each: str

    def check(self, needed: tuple[str, ...], known: tuple[str, ...]) -> None:
        """:raises ValueError: a group that nothing knows, one that is missing, or none says which device."""
        groups = _groups(self.each)
        unknown = sorted(groups - {*known, *KEYS})
        if unknown:
            raise ValueError(f"unknown group {unknown[0]!r}; known: {', '.join((*KEYS, *known))}")
        missing = [name for name in needed if name not in groups]
        if missing:
            raise ValueError(f"no group (?P<{missing[0]}>...)")
        if not groups & {"uuid", "index"}:
            raise ValueError("no group says which device: (?P<index>...) or (?P<uuid>...)")


class Listed(Asked):
    """The devices. ``count``: how the variable counts: by the listing's numbers, or by place in it."""

    count: Literal["index", "position"] = "index"

    @model_validator(mode="after")
    def _complete(self) -> Listed:
        self.check(("name",), TOLD)
        return self


class Memory(Asked):
    """Memory of each device in MiB, where the listing does not tell it."""

    @model_validator(mode="after")
    def _complete(self) -> Memory:
        self.check(("used", "total"), ("used", "total"))
        return self


class Tenants(Asked):
    """Processes on the devices; ``used``: MiB that one holds."""

    @model_validator(mode="after")
    def _complete(self) -> Tenants:
        self.check(("pid",), ("pid", "used"))
        return self


class Driver(Asked):
    """The driver's version, which is part of the machine class, where the listing does not tell it."""

    @model_validator(mode="after")
    def _complete(self) -> Driver:
        if _groups(self.each) != {"driver"}:
            raise ValueError("the one group is (?P<driver>...)")
        return self


class Select(BaseModel):
    """The variable that makes an engine see some devices and no others, and what stands beside it."""

    model_config = _STRICT

    variable: str
    env: dict[str, str] = {}

    @field_validator("variable")
    @classmethod
    def _name(cls, value: str) -> str:
        if not _VARIABLE.match(value):
            raise ValueError("no name of a variable")
        return value


class LeaseFile(BaseModel):
    """A command in front of the server's; ``lost``: exit codes (signals below 0) that say that it is lost."""

    model_config = _STRICT

    command: Words = Field(min_length=1)
    lost: tuple[int, ...] = Field(default=(75,), strict=False)


class MachineFile(BaseModel):
    """One kind of machine."""

    model_config = _STRICT

    name: str
    devices: Listed | Literal["nvidia-smi", "none"]
    driver: Driver | None = None
    memory: Memory | None = None
    tenants: Tenants | None = None
    select: Select | None = None
    platform: str = ""
    """The section of a deploy YAML of vLLM-Omni that holds on it (``platforms: npu: ...``)."""
    env: dict[str, str] = {}
    serve_args: dict[str, str | int | float | bool] = {}
    lease: LeaseFile | None = None

    @model_validator(mode="after")
    def _fits(self) -> MachineFile:
        own = isinstance(self.devices, Listed)
        if not own and (self.driver or self.memory or self.tenants):
            raise ValueError(
                f"driver, memory and tenants belong to a command's devices, not {self.devices!r}"
            )
        if self.devices != "none" and self.select is None:
            raise ValueError("select is missing: the variable that chooses devices")
        return self


def machine_names() -> tuple[str, ...]:
    """The machines that are shipped."""
    return tuple(sorted(path.stem for path in (resources.cells_folder() / _FOLDER).glob("*.yaml")))


def machine_path(name: str) -> Path:
    """The file of a machine that was named: a path, or one that is shipped.

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
    """The machine that was named.

    :raises UsageError: there is none of that name.
    :raises LocatedError: its file is wrong: file, line, field, what is allowed.
    """
    return validate(load(machine_path(name)), MachineFile)


@dataclass(frozen=True)
class Lease:
    """A command in front of the server's, such as a queue's wrapper.

    ``{gpus}`` in it is the number of the slot's devices, ``{devices}`` their numbers. ``lost``: exit codes by
    which it says that it was not granted or was taken away; below 0: signals.
    """

    command: tuple[str, ...] = ()
    lost: tuple[int, ...] = (75,)


@dataclass(frozen=True)
class Profile:
    """A kind of machine.

    ``source``: who tells of devices: the driver of NVIDIA, nobody, or the commands of ``queries``.
    ``variable`` is given the numbers of the chosen devices, ``beside`` stands with it. ``platform``: the
    section of a deploy YAML of vLLM-Omni that holds on it. ``env`` and ``serve_args`` are every server's,
    where the cell does not say otherwise.
    """

    name: str = "cuda"
    source: Literal["nvidia-smi", "none", "commands"] = "nvidia-smi"
    variable: str = "CUDA_VISIBLE_DEVICES"
    beside: Mapping[str, str] = field(default_factory=lambda: {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    platform: str = "cuda"
    env: Mapping[str, str] = field(default_factory=dict)
    serve_args: Mapping[str, object] = field(default_factory=dict)
    lease: Lease = Lease()
    queries: Queries | None = None

    @property
    def mark(self) -> str:
        """What it adds to the machine class: what is served in another way is not comparable."""
        plain = self.source != "commands" and not self.env and not self.serve_args
        words = [f"{key}={value}" for key, value in sorted({**self.env, **self.serve_args}.items())]
        return "" if plain else " ".join((self.name, *words))

    def smi(self) -> Smi | None:
        """Who is asked of devices; None: the driver of NVIDIA, as everywhere."""
        if self.source == "nvidia-smi":
            return None
        if self.queries is None or self.source == "none":
            return Smi(command=None)
        return CommandSmi(
            command=shutil.which(self.queries.devices.command[0]), queries=self.queries, name=self.name
        )

    def devices(self) -> tuple[Gpu, ...]:
        """All devices of the machine; empty where there are none, or nobody tells."""
        asked = self.smi()
        return devices.gpus() if asked is None else devices.look(asked)

    def mask(self, group: Sequence[Gpu]) -> dict[str, str]:
        """What makes an engine see a group of devices and nothing else, in this order.

        Whole devices by number: most versions of vLLM read the variable as integers and end on a UUID (vLLM
        issues 13815, 41848). CUDA counts as the driver does only in PCI order. A MIG instance has no number.
        """
        if any(gpu.parent for gpu in group):
            return {self.variable: ",".join(gpu.uuid for gpu in group)}
        return {**self.beside, self.variable: ",".join(str(gpu.index) for gpu in group)}

    def none_of(self, devices: Sequence[Gpu]) -> dict[str, str]:
        """What keeps an engine from all of them; nothing where there are none."""
        return self.mask(()) if devices else {}

    def before(self, count: int, env: Mapping[str, str]) -> tuple[str, ...]:
        """The words in front of the server's command, on a slot of so many devices.

        :raises MachineError: there is no such command.
        """
        if not self.lease.command:
            return ()
        command = self.lease.command[0]
        if shutil.which(command) is None:
            raise MachineError(
                f"the lease command {command!r} of machine {self.name!r} is not there",
                next_step="install it, or mend lease.command in the machine's file",
            )
        told = {"gpus": str(count), "devices": env.get(self.variable, "")}
        return tuple(
            re.sub(r"\{(gpus|devices)\}", lambda found: told[found[1]], word) for word in self.lease.command
        )


CUDA = Profile()


def profile_of(file: MachineFile) -> Profile:
    """The profile that a machine file describes."""
    select = file.select
    listed = file.devices
    return Profile(
        name=file.name,
        source="commands" if isinstance(listed, Listed) else listed,
        variable=select.variable if select else CUDA.variable,
        beside=select.env if select else {},
        platform=file.platform,
        env=file.env,
        serve_args=file.serve_args,
        lease=Lease(file.lease.command, file.lease.lost) if file.lease else Lease(),
        queries=Queries(
            Query(listed.command, listed.each),
            _query(file.driver),
            _query(file.memory),
            _query(file.tenants),
            listed.count,
        )
        if isinstance(listed, Listed)
        else None,
    )


def _query(asked: Asked | None) -> Query | None:
    return None if asked is None else Query(asked.command, asked.each)


_LEAST_DISK = 64 * 1024 * 1024


@dataclass(frozen=True)
class Machine:
    """What stays the same over a bisection. ``memory`` in bytes; ``cores``: those this process may use."""

    host: str
    cpu: str
    cores: int
    memory: int
    kernel: str
    gpus: tuple[Gpu, ...]
    mark: str = ""
    """What its profile adds to the machine class."""
    part: int = 0
    """Processors of the slot that an attempt ran on; 0: all of them."""

    @property
    def kind(self) -> str:
        """The machine class: attempts of different classes are never compared.

        Without devices it is the processors: those of the slot, where that is a part of the machine.
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
        """For the provenance."""
        return {**asdict(self), "machine_class": self.kind}


def machine(shell: Mapping[str, str], profile: Profile = CUDA, *, part: int = 0) -> Machine:
    """This machine; devices are those that the profile's variable in ``shell`` leaves visible.

    ``part``: how many of its processors an attempt has; 0: all.
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
    """How many processes the kernel has killed for memory since boot; 0 where it does not tell."""
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
