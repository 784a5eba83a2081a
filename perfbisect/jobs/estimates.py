"""Costs and noise estimated from earlier attempts of a cell."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, variance
from typing import Final

from perfbisect.common.quantities import counted
from perfbisect.errors import PerfbisectError
from perfbisect.jobs.folders import Jobs
from perfbisect.jobs.journal import read
from perfbisect.jobs.replay import launches
from perfbisect.model.attempt import Attempt, Costs
from perfbisect.model.metric import Caches, MetricRef
from perfbisect.stats.two_sample import LaunchNoise, Scale

GUESS = Costs()
"""Costs where nothing was launched before."""

_JOBS_BACK = 20
"""Jobs whose attempts teach costs and noise."""

_LEAST_DEGREES, _MOST_DEGREES = 6, 20
"""Degrees of freedom from which on earlier launches are a prior, and as how many they count at most: noise
changes from one day to the next."""


@dataclass(frozen=True)
class Noise:
    """Standard deviations between runs and between launches (log scale), and their source.

    ``degrees``: of freedom of what lies between launches; 0 where it is assumed.
    """

    runs: float = 0.03
    launches: float = 0.02
    source: str = "assumed: 3 % between runs of a launch, 2 % between launches; learnt as launches come in"
    degrees: int = 0

    def of_launch(self, runs: int) -> LaunchNoise | None:
        """That of a launch of so many runs, discounted; None where too few launches tell."""
        sd = math.hypot(self.launches, self.runs / math.sqrt(runs))
        degrees = min(self.degrees, _MOST_DEGREES)
        return LaunchNoise(sd, degrees) if degrees >= _LEAST_DEGREES and sd > 0 else None


ON_PROCESSORS: Final = Noise(
    0.1,
    0.1,
    "assumed on processors that server and client share: 10 % between runs of a launch, 10 % between "
    "launches; learnt as launches come in",
)
"""Of metrics that are ``scheduled``, without devices. Three launches of vLLM-Omni on two busy processors had
8 % between them, six had 30 % with those that are discarded now (docs/omni.md)."""


@dataclass(frozen=True)
class EarlierAttempts:
    """Measured attempts of the last jobs: for prices and noise, never as evidence."""

    of_cell: tuple[Attempt, ...] = ()
    of_others: tuple[Attempt, ...] = ()

    @property
    def costs(self) -> Costs:
        """Median minutes of a launch and of a run of this cell, else of other cells, else a guess."""
        attempts = self.of_cell or self.of_others
        if not attempts:
            return GUESS
        launch = [
            sum(s for phase, s in a.seconds.items() if phase not in ("build", "bench")) / 60 for a in attempts
        ]
        run = [a.seconds.get("bench", 0.0) / 60 / len(a.runs) for a in attempts]
        return Costs(launch=median(launch), run=median(run))

    @property
    def basis(self) -> str:
        """Where the minutes of a launch come from, in words."""
        if self.of_cell:
            return f"from {counted(len(self.of_cell), 'earlier launch')} of this cell"
        if self.of_others:
            earlier = counted(len(self.of_others), "earlier launch")
            return f"a guess from {earlier} of other cells, since this cell was not launched here before"
        each = f"{GUESS.launch:g} min to start and stop, {GUESS.run:g} min a run"
        return f"a guess, since nothing was launched here before: {each}"


def learnt_noise(attempts: Sequence[Attempt], metric: MetricRef, *, has_devices: bool = True) -> Noise:
    """Noise of earlier attempts of this cell; what is assumed if there are too few.

    Launches of one run show what lies between launches of one run, noise between runs included.
    Pooled variances: of runs within launches, and of launches within changes without what runs add to them.
    """
    scale = Scale.of(metric.metric)
    by_change: dict[str, list[tuple[float, int]]] = {}
    within: list[list[float]] = []
    for attempt in attempts:
        try:
            level = scale.level(attempt.values(metric))
            logs = [scale.level((value,)) for value in attempt.values(metric)]
        except (KeyError, ValueError):
            continue
        by_change.setdefault(attempt.change_id, []).append((level, len(logs)))
        if len(logs) > 1:
            within.append(logs)
    repeated = [made for made in by_change.values() if len(made) > 1]
    count = sum(map(len, repeated))
    if count < 4:
        return ON_PROCESSORS if metric.metric.scheduled and not has_devices else Noise()
    run_variance = _pooled_variance(within) if within else 0.0
    # The variance of a launch's level is tau^2 + sigma^2 / r; of m launches each adds (m - 1) / m of its own.
    added = sum((len(made) - 1) / len(made) / r for made in repeated for _, r in made)
    degrees = sum(len(made) - 1 for made in repeated)
    added *= run_variance / degrees
    apart = _pooled_variance([[level for level, _ in made] for made in repeated])
    runs, launches = math.sqrt(run_variance), math.sqrt(max(0.0, apart - added))
    found = f"{launches * 100:.1f} % between launches"
    found = f"{runs * 100:.1f} % between runs of a launch, {found}" if within else f"{found} of one run"
    return Noise(runs, launches, f"from {count} earlier launches of this cell: {found}", degrees)


def _pooled_variance(groups: Sequence[Sequence[float]]) -> float:
    squares = sum((len(group) - 1) * variance(group) for group in groups)
    return squares / sum(len(group) - 1 for group in groups)


def recent_attempts(jobs: Jobs) -> tuple[Attempt, ...]:
    """The measured attempts of the last jobs."""
    recent: list[Attempt] = []
    for job in jobs.all()[-_JOBS_BACK:]:
        with contextlib.suppress(PerfbisectError):
            records = launches(read(job.journal).events)
            attempts = (x.attempt for x in records if x.outcome == "measured")
            recent += [a for a in attempts if a is not None and a.runs and a.failure is None]
    return tuple(recent)


def attempts_before(recent: Sequence[Attempt], digest: str) -> EarlierAttempts:
    """Recent attempts as those of a cell and of others."""
    own = [attempt.provenance.cell_digest == digest for attempt in recent]
    return EarlierAttempts(
        tuple(attempt for attempt, is_own in zip(recent, own, strict=True) if is_own),
        tuple(attempt for attempt, is_own in zip(recent, own, strict=True) if not is_own),
    )


def earlier_attempts(jobs: Jobs, digest: str, caches: Caches = "") -> EarlierAttempts:
    """Those of the last jobs, for a cell; of those that began with such caches, if there are any."""
    recent = recent_attempts(jobs)
    alike = [attempt for attempt in recent if not caches or attempt.cold == (caches == "cold")]
    return attempts_before(alike or recent, digest)


def cache_note(caches: Caches, earlier: Sequence[Attempt], metric: MetricRef) -> str:
    """What launches with filled or empty caches cost; ``earlier``: launches of the cell."""
    starts = [
        [attempt.seconds.get("launch", 0.0) / 60 for attempt in earlier if attempt.cold == is_cold]
        for is_cold in (False, True)
    ]
    warm, cold = (f"{median(minutes):.1f} min" if minutes else "" for minutes in starts)
    if caches == "warm":
        price = f", about {cold} each" if cold else ""
        return (
            f"{metric} needs filled compile caches: the first start in each environment fills them and is "
            f"not measured{price}"
        )
    known = f"a start took {cold}" if cold else "what a start takes is not known from earlier launches"
    return (
        f"{metric} needs empty compile caches: each launch has its own and compiles everything again; {known}"
        + (f", with filled caches {warm}" if warm else "")
    )
