"""The comparison: launch the sides in turn, judge after each block, stop where the verdict stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfbisect.cells.deploy import DeployText, differing
from perfbisect.compare.documents import CompareDocument
from perfbisect.compare.plan import ComparePlan, SidePlan, cells_of
from perfbisect.compare.report import compare_document, guards_of, the_comparison, untold
from perfbisect.compare.sides import SIDES, check_overlap, in_turn, seen_of
from perfbisect.environments.base import Builder
from perfbisect.errors import BuildError, UsageError
from perfbisect.jobs.admission import admit
from perfbisect.jobs.capabilities import runs_per_launch
from perfbisect.jobs.events import Launched
from perfbisect.jobs.folders import Job, finished
from perfbisect.jobs.journal import Journal
from perfbisect.jobs.plans import cell_data
from perfbisect.jobs.replay import Launch, launches
from perfbisect.jobs.runner import Order, Tools, clear_up
from perfbisect.jobs.sequential import affordable, one_by_one, plainly_told
from perfbisect.jobs.settings import Setting
from perfbisect.jobs.workers import Crew
from perfbisect.model.attempt import Attempt
from perfbisect.model.cell import SERVER_SIDE, Cell
from perfbisect.model.metric import MetricRef
from perfbisect.stats import ab_test


class NothingDiffersError(UsageError):
    """Both sides are one environment, served alike: whatever was measured would be the same thing twice."""


class SideRefusedError(BuildError):
    """A side cannot be built, as is known before anything is started; ``side`` is ``a`` or ``b``."""

    def __init__(self, side: str, message: str, *, next_step: str) -> None:
        super().__init__(message, next_step=next_step)
        self.side = side


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
    fail_over: float | None = None,
    told: Sequence[str] = (),
    deploy: DeployText | None = None,
) -> ComparePlan:
    """The plan of a comparison. ``deploy``: reads the deploy YAML that a cell takes from the change.

    :raises NothingDiffersError: both sides are the same.
    :raises UsageError: --env is wrong.
    :raises SideRefusedError: a side cannot be built.
    """
    builder.prepare([a.change, b.change])
    for name, side in (("a", a), ("b", b)):
        refusal = builder.refuses(side.change)
        if refusal is not None and refusal.error:
            raise UsageError(refusal.reason, next_step="mend --env")
        if refusal is not None:
            raise SideRefusedError(
                name,
                f"--{name} {side.text} cannot be built: {refusal.reason}",
                next_step=f"choose another --{name}, or another --env",
            )
    plan = ComparePlan(
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
        fail_over=fail_over,
        told=tuple(told),
    )
    one_yaml = not differing(cell, (a.change, b.change), deploy)
    if _served_alike(*cells_of(plan)) and one_yaml and builder.key(a.change) == builder.key(b.change):
        variants = "one variant" if a.variant == b.variant else f"{a.name} and {b.name} are served alike"
        raise NothingDiffersError(
            f"{a.text} and {b.text} are the same: one environment, {variants}",
            next_step="name two changes, or a variant of one: --b REV+VARIANT",
        )
    return plan


def _served_alike(a: Cell, b: Cell) -> bool:
    return all(getattr(a, field) == getattr(b, field) for field in SERVER_SIDE)


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
            course = _Blocks(plan, cells_of(plan))
            with Crew(job, journal, tools, course.cells[0]) as crew:
                one_by_one(job, journal, tools, crew, course)
            verdict = ab_test.judge(plan.question(), seen_of(in_turn(launches(journal.events)), plan.ref))
            journal.append("verdict", {"word": verdict.word, "launches": verdict.launches})
        return compare_document(job, journal.events)


@dataclass(frozen=True)
class _Blocks:
    """The sides in turn, block after block."""

    plan: ComparePlan
    cells: tuple[Cell, Cell]
    advice: str = "name another change"

    def next(self, seen: Sequence[Launch]) -> Order | str:
        plan, made = self.plan, seen_of(in_turn(seen), self.plan.ref)
        side, why = _next(plan, made), ""
        if side is None and self._unguarded(seen, made):
            side, why = ab_test.turn(plan.question(), len(made)), ", for the guards"
        if side is None or not affordable(seen, plan.budget):
            return ""
        position = SIDES.index(side)
        why = f"{side.upper()}, block {len(made) // ab_test.BLOCK + 1}{why}"
        return Order(position, plan.sides[position].change, "confirm", plan.runs, why)

    def _unguarded(self, seen: Sequence[Launch], made: Sequence[ab_test.Seen]) -> bool:
        """True if what was told is good news that a guard has not confirmed, and there are blocks left."""
        plan = self.plan
        if len(made) >= ab_test.BLOCK * plan.blocks:
            return False
        verdict, expected = ab_test.judge(plan.question(), made), plan.expected
        good = (
            expected.settles(verdict.low, verdict.high) == "holds"
            if expected
            else verdict.word in ("improvement", "same")
        )
        return good and untold(plan, in_turn(seen), guards_of(plan, self.cells[0]))

    def cell(self, order: Order) -> Cell:
        return self.cells[order.position]

    def name(self, order: Order) -> str:
        return f"side {SIDES[order.position]} ({self.plan.sides[order.position].text})"

    def admit(self, attempt: Attempt, seen: Sequence[Launch]) -> None:
        check_overlap(seen)
        admit(attempt, seen, self.plan.ref, "measure both sides")

    def told(self, ended: Launch, seen: Sequence[Launch], order: Order) -> Launched:
        return plainly_told(ended, seen, order, self.plan.ref, self.plan.budget)


def _next(plan: ComparePlan, made: Sequence[ab_test.Seen]) -> ab_test.Side | None:
    """Whose launch is next; None where the verdict stands, or the claim is settled."""
    question, expected = plan.question(), plan.expected
    if expected is None:
        return ab_test.next_side(question, made)
    if len(made) % ab_test.BLOCK == 0:
        verdict = ab_test.judge(question, made)
        if (
            len(made) >= ab_test.BLOCK * plan.blocks
            or expected.settles(verdict.low, verdict.high) != "inconclusive"
        ):
            return None
    return ab_test.turn(question, len(made))
