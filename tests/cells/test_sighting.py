"""Workloads as others wrote them down: names of result files of every era, and bench command lines."""

from __future__ import annotations

import math

import pytest

from perfbisect.cells.match import WORKLOAD_PARTS, parse_report
from perfbisect.errors import UsageError
from tests.shared import data

NAMES = {
    "result_test_qwen3_omni_chunk_random_10_100_20260412-190115.json": (
        "qwen3_omni_chunk",
        {"dataset_name": "random", "num_prompts": 100, "max_concurrency": 10, "request_rate": math.inf},
        {},
    ),
    "result_test_qwen3_omni_random-mm_0.5_100_20260412-190115.json": (
        "qwen3_omni",
        {"dataset_name": "random-mm", "num_prompts": 100, "max_concurrency": None, "request_rate": 0.5},
        {},
    ),
    "result_test_qwen3_tts_base_seed-tts_64_128_inna_outna_20260519-190024.json": (
        "qwen3_tts_base",
        {"dataset_name": "seed-tts", "num_prompts": 128, "max_concurrency": 64, "request_rate": math.inf},
        {},
    ),
    "result_test_qwen3_omni_chunk_random_1_4_in2500_out900_20260601-190024.json": (
        "qwen3_omni_chunk",
        {"dataset_name": "random", "num_prompts": 4, "max_concurrency": 1, "request_rate": math.inf},
        {"random-input-len": 2500, "random-output-len": 900},
    ),
    "result_test_minicpmo_4_5_random_2.0_100_in100_out100_20260601-190024.json": (
        "minicpmo_4_5",
        {"dataset_name": "random", "num_prompts": 100, "max_concurrency": None, "request_rate": 2.0},
        {"random-input-len": 100, "random-output-len": 100},
    ),
    "benchmark_results_test_qwen_image_vllm_omni_20260413-183057.json": ("qwen_image_vllm_omni", {}, {}),
    "diffusion_result_test_wan22_i2v_vllm_omni_20260519-190531.json": ("wan22_i2v_vllm_omni", {}, {}),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_result_file_of_every_era(name: str) -> None:
    test, fields, arguments = NAMES[name]
    seen = parse_report(f"nightly/6433/tests/{name}")
    assert (seen.test, dict(seen.fields), dict(seen.arguments)) == (test, fields, arguments)
    assert seen.time == name[-20:-5]
    assert "model" in seen.missing


def test_one_name_is_no_prefix_of_another() -> None:
    one = parse_report("result_test_tts_random_1_4_20260412-190115.json")
    forty = parse_report("result_test_tts_random_1_40_20260412-190115.json")
    assert (one.fields["num_prompts"], forty.fields["num_prompts"]) == (4, 40)


def test_a_point_makes_a_rate() -> None:
    rate = parse_report("result_test_tts_random_2.0_100_20260412-190115.json")
    users = parse_report("result_test_tts_random_2_100_20260412-190115.json")
    assert (rate.fields["request_rate"], rate.fields["max_concurrency"]) == (2.0, None)
    assert (users.fields["request_rate"], users.fields["max_concurrency"]) == (math.inf, 2)


def test_a_command_with_what_stands_before_it() -> None:
    seen = parse_report(
        "HF_HUB_OFFLINE=1 python -m vllm.entrypoints.cli.main bench serve --omni \\\n --model Qwen/Qwen3 "
        "--base-url http://127.0.0.1:9 --dataset-name random --random-input-len 64 --num-prompts=20 "
        '--max-concurrency 4 --ignore-eos --extra-body \'{"voice": "Vivian"}\' --save-result '
        "--percentile-metrics ttft,tpot --temperature 0"
    )
    assert seen.fields["model"] == "Qwen/Qwen3"
    assert (seen.fields["num_prompts"], seen.fields["max_concurrency"]) == (20, 4)
    assert (seen.fields["num_warmups"], seen.fields["request_rate"]) == (0, math.inf)
    assert seen.fields["ignore_eos"] is True
    assert seen.fields["extra_body"] == {"voice": "Vivian"}
    assert dict(seen.arguments) == {"random-input-len": 64, "temperature": 0}
    assert seen.closed
    assert seen.missing == ("task", "deploy YAML")


BENCH = "vllm bench serve --omni --model tts --num-prompts 512"


@pytest.mark.parametrize("between", ["\n", " && ", " & sleep 60; ", "\n# wait for it\n", " | tee log &\n"])
def test_the_servers_command_says_model_deploy_yaml_and_serve_arguments(between: str) -> None:
    serve = (
        "CUDA_VISIBLE_DEVICES=0 vllm serve org/tts --omni --deploy-config /app/x/vllm_omni/deploy/high.yaml "
        '--port 8091 --init-timeout 900 --stage-overrides \'{"1": {"devices": "1"}}\' '
        "--no-async-chunk --max-num-seqs 8 --served-model-name tts"
    )
    for text in (serve + between + BENCH, BENCH + between + serve):
        seen = parse_report(text)
        assert seen.fields["model"] == "org/tts"
        assert seen.fields["deploy_yaml"] == "vllm_omni/deploy/high.yaml"
        assert seen.fields["stage_overrides"] == {"1": {"devices": "1"}}
        assert seen.fields["num_prompts"] == 512
        assert seen.serve_args == {"async-chunk": False, "max-num-seqs": 8}
        assert seen.missing == ("task",)


def test_a_server_without_a_deploy_yaml_has_none_and_prose_is_no_server() -> None:
    bare = parse_report(f"python -m vllm_omni.entrypoints.cli.main serve --model org/tts --omni\n{BENCH}")
    assert (bare.fields["model"], bare.fields["deploy_yaml"], bare.serve_args) == ("org/tts", None, {})
    prose = parse_report(f"to serve many users\n{BENCH}")
    assert (prose.serve_args, "deploy_yaml" in prose.fields) == (None, False)
    assert prose.missing == ("task", "deploy YAML")


def test_a_command_without_a_model_says_so() -> None:
    assert parse_report("vllm bench serve --num-prompts 3").missing == ("model", "task", "deploy YAML")


@pytest.mark.parametrize(
    "text",
    [
        "result.json",
        "result_test_x_random_1_4.json",
        "vllm serve model --port 3",
        "please find the slow commit",
        "vllm bench serve --num-prompts 'unclosed",
        "vllm bench serve -n 3",
        "vllm serve org/m -tp 8\nvllm bench serve --num-prompts 3",
    ],
)
def test_what_is_neither(text: str) -> None:
    with pytest.raises(UsageError):
        parse_report(text)


def test_every_real_name_has_an_identity() -> None:
    names = {
        path.name for path in data("kanban").rglob("*.json") if path.name.startswith(("result_", "bench"))
    }
    assert names
    for name in names:
        seen = parse_report(name)
        assert seen.test
        assert set(seen.missing) <= set(WORKLOAD_PARTS)
        if name.startswith("result_"):
            assert {"num_prompts", "max_concurrency", "request_rate", "dataset_name"} == set(seen.fields)
