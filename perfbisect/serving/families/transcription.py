"""Transcription: sound in, text out, as ``vllm bench serve --backend openai-audio`` asks for it."""

from __future__ import annotations

from perfbisect.model.cell import Cell
from perfbisect.serving.families import ProbeRequest
from perfbisect.serving.families.probes import tone
from perfbisect.serving.families.vllm import VllmFamily

_LEAST = len('{"text":""}')


def _first(cell: Cell, model: str) -> ProbeRequest:
    body = {"model": model, "language": "en", "response_format": "json", **cell.extra_body, "file": tone()}
    # Of a steady tone there may be no word to transcribe: an empty text is an answer.
    return ProbeRequest(cell.endpoint, body, content_type="application/json", at_least=_LEAST, form=True)


FAMILY = VllmFamily(
    "transcription",
    "e2el",
    ("failed", "output_tokens"),
    {"openai-audio": ("/v1/audio/transcriptions", "/v1/audio/translations")},
    _first,
    # Each run sends the same sound.
    resets=("/reset_prefix_cache", "/reset_mm_cache"),
    has_sampling=False,
    newer_metrics=("rtfx",),
)
