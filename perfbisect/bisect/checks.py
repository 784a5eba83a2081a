"""What is measured once a step is named: the step on other machines of a fleet, and the later end without it.

The launches of both have purposes of their own, are judged by themselves and do not enter the search. What
ends a check early is noted: the step has its A/B, and takes no harm from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pydantic import TypeAdapter

from perfbisect.bisect.decision import confirm
from perfbisect.bisect.decision.machines import home_machine, launches_in_blocks, made_elsewhere
from perfbisect.bisect.decision.model import Comparison, Note, SearchOutcome
from perfbisect.bisect.decision.noise import LaunchEstimate
from perfbisect.bisect.decision.state import SearchState
from perfbisect.bisect.plan import BisectPlan
from perfbisect.bisect.search_events import machines_out, measured_event, to_search_events
from perfbisect.errors import BuildError, ClientError, MachineError, PerfbisectError, ServerError
from perfbisect.jobs import replay
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import Journal, JournalEvent
from perfbisect.jobs.loop import LaunchPolicy, fits_budget, run_sequentially
from perfbisect.jobs.replay import LaunchRecord, ended_launches, require_comparable
from perfbisect.jobs.runner import JobContext, LaunchRequest
from perfbisect.jobs.workers import WorkerPool
from perfbisect.machine.slots import Slot
from perfbisect.model.change import Change
from perfbisect.stats import ab_test

MAX_BLOCKS = 4
"""Blocks of launches of the later end with and without the culprit."""

_CHANGE = TypeAdapter(Change)


@dataclass(frozen=True)
class BisectRun:
    """A bisection that is being measured."""

    job: Job
    journal: Journal
    plan: BisectPlan
    tools: JobContext
    pool: WorkerPool

    @property
    def records(self) -> tuple[LaunchRecord, ...]:
        return replay.launches(self.journal.events)

    def measure(
        self,
        next_launch: Callable[[Sequence[LaunchRecord]], LaunchRequest | str],
        slots: tuple[Slot, ...],
        ends: tuple[type[PerfbisectError], ...],
    ) -> str:
        """Launch until a check is settled; return why it ended early. ``ends``: errors that end it."""
        plan, admit = self.plan, partial(require_comparable, metric=self.plan.ref)
        policy = LaunchPolicy(next_launch, admit, plan.ref, plan.budget)
        tools = replace(self.tools, slots=slots)
        try:
            return run_sequentially(self.job, self.journal, tools, self.pool, policy)
        except ends as error:
            return error.message


@dataclass(frozen=True)
class Replication:
    """The A/B of a named step on other machines.

    ``machine``: the one that shows the step most; ``others``: those where it was repeated; ``slot``: where
    pairs were added, empty where none were. ``said``: what the others say of the step; None while that is
    open. ``note``: why it ended early.
    """

    machine: str = ""
    others: tuple[str, ...] = ()
    slot: str = ""
    said: confirm.Elsewhere | None = None
    effect: Comparison | None = None
    note: str = ""
    done: bool = False


def replication(
    events: Sequence[JournalEvent],
    plan: BisectPlan,
    records: Sequence[LaunchRecord],
    outcome: SearchOutcome | None,
) -> Replication:
    """The replication of an outcome's step as a journal has it; empty where there is no such step."""
    step = _step(outcome)
    if step is None:
        return Replication()
    made, look = _launches(records, plan, step), _expected(plan, records)
    found = Replication(home_machine(made, step, look))
    for event in events:
        if event.kind != "replicate" or event.data["positions"] != [step.parent, step.culprit]:
            continue
        if "slot" in event.data:
            found = Replication(found.machine, (str(event.data["machine"]),), str(event.data["slot"]))
        else:
            found = replace(found, note=str(event.data["note"]), done=True)
    parent, culprit = made_elsewhere(made, step, found.machine)
    if not parent:
        return found
    return replace(
        found,
        others=tuple(dict.fromkeys(launch.machine for launch in (*parent, *culprit))),
        said=confirm.elsewhere(parent, culprit, look),
        effect=confirm.compare(parent, culprit, look, plan.search.sign),
    )


def replicate_step(run: BisectRun, outcome: SearchOutcome) -> SearchOutcome:
    """Add pairs on a second machine until the step is settled there; the outcome with what that adds."""
    step = _step(outcome)
    if step is None:
        return outcome
    known = replication(run.journal.events, run.plan, run.records, outcome)
    slot = _second_slot(run, known) if not known.done and known.said is None else None
    if slot is not None:
        positions = [step.parent, step.culprit]
        if slot.name != known.slot:
            start = {"positions": positions, "machine": slot.machine, "slot": slot.name}
            run.journal.append("replicate", start)
        next_pair = partial(_next_in_pair, run.plan, step, _expected(run.plan, run.records), slot)
        # A second machine that fails takes nothing from the step.
        note = run.measure(next_pair, (slot,), (BuildError, ServerError, ClientError, MachineError))
        run.journal.append("replicate", {"positions": positions, "note": note})
        known = replication(run.journal.events, run.plan, run.records, outcome)
    if known.said != "absent":
        return outcome
    assert known.effect is not None
    machines = (known.machine, *known.others)
    alone = Note("one machine", outcome.culprits, effect=known.effect.effect, machines=machines)
    return replace(outcome, notes=(*outcome.notes, alone))


def _confirming_launch(records: Sequence[LaunchRecord], step: Comparison) -> LaunchRecord:
    """The last launch of the culprit in the A/B that confirmed its step."""
    return next(
        launch
        for launch in reversed(ended_launches(records))
        if launch.purpose == "confirm" and launch.end == "finished" and launch.position == step.culprit
    )


def _step(outcome: SearchOutcome | None) -> Comparison | None:
    """The A/B of the one step that an outcome names; None where it names none, or several."""
    if outcome is None or outcome.verdict != "found" or len(outcome.steps) > 1:
        return None
    return outcome.confirmed


def _second_slot(run: BisectRun, known: Replication) -> Slot | None:
    """The slot that was begun on, else one of the other machine in use with most launches; None: no other."""
    out = machines_out(run.journal.events)
    slots = [slot for slot in run.tools.slots if slot.machine != known.machine and slot.machine not in out]
    measured = [launch.machine for launch in run.records if launch.end == "finished"]
    return max(slots, key=lambda x: (x.name == known.slot, measured.count(x.machine)), default=None)


def _next_in_pair(
    plan: BisectPlan,
    step: Comparison,
    look: confirm.EffectPrior,
    slot: Slot,
    records: Sequence[LaunchRecord],
) -> LaunchRequest | str:
    made = _launches(records, plan, step)
    here = [launch.index for launch in made if launch.slot == slot.name]
    if len(here) % 2 == 0:
        parent, culprit = made_elsewhere(made, step, home_machine(made, step, look))
        if confirm.elsewhere(parent, culprit, look) is not None:
            return ""
        if not fits_budget(records, plan.budget):
            return _spent(plan)
    turn = len(here) + 2 * (here[:1] == [step.parent])
    index = confirm.turn(step.parent, step.culprit, turn)
    change, runs = plan.positions[index].change, _confirming_launch(records, step).runs
    why = f"the A/B on another machine, pair {len(here) // 2 + 1}"
    mate = None if len(here) % 2 else plan.positions[step.parent + step.culprit - index].change
    return LaunchRequest(index, change, "replicate", runs, why, mate=mate)


def _launches(
    records: Sequence[LaunchRecord], plan: BisectPlan, step: Comparison
) -> tuple[LaunchEstimate, ...]:
    """The launches of the A/B that named a step, and those that were added; each slot is a block."""
    trial = _confirming_launch(records, step).trial
    events = [
        measured_event(launch, launch.attempt, plan.ref)
        for launch in ended_launches(records)
        if launch.end == "finished" and launch.attempt is not None
        if launch.position in (step.parent, step.culprit)
        if launch.purpose == "replicate" or (launch.purpose == "confirm" and launch.trial == trial)
    ]
    return launches_in_blocks(events, plan.search.sign)


def _expected(plan: BisectPlan, records: Sequence[LaunchRecord]) -> confirm.EffectPrior:
    """What the search says of step and noise."""
    posterior = SearchState.from_events(plan.search, to_search_events(records, plan)).whole
    assert posterior is not None, "a step was named"
    return confirm.expected(posterior)


def _spent(plan: BisectPlan) -> str:
    return f"the budget of {plan.budget:.0f} minutes is spent"


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


def confirm_revert(run: BisectRun, outcome: SearchOutcome) -> None:
    """Measure the later end with and without the culprit until that is settled or the budget is spent.

    A culprit that does not revert cleanly, or a tree that cannot be built or served, is noted.
    """
    check = revert_check(run.journal.events, run.plan, run.records)
    if check.done:
        return
    change: Change | str = check.change or _reverted_end(run.plan, run.tools, outcome)
    if isinstance(change, str):
        run.journal.append("revert", {"note": change})
        return
    if check.change is None:
        run.journal.append("revert", {"change": _CHANGE.dump_python(change, mode="json")})
    note = run.measure(partial(_next_in_block, run.plan, change), _beside_ab(run), (BuildError, ServerError))
    run.journal.append("revert", {"note": note})


def _beside_ab(run: BisectRun) -> tuple[Slot, ...]:
    """On a fleet one slot alone: that of the last A/B, else one of a machine that is in use."""
    slots = run.tools.slots
    if not any(slot.machine for slot in slots):
        return slots
    used = [launch.slot for launch in run.records if launch.purpose == "confirm"]
    out = machines_out(run.journal.events)
    return (max(slots, key=lambda slot: (slot.name in used[-1:], slot.machine not in out)),)


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


def _next_in_block(
    plan: BisectPlan, reverted: Change, records: Sequence[LaunchRecord]
) -> LaunchRequest | str:
    sides = _sides(records, plan, reverted)
    side = ab_test.next_side(_test(plan), sides)
    if side is None:
        return ""
    if not fits_budget(records, plan.budget):
        return _spent(plan)
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
