"""The events, folded as far as no model is needed: what was measured, what cannot be, where the bisection
stands."""

from __future__ import annotations

import math
from dataclasses import dataclass

from perfbisect.core.noise import Launch, launches
from perfbisect.core.plan import Event, Imported, Lost, Measured, Plan
from perfbisect.core.prices import Prices, observed

_END_SKIPS = 3


@dataclass(frozen=True)
class Story:
    data: tuple[Launch, ...]
    skips: frozenset[int]
    prices: Prices
    searching: bool
    """The ends are settled: a launch was made for the search or for an A/B."""
    trials: tuple[tuple[int, int], ...]
    """Each A/B, in order: its launches are ``data[start:stop]``."""
    open: bool
    """The last A/B is the last thing that happened: in progress, or decided just now."""
    flapping: tuple[int, ...]
    """Ends that could not be served at times, and could at others."""


def fold(plan: Plan, events: tuple[Event, ...]) -> Story:
    """:raises ValueError: the plan or an event makes no sense, or an end of the range cannot be measured."""
    _check(plan, events)
    trials: list[tuple[int, int]] = []
    inside, searching, count = False, False, 0
    end_skips: dict[int, int] = {}
    skips = set(plan.skips)
    seen: set[int] = set()
    for event in events:
        if isinstance(event, Lost | Imported):
            continue
        searching = searching or event.purpose != "end"
        if isinstance(event, Measured):
            seen.add(event.index)
            count += 1
            if event.purpose == "confirm":
                start = trials.pop()[0] if inside else count - 1
                trials.append((start, count))
            inside = event.purpose == "confirm"
            continue
        inside = False
        if event.index in (0, plan.n):
            end_skips[event.index] = end_skips.get(event.index, 0) + 1
        else:
            skips.add(event.index)
    for index, count in end_skips.items():
        if index not in seen or count >= _END_SKIPS:
            side = "good" if index == 0 else "bad"
            raise ValueError(f"the {side} end (position {index}) cannot be measured: choose another range")
    data = launches(events, plan.sign)
    return Story(
        data=data,
        skips=frozenset(skips),
        prices=observed(plan, events),
        searching=searching,
        trials=tuple(trials),
        open=inside,
        flapping=tuple(sorted(end_skips)),
    )


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
