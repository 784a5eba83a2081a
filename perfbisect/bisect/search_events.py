"""The launches of a bisection as events of its search, and what follows from them.

Control runs: after a failure of the machine a slot measures a known level before anything new counts. The
next launch with a known level on that slot must agree with it. Until one does, the search launches no new
position there but the end that the slot knows best. A launch that does not agree is discarded like the failed
one, and the slot backs off again. While the ends are settled, and within an A/B, nothing is inserted: their
launches are control runs of each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from pydantic import TypeAdapter

from perfbisect.bisect.decision import decide
from perfbisect.bisect.decision.machines import UNLIKE, MachineOffset
from perfbisect.bisect.decision.model import (
    Beliefs,
    Event,
    Lost,
    Measured,
    Pending,
    Skipped,
    Trial,
)
from perfbisect.bisect.decision.noise import launch_variance
from perfbisect.bisect.plan import BisectPlan, discard_text
from perfbisect.jobs.journal import JournalEvent
from perfbisect.jobs.replay import Launch, ended_launches, reported_value
from perfbisect.model.metric import MetricRef

_BEFORE_BENCH = ("build", "fetch", "launch", "first_request", "warm")
_LAUNCH_PHASES = (*_BEFORE_BENCH[1:], "stop")
SEARCHING = ("end", "search", "confirm")
"""Purposes of launches that the search rests on."""

_OFFSET = TypeAdapter(MachineOffset)

_FAR = 5.0
"""Standard errors by which a control run may differ from its level: launches have heavy tails."""


def to_search_events(records: Iterable[Launch], plan: BisectPlan) -> tuple[Event, ...]:
    """Values, skips after the one retry, and lost minutes, in the order in which launches ended."""
    events: list[Event] = []
    failed: set[int] = set()
    for launch in ended_launches(records):
        if launch.purpose not in SEARCHING:
            continue
        if launch.outcome == "measured":
            failed.discard(launch.position)
            events.append(measured_event(launch, plan.ref, plan.channel_refs))
        # Not evidence about the change, but the budget and the prices need its minutes.
        elif launch.outcome != "failed" or not launch.refused:
            events.append(Lost(launch.minutes))
        elif launch.built and launch.position not in failed:
            failed.add(launch.position)
            events.append(Lost(launch.minutes))
        else:
            failed.discard(launch.position)
            events.append(Skipped(launch.position, launch.purpose, launch.minutes))
    return tuple(events)


def pending_launches(records: Iterable[Launch]) -> tuple[Pending, ...]:
    """The launches of the search that are under way."""
    searching = (launch for launch in records if launch.purpose in SEARCHING)
    return tuple(as_pending(launch) for launch in searching if launch.outcome == "running")


def as_pending(launch: Launch) -> Pending:
    """A launch as one under way."""
    return Pending(launch.position, launch.purpose, launch.runs, launch.slot, _trial(launch))


def _trial(launch: Launch) -> Trial | None:
    """The A/B that a launch was made for; a journal has its fields in their order."""
    return Trial(*launch.trial) if launch.trial else None


def search_launches(records: Iterable[Launch], position: int) -> list[Launch]:
    """The launches of a position that the search rests on."""
    at = (launch for launch in records if launch.position == position)
    return [launch for launch in at if launch.outcome == "measured" and launch.purpose in SEARCHING]


def beliefs_after(plan: BisectPlan, records: Sequence[Launch]) -> Beliefs | None:
    """What the launches say; None if they cannot be judged."""
    try:
        return decide.beliefs(plan.search, to_search_events(records, plan))
    except (ValueError, KeyError):
        return None


def launch_under_way(launch: Launch) -> Measured:
    """A launch as if it had ended, for :func:`perfbisect.bisect.decision.ahead.likely_next`."""
    return Measured(
        launch.position,
        "confirm" if launch.purpose == "confirm" else "search",
        (1.0,) * launch.runs,
        slot=launch.slot,
        at=launch.at,
        machine=launch.machine,
        trial=_trial(launch),
    )


def with_builds(plan: BisectPlan, events: Iterable[JournalEvent]) -> BisectPlan:
    """The plan with what was built ahead: a launch there costs no build."""
    built = {int(event.data["position"]) for event in events if event.kind == "built"}
    positions = tuple(
        position.model_copy(update={"cached": True}) if index in built else position
        for index, position in enumerate(plan.positions)
    )
    return plan.model_copy(update={"positions": positions})


def measured_event(launch: Launch, metric: MetricRef, channels: Sequence[MetricRef] = ()) -> Measured:
    """A launch as the model sees it. ``KeyError`` if the client does not report the metric."""
    attempt = launch.measurement

    def minutes(*phases: str) -> float:
        return sum(attempt.seconds.get(phase, 0.0) for phase in phases) / 60

    reported = {str(x) for x in channels if reported_value(attempt, x) is not None}
    # On a fleet, what is fetched is mostly the environment, once a machine.
    bring = minutes("fetch") if launch.machine else 0.0
    return Measured(
        launch.position,
        launch.purpose,
        attempt.values(metric),
        build=minutes("build"),
        bring=bring,
        launch=minutes(*_LAUNCH_PHASES) - bring,
        run=minutes("bench"),
        slot=launch.slot,
        at=None if launch.at is None else launch.at + minutes(*_BEFORE_BENCH),
        machine=launch.machine,
        trial=_trial(launch),
        channels=tuple(attempt.values(x) if str(x) in reported else () for x in channels),
        binary=str(attempt.provenance.engine.get("compiled", "")),
    )


@dataclass(frozen=True)
class SlotRecord:
    """``known``: launches of the slot that later ones must agree with; ``doubted``: one must agree first."""

    doubted: bool
    known: tuple[Launch, ...]

    def of(self, position: int) -> tuple[Launch, ...]:
        return tuple(launch for launch in self.known if launch.position == position)

    def control(self, plan: BisectPlan) -> Launch | None:
        """The last launch of the end that the slot knows best."""
        best = max((self.of(position) for position in (0, plan.last)), key=len)
        return best[-1] if best else None


def slot_record(records: Iterable[Launch], slot: str) -> SlotRecord:
    """A slot is doubted from a machine failure on, until a launch of a known position agreed."""
    doubted = False
    known: list[Launch] = []
    unchecked: list[Launch] = []
    for launch in ended_launches(records):
        if launch.slot != slot or launch.purpose not in SEARCHING:
            continue
        failure = launch.failure
        if launch.discarded or (failure is not None and failure.fault == "machine"):
            doubted = bool(known)
        elif launch.outcome == "measured":
            unchecked.append(launch)
            doubted = doubted and launch.position not in {x.position for x in known}
            if not doubted:
                known += unchecked
                unchecked = []
    return SlotRecord(doubted, tuple(known))


def disagreement(ended: Launch, records: Sequence[Launch], plan: BisectPlan) -> str:
    """Why a launch that has just finished is discarded; empty if it counts."""
    before = [launch for launch in ended_launches(records) if launch.ended < ended.ended]
    record = slot_record(before, ended.slot)
    scale = plan.search.scale
    earlier = [scale.level(x.attempt.values(plan.ref)) for x in record.of(ended.position) if x.attempt]
    measured = {launch.position for launch in before if launch.outcome == "measured"}
    if ended.attempt is None or not record.doubted or not earlier or not {0, plan.last} <= measured:
        return ""
    beliefs = decide.beliefs(plan.search, to_search_events(before, plan))
    level, value = fmean(earlier), scale.level(ended.attempt.values(plan.ref))
    error = math.sqrt(launch_variance(beliefs.sigma, beliefs.tau, len(ended.attempt.runs)))
    allowed = _FAR * error * math.sqrt(1 + 1 / len(earlier))
    if abs(value - level) <= max(allowed, scale.room(plan.smallest_effect)):
        return ""
    change, unit = plan.positions[ended.position].change.short, plan.ref.metric.unit
    before_failure, since = scale.value(level), scale.value(value)
    return discard_text("another value", change=change, before=before_failure, since=since, unit=unit)


def machines_out(events: Sequence[JournalEvent]) -> dict[str, MachineOffset]:
    """The machines that were put out of use, with their offsets of then."""
    seen = [_OFFSET.validate_python(dict(event.data)) for event in events if event.kind == "machine"]
    return {offset.machine: offset for offset in seen}


def why_out(offset: MachineOffset, plan: BisectPlan) -> str:
    """Why a machine is out of use."""
    effect, low, high = offset.relative(plan.search.scale)
    return discard_text(
        "unlike machine",
        machine=offset.machine,
        is_slower=plan.ref.metric.sign * effect > 0,
        metric=plan.ref.metric.display,
        effect=effect,
        low=low,
        high=high,
        most=math.expm1(UNLIKE),
    )
