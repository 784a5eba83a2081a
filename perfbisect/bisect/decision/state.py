"""The state of a search, folded from its events: launches, skips, prices and A/Bs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress

from perfbisect.bisect.decision.beliefs import Posterior, prior_weights
from perfbisect.bisect.decision.channels import Gap, weigh
from perfbisect.bisect.decision.model import (
    BUILD_SD,
    Event,
    Lost,
    Measured,
    Pending,
    Plan,
    Skipped,
    Trial,
    Visit,
)
from perfbisect.bisect.decision.noise import LaunchEstimate, launches
from perfbisect.bisect.decision.posterior import Alternatives, compute_posterior, usual_builds
from perfbisect.model.attempt import Costs
from perfbisect.model.metric import Metric
from perfbisect.stats.two_sample import Scale

Span = tuple[int, int]
"""A part of the history: its first and last position."""

MAX_END_SKIPS = 3
"""Times in turn that an end is skipped before the range is given up: some fail by chance."""

_MIN_PRICE = 1e-3
"""Minutes below which a price makes no difference (and must not divide by zero)."""


@dataclass(frozen=True)
class Prices:
    """Minutes as observed so far, the plan's before that; what is built already.

    ``bring``: of an environment to a machine of a fleet, 0 before it is observed; ``there``: the machines and
    the positions that they have. ``machine``: the one of which the prices are.
    """

    costs: Costs
    built: frozenset[int]
    spent: float
    bring: float = 0.0
    there: frozenset[tuple[str, int]] = frozenset()
    machine: str = ""

    def visit(self, index: int, runs: int) -> float:
        """Expected minutes of a fresh launch at a position with so many runs."""
        build = 0.0 if index in self.built else self.costs.build
        bring = self.bring if self.machine and (self.machine, index) not in self.there else 0.0
        return build + bring + self.costs.launch + runs * self.costs.run

    def under_way(self, launches: Iterable[Visit]) -> float:
        """Expected minutes of the launches under way."""
        built, minutes = self, 0.0
        for launch in launches:
            minutes += built.visit(launch.index, launch.runs)
            built = built.with_builds((launch.index,))
        return minutes

    def with_builds(self, positions: tuple[int, ...]) -> Prices:
        return replace(self, built=self.built | frozenset(positions))

    def best_runs(self, sigma: float, tau: float, most: int) -> int:
        """Runs a launch that give the most precise level a minute: sqrt(launch / run) * sigma / tau, 1 to
        ``most``.

        It minimises (launch + r run) (tau^2 + sigma^2 / r) over r (two-stage sampling, Cochran 1977, 10.6).
        """
        return max(1, min(most, round(math.sqrt(self.costs.launch / self.costs.run) * sigma / tau)))


def observed_prices(plan: Plan, events: tuple[Event, ...]) -> Prices:
    """Fold the events' minutes: medians of builds, launches and runs where there are any."""
    measured = [event for event in events if isinstance(event, Measured)]
    spent = 0.0
    for event in events:
        spent += event.minutes
    return Prices(
        Costs(
            build=_price([event.build for event in measured], plan.costs.build),
            launch=_price([event.launch for event in measured], plan.costs.launch),
            run=_price([event.run / len(event.values) for event in measured], plan.costs.run),
        ),
        built=plan.cached | {event.index for event in events if not isinstance(event, Lost)},
        spent=spent,
        bring=_price([event.bring for event in measured], 0.0),
        there=frozenset((event.machine, event.index) for event in measured),
    )


def _price(seen: list[float], expected: float) -> float:
    # A build from the cache takes no time and says nothing about the price of the next one.
    taken = [minutes for minutes in seen if minutes > 0]
    return max(_MIN_PRICE, statistics.median(taken) if taken else expected)


@dataclass(frozen=True)
class Pairs:
    """An A/B as it was launched, in pairs on one slot or on several at once.

    ``before``, ``after``: how many launches the bisection had when its first one ended, and its last one.
    ``over``: a change failed in it. ``since``: positions that were launched for another purpose, on any slot,
    since its last launch.
    """

    trial: Trial
    launches: tuple[LaunchEstimate, ...]
    before: int
    after: int
    over: bool = False
    since: frozenset[int] = frozenset()

    @property
    def culprit(self) -> int:
        return self.trial.culprit

    @property
    def parent(self) -> int:
        return self.trial.parent

    @property
    def paired(self) -> tuple[LaunchEstimate, ...]:
        """The launches on slots that have measured both sides."""
        both = [
            {launch.slot for launch in self.launches if launch.index == index}
            for index in (self.parent, self.culprit)
        ]
        return tuple(launch for launch in self.launches if all(launch.slot in slots for slots in both))

    @property
    def sides(self) -> tuple[list[LaunchEstimate], list[LaunchEstimate]]:
        """The paired launches of the parent, and those of the culprit."""
        parent = [launch for launch in self.paired if launch.index == self.parent]
        return parent, [launch for launch in self.paired if launch.index == self.culprit]

    def on(self, slot: str) -> tuple[LaunchEstimate, ...]:
        """Its launches on a slot."""
        return tuple(launch for launch in self.launches if launch.slot == slot)

    def is_inside(self, span: Span) -> bool:
        """Whether the A/B was made within a part of the history."""
        return span[0] <= self.parent and self.culprit <= span[1]


@dataclass(frozen=True)
class SearchState:
    """Everything known of a search; ``data``: every launch, in the order of the events.

    ``searching``: the ends are settled, a launch was made for the search or an A/B. ``flapping``: ends that
    could not be served at times, and could at others.
    """

    plan: Plan
    data: tuple[LaunchEstimate, ...]
    skips: frozenset[int]
    prices: Prices
    searching: bool
    trials: tuple[Pairs, ...]
    flapping: tuple[int, ...]
    channels: tuple[tuple[LaunchEstimate, ...], ...] = ()
    """Of each channel of the plan, the same launches by its values; empty where one does not report it."""
    binaries: tuple[str, ...] = ()
    """Those of the plan; of positions that ran equal compiled files they are one."""

    @property
    def usable(self) -> tuple[LaunchEstimate, ...]:
        """The launches on slots whose speeds can be compared."""
        return tuple(launch for launch in self.data if launch.is_usable)

    @property
    def machines(self) -> dict[str, str]:
        """The machine of each slot that has measured something."""
        return {launch.slot: launch.machine for launch in self.data}

    def at(self, index: int) -> list[LaunchEstimate]:
        """The usable launches of a position."""
        return [launch for launch in self.usable if launch.index == index]

    @cached_property
    def whole(self) -> Posterior | None:
        """The posterior of the whole range."""
        return self.posterior((0, self.plan.n))

    def posterior(self, span: Span, made: int | None = None) -> Posterior | None:
        """The posterior of a part after the first ``made`` launches, by default all, where builds are alike.

        None before both its ends were measured on slots that can be compared.
        """
        inside = [x.is_usable and span[0] <= x.index <= span[1] for x in self.data[:made]]
        usable = tuple(compress(self.data, inside))
        if not set(span) <= {launch.index for launch in usable}:
            return None
        weights = prior_weights(self.plan.n, self.plan.prior)
        weights[: span[0] + 1] = weights[span[1] + 1 :] = 0.0
        splits: list[Gap] = []
        for channel, seen in zip(self.plan.channels, self.channels, strict=True):
            weights, moved = weigh(channel, tuple(compress(seen, inside)), usable, weights)
            splits += moved
        found = compute_posterior(usable, weights, self.plan.relative_effect, span, self.plan.noise)
        return replace(found, splits=tuple(splits))

    def explain(self, alike: Posterior) -> Posterior:
        """The posterior of the same launches where builds may differ, the change be a slope, and a step slow
        only a share of the launches."""
        return (self.explained if alike is self.whole else None) or self._explain(alike)

    @cached_property
    def explained(self) -> Posterior | None:
        """:meth:`explain` of the whole range."""
        return None if self.whole is None else self._explain(self.whole)

    def _explain(self, alike: Posterior) -> Posterior:
        plan = self.plan
        others = Alternatives(
            self.binaries if plan.compiles_each else (),
            plan.noise.builds or usual_builds(plan.compiles_each),
            alike.drift,
        )
        span = (alike.at[0], alike.at[-1])
        found = compute_posterior(alike.data, alike.scope, alike.min_effect, span, plan.noise, others)
        return replace(found, splits=alike.splits)

    @classmethod
    def from_events(cls, plan: Plan, events: tuple[Event, ...]) -> SearchState:
        """Fold the events.

        Raises:
            ValueError: the plan or an event is invalid, or an end of the range cannot be measured.
        """
        _check(plan, events)
        skipped = [event.index for event in events if isinstance(event, Skipped)]
        ends = [index for index in skipped if index in (0, plan.n)]
        for index in set(ends):
            tries = [event for event in events if not isinstance(event, Lost) and event.index == index]
            last = tries[-MAX_END_SKIPS:]
            if len(last) == MAX_END_SKIPS and all(isinstance(event, Skipped) for event in last):
                raise ValueError(f"the end at position {index} cannot be measured: choose another range")
        data = launches(events, plan.scale)
        return cls(
            plan=plan,
            data=data,
            skips=plan.skips | {index for index in skipped if index not in ends},
            prices=observed_prices(plan, events),
            searching=any(event.purpose != "end" for event in events if not isinstance(event, Lost)),
            trials=_fold_trials(events, data),
            flapping=tuple(sorted(set(ends))),
            channels=tuple(_channel_launches(channel, k, events) for k, channel in enumerate(plan.channels)),
            binaries=plan.binaries_of({x.index: x.binary for x in events if isinstance(x, Measured)}),
        )


def _channel_launches(channel: Metric, number: int, events: tuple[Event, ...]) -> tuple[LaunchEstimate, ...]:
    """The launches by the values of a channel, the ``number``-th from 0; none where one has no such value."""
    own = tuple(
        replace(x, values=x.channels[number]) if isinstance(x, Measured) and x.channels else x for x in events
    )
    measured = [event for event in own if isinstance(event, Measured)]
    least = 0.0 if channel.absolute else math.nextafter(0.0, 1.0)
    if not all(x.channels and x.values and least <= min(x.values) < math.inf for x in measured):
        return ()
    return launches(own, Scale(1, channel.absolute))


def _fold_trials(events: tuple[Event, ...], data: tuple[LaunchEstimate, ...]) -> tuple[Pairs, ...]:
    trials: dict[Trial, Pairs] = {}
    count = -1
    for event in events:
        count += isinstance(event, Measured)
        if isinstance(event, Lost):
            continue
        own = event.trial if isinstance(event, Measured) else None
        if own is None:
            failed = isinstance(event, Skipped) and event.purpose == "confirm"
            for trial, pairs in trials.items():
                since = pairs.since | {event.index}
                trials[trial] = replace(pairs, over=pairs.over or failed, since=since)
            continue
        # What is not known of a slot's speed is the same on both sides of its pairs.
        launch = replace(data[count], offset_se=0.0, block=event.slot)
        pairs = trials.get(own, Pairs(own, (), count, count))
        made = (*pairs.launches, launch)
        trials[own] = replace(pairs, launches=made, after=count + 1, since=frozenset())
    return tuple(trials.values())


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
    builds = plan.noise.builds
    if builds and (len(builds) != len(BUILD_SD) or min(builds) < 0 or not 0 < sum(builds) < math.inf):
        raise ValueError(f"builds have {len(BUILD_SD)} weights >= 0, one of each deviation: {builds}")
    if {0, plan.n} & plan.skips:
        raise ValueError("an end of the range cannot be measured: choose another range")
    for event in events:
        if not isinstance(event, Lost) and not 0 <= event.index <= plan.n:
            raise ValueError(f"position {event.index} is outside 0..{plan.n}")


WORKERS = 4
"""Launches at once that a search can use: with more, each knows too little of what the others will show."""


@dataclass(frozen=True)
class SlotContext:
    """The free slot that asks; the launches under way; all slots, if they are known.

    Raises:
        ValueError: the slot has a launch under way, or is not among the slots.
    """

    slot: str = ""
    pending: tuple[Pending, ...] = ()
    slots: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if any(launch.slot == self.slot for launch in self.pending):
            raise ValueError(f"slot {self.slot!r} asks for a launch while one of its own is under way")
        if self.slots and self.slot not in self.slots:
            raise ValueError(f"slot {self.slot!r} is not among the slots {', '.join(self.slots)}")

    def rank(self, data: tuple[LaunchEstimate, ...]) -> int:
        """How many other slots have launched something."""
        used = {launch.slot for launch in data} | {launch.slot for launch in self.pending}
        return len(used - {self.slot})

    def trial_in(self, span: Span) -> Trial | None:
        """The A/B in a part of the history of which a launch is under way."""
        found = (x.trial for x in self.pending if x.trial and span[0] <= x.index <= span[1])
        return next(found, None)

    def running(self, trial: Trial) -> frozenset[str]:
        """The slots on which a launch of an A/B is under way."""
        return frozenset(x.slot for x in self.pending if x.trial == trial)

    def will_ask_again(self, slot: str) -> bool:
        """Whether a slot is among the slots, or, if these are not known, something is under way."""
        return slot == self.slot or (slot in self.slots if self.slots else bool(self.pending))
