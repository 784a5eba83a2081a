"""The hands of a night: its launches and bisections by the machinery of ``run`` and ``bisect``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perfbisect.cli import plan_notes, verbs, wiring
from perfbisect.cli.desk import at_work, slots_for
from perfbisect.cli.finish import write_report
from perfbisect.cli.invocation import Measuring
from perfbisect.cli.place import Place
from perfbisect.cli.question import Question, Typed, question
from perfbisect.core.cell import Cell
from perfbisect.environments import Builder
from perfbisect.errors import PerfbisectError, UsageError
from perfbisect.jobs.bisect_kind import BISECT
from perfbisect.jobs.bisect_plan import BisectPlan, Extras
from perfbisect.jobs.capabilities import metric_of
from perfbisect.jobs.nightly_hands import (
    CellJob,
    Search,
    SearchResult,
    Window,
    one_after_another,
    search_result,
)
from perfbisect.jobs.nightly_plan import CellPlan, NightPlan
from perfbisect.jobs.plan import PlanT, require_plan
from perfbisect.jobs.run import make_run_plan, run
from perfbisect.jobs.run_kind import RUN
from perfbisect.jobs.run_plan import RunPlan
from perfbisect.store.jobs import Job
from perfbisect.store.journal import read


@dataclass(frozen=True)
class Alone:
    """See :class:`perfbisect.jobs.nightly_hands.Measure`: every cell has a launch of its own."""

    here: Place
    measuring: Measuring

    def __call__(
        self, night: NightPlan, cells: Sequence[CellJob], launch: int
    ) -> Mapping[str, PerfbisectError]:
        return one_after_another(cells, lambda one: self._launched(night, one, launch))

    def _launched(self, night: NightPlan, one: CellJob, launch: int) -> None:
        job, setting = one.job, night.setting
        slots = slots_for(one.plan.load(), 1, setting.machine)
        builder = wiring.builder_of(self.here, setting)
        begin = beginning(night, one, builder, plan_notes.slot_notes(slots))
        with at_work(job, slots, self.measuring, begin=begin) as desk:
            limit = desk.tools(builder, None, setting).limits.build
            client = wiring.client_environment(
                self.here, setting, builder, night.commit, job.path / "client-build.log", limit
            )
            document = run(job, desk.tools(builder, client, setting), until=launch)
            write_report(job, RUN, document)


def beginning(night: NightPlan, one: CellJob, builder: Builder, told: Sequence[str]) -> Callable[[], None]:
    """What writes the plan of a cell's job; nothing where it has one.

    :raises UsageError: the cell cannot be measured so.
    :raises BuildError: the commit cannot be built.
    """
    if begun_plan(one.job, RunPlan) is not None:
        return _nothing
    cell = one.plan.load()
    plan = make_run_plan(
        cell=cell,
        change=night.commit,
        builder=builder,
        metric=metric_of(cell, one.plan.metric),
        setting=night.setting,
        launches=one.plan.launches,
        runs=one.plan.runs,
        told=told,
    )
    return verbs.beginning(one.job, plan)


@dataclass(frozen=True)
class Bisection:
    """See :class:`perfbisect.jobs.nightly_hands.Search`."""

    here: Place
    measuring: Measuring
    asked: Question

    @property
    def least(self) -> float:
        return self.asked.shown.expected.minutes_low

    def __call__(self, job: Job) -> SearchResult:
        asked, begun = self.asked, begun_plan(job, BisectPlan)
        begin = verbs.beginning(job, asked.plan) if begun is None else _nothing
        with at_work(job, asked.slots, self.measuring, begin=begin) as desk:
            return search_result(verbs.carry_out(self.here, desk, BISECT, begun or asked.plan, asked.builder))


@dataclass(frozen=True)
class Searches:
    """See :data:`perfbisect.jobs.nightly_hands.Prepare`."""

    here: Place
    measuring: Measuring

    def __call__(self, night: NightPlan, window: Window, minutes: float) -> Search:
        setting = night.setting
        measuring = replace(
            self.measuring,
            metric=window.metric,
            env=setting.environment,
            client=setting.client or None,
            constraints=Path(setting.constraints) if setting.constraints else None,
            exclude_newer=setting.exclude_newer or None,
            machine=setting.machine or None,
        )
        asked = question(
            self.here,
            Typed(
                cell=window.cell.source,
                good=window.good,
                bad=window.bad,
                releases=None,
                versions=None,
                budget=minutes,
                seed=night.seed,
                weights=window.weights,
                extras=Extras(weights=str(window.weights)),
                measuring=measuring,
            ),
        )
        _same(asked.cell, window.cell)
        return Bisection(self.here, self.measuring, asked)


def _same(cell: Cell, plan: CellPlan) -> None:
    if cell.digest != plan.digest:
        raise UsageError(f"cell {plan.name} was changed in the night: {plan.source} is another workload now")


def begun_plan(job: Job, plan_type: type[PlanT]) -> PlanT | None:
    """The plan of a job that has begun, None of a new one. :raises UsageError: it cannot be read."""
    events = read(job.journal).events if job.journal.exists() else ()
    return require_plan(job, events, plan_type) if events else None


def _nothing() -> None:
    """The job has its plan."""
