"""Builds the night as a value: from its journal, or for a dry run from its plan."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from perfbisect.jobs.documents import change_document, metric_document
from perfbisect.jobs.journal import JournalEvent
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
from perfbisect.nightly.plan import CellPlan, NightPlan
from perfbisect.series.detection.fdr import FDR
from perfbisect.series.detection.model import FEWEST


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
