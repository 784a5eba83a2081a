"""Workloads that no family can measure: refused where the cell is read, before anything is planned."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.cells.importers.base import SpecificationFile
from perfbisect.cells.importers.vllm_ci import read_tests
from perfbisect.cells.loading import load_cell
from perfbisect.errors import LocatedError

PLAIN = "family: text\nmodel: org/model\nnum_prompts: 20\nmax_concurrency: 4\n"

UNSUPPORTED = {
    "backend: vllm-rerank\nendpoint: /v1/rerank\n": ("endpoint", "family pooling asks at /v1/rerank"),
    "backend: openai-embeddings\nendpoint: /v1/embeddings\n": (
        "endpoint",
        "family pooling asks at /v1/embeddings",
    ),
    "backend: openai-audio\nendpoint: /v1/audio/transcriptions\n": (
        "endpoint",
        "family transcription asks at /v1/audio/transcriptions",
    ),
    "serve_args: {runner: pooling}\n": ("serve_args", "a pooling model's: family pooling"),
    "serve_args: [--task, score]\n": ("serve_args", "a pooling model's: family pooling"),
    "backend: openai-embeddings\n": ("backend", "none of family text"),
    "backend: tgi\n": ("backend", "none of family text"),
    "backend: openai\nendpoint: /v1/chat/completions\n": ("backend", "uses /v1/completions"),
}


@pytest.mark.parametrize(("lines", "refusal"), UNSUPPORTED.items())
def test_it_is_refused_with_its_place(lines: str, refusal: tuple[str, str], tmp_path: Path) -> None:
    field, words = refusal
    path = tmp_path / "cell.yaml"
    path.write_text(PLAIN + lines)
    with pytest.raises(LocatedError) as error:
        load_cell(path)
    line = (PLAIN + lines).splitlines().index(
        next(row for row in lines.splitlines() if row.startswith(field))
    ) + 1
    assert (error.value.field, error.value.line) == (field, line)
    assert words in error.value.message


@pytest.mark.parametrize(
    "lines", ["", "backend: vllm\n", "backend: openai-chat\nendpoint: /v1/chat/completions\n"]
)
def test_text_is_asked_at_two_endpoints(lines: str, tmp_path: Path) -> None:
    path = tmp_path / "cell.yaml"
    path.write_text(PLAIN + lines)
    assert load_cell(path).family == "text"


def test_the_importer_uses_the_same_words() -> None:
    test = {
        "test_name": "rerank",
        "server_parameters": {"model": "org/model"},
        "client_parameters": {"endpoint": "/v1/score", "num_prompts": 3},
    }
    source = SpecificationFile(Path("serving-tests.json"), "{}")
    (why,) = read_tests(source, {"tests": [test]}).left_out.values()
    assert "no family here asks at /v1/score" in why
