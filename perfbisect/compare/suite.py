"""Cells that share a server: one start of it serves a ``run`` of each, one after the other.

Every cell keeps a job of its own, as if it had been measured alone: its journal, its report, its points. An
attempt says which start it shares (``launch`` in its facts), so that those are one vote where votes count.

A turn is written into its journal before the turn ahead of it ends: while the server lives, a journal names
it, so that a resumed suite can stop it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

from perfbisect.compare.documents import RunDocument
from perfbisect.compare.plan import RunPlan
from perfbisect.compare.run import run_document
from perfbisect.errors import PerfbisectError, UsageError
from perfbisect.jobs.events import JobEnded, PhaseStarted
from perfbisect.jobs.folders import Job, finished
from perfbisect.jobs.journal import Journal
from perfbisect.jobs.measurement import MeasurementConfig
from perfbisect.jobs.plans import plan_cell, require_plan
from perfbisect.jobs.replay import JournalReplay, LaunchRecord, Timeline, launches, retry_due
from perfbisect.jobs.retry import Failures
from perfbisect.jobs.runner import (
    JobContext,
    LaunchRequest,
    check_stop,
    launch_started,
    record_end,
    record_start,
    recover_interrupted,
)
from perfbisect.jobs.sequential import launch_ended
from perfbisect.measure.executor import AttemptRequest
from perfbisect.model.attempt import Attempt
from perfbisect.serving.families import server_digest

_CELL_PHASES = ("first_request", "warm", "bench")
"""Phases in which a server fails under the cell that it serves."""


@dataclass(frozen=True)
class CellOutcome:
    """The state of a cell of a suite. ``error``: why it was given up; its job can be resumed alone."""

    job: Job
    document: RunDocument
    error: PerfbisectError | None


def suite(jobs: Sequence[Job], tools: JobContext, *, until: int) -> tuple[CellOutcome, ...]:
    """Goes on with runs of cells of one server, in this order, until each has so many launches that measured.

    Hold the jobs meanwhile. A cell that fails is tried once more, and then given up alone.

    :raises UsageError: a job is no run, or they are not of one server, change and setting.
    :raises MachineError: a journal cannot be written.
    :raises Interrupted: Ctrl-C or a stop; the same call goes on.
    """
    with ExitStack() as stack:
        journals = [stack.enter_context(Journal(job.journal, clock=tools.clock)) for job in jobs]
        members = [_Member(job, journal, tools) for job, journal in zip(jobs, journals, strict=True)]
        _require_one_server(members)
        for member in members:
            recover_interrupted(member.job, member.journal, tools)
        while pending := [member for member in members if member.needs_launch(until)]:
            # A cell under which the server died comes last, so that the others are measured.
            _Start(sorted(pending, key=lambda member: member.failed_server), tools).run()
            for member in pending:
                if member.failures.rest is not None:
                    member.failures.wait()
        return tuple(member.outcome() for member in members)


def _require_one_server(members: Sequence[_Member]) -> None:
    """:raises UsageError: they cannot share a server."""
    first = members[0]
    for other in members[1:]:
        same = {
            "server": first.server == other.server,
            "change": first.plan.change.id == other.plan.change.id,
            "setting": _setting_without_command(first.plan) == _setting_without_command(other.plan),
        }
        unlike = [part for part, equal in same.items() if not equal]
        if unlike:
            raise UsageError(
                f"cells {first.cell.name} and {other.cell.name} share no launch: another {unlike[0]}",
                next_step="perfbisect run, one after the other",
            )


def _setting_without_command(plan: RunPlan) -> MeasurementConfig:
    return plan.setting.model_copy(update={"typed": ""})


class _Member:
    """A cell of the suite, and its job."""

    def __init__(self, job: Job, journal: Journal, tools: JobContext) -> None:
        plan = require_plan(job, journal.events, RunPlan)
        self.job, self.journal, self.tools, self.plan = job, journal, tools, plan
        self.cell = plan_cell(plan)
        self.server = server_digest(self.cell)
        self.failures = Failures(job, tools)
        self.error: PerfbisectError | None = None
        self._ledger = JournalReplay()
        self._timeline = Timeline(launches(journal.events), tools.seconds, tools.clock())
        self._retry: LaunchRecord | None = None
        self._order: LaunchRequest | None = None
        self._request: AttemptRequest | None = None

    @property
    def seen(self) -> tuple[LaunchRecord, ...]:
        return self._ledger.read(self.journal.events)

    @property
    def done(self) -> int:
        """Launches that measured."""
        return sum(launch.end == "finished" for launch in self.seen)

    @property
    def failed_server(self) -> bool:
        """True if the server failed in this cell's last turn."""
        last = self.seen[-1].attempt if self.seen else None
        failure = last.failure if last else None
        return failure is not None and failure.fault == "change" and failure.phase in _CELL_PHASES

    def needs_launch(self, until: int) -> bool:
        """True if it needs another launch."""
        return self.error is None and self.done < min(until, self.plan.launches)

    def begin(self, place: int, of: int, token: str) -> AttemptRequest:
        """Writes the start of its turn. ``token``: of the server, drawn by the first turn.

        :raises Interrupted: a stop was asked for.
        :raises MachineError: the lease is lost, or the journal cannot be written.
        """
        check_stop(self.job)
        self.tools.check()
        slot, seen = self.tools.slots[0], self.seen
        self._retry = retry_due(seen, slot.name, (slot.name,))
        why = f"launch {self.done + 1} of {self.plan.launches}, cell {place} of {of} on its server"
        if self._retry is not None:
            why += f", once more: {self._retry.reason}"
        self._order = LaunchRequest(0, self.plan.change, "run", self.plan.runs, why)
        self.tools.sink(launch_started(len(seen) + 1, self._order, 0, slot.name))
        request = record_start(
            self.job, self.journal, self.tools, self.cell, self._order, slot, self._timeline.minutes()
        )
        self._request = replace(request, token=token or request.token, suite=self.server)
        return self._request

    def turn(self) -> AttemptRequest:
        """The attempt that has begun."""
        assert self._request is not None
        return self._request

    def served(self, server: Mapping[str, object]) -> None:
        """Writes the server of its attempt into the journal."""
        self.journal.append("launched", {"attempt": self.turn().id, **server})

    def ended(self, attempt: Attempt) -> None:
        """Writes the end of its turn and handles a failure.

        :raises MachineError: the journal cannot be written.
        """
        record_end(self.journal, attempt)
        seen, order = self.seen, self._order
        assert order is not None
        ended = next(launch for launch in seen if launch.attempt_id == attempt.id)
        self.tools.sink(launch_ended(ended, seen, order, self.plan.ref, 0.0))
        try:
            if ended.refused and (not ended.built or self._retry is not None):
                advice = "read the log; another --at or --env may do"
                raise self.failures.broken(ended, f"change {self.plan.change.short}", advice)
            self.failures.after(ended)
        except PerfbisectError as error:
            self.error = error

    def outcome(self) -> CellOutcome:
        """Its state; ends the job when all launches are there."""
        if not finished(self.journal.events) and self.done >= self.plan.launches:
            self.journal.append("verdict", {"verdict": "measured"})
        document = run_document(self.job, self.journal.events)
        self.tools.sink(JobEnded(document))
        return CellOutcome(self.job, document, self.error)


class _Start:
    """One start of the server, for these cells in this order."""

    def __init__(self, members: Sequence[_Member], tools: JobContext) -> None:
        self._members, self._tools, self._place = members, tools, 0
        self._server: Mapping[str, object] = {}

    def run(self) -> None:
        """Serves each. :raises Interrupted, MachineError: the server is stopped."""
        token = self._members[0].begin(1, len(self._members), "").token
        try:
            self._serve(token)
        except BaseException:  # a second Ctrl-C may come before the executor has heard of the first
            self._tools.stop_leftovers(token, 0, 0.0, grace=0.0)
            raise

    def _serve(self, token: str) -> None:
        of = len(self._members)
        turns = [member.turn for member in self._members]
        with closing(
            self._tools.executor.share(turns, started=self._record_server, sink=self._report_phase)
        ) as attempts:
            for attempt, more in attempts:
                member = self._members[self._place]
                if more:
                    self._place += 1
                    following = self._members[self._place]
                    following.begin(self._place + 1, of, token)
                    if self._server:
                        following.served(self._server)
                member.ended(attempt)

    def _record_server(self, *, token: str, pid: int, created: float, port: int) -> None:
        self._server = {"token": token, "pid": pid, "created": created, "port": port}
        self._members[self._place].served(self._server)

    def _report_phase(self, phase: str, detail: Mapping[str, object]) -> None:
        self._tools.sink(PhaseStarted(phase, detail, self._tools.slots[0].name))
