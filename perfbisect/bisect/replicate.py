"""A named step on other machines of a fleet than the one that shows it most.

What the A/B launched on other machines is judged by itself; where that settles nothing, pairs are added on
one of them. These have a purpose of their own and do not enter the search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from perfbisect.bisect.decision import confirm
from perfbisect.bisect.decision.machines import home_machine, launches_in_blocks, made_elsewhere
from perfbisect.bisect.decision.model import Comparison, Note, SearchOutcome
from perfbisect.bisect.decision.noise import LaunchEstimate
from perfbisect.bisect.decision.state import SearchState
from perfbisect.bisect.machines import machines_out
from perfbisect.bisect.plan import BisectPlan
from perfbisect.bisect.search_events import measured_event, to_search_events
from perfbisect.errors import BuildError, ClientError, MachineError, ServerError
from perfbisect.jobs import replay
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import Journal, JournalEvent
from perfbisect.jobs.loop import LaunchPolicy, fits_budget, run_sequentially
from perfbisect.jobs.replay import LaunchRecord, ended_launches, require_comparable
from perfbisect.jobs.runner import JobContext, LaunchRequest
from perfbisect.jobs.workers import WorkerPool
from perfbisect.machine.slots import Slot


@dataclass(frozen=True)
class Replication:
    """The A/B of a named step on other machines.

    ``machine``: the one that shows the step most; ``others``: those where it was repeated; ``slot``: where
    pairs were added, empty where none were. ``holds``: whether the step was seen on the others; None where
    that is not settled, or where it is of another size. ``note``: why it ended early.
    """

    machine: str = ""
    others: tuple[str, ...] = ()
    slot: str = ""
    holds: bool | None = None
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
        holds=confirm.is_replicated(parent, culprit, look),
        effect=confirm.compare(parent, culprit, look, plan.search.sign),
    )


def replicate_step(
    job: Job, journal: Journal, plan: BisectPlan, tools: JobContext, pool: WorkerPool, outcome: SearchOutcome
) -> SearchOutcome:
    """Add pairs on a second machine until the step is settled there; return the outcome with what that adds.

    What ends the replication early is noted: the step has its A/B, and a second machine that fails takes
    nothing from it.
    """
    step = _step(outcome)
    if step is None:
        return outcome
    known = replication(journal.events, plan, replay.launches(journal.events), outcome)
    if not known.done and known.holds is None:
        slot = _second_slot(tools, journal, known)
        if slot is not None:
            positions = [step.parent, step.culprit]
            if slot.name != known.slot:
                start = {"positions": positions, "machine": slot.machine, "slot": slot.name}
                journal.append("replicate", start)
            note = _measure(job, journal, plan, replace(tools, slots=(slot,)), pool, step)
            journal.append("replicate", {"positions": positions, "note": note})
        known = replication(journal.events, plan, replay.launches(journal.events), outcome)
    if known.holds is not False:
        return outcome
    assert known.effect is not None
    machines = (known.machine, *known.others)
    note_ = Note("one machine", outcome.culprits, effect=known.effect.effect, machines=machines)
    return replace(outcome, notes=(*outcome.notes, note_))


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


def _second_slot(tools: JobContext, journal: Journal, known: Replication) -> Slot | None:
    """The slot that was begun on, else one of the other machine in use with most launches; None: no other."""
    out = machines_out(journal.events)
    slots = [slot for slot in tools.slots if slot.machine != known.machine and slot.machine not in out]
    measured = [x.machine for x in replay.launches(journal.events) if x.end == "finished"]
    return max(slots, key=lambda x: (x.name == known.slot, measured.count(x.machine)), default=None)


def _measure(
    job: Job, journal: Journal, plan: BisectPlan, tools: JobContext, pool: WorkerPool, step: Comparison
) -> str:
    """Launch until the A/B is settled; return why it ended early, empty where it did not."""
    look = _expected(plan, replay.launches(journal.events))
    policy = LaunchPolicy(
        partial(_next_launch, plan, step, look, tools.slots[0]),
        partial(require_comparable, metric=plan.ref),
        plan.ref,
        plan.budget,
    )
    try:
        return run_sequentially(job, journal, tools, pool, policy)
    except (BuildError, ServerError, ClientError, MachineError) as error:
        return error.message


def _next_launch(
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
        ratio = confirm.log_ratio(parent, culprit, look) if parent else 0.0
        if confirm.is_confirmed(len(parent) + len(culprit), ratio) is not None:
            return ""
        if not fits_budget(records, plan.budget):
            return f"the budget of {plan.budget:.0f} minutes is spent"
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
