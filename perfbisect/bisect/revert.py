"""``--confirm-revert``: the later end against itself less the culprit, in blocks of launches of its own.

Nothing of it enters the search: its launches have a purpose of their own and are judged by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter

from perfbisect.bisect.decision import decide
from perfbisect.bisect.plan import BisectPlan
from perfbisect.errors import BuildError, ServerError
from perfbisect.jobs.events import LaunchEnded
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import Journal, JournalEvent
from perfbisect.jobs.plans import plan_cell
from perfbisect.jobs.replay import JournalReplay, LaunchRecord, ended_launches, require_comparable
from perfbisect.jobs.runner import JobContext, LaunchRequest
from perfbisect.jobs.sequential import fits_budget, launch_ended, run_sequentially
from perfbisect.jobs.workers import WorkerPool
from perfbisect.model.attempt import Attempt
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from perfbisect.stats import ab_test

BLOCKS = 4
"""Blocks of four launches at most."""

_CHANGE = TypeAdapter(Change)


@dataclass(frozen=True)
class Reverted:
    """How far it is: ``change`` is the later end less the culprit; ``note`` why it was not (all) measured."""

    change: Change | None = None
    verdict: ab_test.AbVerdict | None = None
    note: str = ""
    done: bool = False


def reverted(events: Sequence[JournalEvent], plan: BisectPlan, seen: Sequence[LaunchRecord]) -> Reverted:
    """What the journal says of it: of the last time it was asked for."""
    found = Reverted()
    for event in events:
        if event.kind != "revert":
            continue
        change = event.data.get("change")
        if change is not None:
            found = Reverted(_CHANGE.validate_python(dict(change)))
        else:
            found = Reverted(found.change, None, str(event.data["note"]), done=True)
    if found.change is None:
        return found
    sides = _sides(seen, plan, found.change)
    return Reverted(found.change, ab_test.judge_blocks(_question(plan), sides), found.note, found.done)


def confirm_revert(
    job: Job,
    journal: Journal,
    plan: BisectPlan,
    tools: JobContext,
    crew: WorkerPool,
    outcome: decide.SearchOutcome,
) -> None:
    """Measures the later end with and without the culprit until that is told, or the budget is spent.

    A culprit that does not revert cleanly, or a tree that cannot be built or served, is told and no failure.

    :raises ClientError, MachineError: they failed too often; the job can be resumed.
    """
    seen = JournalReplay().read(journal.events)
    state = reverted(journal.events, plan, seen)
    if state.done:
        return
    if state.change is None:
        made = _made(plan, tools, outcome)
        if isinstance(made, str):
            journal.append("revert", {"note": made})
            return
        journal.append("revert", {"change": _CHANGE.dump_python(made, mode="json")})
        state = Reverted(made)
    assert state.change is not None
    try:
        note = run_sequentially(job, journal, tools, crew, _Ends(plan, state.change))
    except (BuildError, ServerError) as error:
        note = error.message
    journal.append("revert", {"note": note})


def _made(plan: BisectPlan, tools: JobContext, outcome: decide.SearchOutcome) -> Change | str:
    """The later end less the culprit, or why there is none."""
    if len(outcome.culprits) != 1:
        return "several changes cannot be told apart: none of them was taken back"
    if outcome.culprits[0] == plan.merge_base:
        return "the step is in good's own commits: there is nothing to take back"
    head, culprit = plan.positions[plan.last].changes[-1], plan.positions[outcome.culprits[0]].change
    if culprit.kind != "commit" or tools.revert is None:
        return "releases cannot be taken back"
    return tools.revert(head, culprit)


@dataclass(frozen=True)
class _Ends:
    """The later end and the one less the culprit, in turn, until that is told."""

    plan: BisectPlan
    less: Change
    advice: str = ""

    def next(self, seen: Sequence[LaunchRecord]) -> LaunchRequest | str:
        side = ab_test.next_side(_question(self.plan), _sides(seen, self.plan, self.less))
        if side is None:
            return ""
        if not fits_budget(seen, self.plan.budget):
            return f"the budget of {self.plan.budget:.0f} minutes is spent"
        last = self.plan.last
        position, change = (last, self.plan.positions[last].change) if side == "a" else (last + 1, self.less)
        done = sum(x.end == "finished" and x.purpose == "revert" for x in seen)
        return LaunchRequest(
            position, change, "revert", _runs(seen), f"{self._what(position)}, launch {done + 1}"
        )

    def cell(self, _: LaunchRequest) -> Cell:
        return plan_cell(self.plan)

    def name(self, order: LaunchRequest) -> str:
        return f"{order.change.short}, {self._what(order.position)},"

    def admit(self, attempt: Attempt, seen: Sequence[LaunchRecord]) -> None:
        require_comparable(attempt, seen, self.plan.ref)

    def told(self, ended: LaunchRecord, seen: Sequence[LaunchRecord], order: LaunchRequest) -> LaunchEnded:
        return launch_ended(ended, seen, order, self.plan.ref, self.plan.budget)

    def _what(self, position: int) -> str:
        return "the later end" if position == self.plan.last else "the later end less the culprit"


def _runs(seen: Sequence[LaunchRecord]) -> int:
    """As many runs as the A/B's launches had."""
    confirming = [launch.runs for launch in seen if launch.purpose == "confirm"]
    return confirming[-1] if confirming else 1


def _question(plan: BisectPlan) -> ab_test.AbTest:
    question = plan.question
    return ab_test.AbTest(question.sign, question.min_effect, BLOCKS, plan.seed)


def _sides(seen: Sequence[LaunchRecord], plan: BisectPlan, less: Change) -> list[ab_test.AbLaunch]:
    """The launches that count: a is the later end, b the one less the culprit."""
    return [
        ab_test.AbLaunch("b" if launch.change_id == less.id else "a", launch.attempt.values(plan.ref))
        for launch in ended_launches(seen)
        if launch.purpose == "revert" and launch.end == "finished" and launch.attempt is not None
    ]
