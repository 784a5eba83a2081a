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
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import psutil
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from perfbisect import resources
from perfbisect.common.secret_references import literal_secrets, secret_refused
from perfbisect.common.text import hint, regular_expression
from perfbisect.common.yaml_source import load, validate
from perfbisect.errors import MachineError, UsageError
from perfbisect.machine import devices
from perfbisect.machine.devices import DEVICE_FIELDS, Gpu, Row, Smi, SmiRows, run_command, visible
from perfbisect.model.attempt import CPU
from perfbisect.model.cell import Words

_VARIABLE = re.compile(r"^[A-Za-z_]\w*$")
_FOLDER = "machines"
_KEYS = ("uuid", "index", "chip")
"""Groups that identify a device, in the command's own numbering."""
_DRIVER, _MEMORY = ("driver",), ("used", "total")
_NVIDIA_ONLY = ("compute_mode", "mig", "reasons", "reasons_before_535")


class _Section(BaseModel):
    """A part of a machine file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class CommandQuery(_Section):
    """``each``: regular expression with named groups, of each row in the output of ``command``."""

    command: Words = Field(min_length=1)
    each: str

    def rows(self, timeout_s: float) -> SmiRows:
        """The groups of each match, or why the command failed."""
        output, problem = run_command(self.command, timeout_s)
        matches = re.finditer(self.each, output, re.MULTILINE)
        groups = (match.groupdict(default="") for match in matches)
        return SmiRows(
            tuple({name: value.strip() for name, value in row.items() if value.strip()} for row in groups),
            problem,
        )


def _check_groups(query: CommandQuery, required: Sequence[str], known: Sequence[str]) -> CommandQuery:
    """``known``: groups beside those that identify the device."""
    groups = set(regular_expression(query.each).groupindex)
    unknown = sorted(groups - {*known, *_KEYS})
    if unknown:
        raise ValueError(f"unknown group {unknown[0]!r}; known: {', '.join((*_KEYS, *known))}")
    missing = [name for name in required if name not in groups]
    if missing:
        raise ValueError(f"no group (?P<{missing[0]}>...)")
    # A machine has one driver for all devices.
    if not groups & {"uuid", "index"} and known != _DRIVER:
        raise ValueError("no group says which device: (?P<index>...) or (?P<uuid>...)")
    return query


class DeviceQuery(CommandQuery):
    """Lists the devices. ``count``: how an engine numbers them: as the command, or by position."""

    count: Literal["index", "position"] = "index"

    @model_validator(mode="after")
    def _check(self) -> DeviceQuery:
        known = [name for name in DEVICE_FIELDS if name not in (*_KEYS, *_NVIDIA_ONLY)]
        _check_groups(self, ("name",), known)
        if self.count == "index" and "index" not in re.compile(self.each).groupindex:
            raise ValueError("no group (?P<index>...) to select a device by; or: count: position")
        return self


class MemoryQuery(CommandQuery):
    """Memory of each device, if the list does not have it; ``unit``: of the command."""

    unit: Literal["MiB", "B"] = "MiB"

    @model_validator(mode="after")
    def _check(self) -> MemoryQuery:
        _check_groups(self, _MEMORY, _MEMORY)
        return self

    def rows(self, timeout_s: float) -> SmiRows:
        listed = super().rows(timeout_s)
        if self.unit == "MiB":
            return listed
        in_mib = (
            {name: str(int(text) >> 20) if name in _MEMORY else text for name, text in row.items()}
            for row in listed.rows
        )
        return SmiRows(tuple(in_mib), listed.problem)


class DeviceSelection(_Section):
    """The variable that restricts an engine to some devices by index, and further variables.

    ``{gpus}`` in these is replaced by the number of devices.
    """

    variable: str
    env: dict[str, str] = {}

    @field_validator("variable")
    @classmethod
    def _check_name(cls, value: str) -> str:
        if not _VARIABLE.match(value):
            raise ValueError("no name of a variable")
        return value


class LaunchCommand(_Section):
    """A command in front of the server's, such as a queue's wrapper.

    ``{gpus}`` is replaced by the number of the slot's devices, ``{devices}`` by their indices. ``lost``: its
    exit codes for a lease that was not granted or taken away; below 0: signals.
    """

    command: Words = Field(min_length=1)
    lost: tuple[int, ...] = Field(default=(75,), strict=False)


_check_driver = partial(_check_groups, required=_DRIVER, known=_DRIVER)
_check_tenants = partial(_check_groups, required=("pid",), known=("pid", "used"))


class Profile(_Section):
    """A kind of machine, as its file describes it.

    ``devices``: what lists them: NVIDIA's driver, nothing, or a command. ``driver``: its version, part of the
    machine class, if the list does not have it. ``tenants``: processes on the devices, with the MiB of one.
    ``platform``: section of a vLLM-Omni
    deploy YAML (``platforms: npu: ...``). The cell overrides ``env`` and ``serve_args``.
    """

    name: str
    devices: DeviceQuery | Literal["nvidia-smi", "none"]
    driver: Annotated[CommandQuery, AfterValidator(_check_driver)] | None = None
    memory: MemoryQuery | None = None
    tenants: Annotated[CommandQuery, AfterValidator(_check_tenants)] | None = None
    select: DeviceSelection | None = None
    platform: str = ""
    env: dict[str, str] = {}
    serve_args: dict[str, str | int | float | bool] = {}
    lease: LaunchCommand | None = None

    @model_validator(mode="after")
    def _check_devices(self) -> Profile:
        if self.query is None and (self.driver or self.memory or self.tenants):
            raise ValueError(
                f"driver, memory and tenants belong to a command's devices, not {self.devices!r}"
            )
        if self.devices != "none" and self.select is None:
            raise ValueError("select is missing: the variable that chooses devices")
        return self

    @property
    def query(self) -> DeviceQuery | None:
        """The command that lists devices, if the machine has its own."""
        return self.devices if isinstance(self.devices, DeviceQuery) else None

    @property
    def variable(self) -> str:
        """The variable that selects devices."""
        return self.select.variable if self.select else "CUDA_VISIBLE_DEVICES"

    @property
    def mark(self) -> str:
        """Its part of the machine class: servers started in other ways are not comparable."""
        if self.query is None and not self.env and not self.serve_args:
            return ""
        words = [f"{key}={value}" for key, value in sorted({**self.env, **self.serve_args}.items())]
        return " ".join((self.name, *words))

    def smi(self) -> Smi:
        """What answers device queries."""
        if self.query is not None:
            return CommandSmi(command=None, profile=self)
        return Smi() if self.devices == "nvidia-smi" else Smi(command=None)

    def list_devices(self) -> tuple[Gpu, ...]:
        """All devices of the machine; NVIDIA's are listed once in a process."""
        return devices.gpus() if self.devices == "nvidia-smi" else devices.list_devices(self.smi())

    def mask(self, group: Sequence[Gpu]) -> dict[str, str]:
        """Variables that restrict an engine to a group of devices, in this order.

        Whole devices are selected by index: most vLLM versions parse integers and fail on a UUID (vLLM issues
        13815, 41848). CUDA's indices equal the driver's in PCI order only. A MIG instance has no index.
        """
        if any(gpu.parent for gpu in group):
            # There is no other way to name an instance, although many versions of vLLM fail on it.
            return {self.variable: ",".join(gpu.uuid for gpu in group)}
        given = self.select.env if self.select else {}
        env = {name: value.replace("{gpus}", str(len(group))) for name, value in given.items()}
        return {**env, self.variable: ",".join(str(gpu.index) for gpu in group)}

    def none_of(self, devices: Sequence[Gpu]) -> dict[str, str]:
        """Variables that hide all devices; none if there are no devices."""
        return self.mask(()) if devices else {}

    def before(self, count: int, env: Mapping[str, str]) -> tuple[str, ...]:
        """The launch command in front of the server's, on a slot of ``count`` devices.

        Raises:
            MachineError: the command is not installed.
        """
        if self.lease is None:
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


@dataclass
class CommandSmi(Smi):
    """Answers as ``nvidia-smi`` would, from the commands of a machine file."""

    profile: Profile = field(kw_only=True)

    def devices(self, fields: Sequence[str], only: Sequence[str] = ()) -> SmiRows:
        query = self.profile.query
        assert query is not None
        listed = query.rows(self.timeout_s)
        # Drivers of other vendors list devices, memory and processes by different commands.
        memory = {self._uuid(row): row for row in self._rows(self.profile.memory)}
        driver = next(iter(self._rows(self.profile.driver if "driver" in fields else None)), {})
        rows = []
        for position, row in enumerate(listed.rows):
            uuid = self._uuid(row)
            values = {**driver, **row, **memory.get(uuid, {}), "uuid": uuid}
            if query.count == "position":
                values["index"] = str(position)
            if not only or uuid in only:
                rows.append({name: value for name, value in values.items() if name in fields})
        return SmiRows(tuple(rows), listed.problem)

    def processes(self) -> SmiRows:
        rows = self._rows(self.profile.tenants)
        return SmiRows(tuple({**row, "uuid": self._uuid(row)} for row in rows))

    def _rows(self, query: CommandQuery | None) -> tuple[Row, ...]:
        return () if query is None else query.rows(self.timeout_s).rows

    def _uuid(self, row: Row) -> str:
        """The device's UUID, or one made of the command's numbers."""
        numbers = ".".join(row[name] for name in ("index", "chip") if name in row)
        return row.get("uuid") or f"{self.profile.name}-{numbers}"


CUDA = Profile(
    name="cuda",
    devices="nvidia-smi",
    select=DeviceSelection(variable="CUDA_VISIBLE_DEVICES", env={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
    platform="cuda",
)


def machine_names() -> tuple[str, ...]:
    """Names of the machine files that are shipped."""
    return tuple(sorted(path.stem for path in (resources.cells_folder() / _FOLDER).glob("*.yaml")))


def machine_path(name: str) -> Path:
    """The file of a machine: a path, or the name of one that is shipped."""
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


def load_machine(name: str) -> Profile:
    """Load a machine file; UsageError if there is none of that name, LocatedError if its content is wrong."""
    document = load(machine_path(name))
    profile = validate(document, Profile)
    for place in literal_secrets({"env": profile.env, "serve_args": profile.serve_args}):
        raise document.error(place, *secret_refused(place[-1]))
    return profile


def load_profile(name: str) -> Profile:
    """Load a machine file, by default that of the driver whose command is installed."""
    tools = {"cuda": "nvidia-smi", "rocm": "rocm-smi", "ascend": "npu-smi"}
    return load_machine(name or next((kind for kind, tool in tools.items() if shutil.which(tool)), "cpu"))


def machine_name(named: str) -> str:
    """A machine by name or full path; empty: detect it."""
    return str(machine_path(named)) if named and named not in machine_names() else named


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
    nvcc: str = ""
    """CUDA's compiler on the PATH: with it FlashInfer compiles kernels that it otherwise does not have."""

    @property
    def kind(self) -> str:
        """The machine class: attempts of different classes are never compared.

        It names devices, driver and processors; without devices the processors, and how many the slot has.
        """
        mark = f", {self.mark}" if self.mark else ""
        if not self.gpus:
            # On a CPU the slot's share of the processors decides the speed.
            share = f"{self.part} of {self.cores}" if self.part else f"{self.cores}"
            return f"{self.cpu} x {share}{mark}"
        names = Counter(gpu.name for gpu in self.gpus)
        devices = " + ".join(f"{name} x {count}" for name, count in sorted(names.items()))
        drivers = "/".join(sorted({gpu.driver for gpu in self.gpus if gpu.driver}))
        # FlashInfer compiles other kernels where CUDA's compiler is there: machines with and without it are
        # not comparable.
        nvcc = ", nvcc" if self.nvcc else ""
        drivers = f", driver {drivers}" if drivers else ""
        return f"{devices}{drivers}{nvcc}, {CPU}{self.cpu}{mark}"

    def facts(self) -> dict[str, Any]:
        return {**asdict(self), "machine_class": self.kind}


def machine(shell: Mapping[str, str], profile: Profile = CUDA, *, part: int = 0) -> Machine:
    """Describe this machine, with the devices that the profile's variable in ``shell`` leaves visible.

    ``part``: number of processors of an attempt; 0: all.
    """
    cpu = platform.machine() or "unknown CPU"
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
        # x86, then names that kernels for ARM use.
        labels = ("model name", "Model", "Hardware")
        found = (re.search(rf"^{label}[ \t]*:[ \t]*(\S.*)$", text, re.MULTILINE) for label in labels)
        cpu = next((" ".join(match[1].split()) for match in found if match), cpu)
    return Machine(
        host=platform.node(),
        cpu=cpu,
        cores=len(os.sched_getaffinity(0)),
        memory=psutil.virtual_memory().total,
        kernel=platform.release(),
        gpus=visible(profile.list_devices(), shell.get(profile.variable)),
        mark=profile.mark,
        part=part,
        nvcc=(shutil.which("nvcc", path=shell.get("PATH")) or "") if profile.devices == "nvidia-smi" else "",
    )


def oom_kills(root: Path = Path("/")) -> int:
    """Number of processes killed for memory, in our control group if that is known, else since boot.

    The host's number is also raised by other containers.
    """
    with suppress(OSError, ValueError):
        own = re.search(r"^0::/(.*)$", (root / "proc/self/cgroup").read_text("utf-8"), re.MULTILINE)
        group = root / "sys/fs/cgroup" / (own[1] if own else "") / "memory.events"
        # The root group of the host has no such file.
        counts = group if group.is_file() else root / "proc/vmstat"
        for line in counts.read_text("ascii").splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return 0
