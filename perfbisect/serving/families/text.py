"""Text models: ``vllm serve`` with the OpenAI completion API."""

from __future__ import annotations

from perfbisect.common.arguments import merge_options
from perfbisect.errors import UsageError
from perfbisect.model.cell import Cell
from perfbisect.serving.families import (
    UNKNOWN,
    Endpoint,
    Engine,
    ProbeRequest,
    ServerCommand,
    check_serve_args,
    hub_revision,
    serve_arguments,
    server_environment,
)

_RESERVED = (
    *("host", "port", "uds", "served-model-name", "model", "tokenizer", "seed", "revision"),
    "tokenizer-revision",
)
"""Options set by the attempt or by a key of the cell."""

_ENVIRONMENT = {"VLLM_SERVER_DEV_MODE": "1", "PYTHONFAULTHANDLER": "1"}
"""Development mode enables cache resets. The fault handler logs crashes: an engine process that vanishes
without a line was killed."""


class TextFamily:
    """Text models."""

    name = "text"
    headline = "tpot"
    guards: tuple[str, ...] = ("failed", "output_tokens")

    def server(self, cell: Cell, endpoint: Endpoint, engine: Engine = UNKNOWN) -> ServerCommand:  # noqa: ARG002
        """``vllm serve`` with the engine's sampling defaults, not the hub's, and a fixed seed.

        Raises:
            UsageError: a deploy YAML, stage overrides or a reserved option.
        """
        for field in ("deploy_yaml", "stage_overrides"):
            if getattr(cell, field):
                raise UsageError(
                    f"cell {cell.name}: {field} is for families with stages; text has none", field=field
                )
        check_serve_args(cell, _RESERVED)
        pinned = cell.revision.tokenizer or (None if cell.tokenizer else cell.revision.model)
        own = {"seed": cell.seed, "tokenizer": cell.tokenizer, "tokenizer-revision": hub_revision(pinned)}
        options = merge_options({"generation-config": "vllm"}, cell.serve_args)
        env = server_environment(cell, _ENVIRONMENT)
        prompt: dict[str, object] = {
            "model": endpoint.model_name,
            "prompt": "The first request of an attempt must be answered.",
            "max_tokens": 4,
            "temperature": 0,
            "ignore_eos": True,
            "stream": False,
        }
        reset = (ProbeRequest("/reset_prefix_cache", {}),)
        return ServerCommand(
            args=serve_arguments("vllm.entrypoints.cli.main", cell, endpoint, own, options),
            env=env,
            first_request=ProbeRequest("/v1/completions", prompt, "usage.completion_tokens"),
            reset_requests=reset if env["VLLM_SERVER_DEV_MODE"] == "1" else (),
        )


FAMILY = TextFamily()
