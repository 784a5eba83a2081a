"""The document of a night, from its journal and those of its jobs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from perfbisect.core.night import chosen, worst
from perfbisect.core.series_many import FDR
from perfbisect.errors import EXIT_REGRESSION
from perfbisect.jobs.nightly_hands import Scene
from perfbisect.jobs.nightly_plan import CellPlan, NightPlan
from perfbisect.jobs.nightly_read import young
from perfbisect.jobs.nightly_state import NightState, Tally, spent, state_of, tallies
from perfbisect.jobs.views import change_document, metric_document
from perfbisect.render.detect_documents import ReportRowDocument
from perfbisect.render.nightly_documents import (
    CellState,
    NightAlertDocument,
    NightBisectionDocument,
    NightCellDocument,
    NightlyDocument,
    NightStepDocument,
)
from perfbisect.store.events import Event
from perfbisect.store.nights import Night


def night_document(
    scene: Scene, plan: NightPlan, events: Sequence[Event], night: Night, *, ended: str = ""
) -> NightlyDocument:
    """The night as it stands, from what its journal says."""
    state, jobs = state_of(events), scene.jobs
    done = tallies(plan, state, jobs)
    judged = state.steps.get("detect", {})
    few = judged.get("unjudged", {})
    cells = tuple(_cell(one, state, done.get(one.name, Tally()), few.get(one.name)) for one in plan.cells)
    alerts = alerts_of(state) or ()
    bisections = tuple(NightBisectionDocument.model_validate(one) for one in state.settled.values())
    codes = [int(data["exit_code"]) for data in state.failed.values()]
    codes += [EXIT_REGRESSION for one in alerts if _found(one)]
    codes += [one.exit_code for one in bisections]
    codes += [int(data.get("exit_code", 0)) for data in state.steps.values()]
    told = [one.told() for one in done.values() if one.measured]
    head, notes = _head(scene, plan), judged.get("notes", ())
    return NightlyDocument(
        **{**head, "told": (*head["told"], *notes, *young(few))},
        night=night.id,
        dry_run=False,
        began=events[0].time,
        ended=ended,
        hardware=", ".join(dict.fromkeys(hardware for _, hardware in told)),
        engine_version=", ".join(dict.fromkeys(version for version, _ in told)),
        minutes=spent(plan, state, jobs),
        cells=cells,
        alerts=alerts,
        bisections=bisections,
        rows=tuple(ReportRowDocument.model_validate(row) for row in judged.get("rows", ())),
        steps=tuple(_step(data) for data in state.steps.values()),
        files={kind: path for data in state.steps.values() for kind, path in data.get("files", {}).items()},
        exit_code=worst(codes),
        next=next(_next(scene, plan, state, alerts, bisections), ""),
        folder=str(night.path),
    )


def dry_document(scene: Scene, plan: NightPlan, now: str, note: str = "") -> NightlyDocument:
    """What a night with this plan would do. ``note``: what a reader must know besides."""
    taken = _taken(plan)
    cells = tuple(_planned(one, taken) for one in plan.cells)
    head = _head(scene, plan)
    return NightlyDocument(
        **{**head, "told": (*head["told"], *filter(None, [note]))},
        night="",
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
        exit_code=0,
        next=shlex.join(["perfbisect", "nightly", plan.file]),
        folder=str(scene.nights.folder),
    )


def alerts_of(state: NightState) -> tuple[NightAlertDocument, ...] | None:
    """The alerts that the night judged; None where it has not, or could not."""
    found = state.steps.get("detect", {}).get("alerts")
    return None if found is None else tuple(NightAlertDocument.model_validate(one) for one in found)


def _head(scene: Scene, plan: NightPlan) -> dict[str, Any]:
    taken = _taken(plan)
    first = [name for sitting in plan.order if sitting.launch == 1 for name in sitting.cells]
    return {
        "name": plan.name,
        "commit": change_document(plan.commit),
        "branch": plan.branch,
        "repository": str(scene.repository.path),
        "environment": plan.setting.environment,
        "client": plan.setting.instrument,
        "machine": plan.setting.machine,
        "seed": plan.seed,
        "budget_minutes": plan.budget,
        "order": tuple(name for name in first if name in taken),
        "told": plan.told,
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


def _planned(cell: CellPlan, taken: frozenset[str]) -> NightCellDocument:
    fits = cell.name in taken
    state: CellState = "skipped" if cell.skip else "planned" if fits else "not reached"
    reason = cell.skip or ("" if fits else "it does not fit into the budget beside the shorter ones")
    return NightCellDocument(**_known(cell), state=state, reason=reason)


def _cell(cell: CellPlan, state: NightState, done: Tally, few: int | None) -> NightCellDocument:
    identity, failed = state.jobs.get(cell.name, ""), state.failed.get(cell.name, {})
    launches = len(done.measured)
    word, reason = _outcome(cell, launches, failed)
    return NightCellDocument(
        **_known(cell),
        state=word,
        reason=reason,
        launches=launches,
        minutes=done.minutes,
        value=done.value(cell),
        too_few_nights=few,
        job=identity,
        log=str(failed.get("log", "")),
        next=str(failed.get("next", "")),
    )


def _outcome(cell: CellPlan, launches: int, failed: Mapping[str, Any]) -> tuple[CellState, str]:
    if cell.skip:
        return "skipped", cell.skip
    if failed:
        return "failed", str(failed["reason"])
    if not launches:
        return "not reached", "the night's minutes were over"
    if launches < cell.launches:
        return "measured", f"{launches} of {cell.launches} launches: the night's minutes were over"
    return "measured", ""


def _step(data: Mapping[str, Any]) -> NightStepDocument:
    return NightStepDocument.model_validate(
        {name: data[name] for name in NightStepDocument.model_fields if name in data}
    )


def _found(alert: NightAlertDocument) -> bool:
    """A regression that tonight told, by the rules of the configuration."""
    return alert.change in ("opened", "reopened") and alert.counts and alert.worse


def _next(
    scene: Scene,
    plan: NightPlan,
    state: NightState,
    alerts: Sequence[NightAlertDocument],
    bisections: Sequence[NightBisectionDocument],
) -> Iterator[str]:
    """The commands that come next, the most pressing first."""
    rules, repository = scene.file.nightly, str(scene.repository.path)
    state_folder = ("--state", str(scene.state)) if rules.state else ()
    rate = ("--fdr", f"{rules.alerts.fdr:g}") if rules.alerts.fdr != FDR else ()
    for one in bisections:
        if one.culprit is not None and one.job:
            yield shlex.join(("perfbisect", "report", one.job, *state_folder))
    for alert in alerts:
        if _found(alert):
            words = ("perfbisect", "track", "suspects", alert.event, "--repo", repository, *rate)
            yield shlex.join((*words, *state_folder))
    for data in (*state.failed.values(), *state.steps.values()):
        if data.get("next"):
            yield str(data["next"])
    if plan.cells and not plan.wanted and scene.fetched is None:
        yield shlex.join(("git", "-C", repository, "fetch"))
