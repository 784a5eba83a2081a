"""Small cells of each family, and the endpoint of a server that is not there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfbisect.model.cell import Cell
from perfbisect.serving.families import Endpoint

ENDPOINT = Endpoint(port=4321, model_name="pb-1a2b")

SPEECH = {"family": "tts", "backend": "openai-audio-speech", "endpoint": "/v1/audio/speech"}
CHAT = {"family": "omni", "backend": "openai-chat-omni", "endpoint": "/v1/chat/completions"}
SGLANG = {
    "family": "sglang",
    "client": "sglang_bench",
    "backend": "sglang-oai",
    "endpoint": "/v1/completions",
    "dataset_name": "random-ids",
    "dataset_args": {"random-input-len": 8, "random-output-len": 6},
    "ignore_eos": True,
}
PAINT = {"family": "diffusion", "task": "t2i", "backend": "vllm-omni"}


def make_cell(fields: Mapping[str, Any], **more: Any) -> Cell:
    return Cell.model_validate({"name": "one", "model": "org/m", "num_prompts": 4, **fields, **more})
