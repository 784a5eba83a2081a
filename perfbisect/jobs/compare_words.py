"""A comparison in sentences: what is told, what decided it, what more would cost, what comes next."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

from perfbisect.core import compare as core
from perfbisect.core.claim import Settled
from perfbisect.core.metric import METRICS, PER_UNIT, MetricRef
from perfbisect.jobs.compare_plan import ComparePlan
from perfbisect.jobs.compare_rows import equal_medians, guard_moved
from perfbisect.jobs.fold import Launch
from perfbisect.jobs.next_command import again, following
from perfbisect.jobs.views import metric_document
from perfbisect.render.compare_documents import ComparedDocument
from perfbisect.render.numbers import minutes, percent, with_unit
from perfbisect.store.jobs import Job

OPEN = (None, "inconclusive")
"""Claims of which more launches may tell more: none was made, or it is not settled."""


def sentences_of(
    plan: ComparePlan,
    verdict: core.Verdict,
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
        more = max(0, verdict.needed * core.BLOCK - verdict.launches)
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
    verdict: core.Verdict,
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


def _turned(plan: ComparePlan, verdict: core.Verdict, rows: Sequence[ComparedDocument]) -> Iterator[str]:
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


def advice_of(plan: ComparePlan, verdict: core.Verdict, job: Job, ended: bool, claim: Settled | None) -> str:
    """The command that comes next; ``claim`` as of :func:`sentences_of`."""
    if not ended:
        return f"perfbisect resume {job.id}"
    if plan.fail_over is not None and claim == "inconclusive":
        launches = str(core.BLOCK * plan.blocks)
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
