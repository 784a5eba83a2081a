"""Benchmarks without a server: ``vllm bench latency``, ``throughput`` and ``startup``.

A launch is one process, which loads the model, measures itself and writes its result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from perfbisect.errors import UsageError
from perfbisect.model.cell import Cell
from perfbisect.serving.families import Engine, Family, ProbeRequest
from perfbisect.serving.families.vllm import VllmFamily, tokenizer_options

BENCHMARKS: Final[Mapping[str, str]] = {
    "latency": "e2el",
    "throughput": "request_throughput",
    "startup": "ready_time",
}
"""The tasks of a cell, ``vllm bench TASK``, with the metric that each is about."""

OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "latency": {"num_prompts": "batch-size"},
    "throughput": {
        "num_prompts": "num-prompts",
        "num_warmups": "num-warmups",
        "dataset_name": "dataset-name",
        "dataset_path": "dataset-path",
    },
    "startup": {},
}
"""Options of each that are keys of a cell, by those keys."""

_REQUESTS = ("deploy_yaml", "stage_overrides", "max_concurrency", "extra_body", "reference")
"""Keys of cells that say how a server is asked, or what its stages are."""


class OfflineFamily(Family):
    """One process of vLLM's: all prompts are handed over at once, and the sampling is the benchmark's own."""

    name = "offline"
    headline = "e2el"
    guards = ()
    module = VllmFamily.module
    result = "run-all.json"
    reserved = (
        *("model", "tokenizer", "tokenizer-revision", "revision", "seed", "output-json", "profile"),
        *(option for options in OPTIONS.values() for option in options.values()),
    )
    environment: Mapping[str, str] = {"PYTHONFAULTHANDLER": "1"}

    def words(self, cell: Cell) -> tuple[str, ...]:
        """:raises UsageError: the cell's task is no such benchmark."""
        if cell.task not in BENCHMARKS:
            raise UsageError(
                f"cell {cell.name}: task of family offline is one of {', '.join(BENCHMARKS)}, "
                f"not {cell.task or 'empty'}",
                field="task",
            )
        return "bench", cell.task

    def options(self, cell: Cell, engine: Engine) -> dict[str, object]:  # noqa: ARG002
        """:raises UsageError: the cell says how a server is asked."""
        self.words(cell)
        options = OPTIONS[cell.task]
        asked = [name for name in _REQUESTS if getattr(cell, name)]
        asked += ["sampling"] if cell.sampling.sent else []
        asked += ["request_rate"] if not math.isinf(cell.request_rate) else []
        asked += ["num_warmups"] if cell.num_warmups and "num_warmups" not in options else []
        if asked:
            raise UsageError(
                f"cell {cell.name}: vllm bench {cell.task} has no {asked[0]}", field=asked[0].split(".")[0]
            )
        return {
            "model": cell.model,
            **tokenizer_options(cell),
            "seed": cell.seed,
            **{option: getattr(cell, name) or None for name, option in options.items()},
            **cell.dataset_args,
            **cell.client.args,
            "output-json": self.result,
        }

    def iterates(self, cell: Cell) -> bool:
        return cell.task == "latency"

    def first_request(self, cell: Cell, model: str) -> ProbeRequest:
        """:raises UsageError: nothing is asked of it."""
        raise UsageError(f"cell {cell.name}: nothing is asked of {model}, which has no server")
