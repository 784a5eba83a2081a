"""Policies of jobs that launch one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from perfbisect.jobs.loop import Decision, Done, Fact, Idle, JobState, LaunchPolicy, SlotView
from perfbisect.jobs.replay import Launch, LaunchRequest, awaiting_retry
from perfbisect.machine.slots import Slot
from perfbisect.model.attempt import Attempt
from perfbisect.model.metric import MetricRef


def sequential(
    next_launch: Callable[[JobState], LaunchRequest | Fact | Done],
    metric: MetricRef,
    *,
    admit: Callable[[Attempt, Sequence[Launch]], None] = lambda *_: None,
    budget: float = 0.0,
    advice: str = "",
    block: int = 0,
) -> LaunchPolicy:
    """The policy of launches that are made on one slot, one at a time.

    A change that fails is launched once more, unless it could not be built. ``admit`` raises an error if an
    attempt is not comparable; ``advice``: the next step for the user if a change cannot be built or served.
    ``block``: launches that are compared within themselves: on a fleet each block is made on one machine, the
    machines in turn, and does not count if its machine is given up; 0: all launches are made on one slot.
    """

    def next_in_block(state: JobState, view: SlotView) -> Decision:
        if not block or not any(slot.machine for slot in view.in_use):
            return turn(next_launch, state, view, view.in_use[0])
        machines = list({slot.machine: slot for slot in reversed(view.in_use)}.values())[::-1]
        measured = [launch for launch in state.launches if launch.outcome == "measured"]
        begun = measured[len(measured) - len(measured) % block :]
        if not begun:
            return turn(next_launch, state, view, machines[len(measured) // block % len(machines)])
        same = next((slot for slot in machines if slot.name == begun[-1].slot), None)
        if same is not None:
            return turn(next_launch, state, view, same)
        reason = f"its block cannot be continued: {begun[0].machine} is not used any more"
        return Fact("discarded", {"attempt": begun[0].id, "reason": reason})

    def admitted(launch: Launch, state: JobState, _: Sequence[Slot]) -> str:
        if launch.attempt is not None:
            admit(launch.attempt, state.launches)
        return ""

    return LaunchPolicy(
        next_in_block,
        metric,
        budget,
        admit=admitted,
        broken=lambda launch, order, state: broken_twice(launch, order, state, advice),
    )


def turn(
    next_launch: Callable[[JobState], LaunchRequest | Fact | Done],
    state: JobState,
    view: SlotView,
    slot: Slot,
) -> Decision:
    """What comes next where one slot makes all launches, one at a time."""
    if state.is_running or view.slot != slot:
        return Idle()
    order = next_launch(state)
    if not isinstance(order, LaunchRequest):
        return order
    failed = awaiting_retry(x for x in state.launches if x.purpose == order.purpose).get(order.position)
    return order if failed is None else replace(order, why=f"{order.why}, once more: {failed.cause}")


def broken_twice(
    launch: Launch, order: LaunchRequest, state: JobState, advice: str = ""
) -> tuple[str, str] | None:
    """What is broken: a change that cannot be built, or has failed twice."""
    before = (x for x in state.launches if x.purpose == launch.purpose and 0 <= x.ended < launch.ended)
    if launch.built and launch.position not in awaiting_retry(before):
        return None
    return order.side or order.change.short, advice
