"""The comparison: launch the sides in turn, judge after each block, stop where the verdict stands."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from perfbisect.core import compare as core
from perfbisect.core.cell import Cell
from perfbisect.core.metric import MetricRef
from perfbisect.environments import Builder
from perfbisect.errors import BuildError, UsageError
from perfbisect.jobs.admit import admit
from perfbisect.jobs.compare_plan import ComparePlan, SidePlan, cells_of
from perfbisect.jobs.compare_report import compare_document, the_comparison
from perfbisect.jobs.crew import Crew
from perfbisect.jobs.fold import Launch, Ledger, owed
from perfbisect.jobs.plan import Setting, cell_data
from perfbisect.jobs.policy import Failures
from perfbisect.jobs.prepare import runs_per_launch
from perfbisect.jobs.sides import SIDES, in_turn, seen_of
from perfbisect.jobs.tell import launching
from perfbisect.jobs.views import launch_document
from perfbisect.jobs.work import Order, Tools, clear_up
from perfbisect.render.compare_documents import CompareDocument
from perfbisect.render.notices import Launched
from perfbisect.store.jobs import Job, finished
from perfbisect.store.journal import Journal

RUNS = 2
"""Runs a launch, where the engine can empty its caches between them: the second is nearly free."""


def make_compare_plan(
    *,
    cell: Cell,
    a: SidePlan,
    b: SidePlan,
    builder: Builder,
    metric: MetricRef,
    setting: Setting,
    budget: float,
    blocks: int,
    seed: int = 0,
    min_effect: float | None = None,
    expect: str = "",
    watch: Sequence[str] = (),
    told: Sequence[str] = (),
) -> ComparePlan:
    """The plan of a comparison.

    :raises UsageError: both sides are the same, or --env is wrong.
    :raises BuildError: a side cannot be built.
    """
    builder.prepare([a.change, b.change])
    for name, side in (("a", a), ("b", b)):
        refusal = builder.refuses(side.change)
        if refusal is not None and refusal.error:
            raise UsageError(refusal.reason, next_step="mend --env")
        if refusal is not None:
            raise BuildError(
                f"--{name} {side.text} cannot be built: {refusal.reason}",
                next_step=f"choose another --{name}, or another --env",
            )
    if a.variant == b.variant and builder.key(a.change) == builder.key(b.change):
        raise UsageError(
            f"{a.text} and {b.text} are the same: one environment, one variant",
            next_step="name two changes, or a variant of one: --b REV+VARIANT",
        )
    return ComparePlan(
        cell=cell_data(cell),
        digest=cell.digest,
        setting=setting,
        metric=str(metric),
        a=a,
        b=b,
        blocks=blocks,
        runs=min(RUNS, runs_per_launch(cell)),
        budget=budget,
        seed=seed,
        min_effect=min_effect,
        expect=expect,
        watch=tuple(watch),
        told=tuple(told),
    )


def compare(job: Job, tools: Tools) -> CompareDocument:
    """Goes on with a comparison, new or resumed, until its verdict. Hold the job meanwhile.

    :raises BuildError, ServerError: a side cannot be built or served.
    :raises ClientError, MachineError: they failed too often; the job can be resumed.
    :raises UsageError: the client does not report the metric.
    :raises Interrupted: Ctrl-C or a stop.
    """
    with Journal(job.journal, clock=tools.clock) as journal:
        plan = the_comparison(job, journal.events)
        if not finished(journal.events):
            clear_up(job, journal, tools)
            verdict = _measure(job, journal, plan, tools)
            journal.append("verdict", {"word": verdict.word, "launches": verdict.launches})
        return compare_document(job, journal.events)


def _measure(job: Job, journal: Journal, plan: ComparePlan, tools: Tools) -> core.Verdict:
    cells, slot = cells_of(plan), tools.slots[0]
    failures, ledger = Failures(job, tools), Ledger()
    question = plan.question()
    while True:
        seen = ledger.read(journal.events)
        made = seen_of(in_turn(seen), plan.ref)
        side = _next(plan, made)
        if side is None or not _affordable(plan, seen):
            return core.judge(question, made)
        again = owed(seen, slot.name, (slot.name,))
        index = SIDES.index(side)
        block = len(made) // core.BLOCK + 1
        why = f"{side.upper()}, block {block}" + (f", once more: {again.reason}" if again else "")
        order = Order(index, plan.sides[index].change, "confirm", plan.runs, why)
        tools.sink(launching(len(seen) + 1, order, 0, slot.name))
        with Crew(job, journal, tools, cells[index]) as crew:
            crew.start(order, slot)
            crew.ended()
        seen = ledger.read(journal.events)
        ended = seen[-1]
        if ended.attempt is not None and ended.attempt.failure is None:
            admit(ended.attempt, seen, plan.ref, "measure both sides")
        tools.sink(
            Launched(
                launch_document(ended, order.change, plan.ref),
                plan.ref.metric.unit,
                (),
                None,
                sum(x.minutes for x in seen),
                plan.budget,
            )
        )
        if ended.refused and (not ended.built or again is not None):
            raise failures.broken(ended, f"side {side} ({plan.sides[index].text})", "name another change")
        failures.after(ended)
        if failures.rest is not None:
            failures.wait()


def _next(plan: ComparePlan, made: Sequence[core.Seen]) -> core.Side | None:
    """Whose launch is next; None where the verdict stands, or the claim is settled."""
    question, expected = plan.question(), plan.expected
    if expected is None:
        return core.next_side(question, made)
    if len(made) % core.BLOCK == 0:
        verdict = core.judge(question, made)
        if (
            len(made) >= core.BLOCK * plan.blocks
            or expected.settles(verdict.low, verdict.high) != "inconclusive"
        ):
            return None
    return core.turn(question, len(made))


def _affordable(plan: ComparePlan, seen: Sequence[Launch]) -> bool:
    each = [launch.minutes for launch in seen if launch.end == "finished"]
    return sum(launch.minutes for launch in seen) + (median(each) if each else 0.0) <= plan.budget
