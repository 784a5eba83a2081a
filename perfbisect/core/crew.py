"""Who asks what to launch next, and what the others are doing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfbisect.core.noise import Launch
from perfbisect.core.plan import Pending

WORKERS = 4
"""Launches at once that a search can use: with more, each knows too little of what the others will tell."""


@dataclass(frozen=True)
class Crew:
    """The free slot that asks; the launches under way; all slots, where they are known."""

    slot: str = ""
    pending: tuple[Pending, ...] = ()
    slots: tuple[str, ...] = ()

    def rank(self, data: tuple[Launch, ...]) -> int:
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

    def lives(self, slot: str) -> bool:
        """Whether a slot will ask again: it is named among the slots, or, where these are not known,
        something is under way."""
        return slot == self.slot or (slot in self.slots if self.slots else bool(self.pending))


ALONE = Crew()
"""One slot, nothing under way."""


def crew(slot: str, pending: Sequence[Pending], slots: Sequence[str]) -> Crew:
    """:raises ValueError: the slot that asks has a launch under way, or is not among the slots."""
    if any(launch.slot == slot for launch in pending):
        raise ValueError(f"slot {slot!r} asks for a launch while one of its own is under way")
    if slots and slot not in slots:
        raise ValueError(f"slot {slot!r} is not among the slots {', '.join(slots)}")
    return Crew(slot, tuple(pending), tuple(slots))
