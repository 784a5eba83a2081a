"""The document of a comparison, from its journal alone: of a finished one, or of one under way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from perfbisect.core import compare as core
from perfbisect.core.attempt import key
from perfbisect.core.metric import MetricRef, parse_metric
from perfbisect.errors import UsageError
from perfbisect.jobs.compare_plan import ComparePlan, SidePlan, cells_of
from perfbisect.jobs.fold import Launch, launches
from perfbisect.jobs.guards import watched
from perfbisect.jobs.plan import plan_of
from perfbisect.jobs.saved import saved
from perfbisect.jobs.sides import SIDES, attempts_of, in_turn, seen_of, shared_metrics
from perfbisect.jobs.views import (
    cell_document,
    change_document,
    commands_document,
    launch_document,
    mean_value,
    metric_document,
    minutes_document,
    versions,
)
from perfbisect.render.compare_documents import ComparedDocument, CompareDocument, SideDocument
from perfbisect.render.numbers import minutes, percent, with_unit
from perfbisect.store.events import Event
from perfbisect.store.jobs import Job, finished

_LEFT_OUT = (":std", ":p50")
"""Statistics that say nothing of their own: a spread, and the median once more."""

PER_OUTPUT = {
    "e2el:median": ("output_tokens", "audio_duration:median"),
    "audio_ttfp:median": ("audio_duration:median",),
}
"""Metrics that a longer answer makes worse, and what they are also told per unit of: the first reported."""


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
    guards = {str(metric) for metric in watched(cell)} | {str(parse_metric(name)) for name in plan.watch}
    rows = tuple(_rows(plan, made, verdict, guards))
    moved = [row for row in rows if row.guard and row.word == "regression"]
    word = "regression" if moved else verdict.word
    expected = plan.expected
    claim = expected.settles(verdict.low, verdict.high) if expected else None
    return CompareDocument(
        job=job.id,
        finished=finished(events),
        word=word,
        headline=verdict.word,
        expected=plan.expect,
        claim="refuted" if claim is not None and moved else claim,
        sentences=tuple(_sentences(plan, verdict, moved, rows, seen)),
        next=_advice(plan, verdict, job, finished(events)),
        effect=_number(verdict.effect),
        low=_number(verdict.low),
        high=_number(verdict.high),
        smallest_effect=plan.question().min_effect,
        launches_a_side=verdict.launches // 2,
        needed_blocks=verdict.needed,
        a=_side(plan.a),
        b=_side(plan.b),
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


def _side(side: SidePlan) -> SideDocument:
    return SideDocument(
        typed=side.text, name=side.name, change=change_document(side.change), variant=side.variant
    )


def _rows(
    plan: ComparePlan, made: Sequence[Launch], verdict: core.Verdict, guards: set[str]
) -> list[ComparedDocument]:
    """The headline, the guards, then everything that both sides report; per unit of output besides."""
    names = shared_metrics(made)
    refs: list[MetricRef] = []
    for name in (key(plan.ref), *(name for name in names if not name.endswith(_LEFT_OUT))):
        try:
            ref = parse_metric(name)
        except UsageError:
            continue
        if ref not in refs and key(ref) in names:
            refs.append(ref)
    rows = []
    for ref in refs:
        headline = ref == plan.ref
        told = verdict if headline else _judged(plan, ref, seen_of(made, ref))
        if told is not None:
            rows.append(_row(ref, told, made, headline=headline, guard=str(ref) in guards))
    rows.sort(key=lambda row: (not row.headline, not row.guard))
    return rows + _per_output(plan, made, names)


def _judged(plan: ComparePlan, ref: MetricRef, seen: Sequence[core.Seen]) -> core.Verdict | None:
    """None where a value is zero and the metric has no ratio."""
    try:
        return core.judge(plan.question(ref), seen)
    except ValueError:
        return None


def _per_output(plan: ComparePlan, made: Sequence[Launch], names: Sequence[str]) -> list[ComparedDocument]:
    """Metrics that a longer answer makes worse, per unit of what was answered."""
    rows = []
    for name, units in PER_OUTPUT.items():
        unit = next((unit for unit in units if unit in names), None)
        if name not in names or unit is None:
            continue
        ref, per = parse_metric(name), parse_metric(unit)
        tops, bottoms = seen_of(made, ref), seen_of(made, per)
        if any(value <= 0 for one in bottoms for value in one.values):
            continue
        seen = [
            core.Seen(top.side, tuple(v / w for v, w in zip(top.values, bottom.values, strict=True)))
            for top, bottom in zip(tops, bottoms, strict=True)
        ]
        told = _judged(plan, ref, seen)
        if told is None:
            continue
        sides = [[median(one.values) for one in seen if one.side == side] for side in ("a", "b")]
        rows.append(
            ComparedDocument(
                name=f"{ref} per {per.metric.name}",
                display=f"{metric_document(ref).display} / {per.metric.display}",
                unit=f"{ref.metric.unit}/{per.metric.unit.partition('/')[0].removesuffix('s')}",
                headline=False,
                guard=False,
                absolute=False,
                word=told.word,
                left=median(sides[0] or [0.0]),
                right=median(sides[1] or [0.0]),
                effect=_number(told.effect) or 0.0,
                low=_number(told.low) or 0.0,
                high=_number(told.high) or 0.0,
            )
        )
    return rows


def _row(
    ref: MetricRef, told: core.Verdict, made: Sequence[Launch], *, headline: bool, guard: bool
) -> ComparedDocument:
    left, right = (_median(made, side, key(ref)) for side in SIDES)
    return ComparedDocument(
        name=str(ref),
        display=metric_document(ref).display,
        unit=ref.metric.unit,
        headline=headline,
        guard=guard,
        absolute=ref.metric.absolute,
        word=told.word,
        left=left,
        right=right,
        effect=_number(told.effect) or 0.0,
        low=_number(told.low) or 0.0,
        high=_number(told.high) or 0.0,
    )


def _median(made: Sequence[Launch], side: core.Side, name: str) -> float:
    values = [mean_value(attempt, name) for attempt in attempts_of(made, side)]
    return median([value for value in values if value is not None] or [0.0])


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _sentences(
    plan: ComparePlan,
    verdict: core.Verdict,
    moved: Sequence[ComparedDocument],
    rows: Sequence[ComparedDocument],
    seen: Sequence[Launch],
) -> list[str]:
    display = metric_document(plan.ref).display
    smallest = percent(plan.question().min_effect, False)
    span = f"{percent(verdict.effect)} (95 % interval {percent(verdict.low)} to {percent(verdict.high)})"
    better = "smaller" if plan.ref.metric.direction == "lower" else "larger"
    names = f"{plan.b.name} against {plan.a.name}"
    told = {
        "regression": f"{names}: {display} is worse, {span}; {better} is better.",
        "improvement": f"{names}: {display} is better, {span}; {better} is better.",
        "same": f"{names}: {display} is the same within {smallest}, {span}.",
        "inconclusive": f"{names}: {display} is not told yet, {span}.",
    }
    if math.isnan(verdict.effect):
        return [f"{names}: nothing is told before the first block of four launches is whole."]
    out = [told[verdict.word]]
    for row in moved:
        step = f"{with_unit(row.left, row.unit)} to {with_unit(row.right, row.unit)}"
        out.append(f"Guard {row.display} moved for the worse, {step}: that decides.")
    if verdict.word == "inconclusive" and verdict.needed:
        each = [launch.minutes for launch in seen if launch.end == "finished"]
        more = max(0, verdict.needed * core.BLOCK - verdict.launches)
        cost = f", {minutes(more * median(each))}" if each else ""
        out.append(f"About {more} further launches would settle it{cost}.")
    out += _turned(plan, verdict, rows)
    count = sum(launch.end == "finished" for launch in seen)
    out.append(f"{count} launches, {minutes(sum(launch.minutes for launch in seen))}.")
    return out


def _turned(plan: ComparePlan, verdict: core.Verdict, rows: Sequence[ComparedDocument]) -> list[str]:
    """A verdict that another one contradicts where the length of the answers is taken out."""
    own = f"{plan.ref} per "
    return [
        f"Per unit of output it is {row.word} ({percent(row.effect)}): the answers differ in length."
        for row in rows
        if row.name.startswith(own) and row.word not in (verdict.word, "inconclusive")
    ]


def _advice(plan: ComparePlan, verdict: core.Verdict, job: Job, ended: bool) -> str:
    if not ended:
        return f"perfbisect resume {job.id}"
    if verdict.word == "inconclusive":
        return f"perfbisect compare ... --blocks {max(verdict.needed, plan.blocks + 1)}"
    if verdict.word == "regression" and not plan.a.variant and not plan.b.variant:
        good, bad = plan.a.change.short, plan.b.change.short
        env = plan.setting.environment
        return f"perfbisect bisect {plan.cell['name']} --good {good} --bad {bad} --env {env}"
    return f"perfbisect report {job.id}"
