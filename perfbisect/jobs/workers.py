"""Running attempts: one thread for each slot, and some that build environments ahead.

Only the main thread decides; the worker threads run attempts and record their servers in the journal.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
from collections.abc import Callable, Mapping

from perfbisect.errors import Interrupted
from perfbisect.jobs.events import PhaseStarted
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import Journal
from perfbisect.jobs.phases import FILE as PHASE_FILE
from perfbisect.jobs.phases import PhaseRecord, write_phase
from perfbisect.jobs.replay import Launch, LaunchRequest, Timeline, launches
from perfbisect.jobs.runner import JobContext, record_abandoned, record_end, record_start
from perfbisect.machine.slots import Slot
from perfbisect.measure.attempt import FILE
from perfbisect.measure.executor import AttemptRequest
from perfbisect.model.attempt import Attempt
from perfbisect.model.cell import Cell
from perfbisect.system.threads import interrupt_thread

_INTERRUPT_WAIT_S = 20.0
"""For an interrupted thread, before its processes are killed."""

NOT_NEEDED = "the result was reached without it"


class WorkerPool:
    """Runs at most one attempt on each slot; a context manager that ends all of them.

    :meth:`start` and :meth:`ended` record the start and the end of an attempt in the journal.
    """

    def __init__(self, job: Job, journal: Journal, tools: JobContext, cell: Cell) -> None:
        self._job, self._journal, self._tools, self._cell = job, journal, tools, cell
        self._timeline = Timeline(launches(journal.events), tools.seconds, tools.clock())
        self._running: dict[str, tuple[AttemptRequest, threading.Thread]] = {}
        """The attempt on each slot."""
        self._results: queue.Queue[tuple[str, Attempt | BaseException]] = queue.Queue()
        """Slot, and what came of its attempt."""
        self._background: list[threading.Thread] = []

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop(failed=kind is not None)

    @property
    def busy(self) -> frozenset[str]:
        """Names of the slots with a running attempt."""
        return frozenset(self._running)

    def start(self, order: LaunchRequest, slot: Slot) -> None:
        """Start an attempt on a free slot.

        Raises:
            Interrupted: a stop was requested.
            MachineError: the lease of the slots is lost.
        """
        if self._job.stop_requested:
            raise Interrupted(
                f"job {self._job.id}: a stop was requested", next_step=f"perfbisect resume {self._job.id}"
            )
        self._tools.check()
        cell, at = order.cell or self._cell, self._timeline.minutes()
        request = record_start(self._job, self._journal, self._tools, cell, order, slot, at)
        work = functools.partial(self._measure, request, slot.name)
        thread = threading.Thread(target=_run_interruptible, args=(work,), name=f"slot {slot.name}")
        self._running[slot.name] = request, thread
        thread.start()

    def ended(self, timeout: float | None = None) -> str | None:
        """Wait for the next attempt to end; return its id, or None after ``timeout`` seconds.

        Raises:
            BaseException: what the executor raised.
        """
        try:
            slot, result = self._results.get(timeout=timeout)
        except queue.Empty:
            return None
        _, thread = self._running.pop(slot)
        thread.join()
        if isinstance(result, BaseException):
            raise result
        record_end(self._journal, result)
        return result.id

    def has_room_beside(self, at_once: int) -> bool:
        """Whether less than so much other work is running in the background."""
        self._background = [thread for thread in self._background if thread.is_alive()]
        return len(self._background) < at_once

    def beside(self, work: Callable[[], None]) -> None:
        """Run other work in a background thread."""
        thread = threading.Thread(target=_run_interruptible, args=(work,), name="ahead")
        self._background.append(thread)
        thread.start()

    def _measure(self, request: AttemptRequest, slot: str) -> None:
        def on_phase(phase: str, detail: Mapping[str, object]) -> None:
            at = self._tools.clock().isoformat(timespec="seconds")
            write_phase(request.folder, PhaseRecord(phase=phase, detail=dict(detail), at=at))
            self._tools.sink(PhaseStarted(phase, detail, slot))

        def on_started(*, token: str, pid: int, created: float, port: int) -> None:
            server = {"token": token, "pid": pid, "created": created, "port": port}
            self._journal.append("launched", {"attempt": request.id, **server})

        result: Attempt | BaseException = Interrupted(f"attempt {request.id} was interrupted")
        try:
            result = self._tools.executor.run(request, started=on_started, sink=on_phase)
        except BaseException as error:  # the main thread raises it
            result = error
        # In any case, even Ctrl-C: the main thread waits for this result.
        finally:
            (request.folder / PHASE_FILE).unlink(missing_ok=True)
            self._results.put((slot, result))

    def stop(self, failed: bool = False) -> None:
        """End every running attempt.

        After a failure they stay open in the journal, to be recovered on resume; otherwise they are recorded
        as not needed. Failures of attempts that were ended on purpose are dropped.
        """
        workers = [thread for _, thread in self._running.values()]
        # All are asked before any is waited for: their waits overlap.
        threads = [*workers, *self._background]
        for thread in threads:
            interrupt_thread(thread)
        try:
            self._join(workers, threads)
        except KeyboardInterrupt:  # a second Ctrl-C: kill at once
            for thread in threads:
                interrupt_thread(thread)
            self._end_processes()
            self._join(workers, threads)
            raise
        finally:
            self._record_ended(failed)

    def _join(self, workers: list[threading.Thread], threads: list[threading.Thread]) -> None:
        for thread in workers:
            thread.join(_INTERRUPT_WAIT_S)
        # A thread in a system call does not see its interruption before its server's end wakes it.
        if any(thread.is_alive() for thread in workers):
            self._end_processes()
        for thread in threads:
            thread.join()

    def _open(self) -> list[Launch]:
        running = {request.id for request, _ in self._running.values()}
        return [x for x in launches(self._journal.events) if x.outcome == "running" and x.id in running]

    def _end_processes(self) -> None:
        """Unblock threads that wait in a system call until their server ends."""
        for launch in self._open():
            self._tools.stop_leftovers(launch.token, launch.pid, launch.created)

    def _record_ended(self, failed: bool) -> None:
        while not self._results.empty():
            slot, result = self._results.get()
            if isinstance(result, BaseException):
                continue
            # It failed because it was ended: its file, if it stayed, would be taken for its result on resume.
            if result.failure is not None:
                request, _ = self._running[slot]
                (request.folder / FILE).unlink(missing_ok=True)
            elif not failed:
                self._running.pop(slot)
                record_end(self._journal, result)
        if not failed:
            for launch in self._open():
                record_abandoned(self._journal, launch, self._job.path / launch.folder, NOT_NEEDED)
        self._running.clear()


def _run_interruptible(work: Callable[[], None]) -> None:
    """Run ``work`` and swallow interruptions, which the main thread sent."""
    with contextlib.suppress(KeyboardInterrupt, Interrupted):
        work()
