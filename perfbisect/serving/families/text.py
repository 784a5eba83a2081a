"""Text models: ``vllm serve`` with the OpenAI completion API."""

from __future__ import annotations

from collections.abc import Mapping

from perfbisect.errors import UsageError
from perfbisect.model.cell import SERVER, Cell
from perfbisect.serving.families import Engine, Family, ProbeRequest, hub_revision

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
ENDPOINTS = (COMPLETIONS, CHAT)
"""What text is asked at; pooling (embeddings, rerank, score) and transcription return no output tokens."""

_POOLING_TASKS = frozenset({"embed", "embedding", "classify", "score", "reward", "rerank"})
"""Values of ``--task`` of vLLM until ``--runner pooling``."""


class TextFamily(Family):
    """``vllm serve`` with a fixed seed and the engine's sampling defaults, or the hub's if the cell says so.

    Development mode enables cache resets. The fault handler logs crashes: an engine process that vanishes
    without a line was killed.
    """

    name = "text"
    headline = "tpot"
    guards = ("failed", "output_tokens")
    module = "vllm.entrypoints.cli.main"
    reserved = (
        *("host", "port", "uds", "served-model-name", "model", "tokenizer", "seed", "revision"),
        "tokenizer-revision",
    )
    environment: Mapping[str, str] = {"VLLM_SERVER_DEV_MODE": "1", "PYTHONFAULTHANDLER": "1"}

    def options(self, cell: Cell, engine: Engine) -> dict[str, object]:  # noqa: ARG002
        """:raises UsageError: a deploy YAML, stage overrides, or a server that generates nothing."""
        if cell.serve_args.get("runner") == "pooling" or cell.serve_args.get("task") in _POOLING_TASKS:
            raise UsageError(
                f"cell {cell.name}: no family here serves pooling models (embeddings, rerank, score, ...)",
                field="serve_args",
            )
        for field in ("deploy_yaml", "stage_overrides"):
            if getattr(cell, field):
                raise UsageError(
                    f"cell {cell.name}: {field} is for families with stages; text has none", field=field
                )
        # Without a named tokenizer the engine uses the model's, which must have the model's revision.
        pinned = cell.revision.tokenizer or (None if cell.tokenizer else cell.revision.model)
        return {"seed": cell.seed, "tokenizer": cell.tokenizer, "tokenizer-revision": hub_revision(pinned)}

    def defaults(self, cell: Cell) -> Mapping[str, object]:
        """The engine's own sampling, unless the cell leaves it to the server."""
        return {} if cell.sampling.temperature == SERVER else {"generation-config": "vllm"}

    def first_request(self, cell: Cell, model: str) -> ProbeRequest:
        if cell.endpoint not in ENDPOINTS:
            raise UsageError(
                f"cell {cell.name}: no family here asks at {cell.endpoint}; "
                f"text asks at {' or '.join(ENDPOINTS)}",
                field="endpoint",
            )
        prompt: dict[str, object] = {
            "model": model,
            "prompt": "The first request of an attempt must be answered.",
            "max_tokens": 4,
            "temperature": 0,
            # Without it a model may end at once, without a token, which would count as a wrong answer.
            "ignore_eos": True,
            "stream": False,
        }
        return ProbeRequest("/v1/completions", prompt, "usage.completion_tokens")

    def reset_requests(self, env: Mapping[str, str]) -> tuple[ProbeRequest, ...]:
        reset = (ProbeRequest("/reset_prefix_cache", {}),)
        # The request exists only in this mode, which a cell may switch off.
        return reset if env["VLLM_SERVER_DEV_MODE"] == "1" else ()
