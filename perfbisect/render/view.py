"""What the live view knows: the notices of a job, folded. Times are seconds of one clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from perfbisect.render.documents import BeliefDocument, LaunchDocument, PositionDocument
from perfbisect.render.notices import Launched, Launching, Notice, PhaseBegan, Planned, Waiting

_KEPT = 3

_AFTER: Final[Mapping[str, str]] = {
    "fetch": "building",
    "build": "starting",
    "launch": "starting",
    "ready": "discarded run",
    "stop": "stopped",
}
"""A phase that was told -> what the attempt does from then on."""


@dataclass(frozen=True)
class Running:
    """An attempt under way on a slot; ``phase`` in words, since ``since``; ``run``: the number of the run
    under way, 0 in another phase."""

    number: int
    change: str
    subject: str
    position: int
    of: int
    purpose: str
    runs: int
    why: str
    began: float
    phase: str
    since: float
    run: int = 0


@dataclass(frozen=True)
class View:
    """Everything that is shown; ``seen``: position -> ``measured`` or ``failed``."""

    title: str = ""
    history: tuple[PositionDocument, ...] = ()
    seen: Mapping[int, str] = field(default_factory=dict)
    beliefs: BeliefDocument | None = None
    running: Mapping[str, Running] = field(default_factory=dict)
    waiting: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    """Slot -> why it waits, and until when."""
    last: tuple[LaunchDocument, ...] = ()
    """The last launches, the newest first."""
    unit: str = ""
    used: float = 0.0
    """Minutes of the launches that have ended."""
    budget: float = 0.0
    """Minutes; 0: none was set."""
    began: float | None = None


def after(view: View, notice: Notice, now: float) -> View:
    """The view after a notice that came at ``now``."""
    if view.began is None:
        view = replace(view, began=now)
    if isinstance(notice, Planned):
        plan = notice.plan
        skips = {skip.change.id for skip in plan.skips}
        known = {p.index: "failed" for p in plan.positions if p.changes and p.changes[0].id in skips}
        title = f"{plan.cell.name}, {plan.metric.display}"
        return replace(
            view, title=title, history=plan.positions, seen=known, unit=plan.metric.unit,
            budget=plan.budget_minutes,
        )  # fmt: skip
    if isinstance(notice, Launching):
        attempt = Running(
            notice.number, notice.change, notice.subject, notice.position, notice.of, notice.purpose,
            notice.runs, notice.why, now, "building", now,
        )  # fmt: skip
        waiting = {slot: why for slot, why in view.waiting.items() if slot != notice.slot}
        return replace(view, running={**view.running, notice.slot: attempt}, waiting=waiting)
    if isinstance(notice, PhaseBegan):
        attempt_there = view.running.get(notice.slot)
        told = _phase(notice) if attempt_there else None
        if attempt_there is None or told is None:
            return view
        changed = replace(attempt_there, phase=told[0], run=told[1], since=now)
        return replace(view, running={**view.running, notice.slot: changed})
    if isinstance(notice, Launched):
        launch = notice.launch
        outcome = "measured" if launch.value is not None else "failed"
        seen = view.seen
        if launch.fault in ("", "change") and seen.get(launch.position) != "measured":
            seen = {**seen, launch.position: outcome}
        return replace(
            view,
            history=notice.history or view.history,
            seen=seen,
            beliefs=notice.beliefs or view.beliefs,
            running={slot: x for slot, x in view.running.items() if slot != launch.slot},
            last=(launch, *view.last)[:_KEPT],
            unit=notice.unit,
            used=notice.used,
            budget=notice.budget,
        )
    if isinstance(notice, Waiting):
        until = (notice.reason, now + notice.seconds)
        return replace(view, waiting={**view.waiting, notice.slot: until})
    return view


def used(view: View, now: float) -> float:
    """Minutes spent, those of the attempts under way included."""
    return view.used + sum(now - x.began for x in view.running.values()) / 60


def _phase(notice: PhaseBegan) -> tuple[str, int] | None:
    """What the attempt does now, and the number of its run; None where the notice does not say."""
    detail = notice.detail
    if notice.phase in ("warm", "bench"):
        done = detail.get("run", 0) if notice.phase == "bench" else 0
        of = detail.get("of")
        if isinstance(done, int) and isinstance(of, int) and done >= of:
            return "stopping", 0
        return (f"run {done + 1}", done + 1) if isinstance(done, int) else None
    phase = _AFTER.get(notice.phase)
    return None if phase is None else (phase, 0)
