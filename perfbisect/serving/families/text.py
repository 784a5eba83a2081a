"""Text models: ``vllm serve`` with the OpenAI completion API."""

from __future__ import annotations

from perfbisect.model.cell import Cell
from perfbisect.serving.families import ProbeRequest
from perfbisect.serving.families.pooling import is_pooling
from perfbisect.serving.families.vllm import VllmFamily

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"

_ANSWER_TOKENS = 64


def _first(cell: Cell, model: str) -> ProbeRequest:
    asked, is_chat = cell.expected_answer, cell.endpoint == CHAT
    text = asked.prompt if asked else "The first request of an attempt must be answered."
    body: dict[str, object] = {
        "model": model,
        # A model without a chat template answers completions alone.
        **({"messages": [{"role": "user", "content": text}]} if is_chat else {"prompt": text}),
        "max_tokens": _ANSWER_TOKENS if asked else 4,
        "temperature": 0,
        # Without it a model may end at once, without a token, which would count as a wrong answer.
        **({} if asked else {"ignore_eos": True}),
        "stream": False,
    }
    if asked:
        place = "choices.0.message.content" if is_chat else "choices.0.text"
        return ProbeRequest(cell.endpoint, body, answer_at=place, expected=asked.text)
    return ProbeRequest(cell.endpoint, body, "usage.completion_tokens")


FAMILY = VllmFamily(
    "text",
    "tpot",
    ("failed", "output_tokens"),
    {
        **dict.fromkeys(("openai", "vllm", "lmdeploy", "scalellm", "sglang"), (COMPLETIONS,)),
        **dict.fromkeys(("openai-chat", "vllm-chat"), (CHAT,)),
    },
    _first,
    misfit=lambda served: "its server is a pooling model's: family pooling" if is_pooling(served) else "",
)
