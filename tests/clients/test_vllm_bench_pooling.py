"""Results of ``vllm bench serve`` without output tokens, and of sound."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest

from perfbisect.clients.vllm_bench import CLIENT
from perfbisect.errors import ClientError
from perfbisect.model.cell import Cell
from tests.clients.test_vllm_bench import document
from tests.serving.families.test_unspoken import AUDIO, EMBED
from tests.serving.workloads import ENDPOINT, make_cell

RECORDED = {
    "backend": "openai-embeddings",
    "model_id": "pb-1a2b",
    "num_prompts": 4,
    "request_rate": "inf",
    "max_concurrency": 1,
    "duration": 0.2,
    "completed": 4,
    "total_input_tokens": 256,
    "request_throughput": 20.0,
    "total_token_throughput": 1280.0,
    "input_lens": [64, 64, 64, 64],
    "latencies": [0.02, 0.03, 0.03, 0.04],
    "errors": ["", "", "", ""],
    **{f"{name}_e2el_ms": 30.0 for name in ("mean", "median", "p50", "p90", "p95", "p99")},
    "std_e2el_ms": 7.07,
}
"""The keys of vLLM's client, which counts no failures here."""


def embed(**fields: Any) -> Cell:
    return make_cell(EMBED, **{"max_concurrency": 1, **fields})


def test_a_run_without_output_tokens_is_a_measurement() -> None:
    run = CLIENT.parse(embed(), RECORDED, index=1, seed=1)
    assert run.values["e2el:median"] == 30.0
    assert (run.values["input_tokens"], run.values["total_token_throughput"]) == (64, 1280)
    assert run.values["failed"] == 0
    assert not {"output_tokens", "ttft:median", "e2el_per_token", "output_throughput"} & run.values.keys()
    assert run.spread["e2el:median"] > 0
    assert run.warnings == ()


def test_failures_are_those_that_did_not_complete() -> None:
    failed = {**RECORDED, "completed": 3, "errors": ["", "refused", "", ""]}
    run = CLIENT.parse(embed(), failed, index=1, seed=1)
    assert run.values["failed"] == 0.25
    assert "1 of 4 requests failed: refused" in run.warnings
    with pytest.raises(ClientError, match="0 of 4 requests completed"):
        CLIENT.parse(embed(), {**RECORDED, "completed": 0, "errors": ["no"] * 4}, index=1, seed=1)


@pytest.mark.parametrize(
    ("prompts", "arguments"),
    [
        (8, {"random-batch-size": 2}),
        (7, {"random-batch-size": 2}),
        (5, {"random-batch-size": 2, "no-reranker": True}),
    ],
)
def test_prompts_of_a_batch_are_one_request(prompts: int, arguments: dict[str, Any]) -> None:
    cell = embed(num_prompts=prompts, dataset_args=arguments)
    run = CLIENT.parse(cell, {**RECORDED, "num_prompts": prompts}, index=1, seed=1)
    assert run.warnings == ()


def test_only_what_is_reported_is_asked_for() -> None:
    for fields, names in ((EMBED, "e2el"), (AUDIO, "ttft,tpot,itl,e2el")):
        args = CLIENT.command(
            make_cell(fields), ENDPOINT, seed=1, result=PurePosixPath("/r.json"), metadata={}
        )
        assert args[args.index("--percentile-metrics") + 1] == names
        assert not {"--temperature", "--top-p"} & set(args)


def test_sound_has_rtfx_where_the_client_reports_it() -> None:
    load = {"max_concurrency": 1, "metric_percentiles": [50, 99.5]}
    sound, text = make_cell(AUDIO, **load), make_cell({"family": "text"}, **load)
    assert CLIENT.parse(sound, document(rtfx=12.5), index=1, seed=1).values["rtfx"] == 12.5
    assert "rtfx" not in CLIENT.parse(sound, document(), index=1, seed=1).values
    assert "rtfx" not in CLIENT.parse(text, document(rtfx=1.0), index=1, seed=1).values
