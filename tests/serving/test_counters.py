"""Pages of ``/metrics`` of several eras, and CPU seconds of processes by role."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.model.counters import EngineCounters
from perfbisect.serving.counters import (
    cpu_increase,
    hit_rate,
    prefix_cache,
    process_role,
    read_counters,
    read_cpu,
    requests_in_flight,
)
from perfbisect.system.processes import Process

V0 = """# HELP vllm:num_requests_running Number of requests currently running on GPU.
vllm:num_requests_running{model_name="m"} 3.0
vllm:num_requests_swapped{model_name="m"} 7.0
vllm:gpu_prefix_cache_hit_rate{model_name="m"} 0.5
vllm:num_preemptions_total{model_name="m"} 2.0
vllm:prompt_tokens_total{model_name="m"} 640.0
vllm:generation_tokens_total{model_name="m"} 320.0
vllm:e2e_request_latency_seconds_bucket{le="+Inf",model_name="m"} 99.0
vllm:e2e_request_latency_seconds_count{model_name="m"} 10.0
vllm:e2e_request_latency_seconds_sum{model_name="m"} 12.5
vllm:time_in_queue_requests_count{model_name="m"} 10.0
vllm:time_in_queue_requests_sum{model_name="m"} 0.25
vllm:time_per_output_token_seconds_sum{model_name="m"} 3.0
vllm:request_success_total{finished_reason="stop",model_name="m"} 10.0
"""

V1 = """# TYPE vllm:prefix_cache_queries counter
vllm:gpu_prefix_cache_queries_total{engine="0",model_name="a } b 7"} 100.0
vllm:gpu_prefix_cache_hits_total{engine="0",model_name="a } b 7"} 30.0
vllm:prefix_cache_queries_total{engine="0",model_name="a } b 7"} 100.0
vllm:prefix_cache_queries_total{engine="1",model_name="a } b 7"} 1.5e+02
vllm:prefix_cache_queries_created{engine="0"} 1.7e+09
vllm:prefix_cache_hits_total{engine="0",model_name="x"} 30.0 1700000000000
vllm:prefix_cache_hits_total{engine="1",model_name="x"} 20
vllm:external_prefix_cache_hits_total{engine="0"} 999.0
vllm:iteration_tokens_total_bucket{engine="0",le="8.0"} 77.0
vllm:iteration_tokens_total_count{engine="0"} 50.0
vllm:iteration_tokens_total_sum{engine="0"} 600.0
vllm:time_in_queue_requests_sum{engine="0"} 1.0
vllm:request_queue_time_seconds_sum{engine="0"} 1.0
vllm:request_prefill_time_seconds_sum{engine="0"} 2.0
vllm:request_decode_time_seconds_sum{engine="0"} 3.0
vllm:request_success_total{engine="0",finished_reason="stop"} 4.0
vllm:request_success_total{engine="0",finished_reason="length"} 5.0
vllm:spec_decode_num_drafts_total{engine="0"} 11.0
vllm:spec_decode_num_draft_tokens_total{engine="0"} 33.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 22.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 11.0
"""

OMNI = """vllm_omni:generation_tokens_total{model_name="m"} 999.0
vllm_omni:num_requests_running{model_name="m"} 999.0
vllm:num_requests_running{model_name="m",stage="thinker",replica="0"} 1.0
vllm:generation_tokens_total{model_name="m",replica="0",stage="thinker"} 10.0
vllm:generation_tokens_total{model_name="m",replica="1",stage="thinker"} 5.0
vllm:generation_tokens_total{model_name="m",stage="talker",replica="0"} 40.0
"""


def test_a_page_of_v0() -> None:
    assert read_counters(V0).stages == {
        "": {
            "requests": 10.0,
            "request_s": 12.5,
            "queue_s": 0.25,
            "prompt_tokens": 640.0,
            "generation_tokens": 320.0,
            "preemptions": 2.0,
        }
    }
    assert requests_in_flight(V0) == 3


def test_a_page_of_v1_with_names_of_two_eras_counts_once() -> None:
    assert read_counters(V1).stages == {
        "": {
            "requests": 9.0,
            "queue_s": 1.0,
            "prefill_s": 2.0,
            "decode_s": 3.0,
            "iterations": 50.0,
            "iteration_tokens": 600.0,
            "prefix_queries": 250.0,
            "prefix_hits": 50.0,
            "drafts": 11.0,
            "draft_tokens": 33.0,
            "accepted_tokens": 22.0,
        }
    }


def test_stages_of_a_pipeline_are_kept_apart_and_replicas_are_summed() -> None:
    assert read_counters(OMNI).stages == {
        "thinker": {"generation_tokens": 15.0},
        "talker": {"generation_tokens": 40.0},
    }
    assert requests_in_flight(OMNI) == 1


def test_a_page_of_two_stages_of_vllm_omni() -> None:
    """A page of 0.30.0, whose stages speak (0) and decode (1), after 17 requests."""
    counters = read_counters((Path(__file__).parent / "omni_metrics.txt").read_text())
    assert list(counters.stages) == ["0", "1"]
    talker, decoder = counters.stages["0"], counters.stages["1"]
    assert talker["requests"] == decoder["requests"] == decoder["first_packets"] == 17
    assert "first_packets" not in talker
    assert counters.queue_values() == pytest.approx(
        {"stage.0.queue_ms": 1e3 * talker["queue_s"] / 17, "stage.1.queue_ms": 1e3 * decoder["queue_s"] / 17}
    )
    # The decoder waits for what the talker says first.
    first_s = [stage["queue_s"] + stage["prefill_s"] for stage in (talker, decoder)]
    assert first_s[0] < decoder["queue_s"] < first_s[1] < decoder["first_packet_s"]


@pytest.mark.parametrize(
    "page",
    [
        "",
        "<html>vllm:prefix_cache_hits_total 5</html>\n",
        "sglang:prompt_tokens_total 5.0\n",
        "vllm:prompt_tokens_total NaN\nvllm:generation_tokens_total +Inf\n",
        "vllm:prompt_tokens_total\n",
        "vllm:prompt_tokens_total five\n",
    ],
)
def test_a_page_of_something_else_has_no_counters(page: str) -> None:
    assert read_counters(page).stages == {}


@given(st.integers(0, len(V1) - 2))
def test_a_page_that_is_cut_off_has_all_of_a_counter_or_nothing(end: int) -> None:
    whole = read_counters(V1).stages[""]
    cut = V1[: end + 1]
    if not cut.endswith("\n"):
        assert read_counters(cut).stages == {}
    else:
        assert all(value <= whole[name] for name, value in read_counters(cut).stages.get("", {}).items())


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    read_counters(text)
    assert requests_in_flight(text) == 0


def test_hit_rate_is_of_the_tokens_between_the_readings() -> None:
    assert prefix_cache(read_counters(V1)) == {"queries": 250.0, "hits": 50.0}
    assert prefix_cache(EngineCounters({"": {"prefix_hits": 1.0}})) == {}
    assert hit_rate({"queries": 100.0, "hits": 90.0}, {"queries": 200.0, "hits": 115.0}) == 0.25
    assert hit_rate({}, {}) is None
    assert hit_rate({}, {"queries": 200.0, "hits": 115.0}) is None
    assert hit_rate({"queries": 100.0, "hits": 90.0}, {}) is None
    assert hit_rate({"queries": 5.0, "hits": 5.0}, {"queries": 5.0, "hits": 5.0}) is None


def process(pid: int, name: str, cpu_s: float, *, session: int = 10, created: float = 1.0) -> Process:
    return Process(pid, created, 1, session, session, "S", name, cpu_s)


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("VLLM::EngineCor", "engine_core"),
        ("VLLM::EngineCore_DP1", "engine_core"),
        ("VLLM::Worker_TP", "worker"),
        ("VLLM::APIServer", "api_server"),
        ("VLLM::DPCoordin", "other"),
        ("OURS::Worker", "worker"),
        ("VLLM::StageEngi", "other"),
        ("python", "other"),
    ],
)
def test_roles_are_by_title(name: str, role: str) -> None:
    assert process_role(process(11, name, 0.0), leader=10) == role


def test_the_leader_is_the_api_server() -> None:
    assert process_role(process(10, "python", 0.0), leader=10) == "api_server"


def test_cpu_seconds_are_those_between_the_readings() -> None:
    rows = [process(10, "python", 5.0), process(11, "VLLM::EngineCor", 7.0), process(12, "VLLM::Worker", 8.0)]
    client = process(20, "python", 100.0, session=20)
    before = read_cpu([*rows, client], 10, 20)
    later = [
        replace(rows[0], cpu_seconds=5.5),
        replace(rows[1], cpu_seconds=7.25, waited_seconds=0.5),
        process(12, "VLLM::Worker", 0.125, created=2.0),  # another process of this id
        process(13, "VLLM::Worker", 0.5, created=2.0),
        replace(client, cpu_seconds=200.0),
    ]
    after = read_cpu(later, 10, 20)
    assert cpu_increase(before, after) == {"api_server": 0.5, "engine_core": 0.75, "worker": 0.625}
