"""The table of suspects: the shipped one is whole, and a wrong one says where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from perfbisect.errors import LocatedError
from perfbisect.model.commit_details import RequestPhase
from perfbisect.series.suspects.table import SHIPPED, load_suspect_table
from tests.shared import data

TABLE = load_suspect_table()
NO_CODE = ("tests", "benchmark", "documentation", "dependencies", "image", "CI and tools")


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("vllm_omni/diffusion/models/bagel/pipeline.py", None),
        ("vllm/model_executor/models/llama.py", None),
        ("vllm_omni/engine/orchestrator.py", "engine loop"),
        ("vllm/v1/core/sched/scheduler.py", "engine loop"),
        ("python/sglang/srt/managers/scheduler.py", "engine loop"),
        ("vllm/v1/attention/backends/mla/common.py", "attention"),
        ("vllm/lora/layers.py", "parts that few cells use"),
        ("vllm/tool_parsers/abstract.py", "code beside the requests"),
        ("vllm/model_executor/layers/fused_moe/configs/E=8,N=16.json", "tuned kernel configurations"),
        ("requirements/cuda.txt", "dependencies"),
        ("requirements/test.in", "CI and tools"),
        ("python/sglang/test/runners.py", "tests"),
        ("vllm_omni/engine/arg_utils.py", "code that runs before the first request"),
        ("tests/engine/test_x.py", "tests"),
        ("tests/dfx/perf/tests/test.json", "benchmark"),
        ("vllm_omni/benchmarks/patch/patch.py", "benchmark"),
        ("docs/user_guide/a.md", "documentation"),
        ("benchmarks/build_dataset/download.md", "documentation"),
        ("vllm_omni/deploy/README_x.md", "documentation"),
        ("docker/Dockerfile.ci", "dependencies"),
        ("docker/Dockerfile.rocm", "image"),
        (".buildkite/test-ready.yml", "CI and tools"),
    ],
)
def test_what_files_are(path: str, kind: str | None) -> None:
    found = TABLE.kind_of(path)
    assert (found.kind if found else None) == kind
    assert TABLE.is_code(path) == (kind not in NO_CODE)


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("vllm_omni/engine/orchestrator.py", "flow of chunks from stage to stage"),
        (
            "vllm_omni/distributed/omni_connectors/transfer_adapter/chunk_transfer_adapter.py",
            "transfer of chunks",
        ),
        ("vllm_omni/distributed/omni_connectors/connectors/base.py", "between stages"),
        ("vllm_omni/diffusion/worker/x.py", "diffusion engine"),
        ("vllm_omni/diffusion/models/qwen_image/x.py", "a model's own code"),
        ("vllm_omni/entrypoints/openai/serving_speech.py", "speech endpoint"),
        ("tests/dfx/perf/tests/test_qwen_image_vllm_omni.json", "benchmark of diffusion"),
        ("tests/dfx/perf/tests/test.json", None),
        ("vllm_omni/platforms/npu/worker/x.py", "Ascend"),
        ("vllm/v1/spec_decode/eagle.py", "speculative decoding"),
        ("vllm/v1/engine/core.py", "vLLM's engine"),
        ("vllm/model_executor/layers/fused_moe/layer.py", "mixture of experts"),
        ("vllm/model_executor/layers/quantization/utils/fp8_utils.py", "FP8"),
        ("vllm/v1/attention/backends/rocm_attn.py", "ROCm"),
        ("vllm/v1/worker/gpu_model_runner.py", "vLLM's engine"),
        ("vllm/v1/worker/tpu_model_runner.py", "TPU"),
        ("python/sglang/srt/layers/attention/nsa_backend.py", "sparse attention"),
        (
            "python/sglang/srt/distributed/device_communicators/triton_symm_mem_ag.py",
            "communication between devices",
        ),
        ("python/sglang/multimodal_gen/runtime/server.py", "diffusion in SGLang"),
        ("Makefile", None),
    ],
)
def test_who_runs_files(path: str, part: str | None) -> None:
    found = TABLE.part_of(path)
    assert (found.part if found else None) == part


@pytest.mark.parametrize(
    ("path", "phases"),
    [
        ("vllm/entrypoints/openai/api_server.py", {"outside"}),
        ("vllm/v1/engine/async_llm.py", {"outside"}),
        ("vllm/v1/engine/detokenizer.py", {"outside"}),
        ("vllm/v1/engine/output_processor.py", {"outside"}),
        ("vllm/v1/engine/core.py", {"queue", "prefill", "decode"}),
        ("vllm/v1/core/sched/scheduler.py", {"queue", "prefill", "decode"}),
        ("vllm/v1/worker/gpu_model_runner.py", {"prefill", "decode"}),
        ("vllm/v1/attention/backends/flash_attn.py", {"prefill", "decode"}),
        ("vllm/v1/sample/sampler.py", {"prefill", "decode"}),
        ("vllm/model_executor/models/llama.py", {"prefill", "decode"}),
        ("csrc/attention/paged_attention_v1.cu", {"prefill", "decode"}),
        ("python/sglang/srt/managers/scheduler.py", {"queue", "prefill", "decode"}),
        ("python/sglang/srt/managers/detokenizer_manager.py", {"outside"}),
        ("vllm_omni/engine/orchestrator.py", set()),
        ("vllm/envs.py", set()),
        ("tests/v1/worker/test_gpu_model_runner.py", set()),
        ("docs/serving.md", set()),
    ],
)
def test_in_which_phases_files_run(path: str, phases: set[str]) -> None:
    assert set(TABLE.phases_of(path)) == phases


def test_every_phase_weighs_and_is_run_by_some_code() -> None:
    phases = set(get_args(RequestPhase))
    assert set(TABLE.weights.phases) == phases == {phase for row in TABLE.phases for phase in row.phases}
    assert all(1 < ratio <= 4 for ratio in TABLE.weights.phases.values())


def test_of_most_files_of_the_engine_something_is_known() -> None:
    """Of all files that four months of commits touched: no product file without a part."""
    rows = data("vllm_omni", "history.jsonl").read_text().splitlines()
    files = {name for row in rows for name in json.loads(row)["files"]}
    code = {name for name in files if TABLE.is_code(name) and name.startswith("vllm_omni/")}
    assert len(code) > 800
    assert [name for name in code if TABLE.part_of(name) is None] == []
    loose = [name for name in files if TABLE.is_code(name) and not name.startswith("vllm_omni/")]
    assert loose == []
    reached = {part.part for name in code if (part := TABLE.part_of(name))}
    of_omni = {part.part for part in TABLE.parts if part.paths[0].startswith("vllm_omni/")}
    assert of_omni - reached == set(), "rows that later ones hide"


@pytest.mark.parametrize(
    ("change", "replaced", "said"),
    [
        ("  outside_window: 0.5 ", "  outside_window: 0 ", "weights.outside_window"),
        ("  hit: 0.8 ", "  hit: 1.5 ", "weights.hit"),
        ("  leak: 0.03 ", "  leaks: 0.03 ", "weights.leak"),
        ("size: [[5, 0.7]", "size: [[500, 0.7]", "ascending"),
        ("paths: [tests/**", "path: [tests/**", "paths"),
        ("paths: [vllm_omni/**]", 'paths: ["{model}/{model}"]', "twice"),
        ("  instrument: {benchmark: 100", "  instruments: {benchmark: 100", "causes"),
        ("{feature: qwen, words: qwen}", "{feature: qwen, words: 'qwen('}", "no regular expression"),
        (
            "{feature: qwen, words: qwen}",
            f"{{feature: qwen, words: '{'(' * 2000}'}}",
            "no regular expression",
        ),
        ("about: model, of: [qwen]", "about: model", "a weight, or of and about"),
        ("    model: [2.5, 0.45]", "    models: [2.5, 0.45]", "weights.titles"),
        ("phases: {queue: 1.5", "phases: {queue: 0.5", "weights.phases.queue"),
        ("phases: [outside]", "phases: [inside]", "phases.2.phases.0"),
    ],
)
def test_a_wrong_table_says_where(tmp_path: Path, change: str, replaced: str, said: str) -> None:
    text, path = SHIPPED.read_text(), tmp_path / "suspects.yaml"
    assert change in text
    path.write_text(text.replace(change, replaced))
    with pytest.raises(LocatedError) as raised:
        load_suspect_table(path)
    assert said in str(raised.value)
    assert raised.value.where is not None and raised.value.where.startswith(f"{path}:")


def test_the_cells_of_nightlies_by_their_names() -> None:
    traits = {
        "test_qwen3_omni_chunk": {"omni", "async_chunk"},
        "test_qwen3_omni": {"omni"},
        "test_qwen3_tts_base": {"tts", "async_chunk"},
        "test_voxcpm2": {"tts"},
        "test_qwen_image_edit": {"diffusion"},
        "test_qwen3_omni_910": {"omni", "npu"},
        "serving_llama8B_tp1": set(),
    }
    assert {name: TABLE.traits_of(name) for name in traits} == traits


@pytest.mark.parametrize(
    ("texts", "runs", "lacks"),
    [
        (("nvidia/DeepSeek-R1-0528-FP4-v2", "B200"), {"moe", "mla", "fp4", "blackwell"}, {"fp8", "rocm"}),
        (("deepseek-ai/DeepSeek-R1-0528", "8xH200"), {"fp8", "hopper", "flash_attention"}, {"fp4"}),
        (("meta-llama/Llama-3.1-8B-Instruct", "MI300X", "tp 8"), {"rocm", "distributed"}, {"moe", "hopper"}),
        (("Qwen/Qwen3-Next-80B-A3B-Thinking", ""), {"moe", "mamba", "qwen"}, {"mla", "multimodal"}),
        (("zai-org/GLM-5", "RTX PRO 6000"), {"deepseek", "sparse_attention", "blackwell"}, {"kimi"}),
    ],
)
def test_what_models_and_devices_imply(texts: tuple[str, ...], runs: set[str], lacks: set[str]) -> None:
    found = TABLE.features_of(*texts)
    assert runs <= found and not lacks & found


def test_every_title_is_about_what_a_cell_can_have() -> None:
    """Rows that no cell of today has are named: their commits are unlikely for all cells."""
    known = {row.feature for row in TABLE.features}
    unknown = {feature for row in TABLE.titles for feature in row.of} - known
    assert unknown == {"musa", "mps", "tools", "training", "gateway", "batch_invariance", "another_model"}
    assert {row.about for row in TABLE.titles} - {None} == set(TABLE.weights.titles)
