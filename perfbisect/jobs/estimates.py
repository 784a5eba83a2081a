"""Costs and noise estimated from earlier attempts of a cell."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, variance

from perfbisect.errors import PerfbisectError
from perfbisect.jobs.folders import Jobs
from perfbisect.jobs.journal import read
from perfbisect.jobs.replay import launches
from perfbisect.model.attempt import Attempt, Costs
from perfbisect.model.metric import MetricRef

GUESS = Costs()
"""Costs of a cell that was not launched before."""

_JOBS_BACK = 20
"""Jobs whose attempts teach costs and noise."""

TYPICAL_RUNS, TYPICAL_LAUNCHES = 0.03, 0.02
"""Default noise between runs and between launches (log scale)."""


@dataclass(frozen=True)
class Noise:
    """Standard deviations between runs and between launches (log scale), and their source."""

    runs: float = TYPICAL_RUNS
    launches: float = TYPICAL_LAUNCHES
    source: str = "assumed: 3 % between runs of a launch, 2 % between launches; learnt as launches come in"


def learnt_costs(attempts: Sequence[Attempt], fallback: Costs = GUESS) -> Costs:
    """Median minutes of a launch and of a run in earlier attempts."""
    measured = _measured(attempts)
    if not measured:
        return fallback
    launch = [
        sum(s for phase, s in a.seconds.items() if phase not in ("build", "bench")) / 60 for a in measured
    ]
    run = [a.seconds.get("bench", 0.0) / 60 / len(a.runs) for a in measured]
    return Costs(build=fallback.build, launch=median(launch), run=median(run))


def cost_notes(attempts: Sequence[Attempt]) -> tuple[str, ...]:
    """A plan's note where :func:`learnt_costs` has no earlier attempts."""
    if _measured(attempts):
        return ()
    each = f"{GUESS.launch:g} min to start and stop, {GUESS.run:g} min a run"
    return (f"the minutes of a launch are a guess, as this cell was not launched here before: {each}",)


def _measured(attempts: Sequence[Attempt]) -> list[Attempt]:
    return [attempt for attempt in attempts if attempt.runs and attempt.failure is None]


def learnt_noise(attempts: Sequence[Attempt], metric: MetricRef) -> Noise:
    """Noise of earlier attempts of this cell; the default if there are too few.

    Pooled variances: of runs within launches, and of launches within changes without what runs add to them.
    """
    by_change: dict[str, list[tuple[float, int]]] = {}
    within: list[list[float]] = []
    for attempt in attempts:
        try:
            level = attempt.log_value(metric)
            logs = [math.log(value) for value in attempt.values(metric)]
        except (KeyError, ValueError):
            continue
        by_change.setdefault(attempt.change_id, []).append((level, len(logs)))
        if len(logs) > 1:
            within.append(logs)
    repeated = [made for made in by_change.values() if len(made) > 1]
    count = sum(map(len, repeated))
    if count < 4 or not within:
        return Noise()
    run_variance = _pooled_variance(within)
    # The variance of a launch's level is tau^2 + sigma^2 / r; of m launches each adds (m - 1) / m of its own.
    added = sum((len(made) - 1) / len(made) / r for made in repeated for _, r in made)
    added *= run_variance / sum(len(made) - 1 for made in repeated)
    apart = _pooled_variance([[level for level, _ in made] for made in repeated])
    runs, launches = math.sqrt(run_variance), math.sqrt(max(0.0, apart - added))
    return Noise(
        runs,
        launches,
        f"from {count} earlier launches of this cell: {runs * 100:.1f} % between runs of a launch, "
        f"{launches * 100:.1f} % between launches",
    )


def _pooled_variance(groups: Sequence[Sequence[float]]) -> float:
    squares = sum((len(group) - 1) * variance(group) for group in groups)
    return squares / sum(len(group) - 1 for group in groups)


def earlier_attempts(jobs: Jobs, digest: str) -> tuple[Attempt, ...]:
    """Attempts of the last jobs that measured this cell: for prices and noise, never as evidence."""
    earlier: list[Attempt] = []
    for job in jobs.all()[-_JOBS_BACK:]:
        with contextlib.suppress(PerfbisectError):
            records = launches(read(job.journal).events)
            attempts = [x.attempt for x in records if x.end == "finished" and x.attempt is not None]
            earlier += [a for a in attempts if a.provenance.cell_digest == digest]
    return tuple(earlier)
