"""A launch of each kind of workload beside text completions, with the real vLLM."""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
import subprocess
import sys
import wave
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfbisect.cells.lint import Checkout, lint
from perfbisect.cells.loading import known_cells
from perfbisect.changes.git import Repository
from perfbisect.environments.base import Environment
from perfbisect.environments.factory import make_builder
from perfbisect.measure.attempt import read_attempt
from perfbisect.model.attempt import Attempt
from perfbisect.model.change import Change
from scripts.demo import CACHE, DAY, PACKAGE, ROOT, VERSION
from scripts.demo_history import Demo
from tests.vllm.conftest import RELEASE, Answer

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1800)]

LLAMA = ROOT / "cells" / "models" / "llama_100m"
DUMMY = {"load-format": "dummy", "enforce-eager": True, "max-model-len": 512}
CPU = {"env": {"VLLM_CPU_KVCACHE_SPACE": 1}, "gpus": 0, "ready_timeout": 600}
# `bench latency` draws token ids up to 10000; this model's vocabulary ends before.
OFFLINE = {
    **CPU, "family": "offline", "model": str(LLAMA),
    "serve_args": {**DUMMY, "hf-overrides": {"vocab_size": 16384}},
}  # fmt: skip
POOLING = {**CPU, "family": "pooling", "num_prompts": 40, "discard_prompts": 8, "max_concurrency": 1}
BERT = {
    "architectures": ["BertForSequenceClassification"],
    "model_type": "bert",
    "hidden_size": 64,
    "intermediate_size": 128,
    "vocab_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "pad_token_id": 0,
    "torch_dtype": "float32",
    "num_labels": 1,
    "id2label": {"0": "LABEL_0"},
    "label2id": {"LABEL_0": 0},
}
"""A cross-encoder, which also embeds."""

Launch = Callable[..., Attempt]


@pytest.fixture
def launch(typed: Callable[..., Answer], tmp_path: Path, released: Environment) -> Launch:
    """One launch of a cell at the release; ``options``: of ``perfbisect run``."""
    del released

    def run(fields: Mapping[str, object], *options: str) -> Attempt:
        (tmp_path / "own.yaml").write_text(yaml.safe_dump(dict(fields)), encoding="utf-8")
        answer = typed(
            *("run", str(tmp_path / "own.yaml"), "--at", RELEASE, "--exclude-newer", DAY),
            *("--launches", "1", *options),
        )
        assert answer.code == 0, answer.document
        (made,) = answer.document["launches"]
        attempt = read_attempt(Path(answer.document["folder"], made["folder"]))
        assert attempt is not None
        assert attempt.failure is None
        return attempt

    return run


def check_values(attempt: Attempt, runs: int, *metrics: str) -> None:
    """Each run has these metrics, and each is a number above 0, but for shares of failures."""
    assert len(attempt.runs) == runs
    for run in attempt.runs:
        assert run.values.keys() >= set(metrics)
        assert all(math.isfinite(value) for value in run.values.values())
        assert all(run.values[name] > 0 for name in metrics)
        assert run.values.get("failed", 0) == 0


@pytest.mark.parametrize(
    ("fields", "metrics", "runs"),
    [
        (
            {
                "task": "latency",
                "num_prompts": 1,
                "dataset_args": {"input-len": 32, "output-len": 8},
                "client": {"name": "offline_bench", "args": {"num-iters": 4, "num-iters-warmup": 1}},
                "headline": "e2el",
            },
            ("e2el:median", "e2el:mean", "e2el_per_token", "output_tokens"),
            2,
        ),
        pytest.param(
            {
                "task": "throughput",
                "num_prompts": 8,
                "dataset_args": {"random-input-len": 32, "random-output-len": 8},
                "client": "offline_bench",
                "headline": "request_throughput",
            },
            ("request_throughput", "total_token_throughput"),
            1,
            marks=pytest.mark.proof,
        ),
        pytest.param(
            {
                "task": "startup",
                "num_prompts": 1,
                "client": {
                    "name": "offline_bench",
                    "args": {"num-iters-cold": 1, "num-iters-warmup": 0, "num-iters-warm": 1},
                },
                "headline": "ready_time",
            },
            ("ready_time", "ready_time_cold"),
            1,
            marks=pytest.mark.proof,
        ),
    ],
    ids=["latency", "throughput", "startup"],
)
def test_benchmarks_without_a_server(
    launch: Launch, fields: dict[str, Any], metrics: tuple[str, ...], runs: int
) -> None:
    attempt = launch({**OFFLINE, **fields}, "--runs", str(runs))
    check_values(attempt, runs, *metrics)
    assert set(attempt.seconds) == {"build", "bench", "stop"}
    assert attempt.provenance.facts["engine_log"]


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(
            {
                "backend": "vllm-rerank",
                "endpoint": "/v1/rerank",
                "dataset_name": "random-rerank",
                "dataset_args": {"random-input-len": 64, "random-batch-size": 4},
            },
            marks=pytest.mark.proof,
        ),
        {
            "backend": "openai-embeddings",
            "endpoint": "/v1/embeddings",
            "dataset_args": {"random-input-len": 64},
        },
    ],
    ids=["rerank", "embeddings"],
)
def test_pooling(launch: Launch, tmp_path: Path, fields: dict[str, Any]) -> None:
    model = tmp_path / "bert"
    model.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(LLAMA / name, model)
    is_rerank = fields["backend"] == "vllm-rerank"
    # The same weights embed where the model is no classifier.
    config = {**BERT, **({} if is_rerank else {"architectures": ["BertModel"]})}
    (model / "config.json").write_text(json.dumps(config), encoding="utf-8")
    served = {**DUMMY, "runner": "pooling", "max-model-len": 256}
    attempt = launch({**POOLING, **fields, "model": str(model), "serve_args": served, "headline": "e2el"})
    check_values(attempt, len(attempt.runs), "e2el:median", "request_throughput", "input_tokens")
    assert {run.facts["completed"] for run in attempt.runs} == {10 if is_rerank else 40}


WHISPER = {
    "architectures": ["WhisperForConditionalGeneration"],
    "model_type": "whisper",
    "is_encoder_decoder": True,
    "torch_dtype": "float32",
    "d_model": 128,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_hidden_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "num_mel_bins": 80,
    "encoder_ffn_dim": 256,
    "decoder_ffn_dim": 256,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "vocab_size": 1040,
    "decoder_start_token_id": 1025,
    "bos_token_id": 1024,
    "eos_token_id": 1024,
    "pad_token_id": 1024,
}
SOUND = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "processor_class": "WhisperProcessor",
    "feature_size": 80,
    "sampling_rate": 16000,
    "hop_length": 160,
    "chunk_length": 30,
    "n_fft": 400,
}
WORDS = (
    *("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|translate|>", "<|transcribe|>"),
    *("<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"),
)
"""What Whisper's tokenizer has beside text, from id 1024 on."""


def write_whisper(folder: Path) -> None:
    """A Whisper of two layers without weights."""
    tokenizer = json.loads((LLAMA / "tokenizer.json").read_text(encoding="utf-8"))
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer["added_tokens"] += [
        {"id": 1024 + i, "content": word, "special": True, **plain} for i, word in enumerate(WORDS)
    ]
    end = dict.fromkeys(("eos_token", "bos_token", "unk_token", "pad_token"), WORDS[0])
    files = {
        "config.json": WHISPER,
        "preprocessor_config.json": SOUND,
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {"tokenizer_class": "WhisperTokenizer", "model_max_length": 448, **end},
    }
    for name, document in files.items():
        (folder / name).write_text(json.dumps(document), encoding="utf-8")


@pytest.mark.proof
def test_transcription(launch: Launch, tmp_path: Path) -> None:
    model, sound = tmp_path / "whisper", tmp_path / "tone.wav"
    model.mkdir()
    write_whisper(model)
    tone = [round(8000 * math.sin(index / 6)) for index in range(16000)]
    with wave.open(str(sound), "wb") as file:
        file.setparams((1, 2, 16000, len(tone), "NONE", ""))
        file.writeframes(struct.pack(f"<{len(tone)}h", *tone))
    asked = json.dumps({"prompt": "", "audio": str(sound)})
    (tmp_path / "asked.jsonl").write_text(f"{asked}\n" * 6, encoding="utf-8")
    fields = {
        "family": "transcription",
        "model": str(model),
        "serve_args": {**DUMMY, "max-model-len": 448},
        "backend": "openai-audio",
        "endpoint": "/v1/audio/transcriptions",
        "num_prompts": 6,
        **CPU,
        "dataset_name": "custom_audio",
        "dataset_path": str(tmp_path / "asked.jsonl"),
        "dataset_args": {"custom-output-len": 8},
        "max_concurrency": 1,
        "percentile_metrics": ["ttft", "e2el"],
        "headline": "e2el",
    }
    attempt = launch(fields, "--env", f"release:{PACKAGE},with=pandas soundfile av scipy soxr")
    check_values(attempt, len(attempt.runs), "e2el:median", "rtfx", "output_tokens")


@pytest.fixture(scope="session")
def multi_turn(released: Environment, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A client that has the script of the release's source distribution, and the packages it imports."""
    folder, unpacked = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("source")
    asked = (f"vllm=={VERSION}", "--no-binary", ":all:", "--no-deps", "--no-build-isolation", "--no-clean")
    # What pip cannot build, for lack of torch, it leaves unpacked.
    subprocess.run(
        (sys.executable, "-m", "pip", "download", "-q", *asked, "-d", str(folder)),
        env=os.environ | {"TMPDIR": str(unpacked)}, capture_output=True, check=False,
    )  # fmt: skip
    (script,) = unpacked.rglob("benchmarks/multi_turn")
    shutil.copytree(script, folder / "benchmarks" / "multi_turn")
    (folder / "vllm").symlink_to(Path(released.engine_file).parent)
    builder = make_builder(f"release:{PACKAGE},with=pandas", repository=None, cache=CACHE, exclude_newer=DAY)
    client = builder.ensure(Change(RELEASE, kind="release"), log=folder / "build.log", timeout=3600.0)
    return f"existing:{client.interpreter},path={folder}"


@pytest.mark.proof
def test_conversations(launch: Launch, tmp_path: Path, multi_turn: str) -> None:
    said = [
        {"role": "user", "content": "Say three words of it."},
        {"role": "assistant", "content": "a b c d"},
    ]
    talk = [{"id": str(number), "messages": said * 3} for number in range(4)]
    (tmp_path / "talk").mkdir()
    (tmp_path / "talk" / "talk.json").write_text(json.dumps(talk), encoding="utf-8")
    fields = {
        "family": "text",
        "model": str(LLAMA),
        "serve_args": DUMMY,
        "sampling": "server",
        **CPU,
        "client": "multi_turn_bench",
        "backend": "openai-chat",
        "endpoint": "/v1/chat/completions",
        "dataset_name": "conversations",
        "dataset_path": str(tmp_path / "talk"),
        "num_prompts": 12,
        "max_concurrency": 1,
        "headline": "ttft_first_turn",
    }
    attempt = launch(fields, "--client", multi_turn)
    check_values(attempt, len(attempt.runs), "ttft_first_turn:median", "ttft:median", "e2el:median")
    assert {(run.facts["completed"], run.facts["turns"]) for run in attempt.runs} == {(12, 5)}


def test_shipped_cells_are_this_engines(history: Demo) -> None:
    checkout = Checkout(Repository.open(history.path), history.commits[0])
    cells = [cell for cell in known_cells()[0] if not checkout.of_another_engine(cell)]
    assert {"text_eagle", "text_cpu_llama100m"} <= {cell.name.partition("@")[0] for cell in cells}
    found = [(cell.name, finding) for cell in cells for finding in lint(cell, checkout)]
    assert [row for row in found if row[1].level == "error"] == []
