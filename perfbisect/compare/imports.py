"""The counts behind a share, where a run keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from perfbisect.model.attempt import Attempt
from perfbisect.model.metric import MetricRef

_COUNTED = {
    "failed": ("failed", ("completed", "failed")),
    "spec_decode_acceptance_rate": ("accepted_tokens", ("draft_tokens",)),
}
"""Shares of which a run keeps the counts: the fact that is counted, and those that it is a share of."""


def _counts(guard: MetricRef, facts: Mapping[str, Any]) -> tuple[int, int] | None:
    """Hits, and of how many; None where the run keeps no counts of the share."""
    if guard.name not in _COUNTED:
        return None
    hits, of = _COUNTED[guard.name]
    known = [number for name in (hits, *of) if isinstance(number := facts.get(name), int)]
    if len(known) != 1 + len(of):
        return None
    count, whole = known[0], sum(known[1:])
    return (count, whole) if 0 <= count <= whole and whole else None


def pooled(guard: MetricRef, attempts: Iterable[Attempt]) -> tuple[int, int] | None:
    """Hits, and of how many, over all runs of launches; None where a run keeps no counts."""
    known = [_counts(guard, run.facts) for attempt in attempts for run in attempt.runs]
    found = [one for one in known if one is not None]
    if not found or len(found) != len(known):
        return None
    return sum(hits for hits, _ in found), sum(of for _, of in found)
