"""Runs a job: signal handling, job lock, device lease and progress output."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Generic, TypeVar

from perfbisect.changes.revert import revert_commit
from perfbisect.commands import changes, setups
from perfbisect.commands.detach import report_job_begun
from perfbisect.commands.fleets import FleetJob, RemoteExecutor, fleets
from perfbisect.commands.options import JobOptions
from perfbisect.commands.output import (
    CommandResult,
    plan_result,
    print_progress,
    progress_printer,
    report_result,
)
from perfbisect.commands.slots import reason_not_prebuilding, spare_cores
from perfbisect.commands.workspace import Workspace, repository_of
from perfbisect.common.secret_references import fill
from perfbisect.engine.experiment import Experiment, JobStatus, ResultT, run_experiment
from perfbisect.environments.base import Builder, Environment
from perfbisect.errors import (
    EXIT_INTERRUPTED,
    EXIT_OURS,
    Interrupted,
    MachineError,
    PerfbisectError,
    UsageError,
)
from perfbisect.jobs.documents import Document
from perfbisect.jobs.events import EventListener, JobNote, PhaseStarted
from perfbisect.jobs.folders import ExitRecord, Job
from perfbisect.jobs.plans import (
    JobPlan,
    MeasurementConfig,
    PlanT,
    write_plan,
)
from perfbisect.jobs.replay import Launch, launches
from perfbisect.jobs.runner import BACKOFF, LEAST_CORES, JobContext, Reclaim, SpareCores
from perfbisect.machine import interference
from perfbisect.machine.leases import Lease, LeaseHolder, SharedLease, lease, lock_folder
from perfbisect.machine.profile import load_profile
from perfbisect.machine.slots import Slot
from perfbisect.measure.executor import PhaseLimits
from perfbisect.measure.local import LocalExecutor
from perfbisect.model.attempt import Attempt
from perfbisect.model.change import Change
from perfbisect.report.console import Console as Lines
from perfbisect.report.html import report_html
from perfbisect.report.markdown import report_markdown
from perfbisect.system.clock import now
from perfbisect.system.files import machine_error, write_atomic
from perfbisect.system.processes import stop_leftovers

ShownT = TypeVar("ShownT")
DocumentShownT = TypeVar("DocumentShownT", bound=Document)

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def interruptible(ended: Callable[[str], Interrupted]) -> Iterator[None]:
    """Turn signals into the Interrupted error that ``ended`` makes from a message."""

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise KeyboardInterrupt

    # HUP too: a closed terminal must stop the servers as Ctrl-C does.
    before = {number: signal.signal(number, stop) for number in _NUMBERS}
    try:
        yield
    except (KeyboardInterrupt, Interrupted) as error:
        raise ended(error.message if isinstance(error, Interrupted) else "interrupted") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def record_exit(job: Job, code: int, result: Document | None = None, status: JobStatus | None = None) -> None:
    """Record the exit code in the job's folder, its status, and the result if it covers several jobs."""
    # A full disk must not change the exit code: the verdict is in the journal.
    with contextlib.suppress(MachineError):
        if result is not None:
            write_atomic(job.result, result.text() + "\n")
    outcome, verdict = (status.outcome, status.verdict) if status else ("", "")
    _keep(job, ExitRecord(code, outcome=outcome, verdict=verdict))


@contextlib.contextmanager
def recording_error(job: Job) -> Iterator[None]:
    """Record the error that ends a job, for ``perfbisect status``."""
    again = f"perfbisect resume {job.id}"
    try:
        yield
    except PerfbisectError as error:
        kind = type(error).__name__
        _keep(job, ExitRecord(error.exit_code, error.message, kind, error.where, error.next))
        raise
    except KeyboardInterrupt:
        _keep(job, ExitRecord(EXIT_INTERRUPTED, "interrupted", "Interrupted", next_step=again))
        raise
    except Exception as error:
        failed = machine_error(error) if isinstance(error, OSError) else None
        if failed is not None:
            _keep(job, ExitRecord(failed.exit_code, failed.message, "MachineError", failed.where, again))
            raise failed from error
        message = f"internal error: {error!r}"
        _keep(job, ExitRecord(EXIT_OURS, message, "PerfbisectError", next_step=f"report it; then: {again}"))
        raise


def _keep(job: Job, ending: ExitRecord) -> None:
    with contextlib.suppress(MachineError):  # the journal has the result
        job.write_exit(ending)


_BACKOFF = "PERFBISECT_BACKOFF"


@dataclass(frozen=True)
class JobSession:
    """A job that this process runs, with its lease and its listener."""

    job: Job
    lease: Lease
    sink: EventListener
    wait: float = 0.0
    """Minutes to wait for a lease on another machine."""

    def tools(
        self,
        workspace: Workspace,
        setting: MeasurementConfig,
        builder: Builder,
        newest: Change | None,
        tolerated: str = "",
        side_clients: Mapping[str, MeasurementConfig] | None = None,
    ) -> JobContext:
        """The dependencies of the job; ``newest``: the change with the client, None: nothing is launched.

        ``tolerated``: load of others, in place of ``PERFBISECT_LIMITS``. ``side_clients``: those of the plan.
        """
        clients: dict[str, Environment | None] = {}
        if newest is not None:
            log, limit = self.job.path / "client-build.log", PhaseLimits().build
            clients = {
                name: setups.client_environment(workspace, own, builder, newest, log, limit)
                for name, own in {"": setting, **(side_clients or {})}.items()
            }
        client = clients.pop("", None)
        remote = self._fleet_executor(workspace, setting, builder, client) if setting.fleet else None
        repository = repository_of(setting)
        builders = fleets().count_builders(setting.fleet) if setting.fleet else 0
        return JobContext(
            executor=remote
            or LocalExecutor(
                builder,
                client,
                stop_requested=lambda: self.job.stop_requested,
                limits=interference.parse_limits(tolerated or os.environ.get(interference.VARIABLE, "")),
                profile=load_profile(setting.machine),
                caches=setting.caches,
                exact=setting.exact,
                side_clients=clients,
            ),
            clock=now,
            wait=_waiter(self.job),
            sink=self.sink,
            stop_leftovers=stop_leftovers,
            backoff=_backoff(os.environ),
            slots=self.lease.slots,
            check=self.lease.check,
            reclaim=partial(_reclaim, remote, self.sink) if remote is not None else None,
            revert=changes.reverter(builder, partial(revert_commit, repository)) if repository else None,
            revert_hunks=changes.hunk_reverter(builder, repository) if repository else None,
            ahead=_ahead(builder, self.lease.slots, self.job, builders),
        )

    def _fleet_executor(
        self, workspace: Workspace, setting: MeasurementConfig, builder: Builder, client: Environment | None
    ) -> RemoteExecutor:
        # An agent that did not answer may measure still: its launch is ended before the machine is used
        # again.
        given_up = [x for x in launches(self.job.events()) if x.is_unresolved and x.outcome != "running"]
        job = FleetJob(
            builder,
            setting,
            client,
            wait=self.wait,
            interference=os.environ.get(interference.VARIABLE, ""),
            stop_requested=lambda: self.job.stop_requested,
            pause=_waiter(self.job),
            lost=given_up,
        )
        return fleets().make_executor(workspace.state, job)


def _reclaim(executor: RemoteExecutor, sink: EventListener, launch: Launch, folder: Path) -> Attempt | None:
    def report(phase: str, detail: Mapping[str, object]) -> None:
        sink(PhaseStarted(phase, detail, launch.slot))

    return executor.reclaim(launch, folder, report)


def reclaim_from_fleet(workspace: Workspace, plan: JobPlan) -> Reclaim:
    """Takes back what the machines of a job's fleet have of its open launches; nothing is launched."""
    setting = plan.setting
    builder = setups.build_builder(workspace, setting)
    executor = fleets().make_executor(workspace.state, FleetJob(builder, setting))
    return partial(_reclaim, executor, lambda _: None)


def end_on_fleet(workspace: Workspace, plan: JobPlan, unresolved: Sequence[Launch]) -> int:
    """End the bundles of a job that no process works on; returns how many went on.

    Raises:
        MachineError: a machine does not answer, or a bundle cannot be ended; the others are ended.
    """
    if not plan.setting.fleet:
        return 0
    tokens = [launch.token for launch in unresolved]
    return fleets().end_launches(plan.setting.fleet, workspace.state, tokens, PhaseLimits().stop)


@contextlib.contextmanager
def open_session(
    job: Job,
    slots: tuple[Slot, ...],
    working: JobOptions,
    *,
    plan: JobPlan | None = None,
    held: bool = False,
    beside_others: bool = False,
) -> Iterator[JobSession]:
    """Hold a job's lock and the lease of its slots, and handle signals.

    The ``plan`` of a new job is written after the lease, or before it with ``--wait``, so that a waiting job
    can be seen, stopped and resumed. ``held``: this process holds the job's lock already. ``beside_others``:
    this thread works on other jobs meanwhile; it handles signals itself, and progress is printed in lines.
    """

    def begin() -> None:
        if plan is not None:
            write_plan(job, plan, now)
        report_job_begun(job)

    with (
        contextlib.nullcontext() if held else job.held(),
        recording_error(job),
        contextlib.nullcontext() if beside_others else interruptible(_interrupted(job)),
    ):
        if working.wait:
            begin()
        elsewhere = any(slot.machine for slot in slots)
        with (
            contextlib.nullcontext(Lease(slots, (), {}))  # the agents lease where they measure
            if elsewhere
            else lease(
                *slots,
                folder=lock_folder(dict(os.environ)),
                holder=LeaseHolder(job=job.id),
                wait=60 * (working.wait or 0.0),
                on_wait=progress_printer(working),
                stop_requested=lambda: job.stop_requested,
            )
        ) as had:
            # Without --wait a machine that is busy leaves no job behind.
            if not working.wait:
                begin()
            with _watching(working, lines=beside_others) as sink:
                for died in had.died:
                    text = f"{died} died without releasing its slot: its processes may still run there"
                    sink(JobNote(text))
                yield JobSession(job, had, sink, working.wait or 0.0)


def _ahead(builder: Builder, slots: tuple[Slot, ...], job: Job, hosts: int) -> SpareCores | None:
    """Builds on spare processors, or on ``hosts`` that build; each of these builds one at a time."""
    if reason_not_prebuilding(slots):
        return None
    cores = spare_cores(slots)
    slot = Slot("builds", server_cores=tuple(sorted(cores)))
    folder, holder = lock_folder(dict(os.environ)), LeaseHolder(job=job.id)
    leasing = SharedLease(lambda: lease(slot, folder=folder, holder=holder)).shared
    return SpareCores(builder, cores, leasing, hosts or min(len(slots), len(cores) // LEAST_CORES))


def _watching(working: JobOptions, *, lines: bool) -> contextlib.AbstractContextManager[EventListener]:
    """The listener for progress: a live view on a terminal, lines otherwise, none with --quiet."""
    if working.quiet:
        return contextlib.nullcontext(lambda _: None)
    # A live view rewrites its rows: in a log, a pipe or beside a second job's lines it cannot be read.
    if lines or working.as_json or working.verbose or not sys.stderr.isatty():
        return contextlib.nullcontext(Lines(print_progress, verbose=working.verbose))
    from rich.console import Console

    from perfbisect.report.live import Live

    return Live(Console(stderr=True), time.monotonic)


def _interrupted(job: Job) -> Callable[[str], Interrupted]:
    return lambda what: Interrupted(
        f"{what}; everything that was started is stopped, everything measured is kept",
        where=job.path,
        next_step=f"perfbisect resume {job.id}",
    )


def _waiter(job: Job) -> Callable[[float], None]:
    def wait(seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not job.stop_requested:
            # `perfbisect stop` writes a file: nothing wakes a sleeping process.
            time.sleep(min(left, 0.5))

    return wait


def _backoff(environment: Mapping[str, str]) -> tuple[float, ...]:
    """Back-off times in seconds: ``PERFBISECT_BACKOFF=30,120``."""
    text = environment.get(_BACKOFF)
    if not text:
        return BACKOFF
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"{_BACKOFF}={text!r} is not a list of seconds", next_step=f"{_BACKOFF}=30,120"
        ) from None


def require_secrets(plan: JobPlan) -> None:
    """Require the secrets of a job's cell, unless other machines measure, which have their own.

    Raises:
        UsageError: a variable is not set.
    """
    fill(served_fields(plan), os.environ)


def served_fields(plan: JobPlan) -> dict[str, Any]:
    """The fields of a cell whose secrets this process fills in: none where other machines measure."""
    fields = {} if plan.setting.fleet else plan.cell
    return {name: value for name, value in fields.items() if name != "variants"}


def write_report(job: Job, kind: Experiment[PlanT, ResultT], result: ResultT) -> None:
    """Write ``report.md``, ``report.json`` and ``report.html``, each atomically."""
    report = kind.report(result)
    texts = {
        job.report: report_markdown(report),
        job.document: result.text() + "\n",
        job.page: report_html(report),
    }
    for path, text in texts.items():
        again = f"make room on the disk, then: perfbisect report {job.id}"
        write_atomic(path, text, what="the report", next_step=again)


def run_job(
    workspace: Workspace,
    session: JobSession,
    kind: Experiment[PlanT, ResultT],
    plan: PlanT,
    builder: Builder,
) -> ResultT:
    """Run a started job to its report; raises what its kind and the client's build raise."""
    require_secrets(plan)
    job = session.job
    newest, own = kind.client_change(plan), plan.side_clients
    tools = session.tools(workspace, plan.setting, builder, newest, side_clients=own)
    result = run_experiment(kind, job, tools)
    write_report(job, kind, result)
    status = kind.status(result)
    record_exit(job, status.exit_code, status=status)
    return result


@dataclass(frozen=True)
class PlannedJob(Generic[PlanT, ShownT]):
    """A job with nothing started. ``shown``: its plan as JSON, ``lines``: for people.

    ``commands``: lines that a dry run adds.
    """

    plan: PlanT
    builder: Builder
    slots: tuple[Slot, ...]
    shown: ShownT
    lines: Sequence[str]
    commands: Sequence[str] = ()

    def show(self: PlannedJob[PlanT, DocumentShownT]) -> CommandResult:
        """What ``--dry-run`` prints."""
        return plan_result(self.shown, (*self.lines, *self.commands), can_start=bool(self.slots))


def measure(
    workspace: Workspace,
    job: Job,
    kind: Experiment[PlanT, ResultT],
    planned: PlannedJob[PlanT, Any],
    working: JobOptions,
    *,
    held: bool = False,
) -> ResultT:
    """Print a plan and run it as a new job to its report. ``held``: this process has the job already."""
    require_secrets(planned.plan)
    print_line = progress_printer(working)
    for text in (*planned.lines, f"job {job.id}", ""):
        print_line(text)
    with open_session(job, planned.slots, working, plan=planned.plan, held=held) as session:
        return run_job(workspace, session, kind, planned.plan, planned.builder)


def job_result(kind: Experiment[PlanT, ResultT], result: ResultT) -> CommandResult:
    """What a command prints of a job that has ended, and its exit code."""
    return report_result(result, kind.report(result), kind.status(result).exit_code)


def run_planned(
    workspace: Workspace,
    kind: Experiment[PlanT, ResultT],
    planned: PlannedJob[PlanT, Any],
    working: JobOptions,
    *,
    dry_run: bool,
) -> CommandResult:
    """Run a planned job to its result, or show its plan."""
    if dry_run:
        return planned.show()
    return job_result(kind, measure(workspace, workspace.new_job(), kind, planned, working))
