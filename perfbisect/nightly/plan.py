"""The question of a night as data: what is measured at which commit, and what is left out and why."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Literal

from pydantic import ValidationError

from perfbisect.errors import UsageError
from perfbisect.jobs.journal import Event
from perfbisect.jobs.settings import Data, Setting
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from perfbisect.model.metric import MetricRef, parse_metric
from perfbisect.nightly import schedule
from perfbisect.nightly.folders import NightFolder

Together = Callable[[Sequence[Cell]], Sequence[tuple[str, ...]]]
"""Cells -> the names of those that one launch can measure, group by group; every cell in one."""

_NIGHTS_BACK = 10
"""Nights from which it is learnt how long a cell takes."""


class CellPlan(Data):
    """A cell of a night. ``source``: what names it (``FILE@c4-n40``). ``each``: minutes that a launch is
    expected to take, ``foreseen``: from what; ``skip``: why it is not measured."""

    name: str
    source: str
    cell: dict[str, Any]
    digest: str
    metric: str
    launches: int
    runs: int
    each: float
    foreseen: str
    skip: str = ""

    @property
    def ref(self) -> MetricRef:
        """The cell's headline."""
        return parse_metric(self.metric)

    def load(self) -> Cell:
        """The cell. :raises UsageError: this version of perfbisect reads another workload from it."""
        cell = Cell.model_validate_json(json.dumps(self.cell))
        if cell.digest != self.digest:
            raise UsageError(
                f"cell {self.name} has the digest {cell.digest} here and had {self.digest} in the plan",
                next_step="go on with the version of perfbisect that began it, or begin a new night",
            )
        return cell


class NightPlan(Data):
    """``perfbisect nightly``. ``groups``: names of cells that a launch measures together; ``ordered``: in
    that order. ``budget`` in minutes."""

    verb: Literal["nightly"] = "nightly"
    name: str
    file: str
    branch: str
    commit: Change
    setting: Setting
    seed: int
    budget: float
    cells: tuple[CellPlan, ...]
    groups: tuple[tuple[str, ...], ...]
    ordered: bool = False
    told: tuple[str, ...] = ()

    def cell(self, name: str) -> CellPlan:
        """:raises KeyError: no cell of that name."""
        return {one.name: one for one in self.cells}[name]

    @property
    def wanted(self) -> tuple[CellPlan, ...]:
        """The cells that are measured."""
        return tuple(one for one in self.cells if not one.skip)

    def sets(self, each: Mapping[str, float] | None = None) -> tuple[schedule.Group, ...]:
        """The groups with what their launches take. ``each``: minutes a launch, where it is known better."""
        of, told = {one.name: one for one in self.wanted}, each or {}
        found = []
        for names in self.groups:
            cells = [of[name] for name in names if name in of]
            if cells:
                minutes = sum(told.get(one.name, one.each) for one in cells)
                launches = max(one.launches for one in cells)
                mine = tuple(one.name for one in cells)
                found.append(schedule.Group(mine, launches, minutes, self.ordered))
        return tuple(found)

    @property
    def order(self) -> tuple[schedule.Sitting, ...]:
        """Every launch in its order."""
        return schedule.sittings(self.sets(), self.budget, self.seed)


def night_plan_of(events: Sequence[Event]) -> NightPlan:
    """The plan in a night's journal. :raises UsageError: there is none, or it cannot be read."""
    data = next((event.data for event in events if event.kind == "plan"), None)
    try:
        return NightPlan.model_validate_json(json.dumps(data))
    except ValidationError as error:
        raise UsageError(
            f"the night's plan cannot be read: {error}", next_step="move its folder away and begin again"
        ) from error


class Past:
    """What earlier nights say: how long cells take, and which were measured at a commit."""

    def __init__(self, nights: Sequence[NightFolder], same_commit: Sequence[NightFolder]) -> None:
        """:raises UsageError: a night's journal cannot be read."""
        self._each: dict[str, list[float]] = {}
        self._measured: dict[tuple[str, str], tuple[int, str]] = {}
        for one in nights[-_NIGHTS_BACK:]:
            for data in _verdicts(one):
                for digest, minutes in data.get("each", {}).items():
                    self._each.setdefault(digest, []).append(float(minutes))
        for one in same_commit:
            for data in _verdicts(one):
                for digest, launches in data.get("measured", {}).items():
                    key = digest, str(data.get("setting"))
                    self._measured[key] = max(self._measured.get(key, (0, "")), (int(launches), one.id))

    def each(self, digest: str) -> tuple[float, str] | None:
        """Minutes of a launch, and from what that is known; None for a cell that was never measured."""
        found = self._each.get(digest)
        return None if not found else (median(found), f"from {len(found)} earlier nights")

    def measured(self, digest: str, setting: str, launches: int) -> str:
        """The night that measured a cell at this commit in this setting so many times; empty: none."""
        most, night = self._measured.get((digest, setting), (0, ""))
        return night if most >= launches else ""


def setting_name(setting: Setting) -> str:
    """What must be the same for a measurement of one commit to count for another night."""
    return " ".join(filter(None, (setting.environment, setting.client, setting.constraints, setting.machine)))


def _verdicts(one: NightFolder) -> list[Mapping[str, Any]]:
    return [event.data for event in one.events() if event.kind == "verdict"]
