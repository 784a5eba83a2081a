"""Result documents that others made: what is read, what is converted, what is no measurement."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest

from perfbisect.series.points import ReportedResult, Workload
from perfbisect.series.sources.results import (
    UnusableResultError,
    key_of,
    parse_result,
    result_records,
)
from tests.series.made import drawn, served, template, text_only
from tests.shared import data


def read(document: object) -> ReportedResult[float]:
    (record,) = result_records(document)
    return parse_result(record)


def test_a_served_result_is_read_in_our_units() -> None:
    found = read(served(spec_decode_acceptance_rate=70.0))
    expected = {
        "ttft:median": 120.0,
        "ttft:mean": 130.0,
        "ttft:p99": 400.0,
        "e2el:median": 5000.0,
        "audio_rtf:median": 0.25,
        "audio_ttfp:median": 600.0,
        "audio_duration:median": 20.0,
        "audio_throughput": 8.0,
        "input_tokens": 100.0,
        "output_tokens": 50.0,
        "failed": 0.0,
        "spec_decode_acceptance_rate": 0.7,
        "e2el_per_audio_s": 250.0,
        "e2el_per_token": 100.0,
    }
    assert {name: found.values.get(name) for name in expected} == pytest.approx(expected)
    assert "request_goodput" not in found.values
    assert found.workload == Workload(
        "", concurrency=4, prompts=40, model="Some/Omni", backend="openai-chat-omni"
    )
    assert found.ended == "20260412-190255"


def test_a_run_without_one_good_request_counts_half_of_one() -> None:
    assert read(served(request_goodput=2.0)).values["request_goodput"] == 2.0
    assert read(served(request_goodput=0.0)).values["request_goodput"] == 0.5 / 100


def test_covariates_stand_beside() -> None:
    found = read(
        served(baseline={"median_audio_rtf": 0.3}, Hardware="H100", num_warmups=2, random_input_len=2500)
    )
    beside = found.covariates
    assert (beside["duration"], beside["completed"], beside["failed"], beside["prompts"]) == (100, 40, 0, 40)
    assert (beside["input_tokens"], beside["output_tokens"], beside["audio_duration"]) == (100, 50, 20)
    assert (beside["warmups"], beside["hardware"], beside["max_concurrent_requests"]) == (2, "H100", 6)
    assert beside["baseline"] == {"median_audio_rtf": 0.3}
    assert found.workload.lengths == "in2500"
    assert beside["keys"] != read(served()).covariates["keys"]
    assert read(served(duration=99.0)).covariates["keys"] == read(served()).covariates["keys"]


def test_a_name_that_changed_its_unit_is_converted() -> None:
    old = {k: v for k, v in served().items() if not k.startswith(("median_audio_duration", "total_audio"))}
    old |= {"median_audio_duration_ms": 20_000.0, "total_audio_duration_ms": 800_000.0}
    found = read(old)
    assert found.values["audio_duration:median"] == 20.0
    assert found.values["e2el_per_audio_s"] == 250.0
    assert found.covariates["converted"] == ["median_audio_duration_ms", "total_audio_duration_ms"]
    assert read(served()).covariates["converted"] == []


def test_the_ttft_of_speech_is_not_read() -> None:
    found = read(served(backend="openai-audio-speech"))
    assert not any(key.startswith("ttft") for key in found.values)
    assert not found.workload.only_text


def test_text_alone_is_told_from_sound_that_did_not_come() -> None:
    assert read(text_only()).workload.only_text
    assert not read(text_only(backend="openai-chat")).workload.only_text, "a client that never brings sound"


@pytest.mark.parametrize(
    ("document", "fate", "reason"),
    [
        (template(), "template", "form of zeros"),
        (served(total_audio_duration_s=0.0, audio_throughput=0.0), "silent", "not one second of it came"),
        (served(completed=0, failed=40), "failed", "none of 40 requests completed"),
        (served(completed=0, failed=0), "failed", "none of 40"),
        (served(completed=37, failed=3), "failed", "3 of 40 requests failed"),
        (served(completed=37), "failed", "37 requests completed where 40 were asked for"),
        (served(duration=0.0), "broken", "duration is 0 s"),
        (
            served(total_audio_duration_s=800_000.0),
            "broken",
            "contradicts itself: 800000 s of sound, and by its audio_throughput 800 s",
        ),
        (served(median_e2el_ms=math.nan), "broken", "median_e2el_ms is nan"),
        (served(median_e2el_ms="fast"), "broken", "not a number"),
        (served(median_audio_ttfp_ms=-5.0), "broken", "median_audio_ttfp_ms is -5.0: no measurement"),
        (served(median_audio_ttfp_ms=1e-300), "broken", "median_audio_ttfp_ms is 1e-300: no measurement"),
        (served(completed="all"), "broken", "completed is 'all'"),
        ({"models": []}, "other", "no result"),
        ([], "other", "a list"),
        ([{"a": 1}, {"a": 2}], "other", "a list"),
        ("text", "other", "str"),
        (None, "other", "NoneType"),
    ],
)
def test_what_is_no_measurement(document: Any, fate: str, reason: str) -> None:
    with pytest.raises(UnusableResultError, match=re.escape(reason)) as caught:
        for record in result_records(document):
            parse_result(record)
    assert caught.value.kind == fate


def test_a_stage_that_took_no_time_to_speak_of_is_not_reported() -> None:
    stages = {"stage_durations_p50": {"Pipeline.diffuse": 1e-300, "Pipeline.decode": 0.5}}
    found = read([drawn(result=drawn()["result"] | stages)])
    assert "stage.Pipeline.decode:median" in found.values
    assert "stage.Pipeline.diffuse:median" not in found.values


def test_a_share_may_be_as_small_as_it_is() -> None:
    assert read(served(median_audio_underrun_s=1e-17)).values["audio_underrun:median"] == 1e-17


def test_a_value_of_nothing_is_not_reported() -> None:
    found = read(served(output_throughput=0.0, median_audio_underrun_s=0.0))
    assert "output_throughput" not in found.values
    assert found.values["audio_underrun:median"] == 0.0, "of a guard nothing is a value"


def test_a_diffusion_record_is_read() -> None:
    found = read([drawn()])
    expected = {
        "latency:mean": 2.6,
        "latency:median": 2.5,
        "latency:p99": 2.9,
        "throughput_qps": 0.38,
        "peak_memory_mb:mean": 56342.0,
        "stage.Pipeline.diffuse:median": 2.4,
        "failed": 0.0,
    }
    assert found.values == expected
    assert found.workload == Workload(
        "image_one", "512x512_steps20", 1, prompts=10, model="Some/Image", backend="vllm-omni"
    )
    assert found.began == "20260412-191748"
    other = read([drawn(server_params={"model": "Some/Image", "serve_args": {"ulysses-degree": 4}})])
    assert other.covariates["server"] != found.covariates["server"]


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("median_audio_ttfp_ms", ("audio_ttfp:median", 1.0)),
        ("median_audio_rtf", ("audio_rtf:median", 1.0)),
        ("p99_ttft", ("ttft:p99", 1000.0)),
        ("p99_audio_underrun", ("audio_underrun:p99", 1.0)),
        ("mean_audio_duration_ms", ("audio_duration:mean", 0.001)),
        ("p99_audio_duration_s", ("audio_duration:p99", 1.0)),
        ("latency_mean", ("latency:mean", 1.0)),
        ("peak_memory_mb_mean", ("peak_memory_mb:mean", 1.0)),
        ("audio_throughput", ("audio_throughput", 1.0)),
        ("p99_nonsense_ms", None),
        ("burstiness", None),
    ],
)
def test_names_of_results(name: str, ours: tuple[str, float] | None) -> None:
    assert key_of(name) == ours


@pytest.mark.parametrize("name", ["result_omni_template.json", "diffusion_result_template.json"])
def test_the_forms_of_the_harness_are_templates(name: str) -> None:
    for record in result_records(json.loads(data("vllm_omni", name).read_text())):
        with pytest.raises(UnusableResultError) as caught:
            parse_result(record)
        assert caught.value.kind == "template"
