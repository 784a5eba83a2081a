"""Nightly cases of vllm-ascend and benchmark cases of tpu-inference, as cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfbisect.cells.importers import read_specification
from perfbisect.cells.importers.base import Specification, read_file
from perfbisect.errors import LocatedError
from tests.cells.importers.reading import loaded, only_error, read
from tests.shared import data

ASCEND = """\
_envs: &envs
  HCCL_BUFFSIZE: "512"
  SERVER_PORT: "DEFAULT_PORT"
test_cases:
  - name: "case-a3"
    model: "org/model-W8A8"
    envs:
      <<: *envs
      LEVEL: 2
      VLLM-TYPO: "1"
    server_cmd: ["--quantization", "ascend", "--port", "$SERVER_PORT", "--seed", "1024"]
    server_cmd_extra:
      ["-tp", "4", "--speculative_config", '{"method": "mtp", "num_speculative_tokens": $LEVEL}']
    benchmarks:
      acc:
        case_type: accuracy
      prefix75:
        case_type: performance
        dataset_path: vllm-ascend/prefix75-in3500-bs210
        num_prompts: 210
        max_out_len: 1
        batch_size: 48
        request_rate: 0
      perf:
        case_type: performance
        dataset_path: vllm-ascend/GSM8K-in512-bs100
        num_prompts: 100
        max_out_len: 1500
        batch_size: 25
        request_rate: 11.2
        top_p: 0.9
"""


def ascend(folder: Path, text: str) -> Specification:
    path = folder / "case.yaml"
    path.write_text(text)
    return read_specification(read_file(path))


def test_cases_of_vllm_ascend(tmp_path: Path) -> None:
    found = ascend(tmp_path, ASCEND)
    first, second = loaded(tmp_path, found.cells)
    assert (first.name, second.name) == ("case-a3-prefix75", "case-a3-perf")
    assert (first.model, first.seed, first.gpus) == ("org/model-W8A8", 1024, 4)
    assert dict(first.env) == {"HCCL_BUFFSIZE": "512", "LEVEL": "2"}
    assert first.serve_args["speculative-config"] == {"method": "mtp", "num_speculative_tokens": 2}
    assert "port" not in first.serve_args
    lengths = {"random-input-len": 875, "random-prefix-len": 2625, "random-output-len": 1}
    assert (dict(first.dataset_args), first.headline) == (lengths, "ttft")
    assert (first.num_prompts, first.max_concurrency, first.ignore_eos) == (210, 48, True)
    assert (second.request_rate, second.sampling.top_p, second.headline) == (11.2, 0.9, "tpot")
    assert found.left_out["test_cases[0].benchmarks.acc"] == "measures accuracy, no speed"
    assert "AISBench" in found.left_out["test_cases[0].benchmarks.perf"]
    assert found.left_out["test_cases[0].envs.VLLM-TYPO"] == "is no name of an environment variable"


def test_a_server_without_a_benchmark_of_speed_is_imported(tmp_path: Path) -> None:
    case = {"name": "x", "model": "org/m", "envs": {}, "server_cmd": ["--enforce-eager"]}
    proxied = {**case, "service_mode": "epd", "epd_server_cmds": [[], []]}
    found = read(tmp_path, {"test_cases": [case, proxied, {**case, "server_cmd": ["stray"]}]})
    (cell,) = loaded(tmp_path, found.cells)
    assert dict(cell.serve_args) == {"enforce-eager": True}
    assert "no benchmark of speed" in found.left_out["test_cases[0].benchmarks"]
    assert "several servers" in found.left_out["test_cases[1]"]
    assert [error.field for error in found.errors] == ["test_cases[2].server_cmd"]
    assert "several servers" in read(tmp_path, {"num_nodes": 2, "deployment": []}).left_out["num_nodes"]


def tpu(**changed: Any) -> dict[str, Any]:
    return {
        "case_name": "gpt-in8-out4",
        "ci_queue": ["tpu_v6e_queue", "tpu_v7x_8_queue"],
        "env": {"RUN_TYPE": "DAILY", "INPUT_LEN": 8, "VLLM_ENGINE_READY_TIMEOUT_S": 3600},
        "server_command_options": {
            "command_type": "vllm_serve",
            "env": {"MODEL_IMPL_TYPE": "vllm"},
            "args": {
                "model": "org/gpt",
                "seed": 42,
                "tensor-parallel-size": {"v7x-8": 4, "default": 1},
                "data-parallel-size": 2,
                "no-enable-prefix-caching": False,
                "async-scheduling": True,
            },
        },
        "client_command_options": {
            "command_type": "vllm_bench_serve",
            "args": {
                "model": "org/gpt",
                "backend": "vllm",
                "request-rate": "10",
                "max-concurrency": 64,
                "dataset-name": "random",
                "num-prompts": 800,
                "percentile-metrics": "ttft,e2el",
                "ignore-eos": True,
                "random-input-len": 8,
                "random-output-len": 4,
            },
        },
    } | changed


def document(*cases: Any) -> dict[str, Any]:
    return {"global_env": {"GCP_PROJECT_ID": "x", "USE_MOE_EP_KERNEL": 0}, "benchmark_cases": list(cases)}


def test_cases_of_tpu_inference_are_a_cell_for_each_machine(tmp_path: Path) -> None:
    accuracy = {**tpu(), "client_command_options": {"command_type": "lm_eval"}}
    found = read(tmp_path, document(tpu(), accuracy))
    small, large = loaded(tmp_path, found.cells)
    assert (small.name, large.name) == ("gpt-in8-out4-v6e-1", "gpt-in8-out4-v7x-8")
    assert (small.gpus, large.gpus, large.serve_args["tensor-parallel-size"]) == (2, 8, 4)
    assert "enable-prefix-caching" not in large.serve_args, "false leaves an option out"
    assert dict(large.env) == {
        "USE_MOE_EP_KERNEL": "0",
        "VLLM_ENGINE_READY_TIMEOUT_S": "3600",
        "MODEL_IMPL_TYPE": "vllm",
    }
    assert (large.request_rate, large.max_concurrency, large.num_prompts, large.seed) == (10.0, 64, 800, 42)
    assert large.headline == "ttft"
    assert "lm_eval" in found.left_out["benchmark_cases[1]"]


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"case_name": ""}, "benchmark_cases[0].case_name"),
        ({"unknown": 1}, "benchmark_cases[0].unknown"),
        ({"ci_queue": "tpu_v6e_queue"}, "benchmark_cases[0].ci_queue"),
        (
            {
                "server_command_options": {
                    "command_type": "vllm_serve",
                    "args": {"model": "m", "tensor-parallel-size": {"v7x-8": 4}},
                }
            },
            "benchmark_cases[0].server_command_options.args.tensor-parallel-size",
        ),
    ],
)
def test_what_is_wrong_in_a_case_is_located(tmp_path: Path, changed: dict[str, Any], field: str) -> None:
    error = only_error(tmp_path, document(tpu(**changed)))
    assert isinstance(error, LocatedError)
    assert error.field == field


@pytest.mark.parametrize(
    ("name", "model", "gpus"),
    [
        ("26-tpu-cases/tpu_gpt_oss.json", "unsloth/gpt-oss-120b-BF16", 8),
        ("27-ascend-nightly/ascend_prefix.yaml", "vllm-ascend/Qwen3-32B-W8A8-QuaRot", 4),
    ],
)
def test_the_public_cases(tmp_path: Path, name: str, model: str, gpus: int) -> None:
    found = read_specification(read_file(data("..", "cases", name)))
    (cell,) = loaded(tmp_path, found.cells)
    assert (cell.model, cell.gpus, found.errors) == (model, gpus, [])
