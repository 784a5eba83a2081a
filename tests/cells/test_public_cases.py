"""Public reports, where they are beside the checkout: what is read of each, and the cell that it gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.cells.reports import ReportedWorkload, parse_report
from tests.cells.test_drafts import drafted
from tests.shared import DATA


def case(name: str) -> str:
    """A file of a case. Skips the test where it is not there."""
    path = DATA.parent / "cases" / name
    if not path.exists():
        pytest.skip(f"needs the public reports, which are not beside this checkout: {path}")
    return path.read_text(encoding="utf-8")


SAID = {
    "01-mtp-acceptance/report.md": {"model": "nvidia/DeepSeek-R1-NVFP4", "random-input-len": 1000},
    "02-reranker/report.md": {"endpoint": "/v1/rerank", "random-batch-size": 100, "runner": "pooling"},
    "09-whisper/report.md": {"endpoint": "/v1/audio/transcriptions", "hf-split": "test"},
    "03-bench-latency/report.md": {"task": "latency", "num-iters": 5, "output-len": 1024, "num_prompts": 1},
    "05-images/report.md": {"random-mm-bucket-config": "{(384, 384, 1): 1.0}", "ignore_eos": True},
    "06-compile-time/report.md": {"VLLM_USE_STANDALONE_COMPILE": "1", "tensor-parallel-size": 8},
    "08-environment/report.md": {"VLLM_ATTENTION_BACKEND": "TRITON_ATTN", "VLLM_ROCM_USE_AITER": "1"},
    "11-long-context/report.md": {"random-input-len": 30000, "kv-cache-dtype": "fp8"},
    "16-lora/report.md": {
        "model": "Qwen/Qwen3-30B-A3B",
        "lora-modules": "test_lora_model=/path/to/loramodel",
    },
    "20-gptq-rdna2/report.md": {"model": "AlphaGaO/Qwen3-4B-GPTQ", "dtype": "float16"},
    "21-compose-list/report.md": {"tensor-parallel-size": 4, "VLLM_USE_FLASHINFER_SAMPLER": "1"},
    "21-compose-list/compose.md": {"model": "Qwen/Qwen3-8B", "VLLM_USE_FLASHINFER_SAMPLER": "1"},
    "21-compose-list/kubernetes.md": {"tensor-parallel-size": 2, "max-num-batched-tokens": 4096},
}


def said(report: ReportedWorkload) -> dict[str, object]:
    return {**report.arguments, **report.fields, **(report.serve_args or {}), **(report.env or {})}


@pytest.mark.parametrize("name", SAID)
def test_a_report_is_read_and_its_cell_agrees_with_it(tmp_path: Path, name: str) -> None:
    report = parse_report(case(name))
    assert SAID[name].items() <= said(report).items()
    assert report.unread == ()
    drafted(tmp_path, case(name))


def test_a_report_without_a_model_gives_a_cell_with_it(tmp_path: Path) -> None:
    cell, written = drafted(tmp_path, case("10-multi-turn/report.md"), "Qwen/Qwen3-14B")
    assert (cell.client.name, cell.max_concurrency, cell.seed) == ("multi_turn_bench", 8, 1234)
    assert cell.dataset_args == {"max-active-conversations": 24}
    assert "dataset_path: generate_multi_turn.json" in written


@pytest.mark.parametrize(
    "name",
    [
        "13-aiperf-guidellm-sglang/profile_export_aiperf.json",
        "13-aiperf-guidellm-sglang/guidellm_benchmarks.json",
        "14-bench-sweep/sweep/SERVE--max_num_seqs=4-BENCH--max_concurrency=2-num_prompts=8/run=0.json",
    ],
)
def test_a_result_of_a_client_gives_a_cell(tmp_path: Path, name: str) -> None:
    drafted(tmp_path, case(name))


def test_a_result_without_a_model_gives_one_with_it(tmp_path: Path) -> None:
    for name in ("sglang_one.json", "sglang_0824_600_random.jsonl"):
        cell, _ = drafted(tmp_path, case(f"13-aiperf-guidellm-sglang/{name}"), "org/m")
        assert (cell.num_prompts, cell.request_rate) == (600, 40)
