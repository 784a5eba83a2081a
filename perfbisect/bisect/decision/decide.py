"""Decide what to measure next, and when the search is settled.

:func:`next_action` is a fold over the events: the same events give the same answer, so resuming a job is
calling it again. docs/method/bisection.md says what the model is and what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import NormalDist

from perfbisect.bisect.decision import exact, multi_step, outcome
from perfbisect.bisect.decision.endpoints import launches_if_futile, next_after_search, next_end
from perfbisect.bisect.decision.machines import LEAST_MACHINES, MachineEnds, ends_by_machine
from perfbisect.bisect.decision.model import (
    Beliefs,
    Event,
    NextLaunch,
    Note,
    Pending,
    Plan,
    Reason,
    SearchOutcome,
    Visit,
    Wait,
)
from perfbisect.bisect.decision.posterior import SLOPE_SHOWN
from perfbisect.bisect.decision.search import RangeResult, search
from perfbisect.bisect.decision.state import SearchState, SlotContext

MIN_POSITIONS = 6
MIN_LAUNCHES = 14
"""Least positions and launches that show a slope."""

GRADUAL = 0.92
"""Probability of a slope above which there is no single change to find."""

MISFIT = 0.00135
"""Chance that a position of a slope misses it by more than it may: three standard errors for one position."""

SETTLED_BY = 12
"""Launches of a search in which the ends are looked at machine by machine after each."""


def next_action(
    plan: Plan,
    events: Sequence[Event],
    pending: Sequence[Pending] = (),
    slot: str = "",
    slots: Sequence[str] = (),
) -> NextLaunch | Wait | SearchOutcome:
    """What the free ``slot`` measures next, or how the search ended. A pure function of its arguments.

    ``pending``: launches under way on other slots; ``slots``: all slots that will ask, this one among them.
    Events are in the order in which launches ended. A :class:`NextLaunch` is answered by one event with its
    index, purpose and slot, a :class:`Wait` by asking again on the next event; with nothing under way, some
    slot gets none. A launch begins only if its expected minutes fit into the budget with those under way.

    Raises:
        ValueError: the plan or an event is invalid, the slot is not free, or an end of the range cannot be
            measured (skipped three times in turn): an error about the range.
    """
    # A launch of a machine that is out of use is under way until it ends, and will be discarded.
    counted = tuple(launch for launch in pending if not slots or launch.slot in slots)
    context = SlotContext(slot, counted, tuple(slots))
    state = SearchState.from_events(plan, tuple(events))
    action = (exact.next_action(state, context) if plan.exact else None) or _decide(state, context)
    if plan.exact and isinstance(action, SearchOutcome):
        return action
    # Asked before a search ends with nothing: an average over machines hides a step that only one shows.
    if isinstance(action, SearchOutcome) and action.verdict != "found":
        again = _ends_again(state, context, _ends_by_machine(state))
        too_dear = isinstance(again, NextLaunch) and not _fits(state, (*pending, again))
        return action if again is None or too_dear else again
    if not isinstance(action, NextLaunch) or _fits(state, (*pending, action)):
        return action
    if pending:
        return Wait("the last minutes of the budget are being spent")
    return (exact.out_of_budget(state) if plan.exact else None) or _spent(state)


def beliefs(plan: Plan, events: Sequence[Event]) -> Beliefs:
    """The posterior; before both ends were measured the prior. Raises what :func:`next_action` raises.

    Once an A/B confirmed a step, that in which builds may differ.
    """
    state = SearchState.from_events(plan, tuple(events))
    return (exact.beliefs(state) if plan.exact else None) or outcome.deciding_beliefs(state)


def fits(plan: Plan, events: Sequence[Event], launches: Sequence[Pending]) -> bool:
    """Whether the budget has the expected minutes of launches. Raises what :func:`next_action` raises."""
    return _fits(SearchState.from_events(plan, tuple(events)), launches)


def _fits(state: SearchState, launches: Iterable[Visit]) -> bool:
    expected = state.prices.under_way(launches)
    return state.prices.spent + expected <= state.plan.budget


def _spent(state: SearchState) -> SearchOutcome:
    posterior = state.whole
    steps = multi_step.confirmed_steps(state) if state.plan.all_steps and posterior is not None else ()
    if posterior is None or not steps:
        return outcome.out_of_budget(state)
    unsettled = Note("parts unsettled", spans=multi_step.open_ranges(state, steps))
    return outcome.all_steps(state, posterior, steps, [unsettled])


def _decide(state: SearchState, context: SlotContext) -> NextLaunch | Wait | SearchOutcome:
    posterior = state.whole
    ends = _ends_by_machine(state) if posterior is not None and _compares_machines(state) else ()
    if posterior is not None and any(x.is_told for x in ends):
        # A search on all machines would average that away.
        return outcome.without_culprit(state, posterior, "too small")
    # A search measures ends itself where they tell most: no further rounds of ends begin after its start.
    if not state.searching and all(launch.purpose == "end" for launch in context.pending):
        step = next_end(state, context)
        if step is not None:
            return step
    if posterior is None:
        raise ValueError("a launch of the search or the A/B before both ends were measured")
    unseen = _unseen_end(state, context)
    if unseen is not None:
        return unseen
    again = _ends_again(state, context, ends) if ends else None
    if isinstance(again, NextLaunch):
        return again
    # Launches under way may still settle it.
    needed = 0 if context.pending else launches_if_futile(state, posterior)
    if needed:
        return outcome.without_culprit(state, posterior, "too small", needed)
    # The state is a fold of the events and keeps no results: confirmed steps are found again at each call.
    steps = multi_step.confirmed_steps(state) if state.plan.all_steps else ()
    if steps:
        return multi_step.next_action(state, posterior, steps, context)
    # Few positions or launches cannot tell a slope from a step.
    may_be_slope = len(posterior.at) >= MIN_POSITIONS and len(state.usable) >= MIN_LAUNCHES
    sloping = state.explained if may_be_slope and not context.pending else None
    if sloping is None or sloping.slope <= SLOPE_SHOWN:
        sloping = None
    elif sloping.slope > GRADUAL and sloping.misfit < NormalDist().inv_cdf(1 - MISFIT / len(posterior.at)):
        return outcome.without_culprit(state, posterior, "gradual", believed=sloping)
    action = search(state, posterior, (0, state.plan.n), context, sloping=sloping)
    if not isinstance(action, RangeResult):
        return action
    if action.pairs is not None and action.judgement is not None:
        end = outcome.found if action.verdict == "found" else outcome.narrowed
        return end(state, posterior, action.pairs, action.judgement)
    if action.verdict == "not reproduced":
        nothing = outcome.no_step(state, posterior)
        more = next_after_search(state, context, posterior)
        return nothing if more is None or nothing.verdict == "not reproduced" else more
    return outcome.unconfirmed(state, posterior)


def _compares_machines(state: SearchState) -> bool:
    """Whether to look at the ends machine by machine: early in a search, and after each launch of an end.

    Of two machines neither is the odd one, and half of the launches show the step: the search finds it.
    """
    if len(set(state.machines.values())) < LEAST_MACHINES:
        return False
    made = sum(launch.purpose != "end" for launch in state.data)
    return made <= SETTLED_BY or state.data[-1].index in (0, state.plan.n)


def _ends_by_machine(state: SearchState) -> tuple[MachineEnds, ...]:
    return ends_by_machine(state.usable, state.plan.n, state.plan.relative_effect)


def _ends_again(
    state: SearchState, context: SlotContext, rows: Sequence[MachineEnds]
) -> NextLaunch | Wait | None:
    """A launch of an end on the machine of a fleet on which alone the ends seem to differ.

    What most machines say would hide it: it is settled beside the search, and before that ends without a
    culprit.
    """
    if len({launch.machine for launch in state.data}) < 2:
        return None
    seen = {(launch.slot, launch.index) for launch in state.data}
    if any(x.index in (0, state.plan.n) and (x.slot, x.index) not in seen for x in context.pending):
        return Wait("a machine has yet to see both ends")
    doubtful = [x for x in rows if x.is_doubtful]
    if not doubtful:
        return None
    ends = max(doubtful, key=lambda x: x.ratio)
    made = sorted((*ends.good, *ends.bad), key=lambda x: x.at)
    slot = next((x.slot for x in made if x.slot in (context.slots or (context.slot,))), None)
    if slot is None:
        return None
    if slot != context.slot:
        return Wait(f"the ends are measured again on {ends.machine}")
    index, runs = made[-1].index, made[-1].runs
    if len(ends.good) != len(ends.bad):
        index = 0 if len(ends.good) < len(ends.bad) else state.plan.n
    return NextLaunch(index, "end", runs, Reason("on one machine", index=index))


def _unseen_end(state: SearchState, context: SlotContext) -> NextLaunch | None:
    """The end that a slot which joins the search has still to see: its speed is known by them."""
    for index in (0, state.plan.n):
        if not any(x.index == index and x.slot == context.slot for x in state.data):
            others = [x.runs for x in state.data if x.index == index]
            return NextLaunch(index, "end", others[-1], Reason("end new to slot", index=index))
    return None
