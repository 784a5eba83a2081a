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

from perfbisect.engine.experiment import stop_after
from perfbisect.errors import PerfbisectError, UsageError
from perfbisect.experiments.run import RULE, ChangeResult, RunPlan, read_run
from perfbisect.jobs.events import PhaseStarted
from perfbisect.jobs.folders import Job, finished
from perfbisect.jobs.journal import Journal
from perfbisect.jobs.loop import Done, Launches
from perfbisect.jobs.plans import plan_cell, require_plan
from perfbisect.jobs.replay import Timeline, launches
from perfbisect.jobs.runner import (
    JobContext,
    LaunchRequest,
    check_stop,
    record_end,
    record_start,
    recover_interrupted,
)
from perfbisect.measure.executor import AttemptRequest
from perfbisect.model.attempt import Attempt
from perfbisect.serving.families import server_digest

_CELL_PHASES = ("first_request", "warm", "bench")
"""Phases in which a server fails under the cell that it serves."""


@dataclass(frozen=True)
class CellOutcome:
    """The state of a cell of a suite. ``error``: why it was given up; its job can be resumed alone."""

    job: Job
    result: ChangeResult
    error: PerfbisectError | None


def suite(jobs: Sequence[Job], tools: JobContext, *, until: int) -> tuple[CellOutcome, ...]:
    """Continue runs of cells of one server, in this order, until each has so many launches that measured.

    The caller holds the jobs. A cell that fails is tried once more, and then given up alone.
    """
    with ExitStack() as stack:
        journals = [stack.enter_context(Journal(job.journal, clock=tools.clock)) for job in jobs]
        members = [_Member(job, journal, tools, until) for job, journal in zip(jobs, journals, strict=True)]
        _require_one_server(members)
        for member in members:
            recover_interrupted(member.job, member.journal, tools.sink, tools.stop_leftovers)
        while pending := [member for member in members if member.needs_launch]:
            # A cell under which the server died comes last, so that the others are measured.
            _Start(sorted(pending, key=lambda member: member.failed_server), tools).run()
            for member in pending:
                member.launches.failures.wait()
        return tuple(member.conclude() for member in members)


def _require_one_server(members: Sequence[_Member]) -> None:
    first, setting = members[0], members[0].plan.setting
    for other in members[1:]:
        same = {
            "server": first.server == other.server,
            "change": first.plan.change.id == other.plan.change.id,
            "setting": setting == other.plan.setting.model_copy(update={"typed": setting.typed}),
        }
        unlike = [part for part, equal in same.items() if not equal]
        if unlike:
            raise UsageError(
                f"cells {first.cell.name} and {other.cell.name} share no launch: another {unlike[0]}",
                next_step="perfbisect run, one after the other",
            )


class _Member:
    """A cell of the suite, and its job."""

    def __init__(self, job: Job, journal: Journal, tools: JobContext, until: int) -> None:
        self.job, self.journal, self.tools = job, journal, tools
        self.plan = require_plan(job, journal.events, RunPlan)
        self.cell = plan_cell(self.plan)
        self.server = server_digest(self.cell)
        self.slot = tools.slots[0]
        policy = stop_after(RULE.policy(self.plan), until)
        self.launches = Launches(job, journal, tools, policy)
        self.error: PerfbisectError | None = None
        self._timeline = Timeline(launches(journal.events), tools.seconds, tools.clock())
        self._request: AttemptRequest | None = None

    @property
    def failed_server(self) -> bool:
        """True if the server failed in this cell's last turn."""
        records = self.launches.state.launches
        failure = records[-1].failure if records else None
        return failure is not None and failure.fault == "change" and failure.phase in _CELL_PHASES

    @property
    def needs_launch(self) -> bool:
        return self.error is None and isinstance(self.launches.next(self.slot), LaunchRequest)

    def begin(self, place: int, of: int, token: str) -> AttemptRequest:
        """Record the start of its turn. ``token``: of the server, drawn by the first turn."""
        check_stop(self.job)
        self.tools.check()
        order = self.launches.next(self.slot)
        assert isinstance(order, LaunchRequest)
        order = replace(order, why=f"{order.why}, cell {place} of {of} on its server")
        self.launches.announce(order, self.slot)
        slot, at = self.slot, self._timeline.minutes()
        request = record_start(self.job, self.journal, self.tools, self.cell, order, slot, at)
        self._request = replace(request, token=token or request.token, suite=self.server)
        return self._request

    def turn(self) -> AttemptRequest:
        """The attempt that has begun."""
        assert self._request is not None
        return self._request

    def record_server(self, server: Mapping[str, object]) -> None:
        self.journal.append("launched", {"attempt": self.turn().id, **server})

    def end(self, attempt: Attempt) -> None:
        """Record the end of its turn; a failure that is final gives the cell up."""
        record_end(self.journal, attempt)
        try:
            self.launches.finish(attempt.id)
        except PerfbisectError as error:
            self.error = error

    def conclude(self) -> CellOutcome:
        """End the job if it has all launches."""
        if not finished(self.journal.events):
            decision = self.launches.next(self.slot)
            if isinstance(decision, Done) and decision.verdict:
                self.journal.append("verdict", decision.verdict)
        return CellOutcome(self.job, read_run(self.job, self.journal.events), self.error)


class _Start:
    """One start of the server, for these cells in this order."""

    def __init__(self, members: Sequence[_Member], tools: JobContext) -> None:
        self._members, self._tools, self._place = members, tools, 0
        self._server: Mapping[str, object] = {}

    def run(self) -> None:
        """Serve each; after an error the server is stopped."""
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
                        following.record_server(self._server)
                member.end(attempt)

    def _record_server(self, *, token: str, pid: int, created: float, port: int) -> None:
        self._server = {"token": token, "pid": pid, "created": created, "port": port}
        self._members[self._place].record_server(self._server)

    def _report_phase(self, phase: str, detail: Mapping[str, object]) -> None:
        self._tools.sink(PhaseStarted(phase, detail, self._tools.slots[0].name))
