"""The A/B of a named step again on a second machine of a fleet.

Its launches are judged by themselves and do not enter the search. What ends it early is noted: the step has
its A/B, and takes no harm from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from perfbisect.bisect.decision import confirm
from perfbisect.bisect.decision.machines import home_machine, made_elsewhere
from perfbisect.bisect.decision.model import Comparison, Note, SearchOutcome
from perfbisect.bisect.decision.noise import LaunchEstimate, launches
from perfbisect.bisect.decision.state import SearchState
from perfbisect.bisect.plan import BisectPlan, discard_text, launch_reason
from perfbisect.bisect.search_events import machines_out, measured_event, to_search_events
from perfbisect.errors import BuildError, ClientError, MachineError, PerfbisectError, ServerError
from perfbisect.jobs.journal import JournalEvent
from perfbisect.jobs.loop import Decision, Fact, JobState, SlotView, fits_budget
from perfbisect.jobs.replay import Launch, LaunchRequest, ended_launches
from perfbisect.jobs.sequence import turn

PURPOSE: Final = "replicate"


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
    records: Sequence[Launch],
    outcome: SearchOutcome | None,
) -> Replication:
    """The replication of an outcome's step as a journal has it; empty where there is no such step."""
    step = _step(outcome)
    if step is None:
        return Replication()
    made, look = _launches(records, plan, step), _expected(plan, records)
    found = Replication(home_machine(made, step, look))
    for event in events:
        if event.kind != PURPOSE or event.data["positions"] != [step.parent, step.culprit]:
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
        effect=confirm.compare(parent, culprit, look, plan.search.scale),
    )


def next_launch(plan: BisectPlan, outcome: SearchOutcome, state: JobState, view: SlotView) -> Decision | None:
    """The next of the pairs that settle the step on a second machine; None: there is nothing more to do."""
    step = _step(outcome)
    if step is None:
        return None
    known = replication(state.events, plan, state.launches, outcome)
    if known.done or not (known.slot or known.said is None):
        return None
    out = machines_out(state.events)
    others = [slot for slot in view.in_use if slot.machine != known.machine and slot.machine not in out]
    # The slot that was begun on is not replaced by another one where it failed.
    if known.slot and known.slot in {slot.name for slot in view.all}:
        others = [slot for slot in others if slot.name == known.slot]
    measured = [launch.machine for launch in state.launches if launch.outcome == "measured"]
    slot = max(others, key=lambda slot: measured.count(slot.machine), default=None)
    if slot is None:
        here = [x for x in ended_launches(state.launches) if x.slot == known.slot and x.cause]
        lost = discard_text("slot", slot=known.slot, cause=here[-1].cause if here else "")
        return _note(step, lost) if known.slot else None
    if slot.name != known.slot:
        positions = [step.parent, step.culprit]
        return Fact(PURPOSE, {"positions": positions, "machine": slot.machine, "slot": slot.name})

    def next_in_pair(state: JobState) -> LaunchRequest | Fact:
        records, look = state.launches, _expected(plan, state.launches)
        made = _launches(records, plan, step)
        here = [launch.index for launch in made if launch.slot == slot.name]
        if len(here) % 2 == 0:
            parent, culprit = made_elsewhere(made, step, home_machine(made, step, look))
            if confirm.elsewhere(parent, culprit, look) is not None:
                return _note(step, "")
            if not fits_budget(records, plan.budget):
                return _note(step, discard_text("budget", minutes=plan.budget))
        number = len(here) + 2 * (here[:1] == [step.parent])
        index = confirm.turn(step.parent, step.culprit, number)
        change, runs = plan.positions[index].change, _confirming_launch(records, step).runs
        why = launch_reason(plan, "pair elsewhere", round=len(here) // 2 + 1)
        mate = None if len(here) % 2 else plan.positions[step.parent + step.culprit - index].change
        return LaunchRequest(index, change, PURPOSE, runs, why, mate=mate)

    return turn(next_in_pair, state, view, slot)


def noted(outcome: SearchOutcome, error: PerfbisectError) -> Sequence[Fact]:
    """The fact that an error ended it."""
    step = _step(outcome)
    if step is None or not isinstance(error, BuildError | ServerError | ClientError | MachineError):
        return ()
    return (_note(step, error.message),)


def with_machines(plan: BisectPlan, outcome: SearchOutcome, state: JobState) -> SearchOutcome:
    """The outcome with a note where the other machines do not have the step."""
    known = replication(state.events, plan, state.launches, outcome)
    if known.said != "absent" or known.effect is None:
        return outcome
    machines = (known.machine, *known.others)
    alone = Note("one machine", outcome.culprits, effect=known.effect.effect, machines=machines)
    return replace(outcome, notes=(*outcome.notes, alone))


def _note(step: Comparison, note: str) -> Fact:
    return Fact(PURPOSE, {"positions": [step.parent, step.culprit], "note": note})


def _confirming_launch(records: Sequence[Launch], step: Comparison) -> Launch:
    """The last launch of the culprit in the A/B that confirmed its step."""
    for launch in reversed(ended_launches(records)):
        if launch.purpose == "confirm" and launch.outcome == "measured" and launch.position == step.culprit:
            return launch
    raise LookupError(f"no launch of position {step.culprit} is in an A/B")


def _step(outcome: SearchOutcome | None) -> Comparison | None:
    """The A/B of the one step that an outcome names; None where it names none, or several."""
    if outcome is None or outcome.verdict != "found" or len(outcome.steps) > 1:
        return None
    return outcome.confirmed


def _launches(records: Sequence[Launch], plan: BisectPlan, step: Comparison) -> tuple[LaunchEstimate, ...]:
    """The launches of the A/B that named a step, and those that were added; each slot is a block."""
    trial = _confirming_launch(records, step).trial
    events = [
        measured_event(launch, plan.ref)
        for launch in ended_launches(records)
        if launch.outcome == "measured"
        if launch.position in (step.parent, step.culprit)
        if launch.purpose == PURPOSE or (launch.purpose == "confirm" and launch.trial == trial)
    ]
    return launches(tuple(events), plan.search.scale, in_blocks=True)


def _expected(plan: BisectPlan, records: Sequence[Launch]) -> confirm.EffectPrior:
    """What the search says of step and noise."""
    posterior = SearchState.from_events(plan.search, to_search_events(records, plan)).whole
    assert posterior is not None, "a step was named"
    return confirm.expected(posterior)
