"""The attempts under way: a thread for each slot that measures, and one that may build ahead.

Only the main thread decides; the others run what they are given and tell the journal when a server exists.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from perfbisect.errors import Interrupted
from perfbisect.jobs.events import PhaseBegan
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import Journal
from perfbisect.jobs.replay import Launch, Timeline, launches
from perfbisect.jobs.runner import Order, Tools, abandon, check_stop, enter, leave
from perfbisect.machine.slots import Slot
from perfbisect.measure import attempt
from perfbisect.measure.executor import AttemptRequest
from perfbisect.model.attempt import Attempt
from perfbisect.model.cell import Cell
from perfbisect.system.processes import interrupt_thread

_PATIENCE = 20.0
"""Seconds that a thread has to end its attempt by itself, before its processes are ended for it."""

NOT_NEEDED = "it was settled without it"


@dataclass(frozen=True)
class _Running:
    """An attempt under way."""

    slot: Slot
    request: AttemptRequest
    thread: threading.Thread


@dataclass(frozen=True)
class _Result:
    """How an attempt left its thread; ``error`` counts where there is no attempt."""

    slot: Slot
    attempt: Attempt | None
    error: BaseException
    attempt_folder: Path


class Crew:
    """Runs attempts, one on each slot at most; a context manager that leaves none behind.

    :meth:`start` tells the journal first; :meth:`ended` gives the next that has ended, told as well.
    """

    def __init__(self, job: Job, journal: Journal, tools: Tools, cell: Cell) -> None:
        self._job, self._journal, self._tools, self._cell = job, journal, tools, cell
        self._timeline = Timeline(launches(journal.events), tools.seconds, tools.clock())
        self._running: dict[str, _Running] = {}
        self._results: queue.Queue[_Result] = queue.Queue()
        self._other: threading.Thread | None = None

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop(failed=error is not None)

    def stop(self) -> None:
        """Ends the attempts under way: they are not needed any more."""
        self._stop(failed=False)

    @property
    def busy(self) -> frozenset[str]:
        """Names of the slots with an attempt under way."""
        return frozenset(self._running)

    def start(self, order: Order, slot: Slot, cell: Cell | None = None) -> None:
        """Begins an attempt on a free slot; ``cell``: as it is served there, where sides differ in it.

        :raises Interrupted: a stop was asked for.
        :raises MachineError: the lease of the slots is lost.
        """
        check_stop(self._job)
        self._tools.check()
        at = self._timeline.minutes()
        request = enter(self._job, self._journal, self._tools, cell or self._cell, order, slot, at)
        work = functools.partial(self._measure, request, slot)
        thread = threading.Thread(target=_quietly, args=(work,), name=f"slot {slot.name}")
        self._running[slot.name] = _Running(slot, request, thread)
        thread.start()

    def ended(self, timeout: float | None = None) -> str | None:
        """Waits for the next attempt to end and tells the journal; its id, or None after ``timeout`` seconds.

        :raises BaseException: what the executor raised: an interruption, bad input, a mistake of ours.
        """
        try:
            result = self._results.get(timeout=timeout)
        except queue.Empty:
            return None
        running = self._running.pop(result.slot.name)
        running.thread.join()
        if result.attempt is None:
            raise result.error
        leave(self._journal, result.attempt)
        return result.attempt.id

    def beside(self, work: Callable[[], None]) -> bool:
        """Does other work in a thread of its own, one at a time; False if one is under way."""
        if self._other is not None and self._other.is_alive():
            return False
        self._other = threading.Thread(target=_quietly, args=(work,), name="ahead")
        self._other.start()
        return True

    def _measure(self, request: AttemptRequest, slot: Slot) -> None:
        attempt: Attempt | None = None
        failed: BaseException = Interrupted(f"attempt {request.id} was interrupted")

        def told(phase: str, detail: Mapping[str, object]) -> None:
            self._tools.sink(PhaseBegan(phase, detail, slot.name))

        try:
            attempt = self._tools.executor.run(
                request, started=_Started(self._journal, request.id), sink=told
            )
        except BaseException as error:  # the main thread raises it
            failed = error
        finally:
            self._results.put(_Result(slot, attempt, failed, request.folder))

    def _stop(self, failed: bool) -> None:
        """Ends every attempt under way.

        Where the job goes on later they stay open in its journal, to be told as cut short; else they are
        told as not needed. What a server says that we ended ourselves is nobody's failure.
        """
        threads = [running.thread for running in self._running.values()]
        others = [self._other] if self._other is not None else []
        for thread in (*threads, *others):
            interrupt_thread(thread)
        try:
            self._join(threads, others)
        except KeyboardInterrupt:  # a second Ctrl-C: no more patience
            for thread in (*threads, *others):
                interrupt_thread(thread)
            self._end_processes()
            self._join(threads, others)
            raise
        finally:
            self._write_down(failed)

    def _join(self, threads: list[threading.Thread], others: list[threading.Thread]) -> None:
        for thread in threads:
            thread.join(_PATIENCE)
        if any(thread.is_alive() for thread in threads):
            self._end_processes()
        for thread in (*threads, *others):
            thread.join()

    def _open(self) -> list[Launch]:
        mine = {running.request.id for running in self._running.values()}
        return [x for x in launches(self._journal.events) if x.end is None and x.attempt_id in mine]

    def _end_processes(self) -> None:
        """A thread may wait in a system call that only the end of its server ends."""
        for launch in self._open():
            self._tools.stop_leftovers(launch.token, launch.pid, launch.created)

    def _write_down(self, failed: bool) -> None:
        while not self._results.empty():
            result = self._results.get()
            if result.attempt is not None and result.attempt.failure is not None:
                (result.attempt_folder / attempt.FILE).unlink(missing_ok=True)
            elif result.attempt is not None and not failed:
                self._running.pop(result.slot.name)
                leave(self._journal, result.attempt)
        if not failed:
            for launch in self._open():
                abandon(self._journal, launch, self._job.path / launch.folder, NOT_NEEDED)
        self._running.clear()


@dataclass(frozen=True)
class _Started:
    """Tells the journal that an attempt's server exists."""

    journal: Journal
    attempt: str

    def __call__(self, *, token: str, pid: int, created: float, port: int) -> None:
        data = {"attempt": self.attempt, "token": token, "pid": pid, "created": created, "port": port}
        self.journal.append("launched", data)


def _quietly(work: Callable[[], None]) -> None:
    """An interruption ends the thread; whoever interrupted it knows."""
    with contextlib.suppress(KeyboardInterrupt, Interrupted):
        work()
