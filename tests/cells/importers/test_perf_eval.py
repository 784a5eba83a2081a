"""Recipes of vLLM's perf-eval: every field becomes a part of a cell, or is named with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.cells.importers import read_specification
from perfbisect.cells.importers.base import Specification, SpecificationFile, read_file
from perfbisect.errors import LocatedError
from tests.cells.importers.reading import loaded

RECIPE = """\
# A comment
name: talker-h200
gpu: H200
num_gpus: 8
nightly: true
timeout_in_minutes: 180

vllm:
  model: org/talker
  image: vllm/vllm-openai:talker
  env:
    OWN: 1
    SHARED: recipe
  serve_args: >-
    --tensor-parallel-size 4
    -dp 2
    --trust-remote-code
    --attention_config.use_fp4_indexer_cache=True
    --speculative-config.method mtp
    --compilation-config {"mode":0,"cudagraph_mode":"FULL_DECODE_ONLY"}

lm_eval:
  tasks:
    - name: gsm8k

vllm_bench:
  configs:
    - name: 8k-in-1k-out
      backend: openai-chat
      dataset: random
      input_len: 8192
      output_len: 1024
      num_prompts: [10, 512]
      max_concurrency: [1, 128]
      repetitions: 3
      args:
        num_warmups: 128
        --disable-tqdm: true
        profile: false
    - name: 1k-in-1k-out
      input_len: 1024
      output_len: 1024
      num_prompts: 64
      max_concurrency: 8
      speed_bench_category: low_entropy
"""
PROFILES = """\
H200:
  queue: H200
  env:
    VLLM_DEEP_GEMM_WARMUP: skip
    SHARED: profile
"""


def recipe_in(folder: Path, text: str = RECIPE, profiles: str = PROFILES) -> Specification:
    (folder / "lib").mkdir(exist_ok=True)
    (folder / "workloads").mkdir(exist_ok=True)
    (folder / "lib" / "gpu_profiles.yaml").write_text(profiles)
    path = folder / "workloads" / "talker_h200.yaml"
    path.write_text(text)
    return read_specification(read_file(path))


def test_a_recipe(tmp_path: Path) -> None:
    found = recipe_in(tmp_path)
    first, second, third = loaded(tmp_path, found.cells)
    assert [cell.name for cell in (first, second, third)] == [
        "talker-h200-8k-in-1k-out@c1-n10",
        "talker-h200-8k-in-1k-out@c128-n512",
        "talker-h200-1k-in-1k-out",
    ]
    assert (second.model, second.family, second.gpus, second.ready_timeout) == ("org/talker", "text", 8, 3600)
    assert second.serve_args == {
        "tensor-parallel-size": 4,
        "data-parallel-size": 2,
        "trust-remote-code": True,
        "attention-config.use_fp4_indexer_cache": "True",
        "speculative-config.method": "mtp",
        "compilation-config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
    }
    assert second.env == {
        "VLLM_ENGINE_READY_TIMEOUT_S": "3600",
        "VLLM_DEEP_GEMM_WARMUP": "skip",
        "SHARED": "recipe",
        "OWN": "1",
    }
    assert (second.backend, second.endpoint) == ("openai-chat", "/v1/chat/completions")
    assert (second.num_prompts, second.max_concurrency, second.num_warmups) == (512, 128, 128)
    assert second.ignore_eos
    assert second.dataset_args == {"random-input-len": 8192, "random-output-len": 1024}
    assert second.client.args == {"trust-remote-code": True}
    assert "spec_decode_acceptance_rate" in second.guards
    assert (third.backend, third.endpoint, third.num_warmups) == ("openai", "/v1/completions", 0)


def test_what_is_no_part_of_a_cell_is_named_with_its_line(tmp_path: Path) -> None:
    found = recipe_in(tmp_path)
    source = SpecificationFile(Path("recipe.yaml"), RECIPE)
    assert {source.line(place): place for place in found.left_out} == {
        10: "vllm.image",
        22: "lm_eval",
        35: "vllm_bench.configs[0].repetitions",
        38: "vllm_bench.configs[0].args.--disable-tqdm",
        45: "vllm_bench.configs[1].speed_bench_category",
    }
    assert any("perfbisect run --runs 3" in why for why in found.left_out.values())
    assert found.errors == []


def test_variables_of_a_gpu_that_are_not_known_are_named(tmp_path: Path) -> None:
    found = recipe_in(tmp_path, profiles="B200: {}\n")
    assert "has no H200" in found.left_out["gpu"]
    assert "VLLM_DEEP_GEMM_WARMUP" not in loaded(tmp_path, found.cells)[0].env
    alone = read_specification(SpecificationFile(Path("talker.yaml"), RECIPE))
    assert "gpu" in alone.left_out
    with pytest.raises(LocatedError, match="no valid YAML") as caught:
        recipe_in(tmp_path, profiles="H200: [")
    assert str(caught.value.where).startswith(str(tmp_path / "workloads" / "../lib/gpu_profiles.yaml"))


def test_one_benchmark_that_is_not_understood_leaves_the_others(tmp_path: Path) -> None:
    text = RECIPE.replace("      repetitions: 3\n", "      repetition: 3\n").replace("8192", "8192 # tokens")
    found = recipe_in(tmp_path, text)
    assert [cell.name for cell in loaded(tmp_path, found.cells)] == ["talker-h200-1k-in-1k-out"]
    (error,) = found.errors
    assert "repetition: unknown key; did you mean repetitions?" in error.message
    assert str(error.where).endswith("talker_h200.yaml:35")


def test_other_data_sets_are_left_out_and_names_are_numbered(tmp_path: Path) -> None:
    text = RECIPE.replace("dataset: random", "dataset: speed_bench").replace("1k-in-1k-out", "8k-in-1k-out")
    found = recipe_in(tmp_path, text)
    assert [cell.stem for cell in found.cells] == ["talker-h200-8k-in-1k-out"]
    assert "vllm_bench.configs[0]" in found.left_out
    both = recipe_in(tmp_path, RECIPE.replace("1k-in-1k-out", "8k-in-1k-out"))
    assert [cell.stem for cell in both.cells] == [f"talker-h200-8k-in-1k-out-{n}" for n in (1, 2)]


@pytest.mark.parametrize(
    ("before", "after", "where", "message"),
    [
        ("gpu: H200", "gpus: H200", 3, "unknown key"),
        ("  image:", "  img:", 10, "unknown key"),
        ("model: org/talker", "model:", 9, "is missing"),
        ("-dp 2", "8", 14, ""),
        ("OWN: 1", "OWN: [1]", 12, "is [1] (list)"),
    ],
)
def test_what_all_benchmarks_share_ends_the_recipe(
    before: str, after: str, where: int, message: str, tmp_path: Path
) -> None:
    text = RECIPE.replace(before, after) if after != "8" else RECIPE.replace("--tensor-parallel-size 4", "8")
    with pytest.raises(LocatedError) as caught:
        recipe_in(tmp_path, text)
    assert str(caught.value.where).endswith(f"talker_h200.yaml:{where}")
    assert message in caught.value.message


def test_an_option_that_a_key_sets_is_refused_as_an_argument(tmp_path: Path) -> None:
    found = recipe_in(tmp_path, RECIPE.replace("num_warmups: 128", "max-concurrency: 3"))
    (error,) = found.errors
    assert str(error.where).endswith(":37")
    rated = recipe_in(tmp_path, RECIPE.replace("num_warmups: 128", "request_rate: 4"))
    assert {cell.request_rate for cell in loaded(tmp_path, rated.cells)} == {4.0, float("inf")}


def test_a_recipe_of_accuracy_alone_has_no_cells(tmp_path: Path) -> None:
    found = recipe_in(tmp_path, RECIPE.partition("vllm_bench:")[0])
    assert (found.cells, list(found.left_out)) == ([], ["lm_eval"])


def test_yaml_that_is_no_recipe_is_of_no_form(tmp_path: Path) -> None:
    with pytest.raises(LocatedError, match="is of no form that is known"):
        recipe_in(tmp_path, "name: x\n")
    with pytest.raises(LocatedError, match="no valid YAML"):
        recipe_in(tmp_path, "name: [\n")
