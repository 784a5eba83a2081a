"""While a job is worked on: its signals, its lock, the part of the machine it has, and who watches."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from perfbisect.changes.revert import Conflict, reverted
from perfbisect.commands import plan_notes, wiring
from perfbisect.commands.detach import hand_over
from perfbisect.commands.invocation import Working
from perfbisect.commands.output import emit, say, teller
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
from perfbisect.jobs.events import Sink, Told
from perfbisect.jobs.folders import Ending, Job, write_ending
from perfbisect.jobs.replay import Launch
from perfbisect.jobs.runner import BACKOFF, Tools
from perfbisect.jobs.settings import Setting
from perfbisect.jobs.spare_cores import LEAST_CORES, SpareCores
from perfbisect.machine.leases import Holder, Lease, holders, lease, leased, lock_folder
from perfbisect.machine.profile import machine
from perfbisect.machine.slots import Slot, TooFewDevicesError, machine_of, plan_slots
from perfbisect.measure import interference
from perfbisect.measure.interference import machine_limits
from perfbisect.measure.local import LocalExecutor
from perfbisect.measure.serving import check_stages
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from perfbisect.report.console import Console as Lines
from perfbisect.system.clock import now
from perfbisect.system.files import write_whole
from perfbisect.system.processes import stop_leftovers

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def interruptible(ended: Callable[[str], Interrupted]) -> Iterator[None]:
    """What such a signal interrupts ends as ``ended`` tells it, given what was said of the interruption.

    :raises Interrupted: one came, or somebody asked to stop.
    """

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


def hand_out(document: Document, lines: Iterable[str], code: int, working: Working, job: Job) -> int:
    """Prints the result of a job, keeps the exit code of its verb, and returns it."""
    keep(job, code)
    emit(document, lines, as_json=working.as_json, full=working.full)
    return code


def keep(job: Job, code: int, result: Document | None = None) -> None:
    """Keeps the exit code of a verb in its job's folder, and its result where that is of several jobs."""
    with contextlib.suppress(MachineError):
        if result is not None:
            write_whole(job.result, result.text() + "\n")
    _keep(job, Ending(code))


@contextlib.contextmanager
def remembered(job: Job) -> Iterator[None]:
    """Keeps the error with which the work on a job ends, for ``perfbisect status``."""
    again = f"perfbisect resume {job.id}"
    try:
        yield
    except PerfbisectError as error:
        kind = type(error).__name__
        _keep(job, Ending(error.exit_code, error.message, kind, error.where, error.next))
        raise
    except KeyboardInterrupt:
        _keep(job, Ending(EXIT_INTERRUPTED, "interrupted", "Interrupted", next_step=again))
        raise
    except Exception as error:
        message = f"a mistake of perfbisect itself: {error!r}"
        _keep(job, Ending(EXIT_OURS, message, "PerfbisectError", next_step=f"report it; then: {again}"))
        raise


def _keep(job: Job, ending: Ending) -> None:
    with contextlib.suppress(MachineError):  # what was measured is in the journal; this only tells of it
        write_ending(job.path, ending)


_BACKOFF = "PERFBISECT_BACKOFF"


@dataclass(frozen=True)
class Desk:
    """What a job has on this machine until it lets go of it."""

    job: Job
    lease: Lease
    sink: Sink

    def tools(self, builder: Builder, client: Environment | None, setting: Setting) -> Tools:
        """The tools of the job."""
        return Tools(
            executor=LocalExecutor(
                builder,
                client,
                asked=lambda: self.job.stop_asked,
                limits=machine_limits(os.environ.get(interference.VARIABLE, "")),
                profile=wiring.profile_named(setting.machine),
            ),
            clock=now,
            wait=_waiter(self.job),
            sink=self.sink,
            stop_leftovers=stop_leftovers,
            backoff=_backoff(os.environ),
            slots=self.lease.slots,
            check=self.lease.check,
            revert=_revert(builder, setting),
            ahead=_ahead(builder, self.lease.slots, self.job),
        )


def slots_for(cell: Cell, workers: int, named: str) -> tuple[Slot, ...]:
    """The parts of this machine on which so many launches of a cell can run at once; those in use come last.

    ``named``: the kind of machine, empty: what it is taken for.

    :raises UsageError: there are too few devices, a stage of the cell names others, or there is no such
        kind of machine.
    :raises MachineError: there are too few cores, or no lease command.
    """
    shell, profile = dict(os.environ), wiring.profile_named(named)
    profile.before(cell.gpus, shell)
    slots = plan_slots(
        machine(shell, profile),
        gpus=cell.gpus,
        workers=workers,
        avoid=leased(lock_folder(shell)),
        profile=profile,
    )
    check_stages(cell, slots[0], profile.platform)
    return slots


def foreseen_slots(
    cell: Cell, workers: int, named: str, *, dry: bool
) -> tuple[tuple[Slot, ...], tuple[str, ...]]:
    """The parts of this machine as :func:`slots_for` chooses them, with what a plan tells of them.

    A plan that is only looked at (``dry``) needs no devices: where there are too few it has no slots, and is
    told why nothing could start here.

    Raises what :func:`slots_for` does.
    """
    try:
        slots = slots_for(cell, workers, named)
    except TooFewDevicesError as error:
        if not dry:
            raise
        return (), (f"nothing can start on this machine: {error.message}",)
    return slots, plan_notes.slot_notes(slots)


def refuse_other_parts(job: str, seen: Sequence[Launch], slots: Sequence[Slot], named: str) -> None:
    """Refuses slots on which nothing could be compared with what a job has measured.

    :raises UsageError: they are of another machine class.
    """
    before = next((x.attempt for x in seen if x.end == "finished" and x.attempt), None)
    here = machine_of(slots[0], dict(os.environ), wiring.profile_named(named)).kind
    if before is not None and before.provenance.machine_class != here:
        raise UsageError(
            f"job {job} has measured on {before.provenance.machine_class}, this would be {here}: "
            "launches on them are not comparable",
            next_step=f"perfbisect resume {job} on that machine, with as many --workers as before",
        )


@contextlib.contextmanager
def at_work(
    job: Job,
    slots: tuple[Slot, ...],
    working: Working,
    *,
    begin: Callable[[], None] = lambda: None,
    held: bool = False,
) -> Iterator[Desk]:
    """Works on a job: nobody else does, nobody else on this host uses the slots, and Ctrl-C ends it in order.

    ``begin`` writes the job's plan: once it has the slots, or before it waits for them, so that who waits can
    be seen, stopped and resumed. ``held``: this process has the job already.

    :raises MachineError: somebody else works on the job or uses a slot; it is said who.
    :raises Interrupted: everything that was started has been stopped.
    """
    with contextlib.nullcontext() if held else job.held(), remembered(job), interruptible(_interrupted(job)):
        if working.wait:
            begin()
            hand_over(job)
        with lease(
            *slots,
            folder=lock_folder(dict(os.environ)),
            holder=Holder(job=job.id),
            wait=60 * (working.wait or 0.0),
            told=teller(working),
            asked=lambda: job.stop_asked,
        ) as had:
            if not working.wait:
                begin()
                hand_over(job)
            with _watching(working) as sink:
                for died in had.died:
                    told = f"{died} ended without letting go of its slot: what it started may still run there"
                    sink(Told(told))
                yield Desk(job, had, sink)


def spare_cores(slots: tuple[Slot, ...]) -> frozenset[int]:
    """Processors on which nobody measures: no slot of ours, and nobody else on this host, has them."""
    if not all(slot.cores for slot in slots):
        return frozenset()
    taken = {core for slot in slots for core in slot.cores}
    for held in holders(lock_folder(dict(os.environ))):
        if held.kind == "core" and held.name.isdigit():
            taken.add(int(held.name))
    return frozenset(os.sched_getaffinity(0) - taken)


def why_not_ahead(slots: tuple[Slot, ...]) -> str:
    """Why the next environment is not built beside a running attempt; empty where it is."""
    if not all(slot.cores for slot in slots):
        return "the attempt has the whole machine"
    spare = len(spare_cores(slots))
    return "" if spare >= LEAST_CORES else f"{spare} processors are on no slot, and it takes {LEAST_CORES}"


def _ahead(builder: Builder, slots: tuple[Slot, ...], job: Job) -> SpareCores | None:
    if why_not_ahead(slots):
        return None
    cores = spare_cores(slots)
    slot = Slot("builds", server_cores=tuple(sorted(cores)))
    folder, holder = lock_folder(dict(os.environ)), Holder(job=job.id)
    return SpareCores(builder, cores, lambda: lease(slot, folder=folder, holder=holder))


def _watching(working: Working) -> contextlib.AbstractContextManager[Sink]:
    """Who is told what happens: a live view where a person looks, else a line for every event, or nobody."""
    if working.quiet:
        return contextlib.nullcontext(lambda _: None)
    if working.as_json or working.verbose or not sys.stderr.isatty():
        return contextlib.nullcontext(Lines(say, verbose=working.verbose))
    from rich.console import Console

    from perfbisect.report.live import Live

    return Live(Console(stderr=True), time.monotonic)


def _interrupted(job: Job) -> Callable[[str], Interrupted]:
    return lambda what: Interrupted(
        f"{what}; everything that was started is stopped, everything measured is kept",
        where=job.path,
        next_step=f"perfbisect resume {job.id}",
    )


def _revert(builder: Builder, setting: Setting) -> Callable[[Change, Change], Change | str] | None:
    """Takes a commit out of another one, where the builder can build that; None without a repository."""
    if not setting.repository:
        return None
    repository = wiring.repository_at(Path(setting.repository), Path(setting.cache))

    def made(head: Change, culprit: Change) -> Change | str:
        change = reverted(repository, head, culprit)
        if isinstance(change, Conflict):
            return change.reason
        refusal = builder.refuses(change)
        return change if refusal is None else f"it cannot be built: {refusal.reason}"

    return made


def _waiter(job: Job) -> Callable[[float], None]:
    def wait(seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not job.stop_asked:
            time.sleep(min(left, 0.5))

    return wait


def _backoff(environment: Mapping[str, str]) -> tuple[float, ...]:
    """Waits after a failure of the machine, in seconds: ``PERFBISECT_BACKOFF=30,120``."""
    text = environment.get(_BACKOFF)
    if not text:
        return BACKOFF
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"{_BACKOFF}={text!r} is no list of seconds", next_step=f"{_BACKOFF}=30,120"
        ) from None
