"""Measure the two ends first: do they differ beyond the noise?"""

from __future__ import annotations

from perfbisect.bisect.decision import outcome
from perfbisect.bisect.decision.beliefs import Posterior
from perfbisect.bisect.decision.model import NextLaunch, Reason, SearchOutcome, Wait
from perfbisect.bisect.decision.state import SearchState, SlotContext

SEARCH_BELOW = 0.15
"""Probability of no change below which the search begins."""

NO_CHANGE_ABOVE = 0.95
"""... and above which there is nothing to find, from round :data:`MIN_ROUNDS` on, where
:attr:`Posterior.rules_out_relevant_step` agrees."""

MIN_ROUNDS = 3

MAX_ROUNDS = 12
"""Rounds after which the ends alone will not settle it: a part of the range may still be worse than both (a
step that was half undone later), so the search looks there ..."""

MAX_LAUNCHES_NEEDED = 40
"""... unless settling the step that is believed would take more launches a side than this: then it is too
small for this noise, here and in a search of as many launches that leaves open whether anything changed."""

ALIKE_ABOVE = 0.9
"""Probability of no change above which the ends have more rounds than :data:`MAX_ROUNDS`, as long as the
interval of the whole change holds a relevant one: ..."""

MAX_ROUNDS_ALIKE = 20
"""... so many, also after a search that found nothing."""

_PAIRED = 3
"""Rounds whose launches have two runs at least: the noise within a launch is seen only where there are
two."""


def next_end(state: SearchState, context: SlotContext) -> NextLaunch | Wait | SearchOutcome | None:
    """The next launch of an end on the free slot, or how that ended; None: the search may begin.

    Rounds of good and bad, bad and good on each slot: a drift of the machine falls on both, and each slot
    sees both ends. Every second slot begins with the bad end. Both launches of a round have the same number
    of runs.
    """
    plan = state.plan
    made = [launch for launch in state.data if launch.slot == context.slot]
    turn = len(made) // 2
    # Half of the slots begin at the other end: a drift that is common to all does not look like a step.
    begin = made[0].index if made else (0, plan.n)[context.rank(state.data) % 2]
    order = (begin, plan.n - begin) if turn % 2 == 0 else (plan.n - begin, begin)
    if len(made) % 2:
        why = Reason("end round", index=order[1], round=turn + 1)
        return NextLaunch(order[1], "end", made[-1].runs, why)
    posterior = state.whole if made else None
    if posterior is None:
        why = Reason("end round", index=order[0], round=turn + 1)
        return NextLaunch(order[0], "end", min(2, plan.max_runs), why, order[1])
    rounds = min(len(state.at(0)), len(state.at(plan.n)))
    # An early search names no false step: an A/B of fresh launches decides.
    if posterior.none < SEARCH_BELOW:
        return None
    limit = MAX_ROUNDS_ALIKE if posterior.none > ALIKE_ABOVE else MAX_ROUNDS
    if shows_no_change(posterior, rounds):
        end = outcome.no_step(state, posterior)
        # An interval that still holds a relevant change: further rounds narrow it.
        if end.verdict == "not reproduced" or rounds >= limit:
            return end
    runs = state.prices.best_runs(posterior.sigma, posterior.tau, plan.max_runs)
    if rounds < _PAIRED:
        runs = max(runs, min(2, plan.max_runs))
    if rounds + len(context.pending) / 2 >= limit and context.pending:
        return Wait("the last rounds of the ends are under way")
    if rounds >= limit:
        needed = posterior.launches_needed(runs, rounds)
        if posterior.none < NO_CHANGE_ABOVE and needed <= MAX_LAUNCHES_NEEDED:
            return None
        return outcome.without_culprit(state, posterior, "too small", needed)
    why = Reason("end round", index=order[0], round=turn + 1, none=posterior.none)
    return NextLaunch(order[0], "end", runs, why, order[1])


def next_after_search(state: SearchState, context: SlotContext, posterior: Posterior) -> NextLaunch | None:
    """The end with fewer launches, after a search that found nothing; None once both have enough."""
    ends = (0, state.plan.n)
    counts = [len(state.at(end)) + sum(launch.index == end for launch in context.pending) for end in ends]
    if min(counts) >= MAX_ROUNDS_ALIKE:
        return None
    index = ends[counts[1] < counts[0]]
    runs = state.prices.best_runs(posterior.sigma, posterior.tau, state.plan.max_runs)
    why = Reason("end round", index=index, round=min(counts) + 1, none=posterior.none)
    return NextLaunch(index, "end", runs, why)


def launches_if_futile(state: SearchState, posterior: Posterior) -> int:
    """Launches a side that would settle if anything changed, where these are not worth it; else 0."""
    if posterior.none < SEARCH_BELOW or len(state.usable) < MAX_LAUNCHES_NEEDED:
        return 0
    runs = state.prices.best_runs(posterior.sigma, posterior.tau, state.plan.max_runs)
    needed = posterior.launches_needed(runs, MAX_ROUNDS)
    return needed if needed > MAX_LAUNCHES_NEEDED else 0


def shows_no_change(posterior: Posterior, rounds: int) -> bool:
    """Whether so many rounds of two ends settle that these do not differ."""
    return posterior.none > NO_CHANGE_ABOVE and rounds >= MIN_ROUNDS and posterior.rules_out_relevant_step
