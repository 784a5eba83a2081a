"""Counters that an engine serves on ``/metrics``, and CPU seconds of its processes.

The names are those of vLLM 0.5 to 0.32; vLLM-Omni has them with the labels ``stage`` and ``replica``, and
names of its own, ``vllm_omni:...``.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from perfbisect.model.counters import EngineCounters
from perfbisect.system.processes import Identity, Process

_SAMPLE = re.compile(
    r"vllm(?P<omni>_omni)?:(?P<name>[\w:]+)(?P<labels>\{.*\})?[ \t]+(?P<value>\S+)(?:[ \t]+-?\d+)?[ \t]*"
)
_STAGE = re.compile(r'[{,]\s*stage="([\w.:/-]{1,60})"')
"""Names are shown in reports: what else a label may hold is no stage."""

_OMNI: Final = "omni:"
"""Begins a name of vLLM-Omni, whose totals over all stages are called as vLLM's counters of one."""

_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "requests": ("e2e_request_latency_seconds_count", "request_success_total"),
    "request_s": ("e2e_request_latency_seconds_sum",),
    # V0 had the second too, with the same values where it had both.
    "queue_s": ("request_queue_time_seconds_sum", "time_in_queue_requests_sum"),
    "prefill_s": ("request_prefill_time_seconds_sum",),
    "decode_s": ("request_decode_time_seconds_sum",),
    "prompt_tokens": ("prompt_tokens_total",),
    "generation_tokens": ("generation_tokens_total",),
    # A histogram whose own name ends in _total.
    "iterations": ("iteration_tokens_total_count",),
    "iteration_tokens": ("iteration_tokens_total_sum",),
    "preemptions": ("num_preemptions_total",),
    # Renamed in 0.9; for some releases a page had both.
    "prefix_queries": ("prefix_cache_queries_total", "gpu_prefix_cache_queries_total"),
    "prefix_hits": ("prefix_cache_hits_total", "gpu_prefix_cache_hits_total"),
    "drafts": ("spec_decode_num_drafts_total",),
    "draft_tokens": ("spec_decode_num_draft_tokens_total",),
    "accepted_tokens": ("spec_decode_num_accepted_tokens_total",),
    "first_packets": (f"{_OMNI}audio_ttfp_s_count",),
    "first_packet_s": (f"{_OMNI}audio_ttfp_s_sum",),
}
"""Counter -> its names on a page, the latest era first; the first that a page has counts."""

_IN_FLIGHT: Final = ("num_requests_running", "num_requests_waiting")

_KIND = re.compile(r"_(?:sum|count|total)$")

METRIC_FAMILIES: Final = tuple(
    dict.fromkeys(
        f"vllm:{_KIND.sub('', name)}"
        for name in (*(names[0] for names in _NAMES.values()), *_IN_FLIGHT)
        if not name.startswith(_OMNI)
    )
)
"""Names of the latest era as vLLM declares them."""


def _samples(page: str) -> Iterator[tuple[str, str, float]]:
    """Name, stage and value of the engine's samples.

    A page whose last line has no end has none, since series may be missing.
    """
    for line in page.splitlines() if page.endswith("\n") else ():
        found = _SAMPLE.fullmatch(line)
        if found is None:
            continue
        try:
            value = float(found["value"])
        except ValueError:
            continue
        # A page may have NaN and +Inf, which would spoil a sum.
        if math.isfinite(value):
            # vLLM-Omni has a page for all stages, told apart by a label.
            stage = _STAGE.search(found["labels"] or "")
            yield (_OMNI if found["omni"] else "") + found["name"], stage[1] if stage else "", value


def read_counters(page: str) -> EngineCounters:
    """The counters of a ``/metrics`` page by stage, summed over engines, replicas and finish reasons.

    A page of another engine, or one that is cut off, has none.
    """
    sums: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for name, stage, value in _samples(page):
        # A page has one series for each engine, replica and finish reason.
        sums[stage][name] += value
    stages = {}
    # In the order of the pipeline: the first series of a page may be that of a later stage.
    for stage in sorted(sums, key=lambda name: int(name) if name.isdecimal() else -1):
        named, found = sums[stage], {}
        for counter, names in _NAMES.items():
            # Clients of Prometheus may leave out the suffix of a counter.
            spellings = [spelling for name in names for spelling in (name, name.removesuffix("_total"))]
            number = next((named[spelling] for spelling in spellings if spelling in named), None)
            if number is not None:
                found[counter] = number
        if found:
            stages[stage] = found
    return EngineCounters(stages)


def requests_in_flight(page: str) -> int:
    """Number of unfinished requests; 0 if the page does not say."""
    return int(sum(value for name, _, value in _samples(page) if name in _IN_FLIGHT))


def prefix_cache(counters: EngineCounters) -> dict[str, float]:
    """Prefix-cache queries and hits in tokens since the start; empty if not reported."""
    queries, hits = counters.total("prefix_queries"), counters.total("prefix_hits")
    return {} if queries is None or hits is None else {"queries": queries, "hits": hits}


def hit_rate(before: Mapping[str, float], after: Mapping[str, float]) -> float | None:
    """Hit rate between two readings of :func:`prefix_cache`; None without queries, or if one is empty."""
    if not before or not after:
        return None
    queries, hits = after["queries"] - before["queries"], after["hits"] - before["hits"]
    # Counters are not read at one instant: hits of a query may be counted first.
    return min(1.0, max(0.0, hits / queries)) if queries > 0 else None


_ROLES: Final = (("APIServer", "api_server"), ("EngineCor", "engine_core"), ("Worker", "worker"))
"""Beginning of a process title -> role. The kernel keeps 15 characters of a name: ``VLLM::EngineCor``."""

_TITLE = re.compile(r"\w+::(?:Stage)?(\w+)")


def process_role(process: Process, leader: int) -> str:
    """``api_server``, ``engine_core``, ``worker`` or ``other``, by its title.

    Without titles (before vLLM 0.10) only ``leader``, the process that was started, is told from the others.
    """
    title = _TITLE.match(process.name)
    if title:
        return next((role for start, role in _ROLES if title[1].startswith(start)), "other")
    return "api_server" if process.pid == leader else "other"


CpuReading = Mapping[Identity, tuple[str, float]]
"""Process -> its role and CPU seconds so far, with those of children that have ended."""


def read_cpu(processes: Iterable[Process], leader: int, client_session: int | None = None) -> CpuReading:
    """CPU seconds of an engine's processes, without those in the client's session."""
    return {
        # Engine core and workers may spin while they wait: these seconds are no measure of the work done.
        row.identity: (process_role(row, leader), row.cpu_seconds + row.waited_seconds)
        for row in processes
        # The client's host shares the attempt's token, not its work.
        if row.session != client_session
    }


def cpu_increase(before: CpuReading, after: CpuReading) -> dict[str, float]:
    """CPU seconds by role between two readings, of the processes that live at the second."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for identity, (role, total) in after.items():
        seconds[role] += max(0.0, total - before.get(identity, (role, 0.0))[1])
    return dict(seconds)
