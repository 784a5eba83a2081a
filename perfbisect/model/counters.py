"""Counters of an engine: totals since its start, their increase in a run, and CPU seconds by process role."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perfbisect.model.metric import STAGE

if TYPE_CHECKING:
    from perfbisect.model.attempt import RunResult

COUNTERS_FACT = "engine_counters"
CPU_FACT = "cpu_seconds"
"""Facts of a run."""


@dataclass(frozen=True)
class EngineCounters:
    """Counters by stage of a pipeline; the stage of an engine without stages is empty.

    ``requests``: finished ones; ``queue_s``, ``prefill_s``, ``decode_s``, ``request_s``: their seconds;
    ``prompt_tokens``, ``generation_tokens``; ``iterations`` of the engine with their ``iteration_tokens``;
    ``preemptions``; ``prefix_queries`` and ``prefix_hits`` in tokens; ``drafts``, ``draft_tokens``,
    ``accepted_tokens``; ``first_packets`` of sound, with ``first_packet_s`` from the request to each. A
    counter that the engine does not have is absent.
    """

    stages: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def since(self, before: EngineCounters) -> EngineCounters:
        """The increase since an earlier reading.

        A counter that one of them lacks is left out, and so is one that fell: the engine began anew.
        """
        stages = {
            stage: {
                name: value - before.stages[stage][name]
                for name, value in values.items()
                if name in before.stages[stage] and value >= before.stages[stage][name]
            }
            for stage, values in self.stages.items()
            if stage in before.stages
        }
        return EngineCounters({stage: values for stage, values in stages.items() if values})

    def total(self, name: str) -> float | None:
        """A counter summed over the stages; None if no stage has it."""
        values = [counters[name] for counters in self.stages.values() if name in counters]
        return math.fsum(values) if values else None

    def queue_values(self) -> dict[str, float]:
        """The metric of each stage's queue: the mean of its requests, ms."""
        return {
            f"{STAGE}{stage}.queue_ms": 1e3 * counters["queue_s"] / counters["requests"]
            for stage, counters in self.stages.items()
            # An engine without stages has its queue among the phases of a request.
            if stage and counters.get("requests") and "queue_s" in counters
        }

    @classmethod
    def from_json(cls, document: object) -> EngineCounters:
        """Read ``stages`` as a journal has them; what is no finite number is left out."""
        stages = document if isinstance(document, Mapping) else {}
        read = {str(stage): _numbers(values) for stage, values in stages.items()}
        return cls({stage: values for stage, values in read.items() if values})


@dataclass(frozen=True)
class RunCounters:
    """What an engine counted in one or several runs.

    ``cpu_s``: CPU seconds by role: ``api_server``, ``engine_core``, ``worker``, ``other``.
    """

    engine: EngineCounters = field(default_factory=EngineCounters)
    cpu_s: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of_run(cls, run: RunResult) -> RunCounters:
        """The counters of a run; none where it was recorded without."""
        readings = run.facts.get(COUNTERS_FACT)
        before, after = (
            EngineCounters.from_json(readings.get(name) if isinstance(readings, Mapping) else None)
            for name in ("before", "after")
        )
        return cls(after.since(before), _numbers(run.facts.get(CPU_FACT)))

    @classmethod
    def of_runs(cls, runs: Iterable[RunResult]) -> RunCounters:
        """Sums over runs, of what every run has."""
        each = [cls.of_run(run) for run in runs]
        stages = _in_all([x.engine.stages for x in each])
        engine = {stage: _sums([x.engine.stages[stage] for x in each]) for stage in stages}
        return cls(EngineCounters(engine), _sums([x.cpu_s for x in each]))


def _numbers(values: Any) -> dict[str, float]:
    if not isinstance(values, Mapping):
        return {}
    return {
        str(name): float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def _in_all(mappings: list[Mapping[str, Any]]) -> list[str]:
    return [name for name in mappings[0] if all(name in other for other in mappings)] if mappings else []


def _sums(mappings: list[Mapping[str, float]]) -> dict[str, float]:
    return {name: math.fsum(mapping[name] for mapping in mappings) for name in _in_all([*mappings])}
