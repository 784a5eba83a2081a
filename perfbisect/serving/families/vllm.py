"""Families of ``vllm serve``: one server, asked by ``vllm bench serve``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain

from perfbisect.errors import UsageError
from perfbisect.model.cell import SERVER, Cell
from perfbisect.serving import families
from perfbisect.serving.families import Engine, Family, ProbeRequest, hub_revision


def tokenizer_options(cell: Cell) -> dict[str, object]:
    """The engine's tokenizer with its revision: the model's own where the cell names none."""
    pinned = cell.revision.tokenizer or (None if cell.tokenizer else cell.revision.model)
    return {"tokenizer": cell.tokenizer, "tokenizer-revision": hub_revision(pinned)}


class VllmFamily(Family):
    """``vllm serve`` with a fixed seed and the engine's sampling defaults, or the hub's if the cell says so.

    ``first``: makes the first request; ``misfit``: why a server's arguments are another family's, empty
    if they are not; ``resets``: what empties the caches. Development mode enables resets. The fault handler
    logs crashes: an engine process that vanishes without a line was killed.
    """

    module = "vllm.entrypoints.cli.main"
    reserved = (
        *("host", "port", "uds", "served-model-name", "model", "tokenizer", "seed", "revision"),
        "tokenizer-revision",
    )
    environment: Mapping[str, str] = {"VLLM_SERVER_DEV_MODE": "1", "PYTHONFAULTHANDLER": "1"}

    def __init__(
        self,
        name: str,
        headline: str,
        guards: tuple[str, ...],
        backends: Mapping[str, tuple[str, ...]],
        first: Callable[[Cell, str], ProbeRequest],
        *,
        misfit: Callable[[Mapping[str, object]], str] = lambda _: "",
        resets: tuple[str, ...] = ("/reset_prefix_cache",),
        has_sampling: bool = True,
        request_metrics: tuple[str, ...] = Family.request_metrics,
        run_metrics: tuple[str, ...] = Family.run_metrics,
        newer_metrics: tuple[str, ...] = (),
    ) -> None:
        self.name, self.headline, self.guards, self.backends = name, headline, guards, backends
        self.has_sampling, self.newer_metrics = has_sampling, newer_metrics
        self.request_metrics, self.run_metrics = request_metrics, run_metrics
        self._first, self._misfit, self._resets = first, misfit, resets

    def options(self, cell: Cell, engine: Engine) -> dict[str, object]:  # noqa: ARG002
        """:raises UsageError: a deploy YAML, stage overrides, another family's server, or sampling."""
        if misfit := self._misfit(cell.serve_args):
            raise UsageError(f"cell {cell.name}: {misfit}", field="serve_args")
        for field in ("deploy_yaml", "stage_overrides"):
            if getattr(cell, field):
                raise UsageError(
                    f"cell {cell.name}: {field} is for families with stages; {self.name} has none",
                    field=field,
                )
        if cell.sampling.sent and not self.has_sampling:
            sent = ", ".join(cell.sampling.sent)
            raise UsageError(
                f"cell {cell.name}: requests of {self.name} have no {sent}: vllm bench serve sends sampling "
                "to completions and chats alone",
                field="sampling",
            )
        return {"seed": cell.seed, **tokenizer_options(cell)}

    def defaults(self, cell: Cell) -> Mapping[str, object]:
        """The engine's own sampling, unless the cell leaves it to the server."""
        is_engines = self.has_sampling and cell.sampling.temperature != SERVER
        return {"generation-config": "vllm"} if is_engines else {}

    def first_request(self, cell: Cell, model: str) -> ProbeRequest:
        own = tuple(dict.fromkeys(chain(*self.backends.values())))
        if cell.endpoint not in own:
            other = families.family_at(cell.endpoint)
            asks = f"family {other.name} asks" if other else "no family here asks"
            raise UsageError(
                f"cell {cell.name}: {asks} at {cell.endpoint}; {self.name} asks at {' or '.join(own)}",
                field="endpoint",
            )
        return self._first(cell, model)

    def reset_requests(self, env: Mapping[str, str]) -> tuple[ProbeRequest, ...]:
        reset = tuple(ProbeRequest(path, {}) for path in self._resets)
        # The requests exist only in this mode, which a cell may switch off.
        return reset if env["VLLM_SERVER_DEV_MODE"] == "1" else ()
