"""vLLM-Omni's diffusion benchmark script.

The script is in ``benchmarks/diffusion/`` of the repository and in no wheel, so the client's environment
needs a checkout first on its path. Since #3137 it takes ``--endpoint`` instead of ``--backend``: the starter
gets both and passes on the one that the script knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

from perfbisect.clients.base import (
    NO_VALUES,
    Client,
    Document,
    check_identity,
    check_reserved_options,
    fact,
    find_script,
    is_number,
    read_stages,
    read_totals,
)
from perfbisect.common.arguments import option_tokens
from perfbisect.errors import ClientError, UsageError
from perfbisect.model.attempt import RunResult
from perfbisect.model.cell import Cell
from perfbisect.serving.families import Endpoint
from perfbisect.serving.families.staged import BACKENDS, diffusion_endpoint

SCRIPT = "benchmarks/diffusion/diffusion_benchmark_serving.py"

STARTER = (
    find_script("vllm_omni", SCRIPT)
    + """
import runpy
text, given = script.read_text(encoding="utf-8"), sys.argv[1:]
for known, gone in (("--endpoint", "--backend"), ("--backend", "--endpoint")):
    if f'"{known}"' in text and gone in given:
        place = given.index(gone)
        del given[place : place + 2]
        break
sys.argv = [str(script), *given]
runpy.run_path(str(script), run_name="__main__")
"""
)
"""Runs the script beside the installed package."""

_RESERVED = (
    *("backend", "endpoint", "base-url", "host", "port", "model", "dataset", "dataset-path", "task", "seed"),
    *("num-prompts", "max-concurrency", "request-rate", "warmup-requests", "output-file", "disable-tqdm"),
    "extra-body",
)
_SAME = 1e-9
"""``latency_median`` and ``latency_p50`` must be equal."""

_STATISTICS = ("median", "mean", "p50", "p99")
_TASKS = ("t2i", "i2i", "ti2i", "t2v", "i2v", "ti2v", "v2v")
_ALIASES = {path: name for name, path in BACKENDS.items()}


class DiffusionBench(Client):
    """vLLM-Omni's diffusion benchmark script."""

    name = "diffusion_bench"
    package = "vllm_omni"
    sources: tuple[str, ...] = ("../benchmarks/diffusion",)
    no_usage: Mapping[str, str] = {}
    reports_stages = True

    def command(
        self,
        cell: Cell,
        endpoint: Endpoint,
        *,
        seed: int,
        result: PurePath,
        metadata: Mapping[str, str],  # noqa: ARG002
    ) -> tuple[str, ...]:
        """Arguments after the interpreter; only the model's name identifies the attempt.

        Raises:
            UsageError: a reserved option or an unknown task.
        """
        check_reserved_options(cell, _RESERVED)
        if cell.task not in _TASKS:
            raise UsageError(
                f"cell {cell.name}: unknown task {cell.task!r}; known: {', '.join(_TASKS)}", field="task"
            )
        path = diffusion_endpoint(cell)
        own: dict[str, object] = {
            "backend": _ALIASES.get(path),
            "endpoint": path,
            "base-url": endpoint.base_url,
            "model": endpoint.model_name,
            "dataset": cell.dataset_name,
            "dataset-path": cell.dataset_path,
            "task": cell.task,
            "num-prompts": cell.num_prompts,
            "max-concurrency": cell.max_concurrency,
            "request-rate": f"{cell.request_rate:.12g}",
            "warmup-requests": cell.num_warmups,
            "seed": seed,
            "output-file": str(result),
            "disable-tqdm": True,
            # vLLM-Omni's benchmark reads it since b14ff230 (#5010).
            "extra-body": dict(cell.extra_body) or None,
        }
        options = {**own, **cell.dataset_args, **cell.client.args}
        return ("-c", STARTER, *option_tokens(options, negatable=False))

    def metrics(self, cell: Cell) -> tuple[str, ...]:  # noqa: ARG002
        return (*(f"latency:{part}" for part in _STATISTICS), "throughput_qps", "failed")

    def may_report(self, cell: Cell) -> tuple[str, ...]:  # noqa: ARG002
        names = ("peak_memory_mb", "image_distance")
        return ("latency:p95", *(f"{name}:{part}" for name in names for part in ("median", "mean")))

    def field(self, key: str) -> str:
        return key.replace(":", "_")

    def reported(self, document: Document, key: str) -> float | None:
        is_optional = key.startswith(("latency:p95", "peak_memory_mb", "image_distance"))
        if is_optional and not is_number(document.get(self.field(key))):
            return None
        return super().reported(document, key)

    def parse(
        self, cell: Cell, document: Document, *, index: int, seed: int, expected: Document = NO_VALUES
    ) -> RunResult:
        # The nightly harness wraps the script's record in its own.
        result = document["result"] if isinstance(document.get("result"), Mapping) else document
        check_identity(result, {"model": expected["model_id"]} if "model_id" in expected else {})
        totals = read_totals(cell, result, "_requests")
        values = self.read_values(cell, result, {"failed": totals.failed_share})
        if abs(values["latency:median"] - values["latency:p50"]) > _SAME * values["latency:p50"]:
            raise ClientError(
                f"the result contradicts itself: latency_median is {values['latency:median']:g}, latency_p50 "
                f"{values['latency:p50']:g}"
            )
        return RunResult(
            index=index,
            seed=seed,
            values={**values, **read_stages(result)},
            warnings=tuple(totals.warnings(cell.num_prompts)),
            seconds=totals.duration,
            facts={"completed": totals.completed, "failed": totals.failed, "task": fact(result, "task")},
        )


CLIENT = DiffusionBench()
