"""SGLang's ``bench_serving``: its command and its results."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.clients.sglang_bench import CLIENT
from perfbisect.errors import ClientError, UsageError
from tests.serving.workloads import ENDPOINT, SGLANG, make_cell

STATISTICS = {"mean": 1.1, "median": 1.0, "std": 0.2, "p99": 1.5}
RECORDED: dict[str, Any] = {
    "backend": "sglang-oai",
    "dataset_name": "random-ids",
    "request_rate": "inf",
    "max_concurrency": None,
    "random_input_len": 8,
    "random_output_len": 6,
    "random_range_ratio": 1.0,
    "duration": 0.5,
    "completed": 4,
    "total_input_tokens": 32,
    "total_output_tokens": 24,
    "total_output_tokens_retokenized": 24,
    "request_throughput": 8.0,
    "input_throughput": 64.0,
    "output_throughput": 48.0,
    **{f"{part}_ttft_ms": 20.0 * value for part, value in STATISTICS.items()},
    **{f"{part}_{name}_ms": 4.0 * value for name in ("tpot", "itl") for part, value in STATISTICS.items()},
    **{f"{part}_e2e_latency_ms": 42.0 * value for part, value in STATISTICS.items()},
    "concurrency": 1.0,
    "accept_length": None,
    "ttfts": [0.018, 0.02, 0.02, 0.03],
    "itls": [[0.004] * 5] * 4,
    "output_lens": [6] * 4,
    "errors": [""] * 4,
}
"""The keys of SGLang's client (0.5) with --output-details."""


def command(**fields: Any) -> tuple[str, ...]:
    cell = make_cell(SGLANG, **fields)
    return CLIENT.command(cell, ENDPOINT, seed=7, result=PurePosixPath("/r/run-1.json"), metadata={})


def parse(changed: dict[str, Any], **fields: Any):  # type: ignore[no-untyped-def]
    return CLIENT.parse(make_cell(SGLANG, **fields), {**RECORDED, **changed}, index=1, seed=7)


def test_lengths_are_those_of_the_cell_unless_it_draws_them() -> None:
    """By itself SGLang draws lengths, appends to its file and ignores the end of an answer."""
    assert command() == (
        *("-m", "sglang.bench_serving", "--backend", "sglang-oai", "--base-url", "http://127.0.0.1:4321"),
        *("--dataset-name", "random-ids", "--disable-tqdm", "--model", "pb-1a2b", "--num-prompts", "4"),
        *("--output-details", "--output-file", "/r/run-1.json", "--random-input-len", "8"),
        *("--random-output-len", "6", "--random-range-ratio", "1", "--request-rate", "inf", "--seed", "7"),
        *("--tokenizer", "org/m", "--warmup-requests", "0"),
    )
    drawn = command(dataset_args={"random-range-ratio": 0.5}, ignore_eos=False)
    assert drawn[drawn.index("--random-range-ratio") + 1] == "0.5"
    assert "--disable-ignore-eos" in drawn


def test_other_sampling_is_part_of_the_body() -> None:
    sent = command(sampling={"temperature": 0.7, "top_p": 0.9}, extra_body={"stop": ["x"]})
    assert sent[sent.index("--extra-request-body") + 1] == ('{"stop":["x"],"temperature":0.7,"top_p":0.9}')


@pytest.mark.parametrize(
    ("fields", "field", "told"),
    [
        ({"backend": "openai"}, "backend", "none of SGLang's: sglang, "),
        ({"backend": "sglang"}, "backend", "backend sglang uses /generate"),
        ({"burstiness": 2.0}, "burstiness", "no burstiness"),
        ({"dataset_name": "random"}, "dataset_name", "draws from ShareGPT"),
        ({"sampling": "server"}, "sampling", "the temperature 0"),
        ({"backend": "sglang", "endpoint": "/generate", "sampling": {"top_p": 0.9}}, "sampling", "/generate"),
        ({"client": {"name": "sglang_bench", "args": {"output-file": "x"}}}, "client", "cannot set"),
    ],
)
def test_what_the_client_does_not_send_is_refused(fields: dict[str, Any], field: str, told: str) -> None:
    with pytest.raises(UsageError, match=told) as refused:
        command(**fields)
    assert refused.value.field == field


def test_a_result_is_a_measurement() -> None:
    run = parse({})
    assert run.values["tpot:median"] == 4.0
    assert (run.values["e2el:median"], run.values["e2el_per_token"]) == (42.0, 7.0)
    assert run.values["total_token_throughput"] == 112.0
    assert (run.values["output_tokens"], run.values["failed"]) == (6, 0)
    assert run.spread["ttft:median"] > 0
    assert "spec_decode_acceptance_length" not in run.values
    assert run.warnings == ()


def test_the_acceptance_of_a_speculating_server_is_reported() -> None:
    served = {"serve_args": {"speculative-algorithm": "EAGLE"}}
    assert parse({"accept_length": 2.3}, **served).values["spec_decode_acceptance_length"] == 2.3
    assert "spec_decode_acceptance_length" not in parse({}, **served).values


@given(failed=st.integers(1, 3), text=st.sampled_from(["", "refused"]))
def test_failures_count_also_without_a_text(failed: int, text: str) -> None:
    good = 4 - failed
    lists = {
        "errors": [text] * failed + [""] * good,
        "output_lens": [0] * failed + [6] * good,
        "ttfts": [0.0] * failed + [0.02] * good,
    }
    run = parse({**lists, "completed": good, "total_output_tokens": 6 * good})
    assert run.values["failed"] == failed / 4
    assert any("requests failed" in warning for warning in run.warnings)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"errors": None}, "without --output-details"),
        ({"backend": "vllm"}, "of another run: backend"),
        ({"dataset_name": "sharegpt"}, "of another run: dataset_name"),
        ({"completed": 0, "errors": ["no"] * 4}, "0 of 4 requests completed"),
        ({"median_ttft_ms": 90.0}, "contradicts itself"),
        ({"median_tpot_ms": 0.0}, "no measurement"),
        ({"total_output_tokens": 0}, "without one output token"),
    ],
)
def test_what_is_no_measurement_is_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(ClientError, match=told):
        parse(changed)
