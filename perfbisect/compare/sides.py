"""The launches of a comparison, by side."""

from __future__ import annotations

from collections.abc import Sequence

from perfbisect.errors import UsageError
from perfbisect.jobs.replay import Launch
from perfbisect.model.attempt import Attempt
from perfbisect.model.metric import MetricRef
from perfbisect.stats import ab_test

SIDES: tuple[ab_test.Side, ab_test.Side] = ("a", "b")
"""Position 0 and 1 of a comparison."""


def in_turn(seen: Sequence[Launch]) -> tuple[Launch, ...]:
    """The launches that gave values, in order."""
    return tuple(launch for launch in seen if launch.end == "finished" and launch.attempt is not None)


def attempts_of(seen: Sequence[Launch], side: ab_test.Side) -> tuple[Attempt, ...]:
    """The attempts of one side that gave values."""
    index = SIDES.index(side)
    return tuple(x.attempt for x in in_turn(seen) if x.position == index and x.attempt is not None)


def seen_of(made: Sequence[Launch], metric: MetricRef) -> tuple[ab_test.Seen, ...]:
    """What the core sees of them. :raises KeyError: a launch does not report the metric."""
    return tuple(
        ab_test.Seen(SIDES[launch.position], launch.attempt.values(metric))
        for launch in made
        if launch.attempt is not None
    )


def shared_metrics(made: Sequence[Launch]) -> tuple[str, ...]:
    """Names that every run of every launch reports, in the order of the first."""
    runs = [run.values for launch in made if launch.attempt is not None for run in launch.attempt.runs]
    if not runs:
        return ()
    return tuple(name for name in runs[0] if all(name in run for run in runs))


def check_overlap(seen: Sequence[Launch]) -> None:
    """:raises UsageError: the sides report no metric that the other reports too."""
    made = in_turn(seen)
    if shared_metrics(made) or len(made) < 2:
        return
    told = [
        sorted({name for attempt in attempts_of(seen, side) for run in attempt.runs for name in run.values})
        for side in SIDES
    ]
    raise UsageError(
        "the sides report no metric in common, so nothing can be compared: "
        f"A reports {', '.join(told[0])}; B reports {', '.join(told[1])}",
        where=made[-1].attempt.folder if made[-1].attempt else None,
        next_step="measure both with one client: --client",
    )
