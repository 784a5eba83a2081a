"""Result files of other clients: what each says becomes a point, or a rejection with its reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfbisect.series.ingest import ingest
from perfbisect.series.points import Point
from perfbisect.series.sources import IngestOptions
from perfbisect.series.store import SeriesStore
from tests.series.made import served, write
from tests.shared import data

Rejections = list[tuple[str, str]]


def ingested(place: Path, state: Path, zone: str = "UTC") -> tuple[tuple[Point, ...], Rejections]:
    """Points, and kinds of rejections with their messages."""
    with SeriesStore.of(state) as store:
        ingest(store, [str(place)], IngestOptions(zone=zone))
        rejected = [(one.kind, str(one.why.values.get("message"))) for one in store.rejections()]
        return tuple(sorted(store.points(), key=lambda point: point.cell)), rejected


def metric(unit: str, avg: float, **more: float) -> dict[str, Any]:
    return {"unit": unit, "avg": avg, **more}


def aiperf(**changed: Any) -> dict[str, Any]:
    return {
        "aiperf_version": "0.10.0",
        "request_throughput": metric("requests/sec", 2.0),
        "request_latency": metric("ms", 700.0, p50=650.0, p99=900.0),
        "request_count": metric("requests", 96.0),
        "time_to_first_token": metric("ms", 230.0, p50=178.0),
        "inter_token_latency": metric("us", 11_800.0, p50=12_000.0),
        "output_token_throughput": metric("tokens/sec", 1172.0),
        "total_output_tokens": metric("tokens", 9600.0),
        "benchmark_duration": metric("sec", 48.0),
        "input_config": {
            "models": {"items": [{"name": "served"}]},
            "endpoint": {"type": "chat"},
            "tokenizer": {"name": "org/model"},
            "phases": [{"name": "profiling", "requests": 96, "concurrency": 16}],
        },
        "was_cancelled": False,
        "error_summary": [],
        "start_time": "2026-07-03T05:21:36.274997",
        "end_time": "2026-07-03T05:22:24.274997",
    } | changed


def test_aiperf(tmp_path: Path) -> None:
    write(tmp_path / "in" / "profile_export_aiperf.json", aiperf())
    (point,), rejected = ingested(tmp_path / "in", tmp_path)
    assert (point.cell, point.workload.model, point.night) == ("model@c16-n96", "org/model", "2026-07-03")
    assert (point.began, point.covariates["client"]) == ("2026-07-03T05:21:36Z", "AIPerf")
    expected = {"ttft:median": 178.0, "tpot:median": 12.0, "e2el:p99": 900.0, "output_tokens": 100.0}
    assert {name: point.values[name] for name in expected} == pytest.approx(expected)
    assert (point.values["output_throughput"], point.values["failed"], rejected) == (1172.0, 0.0, [])


def test_an_older_aiperf_has_its_options_as_the_command_names_them(tmp_path: Path) -> None:
    config = {
        "endpoint": {"model_names": ["org/m"], "type": "chat"},
        "loadgen": {"concurrency": 8, "benchmark_duration": 60},
    }
    write(tmp_path / "in" / "profile_export_aiperf.json", aiperf(input_config=config))
    (point,), _ = ingested(tmp_path / "in", tmp_path)
    assert point.cell == "m@c8", "what it sends in a time is no part of the cell"


@pytest.mark.parametrize(
    ("changed", "kind", "said"),
    [
        ({"was_cancelled": True}, "broken", "it was cancelled before its end"),
        ({"error_summary": [{"count": 4}]}, "failed", "4 of 100 requests failed"),
        ({"benchmark_duration": metric("days", 1.0)}, "broken", "benchmark_duration is in 'days'"),
        ({"time_to_first_token": {"unit": "ms", "p50": "x"}}, "broken", "time_to_first_token.p50 is 'x'"),
        ({"request_count": None}, "broken", "cannot be read"),
        ({"input_config": {"models": 3}}, "broken", "cannot be read"),
    ],
)
def test_a_bad_result_of_aiperf_says_why(
    tmp_path: Path, changed: dict[str, Any], kind: str, said: str
) -> None:
    write(tmp_path / "in" / "bad.json", aiperf(**changed))
    write(tmp_path / "in" / "good.json", aiperf())
    (point,), ((found, message),) = ingested(tmp_path / "in", tmp_path)
    assert (point.cell, found) == ("model@c16-n96", kind)
    assert said in message


def guidellm_run(streams: int, **totals: int) -> dict[str, Any]:
    def answered(**values: Any) -> dict[str, Any]:
        return {"successful": values}

    return {
        "config": {"strategy": {"type_": "concurrent", "streams": streams}},
        "start_time": 1783056078.0,
        "end_time": 1783056378.0,
        "duration": 300.0,
        "metrics": {
            "request_totals": {"successful": 512, "errored": 0, "incomplete": 3, **totals},
            "requests_per_second": answered(mean=1.7),
            "output_tokens_per_second": answered(mean=1702.0),
            "time_to_first_token_ms": answered(mean=210.0, median=180.0, percentiles={"p99": 690.0}),
            "inter_token_latency_ms": answered(mean=28.1, median=28.0),
            "request_latency": answered(mean=9.0, median=8.5),
        },
    }


def test_guidellm_is_a_point_for_each_benchmark(tmp_path: Path) -> None:
    broken = guidellm_run(2)
    del broken["metrics"]["request_totals"]
    report = {
        "metadata": {"guidellm_version": "0.7.4"},
        "args": {"model": "org/m"},
        "benchmarks": [guidellm_run(1), broken, guidellm_run(50), guidellm_run(99, errored=8), 3],
    }
    write(tmp_path / "in" / "benchmarks.json", report)
    points, rejected = ingested(tmp_path / "in", tmp_path, zone="")
    assert [point.cell for point in points] == ["m@c1", "m@c50"]
    assert points[0].began == "2026-07-03T05:21:18Z"
    expected = {"ttft:p99": 690.0, "tpot:median": 28.0, "e2el:median": 8500.0, "request_throughput": 1.7}
    assert {name: points[0].values[name] for name in expected} == pytest.approx(expected)
    assert sorted(kind for kind, _ in rejected) == ["broken", "broken", "failed"]


def sglang(**changed: Any) -> dict[str, Any]:
    return {
        "backend": "sglang",
        "dataset_name": "random",
        "request_rate": 40.0,
        "max_concurrency": None,
        "random_input_len": 180,
        "random_output_len": 400,
        "random_range_ratio": 1.0,
        "duration": 100.0,
        "completed": 600,
        "total_input_tokens": 60_000,
        "total_output_tokens": 120_000,
        "total_output_tokens_retokenized": 119_000,
        "request_throughput": 6.0,
        "input_throughput": 600.0,
        "output_throughput": 1200.0,
        "median_e2e_latency_ms": 61_000.0,
        "median_ttft_ms": 1900.0,
        "median_tpot_ms": 299.0,
        "accept_length": 2.31,
    } | changed


def test_sglang_is_a_point_for_each_line(tmp_path: Path) -> None:
    lines = [
        json.dumps(sglang()),
        "{broken",
        json.dumps(sglang(request_rate=float("inf"))),
        json.dumps(sglang(request_rate=2.0, errors=["", "refused"])),
    ]
    write(tmp_path / "in" / "2026-08-24" / "sglang_0824_600_180_400.jsonl", "\n".join(lines) + "\n")
    points, rejected = ingested(tmp_path / "in", tmp_path, zone="")
    cells = ["sglang/random@r40.0-n600-in180-out400", "sglang/random@rinf-n600-in180-out400"]
    assert [point.cell for point in points] == cells
    assert points[0].night == "2026-08-24"
    expected = {
        "ttft:median": 1900.0,
        "e2el:median": 61_000.0,
        "total_token_throughput": 1800.0,
        "spec_decode_acceptance_length": 2.31,
    }
    assert {name: points[0].values[name] for name in expected} == pytest.approx(expected)
    assert [kind for kind, _ in rejected] == ["broken", "failed"]


def test_without_a_time_and_a_day_in_its_path_it_has_no_time(tmp_path: Path) -> None:
    write(tmp_path / "in" / "one.json", sglang())
    points, rejected = ingested(tmp_path / "in", tmp_path)
    said = "has no time in it: name the file or its folder by its day (2026-08-24)"
    assert (points, rejected) == ((), [("broken", said)])


def test_600_answers_are_no_form_of_zeros(tmp_path: Path) -> None:
    cut = {name: value for name, value in sglang().items() if name != "total_output_tokens_retokenized"}
    write(tmp_path / "in" / "2026-08-24" / "one.json", cut)
    assert ingested(tmp_path / "in", tmp_path) == ((), [("broken", "the result has no num_prompts")])


def test_lines_that_are_no_results_are_rejected_once(tmp_path: Path) -> None:
    write(tmp_path / "in" / "prompts.jsonl", "\n".join(json.dumps({"prompt": str(i)}) for i in range(50)))
    write(tmp_path / "in" / "good.json", served())
    points, rejected = ingested(tmp_path / "in", tmp_path)
    assert (len(points), [kind for kind, _ in rejected]) == (1, ["other"])


LATENCY = {"avg_latency": 21.6, "latencies": [21.4, 21.5, 21.9], "percentiles": {"50": 21.5, "99": 21.9}}
THROUGHPUT = {
    "elapsed_time": 60.0,
    "num_requests": 1000,
    "total_num_tokens": 510_000,
    "requests_per_second": 16.6,
    "tokens_per_second": 8500.0,
}
STARTUP = {
    "avg_cold_startup_time": 120.0,
    "cold_startup_times": [110.0, 111.0, 139.0],
    "avg_warm_startup_time": 26.7,
    "avg_cold_compilation_time": 60.0,
    "cold_compilation_times": [],
}


@pytest.mark.parametrize(
    ("document", "values"),
    [
        (LATENCY, {"e2el:median": 21_500.0, "e2el:mean": 21_600.0, "e2el:p99": 21_900.0}),
        (THROUGHPUT, {"request_throughput": 16.6, "total_token_throughput": 8500.0}),
        (
            {name: value for name, value in STARTUP.items() if value},
            {"ready_time_cold": 111.0, "ready_time": 26.7, "compile_time": 60.0},
        ),
    ],
)
def test_benchmarks_without_a_server(
    tmp_path: Path, document: dict[str, Any], values: dict[str, float]
) -> None:
    write(tmp_path / "in" / "2026-08-24" / "llama8B_tp1.json", document)
    (point,), rejected = ingested(tmp_path / "in", tmp_path)
    assert (point.cell, point.night, rejected) == ("llama8B_tp1", "2026-08-24", [])
    assert dict(point.values) == pytest.approx(values)


def test_an_empty_list_of_times_is_no_measurement(tmp_path: Path) -> None:
    write(tmp_path / "in" / "2026-08-24" / "startup.json", STARTUP)
    assert ingested(tmp_path / "in", tmp_path) == ((), [("broken", "cold_compilation_times has no number")])


def test_the_public_cases(tmp_path: Path) -> None:
    nights = tmp_path / "in" / "2026-08-24"
    for folder in ("03-bench-latency", "13-aiperf-guidellm-sglang"):
        for path in data("..", "cases", folder).glob("*.json*"):
            write(nights / path.name, path.read_text())
    points, rejected = ingested(tmp_path / "in", tmp_path)
    assert rejected == []
    assert {point.cell: point.covariates["client"] for point in points} == {
        "Qwen3-8B@c50": "GuideLLM",
        "Qwen3.6-35B-A3B-NVFP4@c16-n96": "AIPerf",
        "latency_llama8B_tp1": "vllm bench latency",
        "sglang/random@r20.0-n600-in180-out400": "SGLang",
        "sglang/random@r40.0-n600-in180-out400": "SGLang",
        "sglang_one/random@r40.0-n600-in180-out400": "SGLang",
        "startup_llama8B_tp1": "vllm bench startup",
        "throughput_llama8B_tp1": "vllm bench throughput",
    }
