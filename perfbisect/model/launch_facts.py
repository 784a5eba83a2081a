"""Metrics that a launch has beside its client's: of the engine's log and counters, times and memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from perfbisect.model.counters import EngineCounters
from perfbisect.model.metric import METRICS, Metric

MEMORY_FACT: Final = "memory"
"""Fact of a launch: GiB by what was read: ``host ready``, ``device end``."""

WAITED_FACT: Final = "waited_for_memory"
"""Fact of a launch: seconds before its server was started, in which devices were not free."""

_RATIO = re.compile(r"(?P<more>1 \+ )?(?P<part>\w+) / (?P<whole>\w+)")
_STAGE = re.compile(r"stage \d+ ")


def launch_value(
    metric: Metric, facts: Mapping[str, Any], seconds: Mapping[str, float], *, cold: bool
) -> float | None:
    """A metric of the whole launch, None if it was not recorded or its caches were in another state.

    Of stages sizes are added up, as they share the devices, and the longest time counts.
    """
    if metric.caches and metric.caches != ("cold" if cold else "warm"):
        return None
    if metric.source == "engine log":
        found = list(_logged(facts.get("engine_log"), metric))
        return (max(found) if metric.kind == "time" else sum(found)) if found else None
    if metric.caches:
        waited = facts.get(WAITED_FACT)
        ready = seconds.get("launch", 0.0) - (waited if isinstance(waited, int | float) else 0.0)
        return ready if ready > 0 else None
    recorded = facts.get(MEMORY_FACT)
    value = recorded.get(metric.fact) if isinstance(recorded, Mapping) else None
    return float(value) if isinstance(value, int | float) and value > 0 else None


def facts_of_metrics(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Those facts of a launch that its metrics are read from: numbers, without paths or messages."""
    read = {metric.fact for metric in METRICS.values() if metric.source == "engine log"}
    logged = facts.get("engine_log") or {}
    engine_log = {name: text for name, text in logged.items() if _STAGE.sub("", name, count=1) in read}
    kept = {name: facts[name] for name in (MEMORY_FACT, WAITED_FACT) if name in facts}
    return {**kept, **({"engine_log": engine_log} if engine_log else {})}


def _logged(logged: object, metric: Metric) -> Iterator[float]:
    """The numbers of a fact in the unit of the metric, of each stage that has one."""
    for name, text in logged.items() if isinstance(logged, Mapping) else ():
        number, _, unit = str(text).partition(" ")
        if _STAGE.sub("", str(name), count=1) == metric.fact and unit == metric.unit:
            yield float(number)


def counted_value(metric: Metric, counted: EngineCounters) -> float | None:
    """The ratio of two counters of a run; None if one is missing, or nothing was counted."""
    ratio = _RATIO.fullmatch(metric.fact)
    if ratio is None:
        return None
    part, whole = counted.total(ratio["part"]), counted.total(ratio["whole"])
    if part is None or not whole:
        return None
    # Counters are not read at one instant: hits of a query may be counted first.
    return 1.0 + part / whole if ratio["more"] else min(1.0, part / whole)
