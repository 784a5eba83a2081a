"""Minutes that nobody waited for, since work overlapped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perfbisect.jobs.fold import Launch
from perfbisect.store.events import Event


def saved(events: Iterable[Event], seen: Sequence[Launch]) -> float:
    """Minutes saved so far: a client that imported while its server started, and an environment that was
    built beside a running attempt and used by a later launch."""
    facts = [launch.attempt.provenance.facts for launch in seen if launch.attempt is not None]
    seconds = sum(float(fact.get("saved_seconds") or 0.0) for fact in facts)
    used = {launch.position for launch in seen}
    built = {
        int(event.data["position"]): float(event.data["seconds"]) for event in events if event.kind == "built"
    }
    return (seconds + sum(took for position, took in built.items() if position in used)) / 60
