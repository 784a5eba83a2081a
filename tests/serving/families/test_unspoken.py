"""Servers of vLLM that are asked for no text: pooling and transcription."""

from __future__ import annotations

from typing import Any

import pytest

from perfbisect.errors import UsageError
from perfbisect.serving.families import FAMILIES, ServerCommand, family_at
from tests.serving.workloads import ENDPOINT, make_cell

EMBED = {
    "family": "pooling",
    "backend": "openai-embeddings",
    "endpoint": "/v1/embeddings",
    "headline": "e2el",
}
AUDIO = {
    "family": "transcription",
    "backend": "openai-audio",
    "endpoint": "/v1/audio/transcriptions",
    "headline": "e2el",
}


def server(fields: dict[str, Any], **more: Any) -> ServerCommand:
    cell = make_cell(fields, **more)
    return FAMILIES[cell.family].server(cell, ENDPOINT)


@pytest.mark.parametrize(
    ("endpoint", "asked", "answered"),
    [
        ("/v1/embeddings", "input", "data.0.embedding"),
        ("/pooling", "input", "data.0.data"),
        ("/v1/rerank", "documents", "results.0.document"),
    ],
)
def test_the_first_request_is_of_the_kind_that_is_measured(endpoint: str, asked: str, answered: str) -> None:
    request = server(EMBED, endpoint=endpoint).first_request
    assert (request.path, request.must_contain) == (endpoint, answered)
    assert request.body[asked]


def test_sound_is_sent_as_a_file_and_forgotten_between_runs() -> None:
    command = server(AUDIO)
    assert command.first_request.form
    assert isinstance(command.first_request.body["file"], bytes)
    assert [request.path for request in command.reset_requests] == ["/reset_prefix_cache", "/reset_mm_cache"]


@pytest.mark.parametrize("fields", [EMBED, AUDIO])
def test_no_sampling_is_sent(fields: dict[str, Any]) -> None:
    assert "--generation-config" not in server(fields).args
    with pytest.raises(UsageError, match="have no top-p") as error:
        server(fields, sampling={"top_p": 0.9})
    assert error.value.field == "sampling"


def test_an_endpoint_has_one_family() -> None:
    found = {
        end: family_at(end) for end in ("/v1/completions", "/pooling", "/v1/audio/translations", "/v1/score")
    }
    assert [family and family.name for family in found.values()] == ["text", "pooling", "transcription", None]
