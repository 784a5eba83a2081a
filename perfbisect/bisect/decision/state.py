"""The state of a search, folded from its events: launches, skips, prices and A/Bs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from perfbisect.bisect.decision.model import Event, Lost, Measured, Pending, Plan, Skipped
from perfbisect.bisect.decision.noise import LaunchEstimate, launches
from perfbisect.bisect.decision.prices import Prices, observed

_END_SKIPS = 3


@dataclass(frozen=True)
class Pairs:
    """An A/B as it was launched: on one slot, one after the other; other slots may have done other things."""

    slot: str
    launches: tuple[LaunchEstimate, ...]
    before: int
    """How many launches the bisection had when it began ..."""
    after: int
    """... and when its last one had ended."""
    alone: bool
    """Nothing else was launched on its slot since: it can go on."""
    since: frozenset[int]
    """Positions that were launched for another purpose, on any slot, since its last launch."""

    @property
    def culprit(self) -> int:
        """The suspect, which is launched first."""
        return self.launches[0].index


@dataclass(frozen=True)
class SearchState:
    data: tuple[LaunchEstimate, ...]
    """Every launch, in the order of the events."""
    skips: frozenset[int]
    prices: Prices
    searching: bool
    """The ends are settled: a launch was made for the search or for an A/B."""
    trials: tuple[Pairs, ...]
    flapping: tuple[int, ...]
    """Ends that could not be served at times, and could at others."""

    @property
    def usable(self) -> tuple[LaunchEstimate, ...]:
        """The launches that can be compared with each other: without those of a slot whose speed is
        unknown."""
        return tuple(launch for launch in self.data if math.isfinite(launch.offset_se))

    @classmethod
    def from_events(cls, plan: Plan, events: tuple[Event, ...]) -> SearchState:
        """Fold the events.

        :raises ValueError: the plan or an event is invalid, or an end of the range cannot be measured.
        """
        _check(plan, events)
        trials: list[_Open] = []
        searching, count = False, -1
        end_skips: dict[int, int] = {}
        skips = set(plan.skips)
        seen: set[int] = set()
        for event in events:
            count += isinstance(event, Measured)
            if isinstance(event, Lost):
                continue
            searching = searching or event.purpose != "end"
            if isinstance(event, Measured):
                seen.add(event.index)
                if event.purpose == "confirm":
                    _confirm(trials, event, count)
                    continue
            elif event.index in (0, plan.n):
                end_skips[event.index] = end_skips.get(event.index, 0) + 1
            else:
                skips.add(event.index)
            _other(trials, event)
        for index, times in end_skips.items():
            if index not in seen or times >= _END_SKIPS:
                raise ValueError(f"the end at position {index} cannot be measured: choose another range")
        data = launches(events, plan.sign)
        return cls(
            data=data,
            skips=frozenset(skips),
            prices=observed(plan, events),
            searching=searching,
            trials=tuple(x.close(data) for x in trials),
            flapping=tuple(sorted(end_skips)),
        )


@dataclass
class _Open:
    """An A/B while its events are read."""

    slot: str
    before: int
    members: list[int]
    positions: list[int]
    alone: bool = True
    since: set[int] = field(default_factory=set)

    def continues_with(self, event: Measured) -> bool:
        """Whether a launch of an A/B goes on with this one: the same slot, nothing between, its two
        positions."""
        if not self.alone or event.slot != self.slot:
            return False
        first = self.positions[0]
        return event.index in self.positions if len(self.positions) > 1 else event.index < first

    def close(self, data: tuple[LaunchEstimate, ...]) -> Pairs:
        # Pairs are of one slot: what is not known of its speed is the same on both sides.
        made = tuple(replace(data[k], offset_se=0.0) for k in self.members)
        return Pairs(self.slot, made, self.before, self.members[-1] + 1, self.alone, frozenset(self.since))


def _confirm(trials: list[_Open], event: Measured, at: int) -> None:
    """Adds a launch to the A/B of its slot, or begins another one there."""
    for trial in trials:
        if trial.continues_with(event):
            trial.members.append(at)
            trial.positions.append(event.index)
            trial.since.clear()
            return
    for trial in trials:
        trial.alone = trial.alone and trial.slot != event.slot
    trials.append(_Open(event.slot, at, [at], [event.index]))


def _other(trials: list[_Open], event: Measured | Skipped) -> None:
    """A launch for another purpose, or a skip: an A/B on its slot does not go on after it."""
    nowhere = isinstance(event, Skipped) and event.purpose == "confirm" and not event.slot
    for trial in trials:
        trial.alone = trial.alone and trial.slot != event.slot and not nowhere
        trial.since.add(event.index)


def _check(plan: Plan, events: tuple[Event, ...]) -> None:
    if plan.n < 1:
        raise ValueError(f"a bisection needs a good and a bad end: n = {plan.n}")
    if plan.sign not in (1, -1):
        raise ValueError(f"sign is +1 (larger is worse) or -1, not {plan.sign}")
    if not 0 < plan.min_effect < 1:
        raise ValueError(f"the smallest effect is a share between 0 and 1, not {plan.min_effect}")
    if plan.max_runs < 1:
        raise ValueError(f"a launch has at least one run, not {plan.max_runs}")
    costs = (plan.costs.build, plan.costs.launch, plan.costs.run)
    if any(not math.isfinite(c) or c < 0 for c in costs):
        raise ValueError(f"costs are minutes >= 0: {plan.costs}")
    if {0, plan.n} & plan.skips:
        raise ValueError("an end of the range cannot be measured: choose another range")
    for event in events:
        if not isinstance(event, Lost) and not 0 <= event.index <= plan.n:
            raise ValueError(f"position {event.index} is outside 0..{plan.n}")


WORKERS = 4
"""Launches at once that a search can use: with more, each knows too little of what the others will tell."""


@dataclass(frozen=True)
class SlotContext:
    """The free slot that asks; the launches under way; all slots, where they are known."""

    slot: str = ""
    pending: tuple[Pending, ...] = ()
    slots: tuple[str, ...] = ()

    def rank(self, data: tuple[LaunchEstimate, ...]) -> int:
        """How many other slots have launched something."""
        seen = {launch.slot for launch in data} | {launch.slot for launch in self.pending}
        return len(seen - {self.slot})

    @property
    def under_way(self) -> tuple[tuple[int, int], ...]:
        """Position and runs of the launches under way."""
        return tuple((launch.index, launch.runs) for launch in self.pending)

    def within(self, low: int, high: int) -> tuple[Pending, ...]:
        """The launches under way from ``low`` to ``high``."""
        return tuple(launch for launch in self.pending if low <= launch.index <= high)

    def will_ask_again(self, slot: str) -> bool:
        """Whether a slot will ask again: it is named among the slots, or, where these are not known,
        something is under way."""
        return slot == self.slot or (slot in self.slots if self.slots else bool(self.pending))


SINGLE_SLOT = SlotContext()
"""One slot, nothing under way."""


def slot_context(slot: str, pending: Sequence[Pending], slots: Sequence[str]) -> SlotContext:
    """:raises ValueError: the slot that asks has a launch under way, or is not among the slots."""
    if any(launch.slot == slot for launch in pending):
        raise ValueError(f"slot {slot!r} asks for a launch while one of its own is under way")
    if slots and slot not in slots:
        raise ValueError(f"slot {slot!r} is not among the slots {', '.join(slots)}")
    return SlotContext(slot, tuple(pending), tuple(slots))
