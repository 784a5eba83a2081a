"""The cells that come with perfbisect."""

from __future__ import annotations

import json
import re
from pathlib import Path, PurePosixPath

import pytest

from perfbisect.cells.loading import list_cells, load_cells
from perfbisect.clients import CLIENTS
from perfbisect.jobs.documents import cell_document
from perfbisect.model.cell import Cell, apply_variant
from perfbisect.report.sections import cell_rows
from perfbisect.resources import cells_folder
from perfbisect.serving.families import FAMILIES, Endpoint
from tests.shared import data

NAMES = sorted(path.stem for path in cells_folder().glob("*.yaml"))
CELLS = [cell for name in NAMES for cell in load_cells(cells_folder() / f"{name}.yaml")]
MODEL = cells_folder() / "models" / "llama_100m"


def words(text: str) -> set[str]:
    return set(text.split())


SERVE_FLAGS = words(
    "host port served-model-name seed revision tokenizer-revision generation-config load-format "
    "enforce-eager max-model-len max-num-seqs speculative-config enable-prefix-caching "
    "no-enable-prefix-caching async-scheduling no-async-scheduling max-num-batched-tokens "
    "gpu-memory-utilization tensor-parallel-size"
)
"""Server options of the shipped cells, each looked up in vLLM 0.32's engine/arg_utils.py."""

OMNI_SERVE_FLAGS = words(
    "omni deploy-config stage-overrides stage-init-timeout init-timeout async-chunk no-async-chunk "
    "enable-diffusion-pipeline-profiler step-execution cache-backend"
)
"""The same, looked up in vLLM-Omni 0.30's entrypoints/cli/serve.py."""

BENCH_FLAGS = words(
    "backend base-url endpoint model tokenizer dataset-name dataset-path seed num-prompts num-warmups "
    "max-concurrency request-rate ignore-eos temperature percentile-metrics metric-percentiles disable-tqdm "
    "ready-check-timeout-sec metadata save-result save-detailed result-dir result-filename random-input-len "
    "random-output-len hf-split hf-output-len prefix-repetition-num-prefixes prefix-repetition-prefix-len "
    "prefix-repetition-suffix-len prefix-repetition-output-len"
)
"""Client options of the shipped cells, each looked up in vLLM 0.32's benchmarks/serve.py and datasets."""

OMNI_BENCH_FLAGS = {"omni", "extra-body", "seed-tts-locale"}
"""The same, looked up in vLLM-Omni 0.30's entrypoints/cli/benchmark."""

DIFFUSION_FLAGS = words(
    "backend endpoint base-url model dataset task num-prompts seed max-concurrency request-rate "
    "warmup-requests output-file disable-tqdm width height num-inference-steps enable-negative-prompt "
    "num-input-images"
)
"""Options of vLLM-Omni's diffusion benchmark, of which it has ``--backend`` or ``--endpoint``."""

KNOWN_FLAGS = {
    "vllm_bench": BENCH_FLAGS,
    "omni_bench": BENCH_FLAGS | OMNI_BENCH_FLAGS,
    "diffusion_bench": DIFFUSION_FLAGS,
}


def flags(args: tuple[str, ...]) -> set[str]:
    return {arg.removeprefix("--").split("=")[0] for arg in args if arg.startswith("--")}


def sides(cell: Cell) -> list[Cell]:
    return [cell, *(apply_variant(cell, name) for name in cell.variants)]


def test_what_an_engineer_needs_is_there() -> None:
    wanted = (
        "text_cpu_llama100m text_latency_c1 text_throughput text_prefix_repetition text_speculative "
        "tts_default_voice_high_c tts_voice_clone_nightly omni_audio_chat diffusion_qwen_image"
    )
    assert words(wanted) <= set(NAMES)
    shipped = {name for name, path in list_cells().items() if path.parent.resolve() == cells_folder()}
    assert shipped == set(NAMES)
    assert len({cell.digest for cell in CELLS}) == len(CELLS)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_each_uses_only_options_that_exist(cell: Cell) -> None:
    endpoint = Endpoint(port=1, model_name="m")
    for side in sides(cell):
        known = SERVE_FLAGS if cell.family == "text" else SERVE_FLAGS | OMNI_SERVE_FLAGS
        assert flags(FAMILIES[cell.family].server(side, endpoint).args) <= known
    command = CLIENTS[cell.client.name].command(
        cell, endpoint, seed=0, result=PurePosixPath("r.json"), metadata={}
    )
    assert flags(command) <= KNOWN_FLAGS[cell.client.name]


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_each_watches_what_its_headline_could_be_bought_with(cell: Cell) -> None:
    assert "failed" in cell.guards
    if cell.headline.startswith("audio_"):
        assert "audio_duration" in cell.guards
    elif cell.family in ("text", "omni"):
        assert "output_tokens" in cell.guards


def test_the_deploy_yamls_are_those_of_vllm_omni() -> None:
    folder = data("vllm_omni", "deploy")
    for cell in CELLS:
        if cell.deploy_yaml is not None and cell.deploy_yaml.path:
            path = PurePosixPath(cell.deploy_yaml.path)
            assert path.parent == PurePosixPath("vllm_omni/deploy")
            assert (folder / path.name).is_file()


def test_the_sentences_are_as_the_client_reads_them() -> None:
    rows = (cells_folder() / "data" / "tts_sentences" / "en" / "meta.lst").read_text().splitlines()
    fields = [row.split("|") for row in rows]
    assert len(rows) == 64
    assert all(len(row) == 4 and row[3].endswith(".") for row in fields)
    assert len({row[0] for row in fields}) == len({row[3] for row in fields}) == 64


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_each_is_pinned_and_explained(cell: Cell) -> None:
    assert cell.name.startswith(f"{cell.family}_")
    assert cell.description
    assert cell.revision.model is not None and re.fullmatch(
        r"[0-9a-f]{40}|sha256:[0-9a-f]{64}", cell.revision.model
    )
    assert cell.num_warmups > 0
    assert dict(cell_rows(cell_document(cell, cell.metric)))["digest"] == cell.digest


def test_the_cell_of_the_demo_runs_without_hub_and_gpu() -> None:
    (cell,) = load_cells(cells_folder() / "text_cpu_llama100m.yaml")
    assert cell.needs_no_hub
    assert cell.gpus == 0
    assert Path(cell.model) == MODEL
    assert (cell.max_concurrency, cell.num_prompts, cell.headline) == (1, 20, "tpot")
    assert cell.serve_args["load-format"] == "dummy"
    assert cell.env == {"VLLM_CPU_KVCACHE_SPACE": "1"}


def test_the_demos_model_has_the_size_it_says() -> None:
    config = json.loads((MODEL / "config.json").read_text())
    hidden, layers, middle = config["hidden_size"], config["num_hidden_layers"], config["intermediate_size"]
    parameters = (
        layers * (4 * hidden**2 + 3 * hidden * middle + 2 * hidden)
        + 2 * config["vocab_size"] * hidden
        + hidden
    )
    assert 100e6 < parameters < 110e6
    # The CPU engine's attention knows heads of 64, and fails at the first request with others.
    assert config["head_dim"] == hidden // config["num_attention_heads"] == 64


def test_the_demos_tokenizer_fits_the_model() -> None:
    config = json.loads((MODEL / "config.json").read_text())
    tokenizer = json.loads((MODEL / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(config["vocab_size"]))
    assert vocabulary["<s>"] == config["bos_token_id"] and vocabulary["</s>"] == config["eos_token_id"]
    assert sum(file.stat().st_size for file in MODEL.iterdir()) < 100_000
