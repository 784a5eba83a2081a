"""Machine files: one YAML says how a kind of machine is seen, and what a server needs on it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from perfbisect import resources
from perfbisect.config.validation import validate
from perfbisect.config.yaml_lines import load
from perfbisect.core.fields import Words
from perfbisect.core.nearest import hint
from perfbisect.errors import UsageError

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
