"""What holds for every client, tested on the day that it is added."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest

from perfbisect.clients import CLIENTS
from perfbisect.errors import ClientError, UsageError
from perfbisect.model.metric import parse_metric
from perfbisect.serving.families import FAMILIES
from tests.serving.workloads import CHAT, ENDPOINT, PAINT, SGLANG, SPEECH, make_cell

MULTI_TURN: dict[str, Any] = {
    "family": "text",
    "backend": "openai-chat",
    "endpoint": "/v1/chat/completions",
    "dataset_name": "conversations",
    "dataset_path": "/c",
    "sampling": "server",
    "client": "multi_turn_bench",
}

CELLS: list[dict[str, Any]] = [
    {"family": "text"},
    {"family": "pooling", "backend": "vllm-rerank", "endpoint": "/v1/rerank", "headline": "e2el"},
    {
        "family": "pooling",
        "backend": "openai-embeddings",
        "endpoint": "/v1/embeddings",
        "headline": "request_throughput",
    },
    {
        "family": "transcription",
        "backend": "openai-audio",
        "endpoint": "/v1/audio/transcriptions",
        "headline": "e2el",
    },
    {**SPEECH, "client": "omni_bench", "dataset_name": "seed-tts", "headline": "audio_ttfp"},
    {**CHAT, "client": "omni_bench", "extra_body": {"modalities": ["text"]}, "headline": "e2el"},
    {**CHAT, "client": "omni_bench", "percentile_metrics": "ttft,audio_rtf,audio_ttfp", "headline": "e2el"},
    {
        "family": "diffusion",
        "backend": "/v1/images/generations",
        "endpoint": "/v1/images/generations",
        "client": "omni_bench",
        "headline": "e2el",
    },
    SGLANG,
    {**SGLANG, "backend": "openai", "client": "vllm_bench"},
    {
        **PAINT,
        "endpoint": "/v1/chat/completions",
        "client": "diffusion_bench",
        "headline": "latency",
    },
    MULTI_TURN,
]


def identify(fields: dict[str, Any]) -> str:
    return f"{fields['family']}-{fields.get('client', 'vllm_bench')}-{len(str(fields))}"


def test_every_client_is_tested_here() -> None:
    # Without a server there is no client's command: tests/measure/test_offline.py.
    assert {fields.get("client", "vllm_bench") for fields in CELLS} == set(CLIENTS) - {"offline_bench"}
    assert all(client.name == name and client.sources for name, client in CLIENTS.items())


@pytest.mark.parametrize("fields", CELLS, ids=identify)
def test_it_reports_what_it_says_and_refuses_the_rest(fields: dict[str, Any]) -> None:
    one = make_cell(fields)
    client = CLIENTS[one.client.name]
    reported = client.metrics(one)
    assert len(set(reported)) == len(reported)
    for asked in reported:
        client.check_metric(one, parse_metric(asked))
    with pytest.raises(UsageError, match="does not report"):
        client.check_metric(one, parse_metric("video_rtf" if one.family == "text" else "tput_per_gpu"))
    client.check_metric(one, parse_metric("ready_time"))


@pytest.mark.parametrize("fields", CELLS, ids=identify)
def test_the_command_is_of_this_attempt_alone(fields: dict[str, Any]) -> None:
    one = make_cell(fields)
    argv = CLIENTS[one.client.name].command(
        one, ENDPOINT, seed=17, result=PurePosixPath("/a/b/run-1.json"), metadata={"attempt": "a7"}
    )
    text = " ".join(argv)
    assert "http://127.0.0.1:4321" in text
    assert "pb-1a2b" in argv
    assert "run-1.json" in text
    assert not any(word.startswith("--") and " " in word for word in argv)


@pytest.mark.parametrize("fields", CELLS, ids=identify)
@pytest.mark.parametrize("document", [{}, {"completed": 0, "failed": 0, "date": None, "num_prompts": 0}])
def test_a_document_without_a_measurement_is_none(fields: dict[str, Any], document: dict[str, Any]) -> None:
    one = make_cell(fields)
    with pytest.raises(ClientError):
        CLIENTS[one.client.name].parse(one, document, index=1, seed=1)


@pytest.mark.parametrize("fields", CELLS, ids=identify)
def test_the_family_serves_what_the_client_asks_for(fields: dict[str, Any]) -> None:
    one = make_cell(fields)
    request = FAMILIES[one.family].server(one, ENDPOINT).first_request
    assert request is not None
    assert request.path == one.endpoint
    assert request.must_contain or (request.content_type and request.at_least)
