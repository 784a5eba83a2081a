"""The plan of a night: which cells are measured at which commit, and which are skipped."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Literal

from pydantic import ValidationError

from perfbisect.errors import UsageError
from perfbisect.jobs.journal import JournalEvent
from perfbisect.jobs.measurement import MeasurementConfig, PlanPart, runs_per_launch
from perfbisect.jobs.plans import cell_data
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from perfbisect.model.metric import MetricRef, parse_metric
from perfbisect.nightly import schedule
from perfbisect.nightly.config import FoundCell, NightlyFile, launches_of
from perfbisect.nightly.folders import NightFolder

GroupCells = Callable[[Sequence[Cell]], Sequence[tuple[str, ...]]]
"""Partitions cells by the server that measures them; returns their names."""

_NIGHTS_BACK = 10
"""Nights from which launch times are learnt."""


class CellPlan(PlanPart):
    """A cell of a night. ``source``: its file (``FILE@c4-n40``); ``skip``: why it is not measured.

    A launch is expected to take ``launch_minutes``, known from ``forecast_basis``.
    """

    name: str
    source: str
    cell: dict[str, Any]
    digest: str
    metric: str
    launches: int
    runs: int
    launch_minutes: float
    forecast_basis: str
    skip: str = ""

    @property
    def headline(self) -> MetricRef:
        return parse_metric(self.metric)

    def load(self) -> Cell:
        """Parse the cell.

        Raises:
            UsageError: this version of perfbisect reads a different workload from it.
        """
        cell = Cell.model_validate_json(json.dumps(self.cell))
        if cell.digest != self.digest:
            raise UsageError(
                f"cell {self.name} has the digest {cell.digest}, but {self.digest} in the plan",
                next_step="continue with the version of perfbisect that began it, or begin a new night",
            )
        return cell


class NightPlan(PlanPart):
    """What a night measures. ``groups``: cells of one server; ``ordered``: in that order. ``budget`` in
    minutes."""

    verb: Literal["nightly"] = "nightly"
    name: str
    file: str
    branch: str
    commit: Change
    setting: MeasurementConfig
    seed: int
    budget: float
    cells: tuple[CellPlan, ...]
    groups: tuple[tuple[str, ...], ...]
    ordered: bool = False
    notes: tuple[str, ...] = ()

    def cell(self, name: str) -> CellPlan:
        """Raises:
        KeyError: no such cell.
        """
        return {cell.name: cell for cell in self.cells}[name]

    @property
    def wanted(self) -> tuple[CellPlan, ...]:
        """The cells to measure."""
        return tuple(cell for cell in self.cells if not cell.skip)

    def launch_groups(
        self, launch_minutes: Mapping[str, float] | None = None
    ) -> tuple[schedule.ScheduledGroup, ...]:
        """The wanted groups; ``launch_minutes`` by cell replaces the forecast."""
        wanted, measured = {cell.name: cell for cell in self.wanted}, launch_minutes or {}
        groups = []
        for names in self.groups:
            cells = [wanted[name] for name in names if name in wanted]
            if cells:
                groups.append(
                    schedule.ScheduledGroup(
                        cells=tuple(cell.name for cell in cells),
                        launches=max(cell.launches for cell in cells),
                        launch_minutes=sum(measured.get(cell.name, cell.launch_minutes) for cell in cells),
                        ordered=self.ordered,
                    )
                )
        return tuple(groups)

    @property
    def order(self) -> tuple[schedule.ScheduledLaunch, ...]:
        return schedule.schedule_launches(self.launch_groups(), self.budget, self.seed)

    def fitting(self) -> frozenset[str]:
        """The cells expected to fit the budget."""
        groups, _ = schedule.fit_to_budget(self.launch_groups(), self.budget)
        return frozenset(name for group in groups for name in group.cells)


def read_plan(events: Sequence[JournalEvent]) -> NightPlan:
    """Read the plan from a night's journal.

    Raises:
        UsageError: it is missing or invalid.
    """
    data = next((event.data for event in events if event.kind == "plan"), None)
    try:
        return NightPlan.model_validate_json(json.dumps(data))
    except ValidationError as error:
        raise UsageError(
            f"the night's plan cannot be read: {error}", next_step="move its folder away and begin again"
        ) from error


class NightHistory:
    """Launch times and measured cells of earlier nights."""

    def __init__(self, nights: Sequence[NightFolder], commit: str) -> None:
        """Raises:
        UsageError: a journal cannot be read.
        """
        self._launch_minutes: dict[str, list[float]] = {}
        self._measured: dict[tuple[str, str], tuple[int, str]] = {}
        for night in nights[-_NIGHTS_BACK:]:
            for data in _verdicts(night):
                for digest, minutes in data.get("launch_minutes", {}).items():
                    self._launch_minutes.setdefault(digest, []).append(float(minutes))
        for night in nights:
            if not night.measures(commit):
                continue
            for data in _verdicts(night):
                for digest, launches in data.get("measured", {}).items():
                    key = digest, str(data.get("setting"))
                    best = self._measured.get(key, (0, ""))
                    self._measured[key] = max(best, (int(launches), night.id))

    def forecast(self, digest: str) -> tuple[float, str] | None:
        """Minutes of a launch and their basis; None if the cell was never measured."""
        minutes = self._launch_minutes.get(digest)
        return None if not minutes else (median(minutes), f"from {len(minutes)} earlier nights")

    def measured_in(self, digest: str, setting: str, launches: int) -> str:
        """The night with that many launches of the cell at this commit; empty if there is none."""
        most, night = self._measured.get((digest, setting), (0, ""))
        return night if most >= launches else ""


def build_plan(
    file: NightlyFile,
    cells: Sequence[FoundCell],
    commit: Change,
    setting: MeasurementConfig,
    history: NightHistory,
    *,
    date: str,
    group_cells: GroupCells,
    estimate_minutes: Callable[[Cell], float],
) -> NightPlan:
    """Plan a night that begins on ``date``.

    Raises:
        LocatedError: several runs a launch for an engine whose caches cannot be emptied between runs.
    """
    rules = file.nightly
    return NightPlan(
        name=rules.name,
        file=str(file.file),
        branch=rules.branch,
        commit=commit,
        setting=setting,
        seed=schedule.derive_seed(rules.name, commit.id, date),
        budget=rules.minutes,
        cells=tuple(_plan_cell(file, cell, setting, history, estimate_minutes) for cell in cells),
        groups=tuple(group_cells([cell.cell for cell in cells])),
        ordered=rules.suite == "as_nightly",
        notes=_dependency_notes(file, setting),
    )


def one_cell_per_server(cells: Sequence[Cell]) -> tuple[tuple[str, ...], ...]:
    """The partition in which no cells share a server."""
    return tuple((cell.name,) for cell in cells)


def setting_key(setting: MeasurementConfig) -> str:
    """What must be equal for a measurement of a commit to count for another night."""
    return " ".join(filter(None, (setting.environment, setting.client, setting.constraints, setting.machine)))


def _plan_cell(
    file: NightlyFile,
    found: FoundCell,
    setting: MeasurementConfig,
    history: NightHistory,
    estimate_minutes: Callable[[Cell], float],
) -> CellPlan:
    cell, runs = found.cell, file.nightly.runs
    if runs > 1 and runs_per_launch(cell) == 1:
        raise file.wrong(
            ("runs",), f"{cell.name}: its caches cannot be emptied between runs, so a launch has one run"
        )
    launches = launches_of(file, cell.name)
    minutes, basis = history.forecast(cell.digest) or (
        estimate_minutes(cell),
        "an estimate: never measured",
    )
    night = history.measured_in(cell.digest, setting_key(setting), launches)
    return CellPlan(
        name=cell.name,
        source=found.source,
        cell=cell_data(cell),
        digest=cell.digest,
        metric=cell.headline,
        launches=launches,
        runs=runs,
        launch_minutes=minutes,
        forecast_basis=basis,
        skip=f"measured at this commit in night {night}" if night else "",
    )


def _dependency_notes(file: NightlyFile, setting: MeasurementConfig) -> tuple[str, ...]:
    rules = file.nightly
    if rules.exclude_newer or rules.constraints or setting.constraints:
        return ()
    return (
        f"dependencies are resolved as of {setting.exclude_newer}: a change between two nights may be "
        "theirs; exclude_newer or constraints pins them",
    )


def _verdicts(night: NightFolder) -> list[Mapping[str, Any]]:
    return [event.data for event in night.events() if event.kind == "verdict"]
