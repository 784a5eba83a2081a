"""Builds the plan of a night from the nightly's file and earlier nights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from statistics import median
from typing import Any

from perfbisect.jobs.measurement import runs_per_launch
from perfbisect.jobs.plans import cell_data
from perfbisect.nightly.config import FoundCell, launches_of
from perfbisect.nightly.context import NightlyContext
from perfbisect.nightly.journal import NightFolder
from perfbisect.nightly.plan import CellPlan, NightPlan, derive_seed, setting_key
from perfbisect.serving.families import suites

_NIGHTS_BACK = 10
"""Nights from which launch times are learnt."""


class NightHistory:
    """Launch times and measured cells of earlier nights."""

    def __init__(self, nights: Sequence[NightFolder], commit: str) -> None:
        """Raises:
        UsageError: a journal cannot be read.
        """
        self._launch_minutes: dict[str, list[float]] = {}
        self._measured: dict[tuple[str, str], tuple[int, str]] = {}
        for night in nights[-_NIGHTS_BACK:]:
            for digest, minutes in _verdict(night).get("launch_minutes", {}).items():
                self._launch_minutes.setdefault(digest, []).append(float(minutes))
        for night in nights:
            verdict = _verdict(night) if night.measures(commit) else {}
            for digest, launches in verdict.get("measured", {}).items():
                key = digest, str(verdict["setting"])
                self._measured[key] = max(self._measured.get(key, (0, "")), (int(launches), night.id))

    def forecast(self, digest: str) -> tuple[float, str] | None:
        """Minutes of a launch and their basis; None if the cell was never measured."""
        minutes = self._launch_minutes.get(digest)
        return None if not minutes else (median(minutes), f"from {len(minutes)} earlier nights")

    def measured_in(self, digest: str, setting: str, launches: int) -> str:
        """The night with that many launches of the cell at this commit; empty if there is none."""
        most, night = self._measured.get((digest, setting), (0, ""))
        return night if most >= launches else ""


def build_plan(context: NightlyContext, earlier: Sequence[NightFolder], now: datetime) -> NightPlan:
    """Plan a night that begins now."""
    rules, cells = context.file.nightly, context.cells
    history = NightHistory(earlier, context.commit.id)
    groups = suites([found.cell for found in cells]) if rules.suite else [(found.cell,) for found in cells]
    return NightPlan(
        name=rules.name,
        file=str(context.file.file),
        branch=rules.branch,
        commit=context.commit,
        setting=context.setting,
        seed=derive_seed(rules.name, context.commit.id, f"{now.astimezone(timezone.utc):%Y-%m-%d}"),
        budget=rules.budget,
        cells=tuple(_plan_cell(context, found, history) for found in cells),
        groups=tuple(tuple(cell.name for cell in group) for group in groups),
        ordered=rules.suite == "as_nightly",
        notes=_dependency_notes(context),
    )


def _plan_cell(context: NightlyContext, found: FoundCell, history: NightHistory) -> CellPlan:
    file, cell = context.file, found.cell
    runs, launches = file.nightly.runs, launches_of(file, cell.name)
    if runs > 1 and runs_per_launch(cell) == 1:
        raise file.wrong(
            ("runs",), f"{cell.name}: its caches cannot be emptied between runs, so a launch has one run"
        )
    guess = (context.launch_minutes, "an estimate: never measured")
    minutes, basis = history.forecast(cell.digest) or guess
    night = history.measured_in(cell.digest, setting_key(context.setting), launches)
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


def _dependency_notes(context: NightlyContext) -> tuple[str, ...]:
    rules, setting = context.file.nightly, context.setting
    if rules.exclude_newer or rules.constraints or setting.constraints:
        return ()
    return (
        f"dependencies are resolved as of {setting.exclude_newer}: a change between two nights may be "
        "theirs; exclude_newer or constraints pins them",
    )


def _verdict(night: NightFolder) -> Mapping[str, Any]:
    return next((event.data for event in night.events() if event.kind == "verdict"), {})
