"""SGLang: one server, asked by its own ``bench_serving`` or by ``vllm bench serve``."""

from __future__ import annotations

from collections.abc import Mapping

from perfbisect.errors import UsageError
from perfbisect.model.cell import Cell
from perfbisect.model.metric import Need
from perfbisect.serving.families import Engine, Family, ProbeRequest, text

FLUSH = "/flush_cache?timeout=5"
"""Empties the cache of prefixes once the server is idle; older servers do not wait."""

_UNREAD: tuple[Need, ...] = ("kv cache", "prefix caching", "compilation")
"""What metrics read of vLLM's log or counters."""


class SglangFamily(Family):
    """``python -m sglang.launch_server``; its switches have no negated form."""

    name = "sglang"
    headline = "tpot"
    guards = ("failed", "output_tokens")
    module = "sglang.launch_server"
    reserved = (
        *("host", "port", "model", "model-path", "served-model-name", "tokenizer-path", "random-seed"),
        "revision",
    )
    environment: Mapping[str, str] = {"PYTHONFAULTHANDLER": "1"}
    backends: Mapping[str, tuple[str, ...]] = {"openai": (text.COMPLETIONS,), "openai-chat": (text.CHAT,)}

    def words(self, cell: Cell) -> tuple[str, ...]:  # noqa: ARG002
        return ()

    def options(self, cell: Cell, engine: Engine) -> dict[str, object]:  # noqa: ARG002
        """:raises UsageError: a deploy YAML, stage overrides, or a switch that is turned off."""
        for field in ("deploy_yaml", "stage_overrides"):
            if getattr(cell, field):
                raise UsageError(f"cell {cell.name}: SGLang has no {field}", field=field)
        off = next((name for name, value in cell.serve_args.items() if value is False), "")
        if off:
            raise UsageError(
                f"cell {cell.name}: SGLang has no --no-{off}; a variant takes {off} out with null",
                field="serve_args",
            )
        return {"model-path": cell.model, "tokenizer-path": cell.tokenizer, "random-seed": cell.seed}

    def lacks(self, cell: Cell, need: Need) -> str:
        return "of SGLang it is not read" if need in _UNREAD else super().lacks(cell, need)

    def first_request(self, cell: Cell, model: str) -> ProbeRequest:
        # Whatever the client asks: each SGLang server answers completions too.
        return text.FAMILY.first_request(cell.model_copy(update={"endpoint": text.COMPLETIONS}), model)

    def reset_requests(self, env: Mapping[str, str]) -> tuple[ProbeRequest, ...]:  # noqa: ARG002
        return (ProbeRequest(FLUSH, {}),)


FAMILY = SglangFamily()
