"""``--confirm-revert``: the later end against itself without the culprit, in blocks of launches of its own.

These launches have a purpose of their own and are judged by themselves: they do not enter the search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from pydantic import TypeAdapter

from perfbisect.bisect.decision.model import SearchOutcome
from perfbisect.bisect.plan import BisectPlan
from perfbisect.errors import BuildError, ServerError
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import Journal, JournalEvent
from perfbisect.jobs.loop import LaunchPolicy, fits_budget, run_sequentially
from perfbisect.jobs.replay import LaunchRecord, ended_launches, launches, require_comparable
from perfbisect.jobs.runner import JobContext, LaunchRequest
from perfbisect.jobs.workers import WorkerPool
from perfbisect.model.change import Change
from perfbisect.stats import ab_test

MAX_BLOCKS = 4

_CHANGE = TypeAdapter(Change)


@dataclass(frozen=True)
class RevertCheck:
    """``change``: the later end without the culprit; ``note``: why it was not (all) measured."""

    change: Change | None = None
    verdict: ab_test.AbVerdict | None = None
    note: str = ""
    done: bool = False


def revert_check(
    events: Sequence[JournalEvent], plan: BisectPlan, records: Sequence[LaunchRecord]
) -> RevertCheck:
    """The last check in a journal."""
    check = RevertCheck()
    for event in events:
        if event.kind == "revert" and event.data.get("change") is not None:
            check = RevertCheck(_CHANGE.validate_python(dict(event.data["change"])))
        elif event.kind == "revert":
            check = replace(check, note=str(event.data["note"]), done=True)
    if check.change is None:
        return check
    return replace(check, verdict=ab_test.judge_blocks(_test(plan), _sides(records, plan, check.change)))


def confirm_revert(
    job: Job, journal: Journal, plan: BisectPlan, tools: JobContext, pool: WorkerPool, outcome: SearchOutcome
) -> None:
    """Measure the later end with and without the culprit until that is settled or the budget is spent.

    A culprit that does not revert cleanly, or a tree that cannot be built or served, is noted.
    """
    check = revert_check(journal.events, plan, launches(journal.events))
    if check.done:
        return
    change: Change | str = check.change or _reverted_end(plan, tools, outcome)
    if isinstance(change, str):
        journal.append("revert", {"note": change})
        return
    if check.change is None:
        journal.append("revert", {"change": _CHANGE.dump_python(change, mode="json")})
    try:
        policy = LaunchPolicy(
            partial(_next_launch, plan, change),
            partial(require_comparable, metric=plan.ref),
            plan.ref,
            plan.budget,
        )
        note = run_sequentially(job, journal, tools, pool, policy)
    except (BuildError, ServerError) as error:
        note = error.message
    journal.append("revert", {"note": note})


def _reverted_end(plan: BisectPlan, tools: JobContext, outcome: SearchOutcome) -> Change | str:
    """The later end without the culprit, or why there is none."""
    if len(outcome.culprits) != 1:
        return "several changes cannot be distinguished: none of them was taken back"
    if outcome.culprits[0] == plan.merge_base:
        return "the step is in good's own commits: there is nothing to take back"
    head, culprit = plan.positions[plan.last].changes[-1], plan.positions[outcome.culprits[0]].change
    if culprit.kind != "commit" or tools.revert is None:
        return "releases cannot be taken back"
    return tools.revert(head, culprit)


def _next_launch(plan: BisectPlan, reverted: Change, records: Sequence[LaunchRecord]) -> LaunchRequest | str:
    sides = _sides(records, plan, reverted)
    side = ab_test.next_side(_test(plan), sides)
    if side is None:
        return ""
    if not fits_budget(records, plan.budget):
        return f"the budget of {plan.budget:.0f} minutes is spent"
    position, change, name = plan.last, plan.positions[plan.last].change, "the later end"
    if side == "b":
        position, change, name = position + 1, reverted, f"{name} less the culprit"
    runs = next((launch.runs for launch in reversed(records) if launch.purpose == "confirm"), 1)
    why = f"{name}, launch {len(sides) + 1}"
    return LaunchRequest(position, change, "revert", runs, why, side=f"{change.short}, {name},")


def _test(plan: BisectPlan) -> ab_test.AbTest:
    return ab_test.AbTest(plan.search.sign, plan.search.min_effect, MAX_BLOCKS, plan.seed)


def _sides(records: Sequence[LaunchRecord], plan: BisectPlan, reverted: Change) -> list[ab_test.AbLaunch]:
    """The launches that count: a is the later end, b the one without the culprit."""
    return [
        ab_test.AbLaunch("b" if launch.change_id == reverted.id else "a", launch.attempt.values(plan.ref))
        for launch in ended_launches(records)
        if launch.purpose == "revert" and launch.end == "finished" and launch.attempt is not None
    ]
