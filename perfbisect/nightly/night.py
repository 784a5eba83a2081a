"""Plans a night, and builds it as a value: from its journal, or for a dry run from its plan."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from statistics import median
from typing import Any

from perfbisect.jobs.documents import change_document, metric_document
from perfbisect.jobs.journal import JournalEvent
from perfbisect.jobs.measurement import runs_per_launch
from perfbisect.jobs.plans import cell_data
from perfbisect.nightly.config import FoundCell, launches_of
from perfbisect.nightly.context import NightlyContext
from perfbisect.nightly.journal import CellFailure, CellLaunches, NightFolder, NightProgress, NightState
from perfbisect.nightly.model import (
    CellState,
    Night,
    NightCell,
    NightFindings,
    new_regressions,
    night_exit_code,
)
from perfbisect.nightly.plan import CellPlan, NightPlan, derive_seed, setting_key
from perfbisect.series.detection.fdr import FDR
from perfbisect.series.detection.model import FEWEST
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


def build_night(
    context: NightlyContext, events: Sequence[JournalEvent], folder: NightFolder, *, ended: str = ""
) -> Night:
    """Build the night from its journal and those of its jobs."""
    progress = NightProgress.read(events, context.jobs)
    plan, state = progress.plan, progress.state
    findings = state.findings or NightFindings()
    measured = [cell.measured[-1].provenance for cell in progress.cells.values() if cell.measured]
    bisections = tuple(state.bisections.values())
    return Night(
        **_plan_fields(context, plan),
        night=folder.id,
        dry_run=False,
        began=events[0].time,
        ended=ended,
        hardware=", ".join(dict.fromkeys(provenance.machine_class for provenance in measured)),
        engine_version=", ".join(dict.fromkeys(provenance.engine_version for provenance in measured)),
        minutes=progress.spent,
        cells=tuple(_cell(cell, progress, findings.unjudged.get(cell.name)) for cell in plan.cells),
        alerts=findings.alerts,
        bisections=bisections,
        rows=findings.rows,
        steps=tuple(record.step for record in state.steps.values()),
        files={kind: path for record in state.steps.values() for kind, path in record.files.items()},
        notes=(*plan.notes, *findings.notes, *_coverage_notes(findings)),
        exit_code=night_exit_code(findings.alerts, bisections, state.exit_codes),
        next=next(_next_commands(context, plan, state, findings), ""),
        folder=str(folder.path),
    )


def planned_night(context: NightlyContext, plan: NightPlan, now: str, *notes: str) -> Night:
    """Build the night that a dry run shows."""
    fitting = plan.fitting()
    cells = tuple(_planned_cell(cell, cell.name in fitting) for cell in plan.cells)
    return Night(
        **_plan_fields(context, plan),
        night="",
        dry_run=True,
        began=now,
        ended="",
        hardware="",
        engine_version="",
        minutes=sum(cell.expected for cell in cells if cell.state == "planned"),
        cells=cells,
        alerts=(),
        bisections=(),
        rows=(),
        steps=(),
        files={},
        notes=(*plan.notes, *notes),
        exit_code=0,
        next=shlex.join(["perfbisect", "nightly", plan.file]),
        folder=str(context.nights.folder),
    )


def _plan_fields(context: NightlyContext, plan: NightPlan) -> dict[str, Any]:
    fitting = plan.fitting()
    first_round = [name for scheduled in plan.order if scheduled.launch == 1 for name in scheduled.cells]
    return {
        "name": plan.name,
        "commit": change_document(plan.commit),
        "branch": plan.branch,
        "repository": str(context.repository.path),
        "environment": plan.setting.environment,
        "client": plan.setting.instrument,
        "machine": plan.setting.machine,
        "seed": plan.seed,
        "budget_minutes": plan.budget,
        "order": tuple(name for name in first_round if name in fitting),
    }


def _cell_fields(cell: CellPlan) -> dict[str, Any]:
    metric = metric_document(cell.headline)
    return {
        "name": cell.name,
        "digest": cell.digest,
        "wanted": cell.launches,
        "expected": 0.0 if cell.skip else cell.launches * cell.launch_minutes,
        "forecast_basis": "" if cell.skip else cell.forecast_basis,
        "metric": metric.name,
        "unit": metric.unit,
    }


def _planned_cell(cell: CellPlan, fits: bool) -> NightCell:
    state: CellState = "skipped" if cell.skip else "planned" if fits else "not reached"
    reason = cell.skip or ("" if fits else "does not fit the budget beside the shorter cells")
    return NightCell(**_cell_fields(cell), state=state, reason=reason)


def _cell(cell: CellPlan, progress: NightProgress, too_few_nights: int | None) -> NightCell:
    measured = progress.cells.get(cell.name, CellLaunches())
    failure = progress.state.failed.get(cell.name)
    state, reason = _cell_state(cell, len(measured.measured), failure)
    return NightCell(
        **_cell_fields(cell),
        state=state,
        reason=reason,
        launches=len(measured.measured),
        minutes=measured.minutes,
        value=measured.value(cell.headline),
        too_few_nights=too_few_nights,
        job=progress.state.jobs.get(cell.name, ""),
        log=failure.log if failure else "",
        next=failure.next if failure else "",
    )


def _cell_state(cell: CellPlan, launches: int, failure: CellFailure | None) -> tuple[CellState, str]:
    if cell.skip:
        return "skipped", cell.skip
    if failure:
        return "failed", failure.reason
    if not launches:
        return "not reached", "budget exhausted"
    if launches < cell.launches:
        return "measured", f"{launches} of {cell.launches} launches: budget exhausted"
    return "measured", ""


def _coverage_notes(findings: NightFindings) -> Iterator[str]:
    """The series that are too short to judge."""
    nights = findings.unjudged
    if nights:
        low, high = min(nights.values()), max(nights.values())
        yield (
            f"not judged yet: {next(iter(nights)) if len(nights) == 1 else f'{len(nights)} cells'}, with "
            f"{low if low == high else f'{low} to {high}'} of the {FEWEST} nights that detection needs; "
            "runs of one day count as one night"
        )


def _next_commands(
    context: NightlyContext, plan: NightPlan, state: NightState, findings: NightFindings
) -> Iterator[str]:
    """The next commands, the most urgent first."""
    rules, repository = context.file.nightly, str(context.repository.path)
    state_folder = ("--state", str(context.state)) if rules.state else ()
    rate = ("--fdr", f"{rules.alerts.fdr:g}") if rules.alerts.fdr != FDR else ()
    for bisection in state.bisections.values():
        if bisection.culprit is not None and bisection.job:
            yield shlex.join(("perfbisect", "report", bisection.job, *state_folder))
    for alert in new_regressions(findings.alerts):
        words = ("perfbisect", "track", "suspects", alert.event, "--repo", repository, *rate)
        yield shlex.join((*words, *state_folder))
    yield from (failure.next for failure in state.failed.values() if failure.next)
    yield from (record.step.next for record in state.steps.values() if record.step.next)
    if plan.cells and not plan.wanted and context.fetch is None:
        yield shlex.join(("git", "-C", repository, "fetch"))
