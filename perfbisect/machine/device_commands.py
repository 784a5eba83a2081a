"""Devices listed by the commands of a machine file, where there is no ``nvidia-smi``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from perfbisect.machine.devices import Row, Smi, SmiRows, run_command
from perfbisect.model.cell import Words

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)

KEYS = ("uuid", "index", "chip")
"""Groups that identify a device, in the command's own numbering."""
GROUPS = (
    *("name", "bus", "driver", "total", "used"),
    *("temperature", "power", "utilization", "clock", "top_clock"),
)
"""Groups that describe a device: memory in MiB, degrees Celsius, watts, per cent, MHz."""


def _groups(each: str) -> frozenset[str]:
    """:raises ValueError: it is no regular expression."""
    try:
        return frozenset(re.compile(each, re.MULTILINE).groupindex)
    except re.error as error:
        raise ValueError(f"no regular expression: {error}") from None


class CommandQuery(BaseModel):
    """``each``: regular expression with named groups, of each row in the output of ``command``."""

    model_config = _STRICT

    command: Words = Field(min_length=1)
    each: str

    def rows(self, timeout_s: float) -> tuple[tuple[Row, ...], str]:
        """The groups of each match, or why the command failed."""
        output = run_command(self.command, timeout_s)
        matches = re.finditer(self.each, output.stdout, re.MULTILINE)
        return tuple(
            {name: value.strip() for name, value in match.groupdict().items() if value and value.strip()}
            for match in matches
        ), output.problem

    def check(self, needed: tuple[str, ...], known: tuple[str, ...]) -> None:
        """:raises ValueError: an unknown or missing group, or none that identifies the device."""
        groups = _groups(self.each)
        unknown = sorted(groups - {*known, *KEYS})
        if unknown:
            raise ValueError(f"unknown group {unknown[0]!r}; known: {', '.join((*KEYS, *known))}")
        missing = [name for name in needed if name not in groups]
        if missing:
            raise ValueError(f"no group (?P<{missing[0]}>...)")
        if not groups & {"uuid", "index"}:
            raise ValueError("no group says which device: (?P<index>...) or (?P<uuid>...)")


class DeviceQuery(CommandQuery):
    """Lists the devices. ``count``: how an engine numbers them: as the command, or by position."""

    count: Literal["index", "position"] = "index"

    @model_validator(mode="after")
    def _complete(self) -> DeviceQuery:
        self.check(("name",), GROUPS)
        return self


class MemoryQuery(CommandQuery):
    """Memory of each device in MiB, if the list does not have it."""

    @model_validator(mode="after")
    def _complete(self) -> MemoryQuery:
        self.check(("used", "total"), ("used", "total"))
        return self


class ProcessQuery(CommandQuery):
    """Processes on the devices; ``used``: MiB of one."""

    @model_validator(mode="after")
    def _complete(self) -> ProcessQuery:
        self.check(("pid",), ("pid", "used"))
        return self


class DriverQuery(CommandQuery):
    """The driver's version, part of the machine class, if the list does not have it."""

    @model_validator(mode="after")
    def _complete(self) -> DriverQuery:
        if _groups(self.each) != {"driver"}:
            raise ValueError("the one group is (?P<driver>...)")
        return self


@dataclass(frozen=True)
class DeviceQueries:
    """The commands that list devices, and what the list lacks."""

    devices: DeviceQuery
    driver: DriverQuery | None = None
    memory: MemoryQuery | None = None
    tenants: ProcessQuery | None = None


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
"""Group of an expression -> the driver's field for it."""


@dataclass
class CommandSmi(Smi):
    """Answers as ``nvidia-smi`` would, from other commands. ``name``: of the machine, part of its UUIDs."""

    queries: DeviceQueries = field(kw_only=True)
    name: str = field(kw_only=True)

    def devices(self, fields: Sequence[str], only: Sequence[str] = ()) -> SmiRows:
        found, problem = self.queries.devices.rows(self.timeout_s)
        if problem:
            return SmiRows(problem=problem)
        memory = dict[str, Row]()
        if self.queries.memory is not None:
            memory = {self._uuid(row): row for row in self.queries.memory.rows(self.timeout_s)[0]}
        driver: Row = {}
        if self.queries.driver is not None and "driver_version" in fields:
            driver = next(iter(self.queries.driver.rows(self.timeout_s)[0]), {})
        rows = []
        for position, row in enumerate(found):
            uuid = self._uuid(row)
            values = {
                FIELDS[name]: value
                for name, value in {**driver, **row, **memory.get(uuid, {})}.items()
                if name in FIELDS
            }
            values |= {"uuid": uuid}
            if self.queries.devices.count == "position":
                values["index"] = str(position)
            if not only or uuid in only:
                rows.append({name: value for name, value in values.items() if name in fields})
        return SmiRows(tuple(rows))

    def processes(self, fields: Sequence[str]) -> SmiRows:
        if self.queries.tenants is None:
            return SmiRows()
        found, problem = self.queries.tenants.rows(self.timeout_s)
        if problem:
            return SmiRows(problem=problem)
        rows = tuple(
            {
                "pid": row["pid"],
                "gpu_uuid": self._uuid(row),
                **({"used_memory": row["used"]} if "used" in row else {}),
            }
            for row in found
            if "pid" in row
        )
        return SmiRows(tuple({name: row[name] for name in fields if name in row} for row in rows))

    def listing(self) -> str:
        return ""

    def topology(self) -> str:
        return ""

    def _uuid(self, row: Row) -> str:
        """The device's UUID, or one made of the command's numbers."""
        numbers = ".".join(row[name] for name in ("index", "chip") if name in row)
        return row.get("uuid") or f"{self.name}-{numbers}"
