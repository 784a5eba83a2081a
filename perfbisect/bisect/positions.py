"""Positions of a range, and where the engine below them moves (a vLLM-Omni commit that pins another vLLM).

The first position on a new pin and the one before it are measured before the search goes on. If the step is
there, the report says so, and how to swap its packages one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from packaging.utils import canonicalize_name

from perfbisect.environments.base import Builder
from perfbisect.errors import UsageError
from perfbisect.jobs.measurement import PlanPart
from perfbisect.model.change import Change

_FIRST = ("vllm", "torch", "triton", "transformers", "flashinfer-python")
"""Packages that are most often behind a step, listed first."""


class Position(PlanPart):
    """Changes with identical environments, oldest first; ``skip``: why not testable."""

    changes: tuple[Change, ...]
    skip: str = ""
    cached: bool = False
    group: str = ""
    """The engine below, where it moves within a range: ``vllm v0.21.0``."""

    @property
    def change(self) -> Change:
        """The one that is measured: the first, which brought the difference."""
        return self.changes[0]


def find_positions(
    changes: Sequence[Change], builder: Builder, deploys: frozenset[str]
) -> tuple[Position, ...]:
    """Merge neighbours with one environment; ``deploys``: ids of changes of the cell's deploy YAML.

    Raises:
        UsageError: --env is wrong.
    """
    positions: list[Position] = []
    before = ""
    for change in changes:
        refusal = builder.refuses(change)
        if refusal is not None and refusal.error:
            raise UsageError(refusal.reason, next_step="mend --env")
        if refusal is not None:
            positions.append(Position(changes=(change,), skip=refusal.reason, group=builder.group(change)))
            before = ""
            continue
        identity = builder.key(change)
        if identity == before and change.id not in deploys:
            last = positions[-1]
            positions[-1] = last.model_copy(update={"changes": (*last.changes, change)})
            continue
        before = identity
        positions.append(
            Position(changes=(change,), cached=builder.cached(change), group=builder.group(change))
        )
    return tuple(positions)


@dataclass(frozen=True)
class Crossing:
    """The first position on a new pin; ``parent``: the last testable one before it."""

    index: int
    parent: int
    what: str
    before: str
    after: str


def crossings(positions: Sequence[Position]) -> tuple[Crossing, ...]:
    """Where a pin moves, oldest first; positions without a pin are passed over."""
    found: list[Crossing] = []
    before = moved = ""
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
    """The plan's notes on them."""
    return tuple(
        f"crosses the {crossing.what} pin at {positions[crossing.index].change.short}: {crossing.before} -> "
        f"{crossing.after}; it and its parent are measured first after the ends"
        for crossing in crossings(positions)
    )


def next_beside_pin(
    positions: Sequence[Position],
    measured: Collection[int],
    probabilities: Callable[[], Sequence[float]],
    asked: int,
) -> int | None:
    """The position beside a moved pin to measure before ``asked``: of the likely ones the nearest to it."""
    waiting = [x for x in crossings(positions) if not {x.index, x.parent} <= set(measured)]
    if not waiting:
        return None
    share, fair = probabilities(), 0.5 / max(1, len(positions) - 1)
    likely = [crossing for crossing in waiting if share[crossing.index] >= fair]
    if not likely:
        return None
    nearest = min(likely, key=lambda crossing: abs(crossing.index - asked))
    return nearest.parent if nearest.parent not in measured else nearest.index


def differing(left: Sequence[str], right: Sequence[str]) -> tuple[tuple[str, str, str], ...]:
    """(name, left version, right version) of packages that differ in lists of ``name==version``.

    An empty version: not there. Packages that are most often behind a step come first.
    """
    ours, theirs = _versions(left), _versions(right)
    names = [name for name in {**ours, **theirs} if ours.get(name, "") != theirs.get(name, "")]
    order = {name: place for place, name in enumerate(_FIRST)}
    return tuple(
        (name, ours.get(name, ""), theirs.get(name, ""))
        for name in sorted(names, key=lambda name: (order.get(name, len(order)), name))
    )


def _versions(lines: Sequence[str]) -> Mapping[str, str]:
    rows = (line.partition("==") for line in lines)
    return {canonicalize_name(name): version for name, equals, version in rows if equals}
