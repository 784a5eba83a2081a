"""A night as one value, from its plan, its journal and those of its jobs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from perfbisect.jobs.documents import metric_document
from perfbisect.jobs.journal import Event
from perfbisect.nightly.context import Scene
from perfbisect.nightly.folders import NightFolder
from perfbisect.nightly.model import CellState, Night, NightCell, NightFindings, NightStep
from perfbisect.nightly.plan import CellPlan, NightPlan
from perfbisect.nightly.schedule import chosen
from perfbisect.nightly.state import CellFailure, NightState, StepRecord, Tally, spent, state_of, tallies
from perfbisect.series.detection.fdr import FDR


def build_night(
    scene: Scene, plan: NightPlan, events: Sequence[Event], folder: NightFolder, *, ended: str = ""
) -> Night:
    """The night as its journal and those of its jobs say."""
    state, jobs = state_of(events), scene.jobs
    done = tallies(plan, state, jobs)
    findings = state.findings or NightFindings((), ())
    few = findings.unjudged
    versions = [tally.versions() for tally in done.values() if tally.measured]
    head = _head(scene, plan)
    night = Night(
        **{**head, "notes": (*head["notes"], *findings.notes)},
        id=folder.id,
        dry_run=False,
        began=events[0].time,
        ended=ended,
        hardware=", ".join(dict.fromkeys(hardware for _, hardware in versions)),
        engine_version=", ".join(dict.fromkeys(version for version, _ in versions)),
        minutes=spent(plan, state, jobs),
        cells=tuple(_cell(one, state, done.get(one.name, Tally()), few.get(one.name)) for one in plan.cells),
        alerts=findings.alerts,
        bisections=tuple(state.bisections.values()),
        rows=findings.rows,
        steps=tuple(_step(step) for step in state.steps.values()),
        files={kind: path for step in state.steps.values() for kind, path in step.files.items()},
        failures=state.exit_codes,
        next="",
        folder=str(folder.path),
    )
    return replace(night, next=next(_next(scene, plan, state, night), ""))


def plan_night(scene: Scene, plan: NightPlan, now: str, note: str = "") -> Night:
    """What a night with this plan would do. ``note``: what a reader must know besides."""
    taken = _taken(plan)
    cells = tuple(_planned(one, taken) for one in plan.cells)
    head = _head(scene, plan)
    return Night(
        **{**head, "notes": (*head["notes"], *filter(None, [note]))},
        id="",
        dry_run=True,
        began=now,
        ended="",
        hardware="",
        engine_version="",
        minutes=sum(one.expected for one in cells if one.state == "planned"),
        cells=cells,
        alerts=(),
        bisections=(),
        rows=(),
        steps=(),
        files={},
        failures=(),
        next=shlex.join(["perfbisect", "nightly", plan.file]),
        folder=str(scene.nights.folder),
    )


def _head(scene: Scene, plan: NightPlan) -> dict[str, Any]:
    taken = _taken(plan)
    first = [name for sitting in plan.order if sitting.launch == 1 for name in sitting.cells]
    return {
        "name": plan.name,
        "commit": plan.commit,
        "branch": plan.branch,
        "repository": str(scene.repository.path),
        "environment": plan.setting.environment,
        "client": plan.setting.instrument,
        "machine": plan.setting.machine,
        "seed": plan.seed,
        "budget_minutes": plan.budget,
        "order": tuple(name for name in first if name in taken),
        "notes": plan.told,
    }


def _taken(plan: NightPlan) -> frozenset[str]:
    """The cells that were expected to fit into the budget."""
    groups, _ = chosen(plan.sets(), plan.budget)
    return frozenset(name for group in groups for name in group.cells)


def _known(cell: CellPlan) -> dict[str, Any]:
    metric = metric_document(cell.ref)
    return {
        "name": cell.name,
        "digest": cell.digest,
        "wanted": cell.launches,
        "expected": 0.0 if cell.skip else cell.launches * cell.each,
        "foreseen": "" if cell.skip else cell.foreseen,
        "metric": metric.name,
        "unit": metric.unit,
    }


def _planned(cell: CellPlan, taken: frozenset[str]) -> NightCell:
    fits = cell.name in taken
    state: CellState = "skipped" if cell.skip else "planned" if fits else "not reached"
    reason = cell.skip or ("" if fits else "it does not fit into the budget beside the shorter ones")
    return NightCell(**_known(cell), state=state, reason=reason)


def _cell(cell: CellPlan, state: NightState, done: Tally, few: int | None) -> NightCell:
    identity, failed = state.jobs.get(cell.name, ""), state.failed.get(cell.name)
    launches = len(done.measured)
    word, reason = _outcome(cell, launches, failed)
    return NightCell(
        **_known(cell),
        state=word,
        reason=reason,
        launches=launches,
        minutes=done.minutes,
        value=done.value(cell),
        too_few_nights=few,
        job=identity,
        log=failed.log if failed else "",
        next=failed.next if failed else "",
    )


def _outcome(cell: CellPlan, launches: int, failed: CellFailure | None) -> tuple[CellState, str]:
    if cell.skip:
        return "skipped", cell.skip
    if failed:
        return "failed", failed.reason
    if not launches:
        return "not reached", "the night's minutes were over"
    if launches < cell.launches:
        return "measured", f"{launches} of {cell.launches} launches: the night's minutes were over"
    return "measured", ""


def _step(step: StepRecord) -> NightStep:
    return NightStep(name=step.name, state=step.state, told=step.told, where=step.where, next=step.next)


def _next(scene: Scene, plan: NightPlan, state: NightState, night: Night) -> Iterator[str]:
    """The commands that come next, the most pressing first."""
    rules, repository = scene.file.nightly, str(scene.repository.path)
    state_folder = ("--state", str(scene.state)) if rules.state else ()
    rate = ("--fdr", f"{rules.alerts.fdr:g}") if rules.alerts.fdr != FDR else ()
    for one in night.bisections:
        if one.culprit is not None and one.job:
            yield shlex.join(("perfbisect", "report", one.job, *state_folder))
    for alert in night.regressions:
        words = ("perfbisect", "track", "suspects", alert.event, "--repo", repository, *rate)
        yield shlex.join((*words, *state_folder))
    yield from (failure.next for failure in state.failed.values() if failure.next)
    yield from (step.next for step in state.steps.values() if step.next)
    if plan.cells and not plan.wanted and scene.fetched is None:
        yield shlex.join(("git", "-C", repository, "fetch"))
