"""Cells that share a server: one start of it serves a ``run`` of each, one after the other.

Every cell keeps a job of its own, as if it had been measured alone: its journal, its report, its points. An
attempt says which start it shares (``launch`` in its facts), so that those are one vote where votes count.

A turn is in its journal before the turn ahead of it is told as ended there: as long as the server lives, a
journal knows it, and whoever goes on after a kill ends it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

from perfbisect.compare.documents import RunDocument
from perfbisect.compare.plan import RunPlan
from perfbisect.compare.run import run_document
from perfbisect.errors import PerfbisectError, UsageError
from perfbisect.jobs.events import Ended, PhaseBegan
from perfbisect.jobs.folders import Job, finished
from perfbisect.jobs.journal import Journal
from perfbisect.jobs.plans import cell_of, require_plan
from perfbisect.jobs.replay import Launch, Ledger, Timeline, launches, owed
from perfbisect.jobs.retry import Failures
from perfbisect.jobs.runner import Order, Tools, check_stop, clear_up, enter, launching, leave
from perfbisect.jobs.sequential import plainly_told
from perfbisect.jobs.settings import Setting
from perfbisect.measure.executor import AttemptRequest
from perfbisect.model.attempt import Attempt
from perfbisect.serving.shared import server_digest

_OWN_TURN = ("first_request", "warm", "bench")
"""Phases in which a server fails under the cell that it serves."""


@dataclass(frozen=True)
class Outcome:
    """How a cell of a suite stands. ``error``: why it was given up; its job can be resumed alone."""

    job: Job
    document: RunDocument
    error: PerfbisectError | None


def suite(jobs: Sequence[Job], tools: Tools, *, until: int) -> tuple[Outcome, ...]:
    """Goes on with runs of cells of one server, in this order, until each has so many launches that measured.

    Hold the jobs meanwhile. A cell that fails is tried once more, and then given up alone.

    :raises UsageError: a job is no run, or they are not of one server, change and setting.
    :raises MachineError: a journal cannot be written.
    :raises Interrupted: Ctrl-C or a stop; the same call goes on.
    """
    with ExitStack() as stack:
        journals = [stack.enter_context(Journal(job.journal, clock=tools.clock)) for job in jobs]
        members = [_Member(job, journal, tools) for job, journal in zip(jobs, journals, strict=True)]
        _check(members)
        for member in members:
            clear_up(member.job, member.journal, tools)
        while going := [member for member in members if member.wants(until)]:
            # The cell under which a server died comes last: the others get their turn.
            _Start(sorted(going, key=lambda member: member.felled), tools).run()
            for member in going:
                if member.failures.rest is not None:
                    member.failures.wait()
        return tuple(member.outcome() for member in members)


def _check(members: Sequence[_Member]) -> None:
    """:raises UsageError: they cannot share a server."""
    first = members[0]
    for other in members[1:]:
        same = {
            "server": first.server == other.server,
            "change": first.plan.change.id == other.plan.change.id,
            "setting": _asked(first.plan) == _asked(other.plan),
        }
        unlike = [what for what, yes in same.items() if not yes]
        if unlike:
            raise UsageError(
                f"cells {first.cell.name} and {other.cell.name} share no launch: another {unlike[0]}",
                next_step="perfbisect run, one after the other",
            )


def _asked(plan: RunPlan) -> Setting:
    """The setting, whatever was typed."""
    return plan.setting.model_copy(update={"typed": ""})


class _Member:
    """A cell of the suite, and its job."""

    def __init__(self, job: Job, journal: Journal, tools: Tools) -> None:
        plan = require_plan(job, journal.events, RunPlan)
        self.job, self.journal, self.tools, self.plan = job, journal, tools, plan
        self.cell = cell_of(plan)
        self.server = server_digest(self.cell)
        self.failures = Failures(job, tools)
        self.error: PerfbisectError | None = None
        self._ledger = Ledger()
        self._timeline = Timeline(launches(journal.events), tools.seconds, tools.clock())
        self._again: Launch | None = None
        self._order: Order | None = None
        self._request: AttemptRequest | None = None

    @property
    def seen(self) -> tuple[Launch, ...]:
        return self._ledger.read(self.journal.events)

    @property
    def done(self) -> int:
        """Launches that measured."""
        return sum(launch.end == "finished" for launch in self.seen)

    @property
    def felled(self) -> bool:
        """A server failed in this cell's own turn, the last that it had."""
        last = self.seen[-1].attempt if self.seen else None
        failure = last.failure if last else None
        return failure is not None and failure.fault == "change" and failure.phase in _OWN_TURN

    def wants(self, until: int) -> bool:
        """True if it needs another launch."""
        return self.error is None and self.done < min(until, self.plan.launches)

    def begin(self, place: int, of: int, token: str) -> AttemptRequest:
        """Its turn is told to the journal. ``token``: of the server, which the first turn draws.

        :raises Interrupted: a stop was asked for.
        :raises MachineError: the lease is lost, or the journal cannot be written.
        """
        check_stop(self.job)
        self.tools.check()
        slot, seen = self.tools.slots[0], self.seen
        self._again = owed(seen, slot.name, (slot.name,))
        why = f"launch {self.done + 1} of {self.plan.launches}, cell {place} of {of} on its server"
        if self._again is not None:
            why += f", once more: {self._again.reason}"
        self._order = Order(0, self.plan.change, "run", self.plan.runs, why)
        self.tools.sink(launching(len(seen) + 1, self._order, 0, slot.name))
        request = enter(
            self.job, self.journal, self.tools, self.cell, self._order, slot, self._timeline.minutes()
        )
        self._request = replace(request, token=token or request.token, suite=self.server)
        return self._request

    def turn(self) -> AttemptRequest:
        """What was begun."""
        assert self._request is not None
        return self._request

    def served(self, server: Mapping[str, object]) -> None:
        """Tells the journal which server its attempt has."""
        self.journal.append("launched", {"attempt": self.turn().id, **server})

    def ended(self, attempt: Attempt) -> None:
        """Its turn is over; what follows from a failure.

        :raises MachineError: the journal cannot be written.
        """
        leave(self.journal, attempt)
        seen, order = self.seen, self._order
        assert order is not None
        ended = next(launch for launch in seen if launch.attempt_id == attempt.id)
        self.tools.sink(plainly_told(ended, seen, order, self.plan.ref, 0.0))
        try:
            if ended.refused and (not ended.built or self._again is not None):
                advice = "read the log; another --at or --env may do"
                raise self.failures.broken(ended, f"change {self.plan.change.short}", advice)
            self.failures.after(ended)
        except PerfbisectError as error:
            self.error = error

    def outcome(self) -> Outcome:
        """How it stands; a run whose launches are all there is over."""
        if not finished(self.journal.events) and self.done >= self.plan.launches:
            self.journal.append("verdict", {"verdict": "measured"})
        document = run_document(self.job, self.journal.events)
        self.tools.sink(Ended(document))
        return Outcome(self.job, document, self.error)


class _Start:
    """One start of the server, for these cells in this order."""

    def __init__(self, members: Sequence[_Member], tools: Tools) -> None:
        self._members, self._tools, self._place = members, tools, 0
        self._server: Mapping[str, object] = {}

    def run(self) -> None:
        """Serves each. :raises Interrupted, MachineError: see :func:`suite`; the server is ended."""
        token = self._members[0].begin(1, len(self._members), "").token
        try:
            self._serve(token)
        except BaseException:  # a second Ctrl-C may come before the executor has heard of the first
            self._tools.stop_leftovers(token, 0, 0.0, grace=0.0)
            raise

    def _serve(self, token: str) -> None:
        of = len(self._members)
        turns = [member.turn for member in self._members]
        with closing(self._tools.executor.share(turns, started=self._started, sink=self._told)) as attempts:
            for attempt, more in attempts:
                member = self._members[self._place]
                if more:
                    self._place += 1
                    following = self._members[self._place]
                    following.begin(self._place + 1, of, token)
                    if self._server:
                        following.served(self._server)
                member.ended(attempt)

    def _started(self, *, token: str, pid: int, created: float, port: int) -> None:
        self._server = {"token": token, "pid": pid, "created": created, "port": port}
        self._members[self._place].served(self._server)

    def _told(self, phase: str, detail: Mapping[str, object]) -> None:
        self._tools.sink(PhaseBegan(phase, detail, self._tools.slots[0].name))
