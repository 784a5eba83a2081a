"""vLLM-Omni's own diffusion benchmark: how its script is found and run, and what its results say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from perfbisect.clients.diffusion_bench import CLIENT, SCRIPT, STARTER
from perfbisect.errors import ClientError, UsageError
from perfbisect.model.cell import Cell
from perfbisect.model.metric import parse_metric
from tests.serving.workloads import ENDPOINT, PAINT, make_cell

ECHO = """
import argparse, json, sys
from backends import NAME
parser = argparse.ArgumentParser()
parser.add_argument("{option}")
parser.add_argument("--output-file")
parser.add_argument("--task")
known = parser.parse_args()
json.dump({{**vars(known), "name": NAME, "main": __name__}}, open(known.output_file, "w"))
"""


def cell(**more: Any) -> Cell:
    return make_cell(PAINT, **{"client": "diffusion_bench", "headline": "latency", **more})


def argv(one: Cell) -> tuple[str, ...]:
    return CLIENT.command(one, ENDPOINT, seed=17, result=PurePosixPath("/a/run-1.json"), metadata={})


def test_the_whole_command() -> None:
    one = cell(
        max_concurrency=1,
        num_warmups=2,
        dataset_args={"width": 512, "height": 512, "num-inference-steps": 20, "enable-negative-prompt": True},
    )
    assert argv(one) == (
        *("-c", STARTER, "--backend", "vllm-omni", "--base-url", "http://127.0.0.1:4321"),
        *("--dataset", "random", "--disable-tqdm", "--enable-negative-prompt"),
        *("--endpoint", "/v1/chat/completions", "--height", "512", "--max-concurrency", "1"),
        *("--model", "pb-1a2b", "--num-inference-steps", "20", "--num-prompts", "4"),
        *("--output-file", "/a/run-1.json", "--request-rate", "inf", "--seed", "17", "--task", "t2i"),
        *("--warmup-requests", "2", "--width", "512"),
    )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"task": "speak"}, "unknown task 'speak'; known: t2i"),
        ({"dataset_args": {"extra-body": "{}"}}, "cannot set extra-body"),
        ({"dataset_args": {"output-file": "x"}}, "cannot set output-file"),
        ({"backend": "sglang"}, "none of diffusion's"),
    ],
)
def test_what_the_script_has_not_is_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        argv(cell(**more))


def checkout(folder: Path, option: str) -> Path:
    package, script = folder / "vllm_omni" / "__init__.py", folder / SCRIPT
    for path, text in ((package, "raise SystemExit('imported')"), (script, ECHO.format(option=option))):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    (script.parent / "backends.py").write_text("NAME = 'beside the script'\n")
    return folder


def start(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", STARTER, *arguments],
        env={"PYTHONPATH": str(folder)}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("option", "value"), [("--backend", "vllm-omni"), ("--endpoint", "/v1/chat/completions")]
)
def test_the_script_of_either_era_is_run_with_the_option_it_knows(
    tmp_path: Path, option: str, value: str
) -> None:
    folder, told = checkout(tmp_path / "tree", option), tmp_path / "told.json"
    both = ("--backend", "vllm-omni", "--endpoint", "/v1/chat/completions")
    ended = start(folder, *both, "--output-file", str(told), "--task", "t2i")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(told.read_text()) == {
        option.removeprefix("--"): value,
        "output_file": str(told),
        "task": "t2i",
        "name": "beside the script",
        "main": "__main__",
    }


def test_without_a_checkout_it_says_what_is_missing(tmp_path: Path) -> None:
    assert "no package vllm_omni here" in start(tmp_path).stderr
    (tmp_path / "vllm_omni").mkdir()
    (tmp_path / "vllm_omni" / "__init__.py").touch()
    assert "stands in a checkout of the engine and in no wheel" in start(tmp_path).stderr


def document(**changed: Any) -> dict[str, Any]:
    return {
        "duration": 9.6, "completed_requests": 4, "failed_requests": 0, "throughput_qps": 4 / 9.6,
        "latency_mean": 2.4, "latency_median": 2.39, "latency_p50": 2.39, "latency_p95": 2.5,
        "latency_p99": 2.6, "peak_memory_mb_max": 52000.0, "peak_memory_mb_mean": 51000.0,
        "peak_memory_mb_median": 51500.0, "stage_durations_mean": {"QwenImagePipeline.diffuse": 2.1},
        "stage_durations_p50": {"QwenImagePipeline.diffuse": 2.0}, "stage_durations_p99": {},
        "endpoint": "/v1/chat/completions", "model": "pb-1a2b", "dataset": "random", "task": "t2i", **changed,
    }  # fmt: skip


def parse(told: dict[str, Any]) -> Any:
    return CLIENT.parse(cell(), told, index=1, seed=17, expected={"model_id": "pb-1a2b", "attempt": "a7"})


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_result_and_a_record_of_a_harness_are_read_alike(wrapped: bool) -> None:
    told = document()
    run = parse({"test_name": "test_qwen_image", "result": told} if wrapped else told)
    assert run.values == {
        "latency:mean": 2.4,
        "latency:median": 2.39,
        "latency:p50": 2.39,
        "latency:p95": 2.5,
        "latency:p99": 2.6,
        "throughput_qps": 4 / 9.6,
        "failed": 0.0,
        "peak_memory_mb:mean": 51000.0,
        "peak_memory_mb:median": 51500.0,
        "stage.QwenImagePipeline.diffuse:mean": 2.1,
        "stage.QwenImagePipeline.diffuse:median": 2.0,
    }
    assert (run.warnings, run.seconds) == ((), 9.6)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": "pb-else"}, "of another run: model is 'pb-else'"),
        ({"latency_p50": 3.0}, "contradicts itself: latency_median is 2.39"),
    ],
)
def test_what_is_no_measurement(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ClientError, match=said):
        parse(document(**changed))


def test_an_older_result_has_one_percentile_less_and_a_broken_one_is_told() -> None:
    told = document()
    del told["latency_p95"]
    assert "latency:p95" not in parse(told).values
    del told["latency_p99"]
    with pytest.raises(ClientError, match="the result has no latency_p99"):
        parse(told)


def test_failed_requests_are_a_warning_and_memory_may_be_missing() -> None:
    run = parse(
        document(completed_requests=3, failed_requests=1, peak_memory_mb_mean=0, peak_memory_mb_median=0)
    )
    assert run.values["failed"] == 0.25
    assert run.warnings[0].startswith("1 of 4 requests failed")
    assert not [key for key in run.values if key.startswith("peak")]


@pytest.mark.parametrize(("distance", "kept"), [(0.031, 0.031), (0, 0.0), (None, None), (float("nan"), None)])
def test_the_distance_from_a_reference_is_a_guard_where_the_result_tells_it(
    distance: float | None, kept: float | None
) -> None:
    CLIENT.check_metric(cell(guards=["failed", "image_distance"]), parse_metric("image_distance"))
    told = document() if distance is None else document(image_distance_median=distance)
    assert parse(told).values.get("image_distance:median") == kept
