"""What a launch has beside its client's result: log, counters, times and memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from perfbisect.model.attempt import Attempt, Provenance, RunResult
from perfbisect.model.counters import COUNTERS_FACT
from perfbisect.model.metric import METRICS, parse_metric

FACTS: dict[str, Any] = {
    "engine_log": {"cache": "1823372 tokens", "cache memory": "37.99 GiB", "compile time": "7.5 s"},
    "waited_for_memory": 4.0,
    "memory": {"host ready": 2.5, "host end": 2.75},
}
BEFORE = {"": {"accepted_tokens": 10.0, "draft_tokens": 100.0, "drafts": 50.0, "prefix_queries": 8.0}}
AFTER = {"": {"accepted_tokens": 70.0, "draft_tokens": 200.0, "drafts": 100.0, "prefix_queries": 8.0}}
RUN = RunResult(1, 1, {"ttft:median": 20.0}, facts={COUNTERS_FACT: {"before": BEFORE, "after": AFTER}})
LAUNCH = Attempt(
    *("a-1", "c", "run", Provenance("d", "m", "v", facts=FACTS), (RUN, replace(RUN, index=2))),
    seconds={"launch": 34.0},
)


@pytest.mark.parametrize(
    ("asked", "values"),
    [
        ("kv_cache_tokens", (1823372.0,)),
        ("available_kv_memory", (37.99,)),
        ("ready_time", (30.0,)),
        ("host_memory_ready", (2.5,)),
        ("host_memory_end", (2.75,)),
        ("spec_decode_acceptance_rate", (0.6, 0.6)),
        ("spec_decode_acceptance_length", (2.2, 2.2)),
        ("ttft", (20.0, 20.0)),
    ],
)
def test_a_launch_has_what_was_recorded_of_it(asked: str, values: tuple[float, ...]) -> None:
    metric = parse_metric(asked)
    assert LAUNCH.values(metric) == pytest.approx(values)
    assert asked.partition(":")[0] in {name.partition(":")[0] for name in LAUNCH.reported}


@pytest.mark.parametrize(
    "asked",
    ["model_memory", "ready_time_cold", "compile_time", "prefix_cache_hit_rate", "device_memory_end", "tpot"],
)
def test_what_was_not_recorded_is_missing(asked: str) -> None:
    """Without the fact, with caches in another state, and where nothing was counted."""
    with pytest.raises(KeyError):
        LAUNCH.values(parse_metric(asked))
    assert asked not in {name.partition(":")[0] for name in LAUNCH.reported}


def test_times_of_empty_caches_are_those_of_cold_launches() -> None:
    cold = replace(LAUNCH, cold=True)
    assert cold.values(parse_metric("ready_time_cold")) == (30.0,)
    assert cold.values(parse_metric("compile_time")) == (7.5,)
    with pytest.raises(KeyError):
        cold.values(parse_metric("ready_time"))


def test_the_client_comes_before_the_counters() -> None:
    said = replace(RUN, values={"spec_decode_acceptance_rate": 0.5})
    assert replace(LAUNCH, runs=(said, RUN)).values(parse_metric("spec_decode_acceptance_rate")) == (0.5, 0.6)


def test_stages_add_up_in_size_and_the_longest_time_counts() -> None:
    facts = {"engine_log": {}}
    for stage, (size, seconds) in enumerate(((1.5, 3), (0.5, 9))):
        facts["engine_log"] |= {
            f"stage {stage} model memory": f"{size} GiB",
            f"stage {stage} weights time": f"{seconds} s",
        }
    staged = replace(LAUNCH, provenance=replace(LAUNCH.provenance, facts=facts))
    assert staged.values(parse_metric("model_memory")) == (2.0,)
    assert staged.values(parse_metric("weights_time")) == (9.0,)


@pytest.mark.parametrize("row", [row for row in METRICS.values() if row.source != "client"])
def test_what_is_read_of_a_launch_is_one_row(row: Any) -> None:
    assert row.fact and not row.guard and not row.per_request
    assert not row.exact or row.is_of_launch
