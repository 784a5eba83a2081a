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

from perfbisect.changes.git import Repository
from perfbisect.changes.revert import ConflictError, revert_commit
from perfbisect.commands import changes, wiring
from perfbisect.commands.detach import report_job_begun
from perfbisect.commands.options import JobOptions, MeasureOptions
from perfbisect.commands.output import UNDONE, CommandResult, print_progress, progress_printer
from perfbisect.commands.workspace import Workspace, with_objects
from perfbisect.compare.plan import MeasurementSetup
from perfbisect.environments.base import Builder, Environment
from perfbisect.environments.dependency_day import dependency_notes
from perfbisect.errors import (
    EXIT_INTERRUPTED,
    EXIT_OURS,
    Interrupted,
    MachineError,
    PerfbisectError,
    UsageError,
)
from perfbisect.fleet.base import Ticket
from perfbisect.fleet.bundle import MachineDocument
from perfbisect.fleet.executor import FleetExecutor, end_bundles
from perfbisect.fleet.specs import FleetSlots, choose_slots, make_fleet
from perfbisect.jobs.documents import Document
from perfbisect.jobs.events import EventListener, JobNote, PhaseStarted
from perfbisect.jobs.folders import ExitRecord, Job
from perfbisect.jobs.plans import (
    JobPlan,
    MeasurementConfig,
    PlanT,
    plan_cell,
    resolve_metric,
    write_plan,
)
from perfbisect.jobs.replay import LaunchRecord, launches
from perfbisect.jobs.runner import BACKOFF, LEAST_CORES, JobContext, SpareCores
from perfbisect.machine import interference
from perfbisect.machine.leases import Lease, LeaseHolder, holders, lease, leased_devices, lock_folder
from perfbisect.machine.profile import machine
from perfbisect.machine.slots import NoDeviceError, Slot, machine_of, plan_slots
from perfbisect.measure.executor import PhaseLimits
from perfbisect.measure.local import LocalExecutor
from perfbisect.measure.serving import check_stages
from perfbisect.model.attempt import Attempt, is_same_class
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from perfbisect.model.metric import MetricRef
from perfbisect.report.console import Console as Lines
from perfbisect.report.html import report_html
from perfbisect.report.kind import DocumentT, JobKind
from perfbisect.report.markdown import report_markdown
from perfbisect.report.terminal import report_lines
from perfbisect.system.clock import now
from perfbisect.system.files import write_atomic
from perfbisect.system.processes import stop_leftovers

ShownT = TypeVar("ShownT")

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def interruptible(ended: Callable[[str], Interrupted]) -> Iterator[None]:
    """Turn signals into the Interrupted error that ``ended`` makes from a message."""

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in _NUMBERS}
    try:
        yield
    except (KeyboardInterrupt, Interrupted) as error:
        raise ended(error.message if isinstance(error, Interrupted) else "interrupted") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def record_exit(job: Job, code: int, result: Document | None = None) -> None:
    """Record the exit code in the job's folder, and the result if it covers several jobs."""
    with contextlib.suppress(MachineError):
        if result is not None:
            write_atomic(job.result, result.text() + "\n")
    _keep(job, ExitRecord(code))


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
    ) -> JobContext:
        """The dependencies of the job; ``newest``: the change with the client, None: nothing is launched.

        ``tolerated``: load of others, in place of ``PERFBISECT_LIMITS``.
        """
        client = None
        if newest is not None:
            log, limit = self.job.path / "client-build.log", PhaseLimits().build
            client = wiring.client_environment(workspace, setting, builder, newest, log, limit)
        remote = self._fleet_executor(workspace, setting, builder, client) if setting.fleet else None
        return JobContext(
            executor=remote
            or LocalExecutor(
                builder,
                client,
                stop_requested=lambda: self.job.stop_requested,
                limits=interference.parse_limits(tolerated or os.environ.get(interference.VARIABLE, "")),
                profile=wiring.load_profile(setting.machine),
            ),
            clock=now,
            wait=_waiter(self.job),
            sink=self.sink,
            stop_leftovers=stop_leftovers,
            backoff=_backoff(os.environ),
            slots=self.lease.slots,
            check=self.lease.check,
            reclaim=partial(_reclaim, remote, self.sink) if remote is not None else None,
            revert=_revert(builder, setting),
            revert_hunks=changes.hunk_reverter(builder, setting),
            ahead=_ahead(builder, self.lease.slots, self.job),
        )

    def _fleet_executor(
        self, workspace: Workspace, setting: MeasurementConfig, builder: Builder, client: Environment | None
    ) -> FleetExecutor:
        given_up = [x for x in launches(self.job.events()) if x.is_unresolved and x.end is not None]
        return FleetExecutor(
            make_fleet(setting.fleet, workspace.state),
            builder,
            setting,
            client,
            wait=self.wait,
            interference=os.environ.get(interference.VARIABLE, ""),
            stop_requested=lambda: self.job.stop_requested,
            pause=_waiter(self.job),
            lost={Ticket(launch.token, launch.machine) for launch in given_up},
        )


def _reclaim(
    executor: FleetExecutor, sink: EventListener, launch: LaunchRecord, folder: Path
) -> Attempt | None:
    def report(phase: str, detail: Mapping[str, object]) -> None:
        sink(PhaseStarted(phase, detail, launch.slot))

    return executor.reclaim(launch, folder, report)


def reclaim_from_fleet(workspace: Workspace, plan: JobPlan) -> Callable[[LaunchRecord, Path], Attempt | None]:
    """Takes back what the machines of a job's fleet have of its open launches; nothing is launched."""
    builder = wiring.build_builder(workspace, plan.setting)
    executor = FleetExecutor(make_fleet(plan.setting.fleet, workspace.state), builder, plan.setting)
    return partial(_reclaim, executor, lambda _: None)


def end_on_fleet(workspace: Workspace, plan: JobPlan, unresolved: Sequence[LaunchRecord]) -> int:
    """End the bundles of a job that no process works on; returns how many went on.

    Raises:
        MachineError: a machine does not answer, or a bundle cannot be ended; the others are ended.
    """
    if not plan.setting.fleet:
        return 0
    fleet = make_fleet(plan.setting.fleet, workspace.state)
    return end_bundles(fleet, [launch.token for launch in unresolved], PhaseLimits().stop)


def fleet_machines(workspace: Workspace, cell: Cell, spec: str) -> Sequence[MachineDocument]:
    """A fleet's machines, with their slots for a cell. :raises MachineError: the engine does not answer."""
    fleet = make_fleet(spec, workspace.state)
    return fleet.machines(devices=cell.gpus, workers=None if cell.gpus else 1)


def fleet_slots(workspace: Workspace, cell: Cell, spec: str, workers: int) -> FleetSlots:
    """The slots of a fleet's machines for a cell; ``workers``: at most so many, 1: all."""
    return choose_slots(fleet_machines(workspace, cell, spec), workers if workers > 1 else None)


def slots_for(cell: Cell, workers: int, named: str) -> tuple[Slot, ...]:
    """Slots of this machine for concurrent launches of a cell, unused ones first.

    ``named``: the machine profile, empty: detected.
    """
    shell, profile = dict(os.environ), wiring.load_profile(named)
    profile.before(cell.gpus, shell)
    slots = plan_slots(
        machine(shell, profile),
        gpus=cell.gpus,
        workers=workers,
        avoid=leased_devices(lock_folder(shell)),
        profile=profile,
    )
    check_stages(cell, slots[0], profile.platform)
    return slots


def resolve_metrics(
    workspace: Workspace, cell: Cell, measuring: MeasureOptions, *, claimed: bool = False
) -> tuple[MetricRef, ...]:
    """The metrics to judge, each once: as typed, of the settings, or the cell's headline."""
    names = measuring.metrics or (workspace.setting("metric", None),)
    return tuple(dict.fromkeys(resolve_metric(cell, name, claimed=claimed) for name in names))


def build_setup(
    workspace: Workspace,
    cell: Cell,
    newest: str,
    measured: Sequence[Change],
    measuring: MeasureOptions,
    *,
    workers: int = 1,
    dry_run: bool = False,
    claimed: bool = False,
) -> MeasurementSetup:
    """What changes of a cell are measured with; ``newest``: the newest of them as it was typed."""
    metric, *further = resolve_metrics(workspace, cell, measuring, claimed=claimed)
    setting = wiring.build_config(
        workspace,
        environment=changes.environment_spec(workspace, measuring.env, newest),
        client=measuring.client,
        constraints=measuring.constraints,
        exclude_newer=measuring.exclude_newer,
        fleet=measuring.fleet,
        changes=measured,
        needs_repository=any(change.kind == "commit" for change in measured),
    )
    planned = plan_job_slots(workspace, cell, workers, setting, dry=dry_run)
    return MeasurementSetup(
        cell=cell,
        metric=metric,
        further=tuple(further),
        setting=setting,
        builder=wiring.build_builder(workspace, setting),
        slots=planned.slots,
        machines=planned.machines,
        notes=(
            *wiring.repository_notes(workspace, setting),
            *dependency_notes(setting.environment, setting.exclude_newer),
            *planned.notes,
        ),
    )


@dataclass(frozen=True)
class JobSlots:
    """The slots of a job, a plan's notes on them, and the machines of a fleet that they are on."""

    slots: tuple[Slot, ...]
    notes: tuple[str, ...]
    machines: tuple[MachineDocument, ...] = ()


def plan_job_slots(
    workspace: Workspace, cell: Cell, workers: int, setting: MeasurementConfig, *, dry: bool
) -> JobSlots:
    """The slots of :func:`slots_for` or of a fleet; raises what these raise.

    A dry run needs no devices: where there are none it gets no slots and a note.
    """
    if setting.fleet:
        found = fleet_slots(workspace, cell, setting.fleet, workers)
        return JobSlots(found.slots, found.notes, found.machines)
    try:
        slots = slots_for(cell, workers, setting.machine)
    except NoDeviceError as error:
        if not dry:
            raise
        return JobSlots((), (f"nothing can start on this machine: {error.message}",))
    return JobSlots(slots, slot_notes(slots))


def slot_notes(slots: Sequence[Slot]) -> tuple[str, ...]:
    """Notes on the devices and cores of the slots, if they are part of the machine."""
    notes = []
    if any(slot.env and not slot.devices for slot in slots):
        notes.append("the cell reserves no device (gpus: 0): its engine sees none of those that are here")
    for slot in slots:
        parts = [f"devices {', '.join(slot.devices)}"] if slot.devices else []
        if slot.cores:
            server, client = spans(slot.server_cores), spans(slot.client_cores)
            parts.append(f"cores {server} for the server, {client} for the client")
        if slot.name:
            notes.append(f"slot {slot.name}: {'; '.join(parts)}")
    return tuple(notes)


def spans(cores: Sequence[int]) -> str:
    """Format processors as the kernel does: ``0-3,8``."""
    parts: list[list[int]] = []
    for core in sorted(cores):
        if parts and core == parts[-1][-1] + 1:
            parts[-1].append(core)
        else:
            parts.append([core])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def resumed_slots(
    workspace: Workspace, job: Job, seen: Sequence[LaunchRecord], plan: JobPlan, workers: int
) -> tuple[Slot, ...]:
    """The slots on which a job goes on, of the machine class that it has measured on.

    Raises:
        UsageError: they are of another class.
    """
    cell, setting = plan_cell(plan), plan.setting
    if setting.fleet:
        found = fleet_slots(workspace, cell, setting.fleet, workers)
        slots, kind = found.slots, found.machine_class
    else:
        slots = slots_for(cell, workers, setting.machine)
        kind = machine_of(slots[0], dict(os.environ), wiring.load_profile(setting.machine)).kind
    require_same_machine(job.id, seen, kind)
    return slots


def require_same_machine(job: str, seen: Sequence[LaunchRecord], kind: str) -> None:
    """Require that a job has measured on this machine class, if on any."""
    before = next((x.attempt for x in seen if x.end == "finished" and x.attempt), None)
    if before is not None and not is_same_class(before.provenance.machine_class, kind):
        raise UsageError(
            f"job {job} has measured on {before.provenance.machine_class}, this would be {kind}: "
            "launches on them are not comparable",
            next_step=f"perfbisect resume {job} on that machine, with as many --workers as before",
        )


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
            if not working.wait:
                begin()
            with _watching(working, lines=beside_others) as sink:
                for died in had.died:
                    text = f"{died} died without releasing its slot: its processes may still run there"
                    sink(JobNote(text))
                yield JobSession(job, had, sink, working.wait or 0.0)


def spare_cores(slots: tuple[Slot, ...]) -> frozenset[int]:
    """Processors that no slot of this job and no lease on this host uses."""
    here = [slot for slot in slots if not slot.machine]
    if not all(slot.cores for slot in here):
        return frozenset()
    taken = {core for slot in here for core in slot.cores}
    for held in holders(lock_folder(dict(os.environ))):
        if held.kind == "core" and held.name.isdigit():
            taken.add(int(held.name))
    return frozenset(os.sched_getaffinity(0) - taken)


def reason_not_prebuilding(slots: tuple[Slot, ...]) -> str:
    """Why environments are not built ahead; empty if they are."""
    if not all(slot.cores for slot in slots if not slot.machine):
        return "the attempt has the whole machine"
    spare = len(spare_cores(slots))
    return "" if spare >= LEAST_CORES else f"{spare} processors are on no slot, and it takes {LEAST_CORES}"


def _ahead(builder: Builder, slots: tuple[Slot, ...], job: Job) -> SpareCores | None:
    if reason_not_prebuilding(slots):
        return None
    cores = spare_cores(slots)
    slot = Slot("builds", server_cores=tuple(sorted(cores)))
    folder, holder = lock_folder(dict(os.environ)), LeaseHolder(job=job.id)
    return SpareCores(builder, cores, lambda: lease(slot, folder=folder, holder=holder))


def _watching(working: JobOptions, *, lines: bool) -> contextlib.AbstractContextManager[EventListener]:
    """The listener for progress: a live view on a terminal, lines otherwise, none with --quiet."""
    if working.quiet:
        return contextlib.nullcontext(lambda _: None)
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


def _revert(builder: Builder, setting: MeasurementConfig) -> Callable[[Change, Change], Change | str] | None:
    """Return a function that reverts an ancestor in a commit; None without a repository."""
    if not setting.repository:
        return None
    repository = with_objects(Repository.open(Path(setting.repository)), Path(setting.cache))

    def revert(head: Change, culprit: Change) -> Change | str:
        try:
            change = revert_commit(repository, head, culprit)
        except ConflictError as error:
            return error.message
        refusal = builder.refuses(change)
        return change if refusal is None else f"it cannot be built: {refusal.reason}"

    return revert


def _waiter(job: Job) -> Callable[[float], None]:
    def wait(seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not job.stop_requested:
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


def write_report(job: Job, kind: JobKind[PlanT, DocumentT], document: DocumentT) -> None:
    """Write ``report.md``, ``report.json`` and ``report.html``, each atomically."""
    report = kind.report(document)
    texts = {
        job.report: report_markdown(report),
        job.document: document.text() + "\n",
        job.page: report_html(report),
    }
    for path, text in texts.items():
        again = f"make room on the disk, then: perfbisect report {job.id}"
        write_atomic(path, text, what="the report", next_step=again)


def run_job(
    workspace: Workspace,
    session: JobSession,
    kind: JobKind[PlanT, DocumentT],
    plan: PlanT,
    builder: Builder,
) -> DocumentT:
    """Run a started job to its report; raises what its kind and the client's build raise."""
    job = session.job
    tools = session.tools(workspace, plan.setting, builder, kind.client_change(plan))
    document = kind.run(job, tools)
    write_report(job, kind, document)
    record_exit(job, kind.exit_code(document))
    return document


@dataclass(frozen=True)
class PlannedJob(Generic[PlanT, ShownT]):
    """A job with nothing started. ``shown``: its plan as JSON, ``lines``: for people."""

    plan: PlanT
    builder: Builder
    slots: tuple[Slot, ...]
    shown: ShownT
    lines: Sequence[str]

    def show(self: PlannedJob[PlanT, DocumentT], *more: str) -> CommandResult:
        """What ``--dry-run`` prints."""
        return CommandResult(self.shown, [*self.lines, *more, UNDONE])


def measure(
    workspace: Workspace,
    job: Job,
    kind: JobKind[PlanT, DocumentT],
    planned: PlannedJob[PlanT, Any],
    working: JobOptions,
    *,
    held: bool = False,
) -> DocumentT:
    """Print a plan and run it as a new job to its report. ``held``: this process has the job already."""
    print_line = progress_printer(working)
    for text in (*planned.lines, f"job {job.id}", ""):
        print_line(text)
    with open_session(job, planned.slots, working, plan=planned.plan, held=held) as session:
        return run_job(workspace, session, kind, planned.plan, planned.builder)


def job_result(kind: JobKind[PlanT, DocumentT], document: DocumentT) -> CommandResult:
    """What a command prints of a job that has ended, and its exit code."""
    return CommandResult(document, report_lines(kind.report(document)), kind.exit_code(document))
