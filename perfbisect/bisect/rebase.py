"""A range in which the engine below moves (a vLLM-Omni commit that pins another vLLM): a suspect by itself.

The first position on a new pin and the one before it are measured before the search goes on; where the step
is there, the report says so, and how to take its packages one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from packaging.utils import canonicalize_name

from perfbisect.bisect.decision.model import SearchOutcome
from perfbisect.bisect.plan import BisectPlan, Position
from perfbisect.jobs.commands import follow_up_command
from perfbisect.jobs.replay import LaunchRecord

_MOST = 6
_FIRST = ("vllm", "torch", "triton", "transformers", "flashinfer-python")
"""Packages that most often are behind a step, named first."""
_LIBRARIES = "nvidia-"
"""Packages of libraries that torch loads from its own environment: no layer takes their place."""


@dataclass(frozen=True)
class Crossing:
    """The position that is the first on a new pin; ``parent``: the last before it that can be measured."""

    index: int
    parent: int
    what: str
    before: str
    after: str


def crossings(positions: Sequence[Position]) -> tuple[Crossing, ...]:
    """Where a pin moves, oldest first; positions that name no pin are passed over."""
    found: list[Crossing] = []
    before: str = ""
    moved: str = ""
    parent: int | None = None
    for index, position in enumerate(positions):
        if position.group and before and position.group != before:
            moved = moved or before
        before = position.group or before
        if position.skip:
            continue
        if moved and moved != before and parent is not None:
            what, _, old = moved.rpartition(" ")
            found.append(Crossing(index, parent, what, old, before.rpartition(" ")[2]))
        moved, parent = "", index
    return tuple(found)


def pin_notes(positions: Sequence[Position]) -> tuple[str, ...]:
    """What the plan says of them."""
    return tuple(
        f"crosses the {one.what} pin at {positions[one.index].change.short}: {one.before} -> {one.after}; it "
        "and its parent are measured first after the ends"
        for one in crossings(positions)
    )


def measured_first(
    plan: BisectPlan, seen: Sequence[LaunchRecord], likely: Callable[[], Sequence[float]], asked: int
) -> int | None:
    """The position of a crossing that is to be measured before ``asked``; None: there is none any more.

    ``likely``: tells the probability of each position. A crossing that has become unlikely is left to the
    search; of several the one nearest to what the search asks for comes first.
    """
    there = {launch.position for launch in seen}
    open_ones = [one for one in crossings(plan.positions) if not {one.index, one.parent} <= there]
    if not open_ones:
        return None
    share, fair = likely(), 0.5 / max(1, plan.last)
    nearest = min(
        (one for one in open_ones if share[one.index] >= fair),
        key=lambda one: abs(one.index - asked),
        default=None,
    )
    if nearest is None:
        return None
    return nearest.parent if nearest.parent not in there else nearest.index


def of_rebase(
    plan: BisectPlan, outcome: SearchOutcome | None, seen: Sequence[LaunchRecord]
) -> tuple[str, ...]:
    """What is said where the step is the rebase: that it is, and how its packages are taken apart."""
    if outcome is None or outcome.word != "found" or len(outcome.culprits) != 1:
        return ()
    crossing = next((one for one in crossings(plan.positions) if one.index == outcome.culprits[0]), None)
    if crossing is None:
        return ()
    rebase, parent = plan.positions[crossing.index].change, plan.positions[crossing.parent].change
    said = (
        f"The step is a rebase: {rebase.short} moves its pin of {crossing.what} from {crossing.before} to "
        f"{crossing.after}. What made it may be in {crossing.what} or in another package rather than in the "
        "commit itself."
    )
    moved = differing(_packages(seen, crossing.parent), _packages(seen, crossing.index))
    swaps = [(name, new) for name, _, new in moved if new and not name.startswith(_LIBRARIES)]
    if not swaps:
        return (said,)
    shown = ", ".join(f"{name} {old or 'none'} -> {new or 'none'}" for name, old, new in moved[:_MOST])
    more = f" and {len(moved) - _MOST} more" if len(moved) > _MOST else ""
    count = "1 package differs" if len(moved) == 1 else f"{len(moved)} packages differ"
    name, version = swaps[0]
    sides = ("--a", parent.short, "--b", f"{parent.short}+pip:{name}=={version}")
    command = follow_up_command(plan.setting, "compare", plan.cell, plan.metric, *sides)
    others = ", ".join(f"+pip:{name}=={version}" for name, version in swaps[1:_MOST])
    return (
        said,
        f"{count} between the two environments: {shown}{more}.",
        f"One at a time over the parent: `{command}`" + (f"; then {others}." if others else "."),
    )


def differing(left: Sequence[str], right: Sequence[str]) -> tuple[tuple[str, str, str], ...]:
    """(name, left version, right version) of packages that differ, from lists of ``name==version``; empty:
    not there. Those that are most often behind a step come first."""
    ours, theirs = _versions(left), _versions(right)
    names = [name for name in {**ours, **theirs} if ours.get(name, "") != theirs.get(name, "")]
    order = {name: place for place, name in enumerate(_FIRST)}
    return tuple(
        (name, ours.get(name, ""), theirs.get(name, ""))
        for name in sorted(names, key=lambda name: (order.get(name, len(order)), name))
    )


def _versions(lines: Sequence[str]) -> dict[str, str]:
    rows = (line.partition("==") for line in lines)
    return {canonicalize_name(name): version for name, equals, version in rows if equals}


def _packages(seen: Sequence[LaunchRecord], position: int) -> tuple[str, ...]:
    """The packages of a position's environment, as its attempts tell them."""
    for launch in seen:
        facts = launch.attempt.provenance.facts.get("engine") if launch.attempt else None
        if launch.position == position and isinstance(facts, Mapping) and facts.get("packages"):
            return tuple(str(line) for line in facts["packages"])
    return ()
