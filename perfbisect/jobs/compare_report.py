"""The document of a comparison, from its journal alone: of a finished one, or of one under way."""

from __future__ import annotations

from collections.abc import Sequence

from perfbisect.core import compare as core
from perfbisect.core.cell import Cell
from perfbisect.core.metric import MetricRef, parse_metric
from perfbisect.errors import UsageError
from perfbisect.jobs.compare_plan import ComparePlan, SidePlan, cells_of
from perfbisect.jobs.compare_rows import guard_moved, number, rows_of
from perfbisect.jobs.compare_words import advice_of, sentences_of
from perfbisect.jobs.fold import launches
from perfbisect.jobs.guards import watched
from perfbisect.jobs.plan import plan_of
from perfbisect.jobs.saved import saved
from perfbisect.jobs.sides import attempts_of, in_turn, seen_of
from perfbisect.jobs.views import (
    cell_document,
    change_document,
    commands_document,
    launch_document,
    metric_document,
    minutes_document,
    versions,
)
from perfbisect.render.compare_documents import CompareDocument, SideDocument
from perfbisect.store.events import Event
from perfbisect.store.jobs import Job, finished


def the_comparison(job: Job, events: Sequence[Event]) -> ComparePlan:
    """The plan of a comparison. :raises UsageError: the journal holds none that can be read."""
    plan = plan_of(tuple(events))
    if not isinstance(plan, ComparePlan):
        raise UsageError(f"job {job.id} is no comparison", next_step=f"perfbisect status {job.id}")
    return plan


def compare_document(job: Job, events: Sequence[Event]) -> CompareDocument:
    """What is known of a comparison. :raises UsageError: the journal holds none that can be read."""
    plan = the_comparison(job, events)
    seen, (cell, _) = launches(events), cells_of(plan)
    made = in_turn(seen)
    verdict = core.judge(plan.question(), seen_of(made, plan.ref))
    guards = guards_of(plan, cell)
    rows = tuple(rows_of(plan, made, verdict, {str(guard) for guard in guards}))
    moved = guard_moved(rows)
    silent = {str(guard) for guard in guards} - {row.name for row in rows}
    expected = plan.expected
    claim = expected.settles(verdict.low, verdict.high) if expected else None
    if claim is not None and moved:
        claim = "refuted"
    elif claim == "holds" and silent and plan.fail_over is None:
        claim = "inconclusive"
    return CompareDocument(
        job=job.id,
        finished=finished(events),
        word="regression" if moved else verdict.word,
        headline=verdict.word,
        expected=plan.expect,
        claim=claim,
        limit=plan.fail_over,
        sentences=tuple(sentences_of(plan, verdict, rows, guards, seen, claim)),
        next=advice_of(plan, verdict, job, finished(events), claim),
        effect=number(verdict.effect),
        low=number(verdict.low),
        high=number(verdict.high),
        smallest_effect=plan.question().min_effect,
        launches_a_side=verdict.launches // 2,
        needed_blocks=verdict.needed,
        a=side_document(plan.a),
        b=side_document(plan.b),
        metric=metric_document(plan.ref),
        metrics=rows,
        cell=cell_document(cell, plan.ref),
        repository=plan.setting.repository,
        environment=plan.setting.environment,
        client=plan.setting.instrument,
        launches=tuple(launch_document(x, plan.sides[x.position].change, plan.ref) for x in seen),
        minutes=minutes_document(seen, plan.budget, saved(events, seen)),
        reproduce=tuple(
            commands_document(served, plan.setting, side.change, attempts[-1] if attempts else None)
            for served, side, attempts in zip(
                cells_of(plan), plan.sides, (attempts_of(seen, "a"), attempts_of(seen, "b")), strict=True
            )
        ),
        versions=versions(plan.setting, seen),
        told=plan.told,
        folder=str(job.path),
    )


def guards_of(plan: ComparePlan, cell: Cell) -> tuple[MetricRef, ...]:
    """The guards of a comparison, each once: the cell's, its family's and the claim's."""
    return tuple(dict.fromkeys((*watched(cell), *map(parse_metric, plan.watch))))


def side_document(side: SidePlan) -> SideDocument:
    """A side as documents have it."""
    return SideDocument(
        typed=side.text, name=side.name, change=change_document(side.change), variant=side.variant
    )
