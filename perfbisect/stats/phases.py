"""Differences of the phases of a request between two sides, from counters that every launch keeps.

The unit of replication is the launch: each gives one value a phase. Intervals are of one phase each, at 95 %;
that a phase moved is said with 5 % for all phases of a comparison together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, Literal

import numpy as np

from perfbisect.model.counters import RunCounters
from perfbisect.stats.robust import quantiles
from perfbisect.stats.two_sample import difference_p, difference_posterior

PhaseKind = Literal["time", "work", "cpu"]
PhaseVerdict = Literal["moved", "unchanged", "open", "unknown"]

ERROR: Final = 0.05
"""Probability that any phase of two equal sides is said to have moved."""

_BLOCK_SIDE = 2
"""Launches of a side in a block of an A/B."""

_LARGEST_NOISE = 0.1
"""Noise of a launch relative to the scale of its phase, at most; the model's noise is relative."""

_Counters = Mapping[str, float]


@dataclass(frozen=True)
class PhaseDifference:
    """A phase of a request, or CPU time of a role: medians of launches, and B - A with its 95 % interval.

    ``stage``: of a pipeline, else empty. ``smallest``: the smallest relevant difference. ``verdict``:
    ``moved`` by a relevant amount, with 5 % error over all phases; ``unchanged``: the interval lies within
    ``smallest``; ``open``: neither can be said; ``unknown``: too few launches for an interval.
    """

    name: str
    kind: PhaseKind
    unit: str
    stage: str
    a: float
    b: float
    difference: float
    low: float | None
    high: float | None
    smallest: float
    verdict: PhaseVerdict

    @property
    def excludes_zero(self) -> bool:
        return (self.low or 0.0) > 0 or (self.high or 0.0) < 0


@dataclass(frozen=True)
class _Phase:
    """How a phase is computed, and from which difference on it is relevant.

    ``share``: of the phase's own level on side A; ``of_whole``: of the level of ``whole``; ``least``: in its
    unit. The largest of them counts.
    """

    name: str
    kind: PhaseKind
    unit: str
    value: Callable[[_Counters], float]
    share: float = 0.03
    whole: Callable[[_Counters], float] | None = None
    of_whole: float = 0.0
    least: float = 0.0


def _ratio(counters: _Counters, top: str, bottom: str, factor: float = 1.0) -> float:
    if counters[bottom] <= 0:
        raise KeyError(bottom)
    return factor * counters[top] / counters[bottom]


def _per_request(name: str, factor: float = 1.0) -> Callable[[_Counters], float]:
    return lambda counters: _ratio(counters, name, "requests", factor)


def _step_ms(counters: _Counters) -> float:
    """Of one request: each step after its first token gives it a token and the drafts that are accepted."""
    steps = counters["generation_tokens"] - counters["requests"] - counters.get("accepted_tokens", 0.0)
    if steps <= 0:
        raise KeyError("steps")
    return 1e3 * counters["decode_s"] / steps


def _first_token_ms(counters: _Counters) -> float:
    return _per_request("queue_s", 1e3)(counters) + _per_request("prefill_s", 1e3)(counters)


def _outside_ms(counters: _Counters) -> float:
    core_s = counters["queue_s"] + counters["prefill_s"] + counters["decode_s"]
    return _ratio({**counters, "outside_s": counters["request_s"] - core_s}, "outside_s", "requests", 1e3)


_PHASES: Final = (
    _Phase("queue", "time", "ms a request", _per_request("queue_s", 1e3), 0.03, _first_token_ms, 0.01),
    _Phase(
        "chunk transfer", "time", "ms a request", _per_request("chunk_s", 1e3), 0.03, _first_token_ms, 0.01
    ),
    _Phase("prefill", "time", "ms a request", _per_request("prefill_s", 1e3), 0.03, _first_token_ms, 0.01),
    _Phase("decode", "time", "ms a step", _step_ms),
    _Phase(
        *("first packet", "time", "ms a request"),
        lambda c: _ratio(c, "first_packet_s", "first_packets", 1e3),
        share=0.05,
    ),
    _Phase(
        "outside the core", "time", "ms a request", _outside_ms, 0.03, _per_request("request_s", 1e3), 0.005
    ),
    _Phase("output tokens", "work", "a request", _per_request("generation_tokens"), 0.02),
    _Phase("iterations", "work", "a request", _per_request("iterations"), 0.02),
    _Phase("tokens", "work", "an iteration", lambda c: _ratio(c, "iteration_tokens", "iterations"), 0.02),
    _Phase("preemptions", "work", "a request", _per_request("preemptions"), least=0.01),
    _Phase(
        "prefix-cache hits", "work", "share", lambda c: _ratio(c, "prefix_hits", "prefix_queries"), least=0.02
    ),
    _Phase(
        "accepted drafts", "work", "share", lambda c: _ratio(c, "accepted_tokens", "draft_tokens"), least=0.02
    ),
)

_CPU_PHASES: Final = tuple(
    _Phase(role, "cpu", "CPU ms a request", _per_request(role, 1e3), 0.05, _per_request("all", 1e3), 0.02)
    for role in ("api_server", "engine_core", "worker", "other")
)


def compare_phases(
    a: Sequence[RunCounters],
    b: Sequence[RunCounters],
    others: Sequence[Sequence[RunCounters]] = (),
    *,
    is_blocked: bool = False,
) -> tuple[PhaseDifference, ...]:
    """The phases that every launch of both sides has, in the order of a request, then work and CPU.

    ``others``: launches of other changes, a group each, which show the noise between launches.
    ``is_blocked``: the launches, in order, are those of blocks of an A/B of four.
    """
    if not a or not b:
        return ()
    stages = [stage for stage in a[0].engine.stages if all(stage in x.engine.stages for x in (*a, *b))]
    series = [
        values
        for stage in stages
        for phase in _PHASES
        if (values := _Series.read(phase, stage, [_engine(stage, side) for side in (a, b, *others)]))
    ]
    cpu = [_cpu(side) for side in (a, b, *others)]
    series += [values for phase in _CPU_PHASES if (values := _Series.read(phase, "", cpu))]
    error = ERROR / max(1, len(series))
    return tuple(values.judge(error, is_blocked) for values in series)


def _engine(stage: str, side: Sequence[RunCounters]) -> list[_Counters]:
    """The counters of a stage; with ``chunk_s`` where it works on what the stage before it still makes.

    Its requests then wait from their arrival for the first chunk: as long as the stage before waits and makes
    its first token, and for the rest of the chunk and its transfer.
    """
    rows: list[_Counters] = []
    for launch in side:
        own = launch.engine.stages.get(stage, {})
        before = launch.engine.stages.get(str(int(stage) - 1), {}) if stage.isdecimal() else {}
        first_s = [before.get(name, math.inf) for name in ("queue_s", "prefill_s")]
        chunk_s = own.get("queue_s", 0.0) - math.fsum(first_s)
        # A stage that begins where the one before has ended has no such wait.
        is_streamed = chunk_s > 0 and before["requests"] == own["requests"]
        rows.append({**own, "chunk_s": chunk_s} if is_streamed else own)
    return rows


def _cpu(side: Sequence[RunCounters]) -> list[_Counters]:
    """CPU seconds with the requests of the stage that has most: a request may pass several."""
    rows: list[_Counters] = []
    for launch in side:
        requests = [own["requests"] for own in launch.engine.stages.values() if "requests" in own]
        whole = {"requests": max(requests)} if requests and launch.cpu_s else {}
        rows.append({**launch.cpu_s, "all": math.fsum(launch.cpu_s.values()), **whole})
    return rows


@dataclass(frozen=True)
class _Series:
    """The values of a phase: of A, of B, then of other changes."""

    phase: _Phase
    stage: str
    groups: tuple[tuple[float, ...], ...]
    smallest: float

    @staticmethod
    def read(phase: _Phase, stage: str, groups: Sequence[Sequence[_Counters]]) -> _Series | None:
        """The values; None if a launch of either side lacks one."""
        values = [tuple(_values(phase.value, group)) for group in groups]
        if any(len(values[side]) < len(groups[side]) for side in (0, 1)):
            return None
        wholes = list(_values(phase.whole, groups[0])) if phase.whole else []
        smallest = max(
            phase.share * abs(median(values[0])),
            phase.of_whole * abs(median(wholes)) if wholes else 0.0,
            phase.least,
        )
        return _Series(phase, stage, (values[0], values[1], *filter(None, values[2:])), smallest)

    def judge(self, error: float, is_blocked: bool) -> PhaseDifference:
        a, b = self.groups[:2]
        difference, low, high, verdict = self._difference(error, is_blocked)
        return PhaseDifference(
            name=self.phase.name,
            kind=self.phase.kind,
            unit=self.phase.unit,
            stage=self.stage,
            a=median(a),
            b=median(b),
            difference=difference,
            low=low,
            high=high,
            smallest=self.smallest,
            verdict=verdict,
        )

    def _difference(
        self, error: float, is_blocked: bool
    ) -> tuple[float, float | None, float | None, PhaseVerdict]:
        a, b = self.groups[:2]
        plain = median(b) - median(a)
        if min(len(a), len(b)) < 2:
            return plain, None, None, "unknown"
        scale = self._scale()
        if scale == 0.0 or len({*a, *b}) == 1:
            return 0.0, 0.0, 0.0, "unchanged"
        # The shape is (blocks, launches).
        has_blocks = is_blocked and len(a) == len(b) and len(a) % _BLOCK_SIDE == 0
        left, right = (
            np.array(side, float).reshape(-1, _BLOCK_SIDE if has_blocks else len(side)) for side in (a, b)
        )
        values = np.concatenate([left, right], axis=1)
        is_b = np.zeros(values.shape, bool)
        is_b[:, left.shape[1] :] = True
        posterior = difference_posterior(values / scale, is_b)
        # Rounded, so that equal sides differ by zero and not by an error of the floating point.
        low, middle, high = (scale * round(float(x), 9) for x in quantiles(*posterior, (0.025, 0.5, 0.975)))
        if max(-low, high) < self.smallest:
            return middle, low, high, "unchanged"
        is_relevant = abs(middle) >= self.smallest and (low > 0 or high < 0)
        return middle, low, high, "moved" if is_relevant and difference_p(self.groups) < error else "open"

    def _scale(self) -> float:
        """The level; larger where noise is: the model of the noise knows about 0.1 % to 50 %."""
        squares = [(value - float(np.mean(group))) ** 2 for group in self.groups for value in group]
        degrees = len(squares) - len(self.groups)
        noise = math.sqrt(math.fsum(squares) / degrees) if degrees > 0 else 0.0
        level = median(abs(value) for group in self.groups[:2] for value in group)
        return max(level, noise / _LARGEST_NOISE)


def _values(value: Callable[[_Counters], float], launches: Sequence[_Counters]) -> Iterator[float]:
    for counters in launches:
        try:
            yield value(counters)
        except KeyError:
            continue
