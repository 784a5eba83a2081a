"""Pooling models: embeddings, rerank and score, whose answers have no tokens."""

from __future__ import annotations

from collections.abc import Mapping

from perfbisect.model.cell import Cell
from perfbisect.serving.families import ProbeRequest
from perfbisect.serving.families.vllm import VllmFamily

EMBEDDINGS, POOLING = "/v1/embeddings", "/pooling"
_RERANK = ("/v1/rerank", "/rerank", "/v2/rerank")

_TASKS = frozenset({"embed", "embedding", "classify", "score", "reward", "rerank"})
"""Values of ``--task`` of vLLM until ``--runner pooling``."""

_TEXT = "The first request of an attempt must be answered."


def is_pooling(serve_args: Mapping[str, object]) -> bool:
    """Whether a server's arguments say that it pools."""
    return serve_args.get("runner") == "pooling" or serve_args.get("task") in _TASKS


def _first(cell: Cell, model: str) -> ProbeRequest:
    if cell.endpoint in _RERANK:
        documents = [_TEXT, "Another text."]
        body = {"model": model, "query": "What must be answered?", "documents": documents}
        # Of the document, not its score: that may be zero.
        return ProbeRequest(cell.endpoint, body, "results.0.document")
    value = "data.0.data" if cell.endpoint == POOLING else "data.0.embedding"
    return ProbeRequest(cell.endpoint, {"model": model, "input": _TEXT, **cell.extra_body}, value)


FAMILY = VllmFamily(
    "pooling",
    "e2el",
    ("failed", "input_tokens"),
    {
        "openai-embeddings": (EMBEDDINGS,),
        "openai-embeddings-chat": (EMBEDDINGS,),
        "vllm-rerank": _RERANK,
        "vllm-pooling": (POOLING,),
    },
    _first,
    has_sampling=False,
    request_metrics=("e2el",),
    # All tokens are those of the inputs.
    run_metrics=("request_throughput", "total_token_throughput", "failed", "input_tokens"),
)
