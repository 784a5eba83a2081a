"""A comparison in sentences: what is told, what decided it, what more would cost, what comes next."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import median

from perfbisect.common.numbers import minutes, percent, with_unit
from perfbisect.compare.claims import Settled
from perfbisect.compare.documents import ComparedDocument, CompareDocument, SideDocument
from perfbisect.compare.imports import pooled
from perfbisect.compare.plan import ComparePlan, SidePlan, cells_of
from perfbisect.compare.sides import SIDES, attempts_of, in_turn, seen_of, shared_metrics
from perfbisect.errors import UsageError
from perfbisect.jobs.documents import (
    cell_document,
    change_document,
    commands_document,
    launch_document,
    metric_document,
    minutes_document,
    reported_value,
    versions,
)
from perfbisect.jobs.folders import Job, finished
from perfbisect.jobs.guards import watched
from perfbisect.jobs.journal import Event
from perfbisect.jobs.next_command import again, following
from perfbisect.jobs.plans import require_plan
from perfbisect.jobs.replay import Launch, launches, saved
from perfbisect.model.attempt import key
from perfbisect.model.cell import Cell
from perfbisect.model.metric import METRICS, PER_UNIT, MetricRef, parse_metric
from perfbisect.stats import ab_test
from perfbisect.stats.sequential import most_of_none

_LEFT_OUT = (":std", ":p50")
"""Statistics that say nothing of their own: a spread, and the median once more."""


def rows_of(
    plan: ComparePlan, made: Sequence[Launch], verdict: ab_test.Verdict, guards: set[str]
) -> list[ComparedDocument]:
    """The headline, the guards, then everything that both sides report; ``verdict`` is the headline's.

    A metric that is zero somewhere and has no ratio is left out; before the first block there are no rows.
    """
    if math.isnan(verdict.effect):
        return []
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
        told = verdict if headline else _judged(plan, ref, made)
        if told is not None:
            told, note = (told, "") if headline else _unmoved(ref, told, made)
            rows.append(_row(ref, told, headline=headline, guard=str(ref) in guards, note=note))
    rows.sort(key=lambda row: (not row.headline, not row.guard))
    return rows


def guard_moved(rows: Iterable[ComparedDocument]) -> bool:
    """True if a guard moved for the worse: that decides, whatever the headline says."""
    return any(row.guard and row.word == "regression" for row in rows)


def untold(plan: ComparePlan, made: Sequence[Launch], guards: Iterable[MetricRef]) -> bool:
    """True if a guard that both sides report needs more launches before it says anything."""
    names = shared_metrics(made)
    for ref in guards:
        told = _judged(plan, ref, made) if key(ref) in names else None
        if told is not None and _unmoved(ref, told, made)[0].word == "inconclusive":
            return True
    return False


def number(value: float) -> float | None:
    """A number as a document has it: None where there is none yet."""
    return None if math.isnan(value) else value


def _judged(plan: ComparePlan, ref: MetricRef, made: Sequence[Launch]) -> ab_test.Verdict | None:
    try:
        return ab_test.judge(plan.question(ref), seen_of(made, ref))
    except ValueError:
        return None


def _unmoved(ref: MetricRef, told: ab_test.Verdict, made: Sequence[Launch]) -> tuple[ab_test.Verdict, str]:
    """What is told of a metric that is not judged, and why where that is not the launches' model.

    One that never varied, in any run of either side, did not move. The model would give it the least noise
    that it knows; of a share of which nothing was hit on either side the interval is that of counting.
    """
    values = {value for launch in seen_of(made, ref) for value in launch.values}
    if math.isnan(told.effect) or len(values) != 1:
        return told, ""
    (value,) = values
    same = replace(told, word="same", effect=0.0, needed=0, a=value, b=value)
    sides = [pooled(ref, attempts_of(made, side)) for side in SIDES]
    (left, of_left), (right, of_right) = (side or (1, 1) for side in sides)
    if left or right:
        return same, "one value in every run"
    same = replace(same, low=-most_of_none(of_left), high=most_of_none(of_right))
    return same, f"none of {of_left} in A, none of {of_right} in B"


def equal_medians(made: Sequence[Launch], ref: MetricRef) -> bool:
    """True if the median launch of both sides has one value."""
    sides = [[reported_value(attempt, ref) for attempt in attempts_of(made, side)] for side in SIDES]
    left, right = ([value for value in values if value is not None] for values in sides)
    return bool(left and right) and median(left) == median(right)


def _row(
    ref: MetricRef, told: ab_test.Verdict, *, headline: bool, guard: bool, note: str
) -> ComparedDocument:
    return ComparedDocument(
        name=str(ref),
        display=metric_document(ref).display,
        unit=ref.metric.unit,
        headline=headline,
        guard=guard,
        absolute=ref.metric.absolute,
        word=told.word,
        left=told.a,
        right=told.b,
        effect=told.effect,
        low=told.low,
        high=told.high,
        note=note,
    )


OPEN = (None, "inconclusive")
"""Claims of which more launches may tell more: none was made, or it is not settled."""


def sentences_of(
    plan: ComparePlan,
    verdict: ab_test.Verdict,
    rows: Sequence[ComparedDocument],
    guards: Sequence[MetricRef],
    seen: Sequence[Launch],
    claim: Settled | None,
) -> list[str]:
    """What a reader must know, the verdict first; ``claim``: of what was claimed, or of a check's limit."""
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
    if claim is not None:
        by = f"{names}: {display} changed by {span}."
        out = [by] if plan.fail_over is not None else [_of_claim(plan, claim, guard_moved(rows)), by]
    out += _of_guards(verdict, rows, guards, seen)
    if verdict.word == "inconclusive" and verdict.needed and plan.fail_over is None and claim in OPEN:
        each = [launch.minutes for launch in seen if launch.end == "finished"]
        more = max(0, verdict.needed * ab_test.BLOCK - verdict.launches)
        cost = f", {minutes(more * median(each))}" if each else ""
        out.append(f"About {more} further launches would settle it{cost}.")
    out += _turned(plan, verdict, rows)
    count = sum(launch.end == "finished" for launch in seen)
    out.append(f"{count} launches, {minutes(sum(launch.minutes for launch in seen))}.")
    return out


def _of_claim(plan: ComparePlan, claim: Settled, moved: bool) -> str:
    claimed = f"{plan.metric} {plan.expect} of B against A"
    if claim == "inconclusive":
        return f"Whether the claim ({claimed}) holds is not told yet."
    settled = "holds" if claim == "holds" else "is refuted, by a guard" if moved else "is refuted"
    return f"The claim ({claimed}) {settled}."


def _of_guards(
    verdict: ab_test.Verdict,
    rows: Sequence[ComparedDocument],
    guards: Sequence[MetricRef],
    seen: Sequence[Launch],
) -> Iterator[str]:
    """Guards that moved for the worse decide; one that says nothing is no reassurance."""
    by_name = {row.name: row for row in rows}
    for ref in guards:
        row = by_name.get(str(ref))
        if row is None:
            yield f"Guard {ref} was not reported by both sides, or is zero: it guards nothing."
        elif row.word == "regression":
            step = f"{with_unit(row.left, row.unit)} to {with_unit(row.right, row.unit)}"
            yield f"Guard {row.display} moved for the worse, {step}: that decides."
        elif row.word == "inconclusive" and verdict.word in ("improvement", "same"):
            if equal_medians(seen, ref):
                continue
            span = f"{percent(row.low)} to {percent(row.high)}"
            yield f"Guard {row.display} is not told yet ({span}): it neither backs nor breaks this."


def _turned(plan: ComparePlan, verdict: ab_test.Verdict, rows: Sequence[ComparedDocument]) -> Iterator[str]:
    """A verdict that another one contradicts where the length of the answers is taken out, or left in."""
    by_name = {row.name: row for row in rows}
    told: set[str] = set()
    for name, (whole, length) in PER_UNIT.items():
        if plan.ref.name not in (name, whole) or length in told:
            continue
        other, how = (name, "Per unit of output") if plan.ref.name == whole else (whole, "Of whole answers")
        row = by_name.get(_beside(plan.ref, other))
        if row is None or row.word in (verdict.word, "inconclusive"):
            continue
        told.add(length)
        moved = by_name.get(length)
        grew = (
            f": {moved.display} went from {with_unit(moved.left, moved.unit)} to "
            f"{with_unit(moved.right, moved.unit)}"
            if moved
            else ""
        )
        yield f"{how} ({row.name}) it is {row.word}, {percent(row.effect)}{grew}."


def _beside(ref: MetricRef, other: str) -> str:
    """Another metric in the same statistic, by its row's name; what is one number a run is of medians."""
    asked = ref.statistic or "median"
    if not METRICS[other].per_request:
        return other if asked == "median" else ""
    return str(MetricRef(other, asked))


def advice_of(
    plan: ComparePlan, verdict: ab_test.Verdict, job: Job, ended: bool, claim: Settled | None
) -> str:
    """The command that comes next; ``claim`` as of :func:`sentences_of`."""
    if not ended:
        return f"perfbisect resume {job.id}"
    if plan.fail_over is not None and claim == "inconclusive":
        launches = str(ab_test.BLOCK * plan.blocks)
        return again(plan.setting, "--launches", launches) or f"perfbisect check ... --launches {launches}"
    worse = verdict.word == "regression" or (plan.fail_over is not None and claim == "refuted")
    if worse and not plan.a.variant and not plan.b.variant:
        ends = ("--good", plan.a.change.short, "--bad", plan.b.change.short)
        return following(plan.setting, "bisect", plan.cell, plan.metric, *ends)
    if verdict.word == "inconclusive" and claim in OPEN:
        blocks = ("--blocks", str(max(verdict.needed, plan.blocks + 1)))
        sides = ("--a", plan.a.text, "--b", plan.b.text)
        return again(plan.setting, *blocks) or following(
            plan.setting, "compare", plan.cell, plan.metric, *sides, *blocks
        )
    return f"perfbisect report {job.id}"


def the_comparison(job: Job, events: Sequence[Event]) -> ComparePlan:
    """The plan of a comparison. :raises UsageError: the journal holds none that can be read."""
    return require_plan(job, events, ComparePlan, next_step=f"perfbisect status {job.id}")


def compare_document(job: Job, events: Sequence[Event]) -> CompareDocument:
    """What is known of a comparison. :raises UsageError: the journal holds none that can be read."""
    plan = the_comparison(job, events)
    seen, (cell, _) = launches(events), cells_of(plan)
    made = in_turn(seen)
    verdict = ab_test.judge(plan.question(), seen_of(made, plan.ref))
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
