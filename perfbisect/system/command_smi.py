"""Devices of any maker: a command that lists them, and a regular expression that finds each in its output."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from perfbisect.system.nvidia_smi import Answer, Row, Smi, ask

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
"""Name of a group in an expression (:mod:`perfbisect.config.profile`) -> the driver's field for it."""


@dataclass(frozen=True)
class Query:
    """``each`` is searched in all that ``command`` prints, again and again; it may span lines."""

    command: tuple[str, ...]
    each: str

    def rows(self, patience: float) -> tuple[tuple[Row, ...], str]:
        """Its groups for each match, or why there are none."""
        told = ask(self.command, patience)
        found = re.finditer(self.each, told.stdout, re.MULTILINE)
        return tuple(
            {name: value.strip() for name, value in match.groupdict().items() if value and value.strip()}
            for match in found
        ), told.said


@dataclass(frozen=True)
class Queries:
    """``count``: whether an engine counts devices by the command's numbers or by their place in its list."""

    devices: Query
    driver: Query | None = None
    memory: Query | None = None
    tenants: Query | None = None
    count: Literal["index", "position"] = "index"


@dataclass
class CommandSmi(Smi):
    """Answers as ``nvidia-smi`` would, from other commands. ``name`` of the machine is part of its UUIDs."""

    queries: Queries = field(default_factory=lambda: Queries(Query((), "")))
    name: str = ""

    def devices(self, fields: Sequence[str], only: Sequence[str] = ()) -> Answer:
        found, problem = self.queries.devices.rows(self.patience)
        if problem:
            return Answer(problem=problem)
        memory = dict[str, Row]()
        if self.queries.memory is not None:
            memory = {self._uuid(row): row for row in self.queries.memory.rows(self.patience)[0]}
        above: Row = {}
        if self.queries.driver is not None and "driver_version" in fields:
            above = next(iter(self.queries.driver.rows(self.patience)[0]), {})
        rows = []
        for place, row in enumerate(found):
            uuid = self._uuid(row)
            told = {
                FIELDS[name]: value
                for name, value in {**above, **row, **memory.get(uuid, {})}.items()
                if name in FIELDS
            }
            told |= {"uuid": uuid}
            if self.queries.count == "position":
                told["index"] = str(place)
            if not only or uuid in only:
                rows.append({name: value for name, value in told.items() if name in fields})
        return Answer(tuple(rows))

    def processes(self, fields: Sequence[str]) -> Answer:
        if self.queries.tenants is None:
            return Answer()
        found, problem = self.queries.tenants.rows(self.patience)
        if problem:
            return Answer(problem=problem)
        rows = tuple(
            {
                "pid": row["pid"],
                "gpu_uuid": self._uuid(row),
                **({"used_memory": row["used"]} if "used" in row else {}),
            }
            for row in found
            if "pid" in row
        )
        return Answer(tuple({name: row[name] for name in fields if name in row} for row in rows))

    def listing(self) -> str:
        return ""

    def topology(self) -> str:
        return ""

    def _uuid(self, row: Row) -> str:
        """The device's own, or one made of the command's numbers."""
        numbers = ".".join(row[name] for name in ("index", "chip") if name in row)
        return row.get("uuid") or f"{self.name}-{numbers}"
