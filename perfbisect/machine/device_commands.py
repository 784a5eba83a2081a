"""Devices listed by the commands of a machine file, where there is no ``nvidia-smi``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from perfbisect.machine.devices import Row, Smi, SmiRows, run_command
from perfbisect.model.cell import Words

STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)

KEYS = ("uuid", "index", "chip")
"""Groups that identify a device, in the command's own numbering."""

FIELDS = {
    "index": "index",
    "name": "name",
    "uuid": "uuid",
    "bus": "pci.bus_id",
    "driver": "driver_version",
    "total": "memory.total",
    "used": "memory.used",
    "temperature": "temperature.gpu",
    "power": "power.draw",
    "utilization": "utilization.gpu",
    "clock": "clocks.sm",
    "top_clock": "clocks.max.sm",
}
"""Group of an expression -> the driver's field for it: MiB, degrees Celsius, watts, per cent, MHz."""

_PROCESS_FIELDS = {"pid": "pid", "used": "used_memory"}


class CommandQuery(BaseModel):
    """``each``: regular expression with named groups, of each row in the output of ``command``."""

    model_config = STRICT

    required: ClassVar[tuple[str, ...]] = ()
    known: ClassVar[tuple[str, ...]] = ()
    """Groups beside those that identify the device."""

    command: Words = Field(min_length=1)
    each: str

    @model_validator(mode="after")
    def _check_groups(self) -> CommandQuery:
        try:
            groups = set(re.compile(self.each, re.MULTILINE).groupindex)
        except re.error as error:
            raise ValueError(f"no regular expression: {error}") from None
        unknown = sorted(groups - {*self.known, *KEYS})
        if unknown:
            raise ValueError(f"unknown group {unknown[0]!r}; known: {', '.join((*KEYS, *self.known))}")
        missing = [name for name in self.required if name not in groups]
        if missing:
            raise ValueError(f"no group (?P<{missing[0]}>...)")
        if not groups & {"uuid", "index"} and self.known != ("driver",):
            raise ValueError("no group says which device: (?P<index>...) or (?P<uuid>...)")
        return self

    def rows(self, timeout_s: float) -> tuple[tuple[Row, ...], str]:
        """The groups of each match, or why the command failed."""
        output = run_command(self.command, timeout_s)
        matches = re.finditer(self.each, output.stdout, re.MULTILINE)
        return tuple(
            {name: value.strip() for name, value in match.groupdict().items() if value and value.strip()}
            for match in matches
        ), output.problem


class DeviceQuery(CommandQuery):
    """Lists the devices. ``count``: how an engine numbers them: as the command, or by position."""

    required: ClassVar[tuple[str, ...]] = ("name",)
    known: ClassVar[tuple[str, ...]] = tuple(name for name in FIELDS if name not in KEYS)

    count: Literal["index", "position"] = "index"


class MemoryQuery(CommandQuery):
    """Memory of each device in MiB, if the list does not have it."""

    required: ClassVar[tuple[str, ...]] = ("used", "total")
    known: ClassVar[tuple[str, ...]] = ("used", "total")


class ProcessQuery(CommandQuery):
    """Processes on the devices; ``used``: MiB of one."""

    required: ClassVar[tuple[str, ...]] = ("pid",)
    known: ClassVar[tuple[str, ...]] = ("pid", "used")


class DriverQuery(CommandQuery):
    """The driver's version, part of the machine class, if the list does not have it."""

    required: ClassVar[tuple[str, ...]] = ("driver",)
    known: ClassVar[tuple[str, ...]] = ("driver",)


@dataclass
class CommandSmi(Smi):
    """Answers as ``nvidia-smi`` would, from other commands. ``name``: of the machine, part of its UUIDs."""

    name: str = field(kw_only=True)
    query: DeviceQuery = field(kw_only=True)
    driver: DriverQuery | None = field(kw_only=True)
    memory: MemoryQuery | None = field(kw_only=True)
    tenants: ProcessQuery | None = field(kw_only=True)

    def devices(self, fields: Sequence[str], only: Sequence[str] = ()) -> SmiRows:
        listed, problem = self.query.rows(self.timeout_s)
        if problem:
            return SmiRows(problem=problem)
        memory = {self._uuid(row): row for row in self._rows(self.memory)}
        driver = next(iter(self._rows(self.driver if "driver_version" in fields else None)), {})
        rows = []
        for position, row in enumerate(listed):
            uuid = self._uuid(row)
            groups = {**driver, **row, **memory.get(uuid, {}), "uuid": uuid}
            if self.query.count == "position":
                groups["index"] = str(position)
            values = {FIELDS[name]: value for name, value in groups.items() if name in FIELDS}
            if not only or uuid in only:
                rows.append({name: value for name, value in values.items() if name in fields})
        return SmiRows(tuple(rows))

    def processes(self, fields: Sequence[str]) -> SmiRows:
        if self.tenants is None:
            return SmiRows()
        listed, problem = self.tenants.rows(self.timeout_s)
        if problem:
            return SmiRows(problem=problem)
        rows = []
        for row in listed:
            values = {"gpu_uuid": self._uuid(row)}
            values |= {name: row[group] for group, name in _PROCESS_FIELDS.items() if group in row}
            rows.append({name: values[name] for name in fields if name in values})
        return SmiRows(tuple(rows))

    def listing(self) -> str:
        return ""

    def topology(self) -> str:
        return ""

    def _rows(self, query: CommandQuery | None) -> tuple[Row, ...]:
        return () if query is None else query.rows(self.timeout_s)[0]

    def _uuid(self, row: Row) -> str:
        """The device's UUID, or one made of the command's numbers."""
        numbers = ".".join(row[name] for name in ("index", "chip") if name in row)
        return row.get("uuid") or f"{self.name}-{numbers}"
