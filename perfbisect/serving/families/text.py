"""Text models: ``vllm serve`` with the OpenAI completion API."""

from __future__ import annotations

from perfbisect.common.arguments import merge_options, option_tokens
from perfbisect.errors import UsageError
from perfbisect.model.cell import LOCAL, Cell
from perfbisect.serving.families import OFFLINE, UNKNOWN, Endpoint, Engine, ProbeRequest, ServerCommand

_OURS = (
    "host",
    "port",
    "uds",
    "served-model-name",
    "model",
    "tokenizer",
    "seed",
    "revision",
    "tokenizer-revision",
)
"""Options set by the attempt or by a key of the cell."""

_ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "PYTHONFAULTHANDLER": "1",
}
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
        taken = [name for name in _OURS if name in cell.serve_args]
        if taken:
            raise UsageError(
                f"cell {cell.name}: serve_args cannot set {', '.join(taken)}: an attempt has a port and a "
                "model name of its own, and model, tokenizer, seed and revision are keys of the cell",
                field="serve_args",
            )
        options = merge_options({"generation-config": "vllm"}, cell.serve_args)
        own = {
            "host": endpoint.host,
            "port": endpoint.port,
            "served-model-name": endpoint.model_name,
            "seed": cell.seed,
            "tokenizer": cell.tokenizer,
            "revision": _hub(cell.revision.model),
            "tokenizer-revision": _hub(
                cell.revision.tokenizer or (None if cell.tokenizer else cell.revision.model)
            ),
        }
        env = {**_ENVIRONMENT, **(OFFLINE if cell.needs_no_hub else {}), **cell.env}
        return ServerCommand(
            args=(
                *("-m", "vllm.entrypoints.cli.main", "serve", cell.model),
                *option_tokens(merge_options(own, {}), negatable=True),
                *option_tokens(options, negatable=True),
            ),
            env=env,
            first_request=ProbeRequest(
                "/v1/completions",
                {
                    "model": endpoint.model_name,
                    "prompt": "The first request of an attempt must be answered.",
                    "max_tokens": 4,
                    "temperature": 0,
                    "ignore_eos": True,
                    "stream": False,
                },
                must_contain="usage.completion_tokens",
            ),
            reset_requests=(ProbeRequest("/reset_prefix_cache", {}),)
            if env["VLLM_SERVER_DEV_MODE"] == "1"
            else (),
        )


def _hub(revision: str | None) -> str | None:
    return None if revision is None or revision.startswith(LOCAL) else revision


FAMILY = TextFamily()
