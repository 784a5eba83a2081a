"""What a search for a failure launches next, and what its launches say: pure.

A launch has one of two outcomes: it serves, or it fails as the later end does. What cannot be built or fails
in another way is passed over, as ``git bisect skip`` does. A verdict rests on two launches of both its sides.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Final, Literal

SearchPurpose = Literal["end", "search", "confirm"]
FailureVerdict = Literal["found", "narrowed", "not reproduced", "good fails", "inconclusive", "out of budget"]

SERVED: Final = ""
UNBUILT: Final = "not built"
"""What a launch came to, where it did not fail: signatures of failures name a phase."""

_LEAST_SERVED = 2
"""Launches of the later end that serve before its failure is said not to be there."""


@dataclass(frozen=True)
class FailureEvidence:
    """An ended launch that tells of its change. ``signature``: of its failure, or one of the above."""

    position: int
    signature: str
    purpose: SearchPurpose = "search"


@dataclass(frozen=True)
class FailureOutcome:
    """How a search ended: ``low`` served last, ``high`` fails first, ``skipped`` between them was not judged.

    ``contradicted``: positions whose launches do not agree.
    """

    verdict: FailureVerdict
    low: int
    high: int
    skipped: tuple[int, ...] = ()
    contradicted: tuple[int, ...] = ()

    @property
    def culprits(self) -> tuple[int, ...]:
        """One of these brought the failure; empty where none is known to."""
        return tuple(range(self.low + 1, self.high + 1)) if self.verdict in ("found", "narrowed") else ()


@dataclass(frozen=True)
class FailureSearch:
    """The launches of a range 0 to ``last``; ``skips``: what is known beforehand not to be testable."""

    last: int
    skips: frozenset[int]
    evidence: Sequence[FailureEvidence]

    @cached_property
    def seen(self) -> dict[int, list[str]]:
        """What the launches of each position came to."""
        seen = defaultdict(list)
        for launch in self.evidence:
            seen[launch.position].append(launch.signature)
        return dict(seen)

    @cached_property
    def signature(self) -> str:
        """The failure that is searched for: that of the later end; empty where it has none yet."""
        return next((text for text in self.seen.get(self.last, ()) if text not in (SERVED, UNBUILT)), SERVED)

    @cached_property
    def low(self) -> int:
        """The last position that served."""
        return max((index for index, seen in self.seen.items() if SERVED in seen), default=0)

    @cached_property
    def high(self) -> int:
        """The first that fails as the later end does."""
        fails = [index for index, seen in self.seen.items() if self.signature and self.signature in seen]
        return min(fails, default=self.last)

    @cached_property
    def skipped(self) -> tuple[int, ...]:
        """Positions between the two that were not judged: not built, or failed in another way."""
        judged = {SERVED, self.signature}
        other = {index for index, seen in self.seen.items() if not judged & set(seen)}
        return tuple(sorted(x for x in self.skips | other if self.low < x < self.high))

    def outcome(self, verdict: FailureVerdict) -> FailureOutcome:
        """An end of the search, here."""
        return FailureOutcome(verdict, self.low, max(self.low, self.high), self.skipped)

    def next(self, under_way: Collection[int] = ()) -> tuple[int, SearchPurpose] | FailureOutcome | None:
        """The position to launch and what for, or how the search ended; None: wait for a launch.

        ``under_way``: positions of launches that have not ended.
        """
        contradicted = tuple(sorted(index for index, seen in self.seen.items() if len(set(seen)) > 1))
        if contradicted or self.low > self.high:
            return replace(self.outcome("inconclusive"), contradicted=contradicted or (self.high, self.low))
        good, bad = self.seen.get(0), self.seen.get(self.last)
        if good is None and 0 not in under_way:
            return 0, "end"
        if bad is None or (bad[0] == SERVED and len(bad) < _LEAST_SERVED):
            return None if self.last in under_way else (self.last, "end")
        if good is None:
            return None
        if bad[0] == SERVED:
            return self.outcome("not reproduced")
        if good[0] != SERVED:
            return self.outcome("good fails")
        between = range(self.low + 1, self.high)
        open_ = [index for index in between if index not in self.skipped]
        free = [index for index in open_ if index not in under_way]
        if free:
            return self._most_informative(free, under_way), "search"
        if open_:
            return None
        confirmed = {launch.position for launch in self.evidence if launch.purpose == "confirm"}
        fresh = [index for index in (self.high, self.low) if index not in confirmed]
        waiting = [index for index in fresh if index not in under_way]
        if waiting:
            return waiting[0], "confirm"
        return None if fresh else self.outcome("found" if self.high - self.low == 1 else "narrowed")

    def _most_informative(self, free: Sequence[int], under_way: Collection[int]) -> int:
        """The middle of what is left, or, beside each position that was tried in vain, another part of it."""
        cuts = sorted({self.low, self.high, *(x for x in under_way if self.low < x < self.high)})
        gaps = [[x for x in free if a < x < b] for a, b in pairwise(cuts)]
        widest = max(gaps, key=len)
        # Neighbours of what cannot be tested mostly cannot either: 1/2, then 1/4, 3/4, 1/8, 5/8 ... of it.
        tried = 1 + sum(index in self.seen for index in self.skipped)
        digits = range(tried.bit_length())
        share = math.fsum((tried >> digit & 1) / 2 ** (digit + 1) for digit in digits)
        return widest[int(share * len(widest))]
