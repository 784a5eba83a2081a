"""vLLM-Omni's diffusion benchmark script.

The script is in ``benchmarks/diffusion/`` of the repository and in no wheel, so the client's environment
needs a checkout first on its path. Since #3137 it takes ``--endpoint`` instead of ``--backend``: the starter
gets both and passes on the one that the script knows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from perfbisect.clients.bench_serve import BenchClient, check_reserved_options
from perfbisect.clients.omni_bench import stages
from perfbisect.clients.result_fields import count, incomplete_warnings, number
from perfbisect.common.arguments import option_tokens
from perfbisect.errors import ClientError, UsageError
from perfbisect.model.attempt import RunResult
from perfbisect.model.cell import Cell
from perfbisect.serving.families import Endpoint
from perfbisect.serving.families.staged import BACKENDS, diffusion_endpoint

_SAME = 1e-9
"""``latency_median`` and ``latency_p50`` must be equal."""


def _name(key: str) -> str:
    """The script's name of a metric key: ``latency:p99`` -> ``latency_p99``."""
    return key.replace(":", "_")


SCRIPT = "benchmarks/diffusion/diffusion_benchmark_serving.py"

STARTER = f"""
import importlib.util, pathlib, runpy, sys
package = importlib.util.find_spec("vllm_omni")
if package is None or not package.origin:
    sys.exit("no package vllm_omni here")
script = pathlib.Path(package.origin).parent.parent / "{SCRIPT}"
if not script.is_file():
    sys.exit(f"no {{script}}: the diffusion benchmark stands in a checkout of vLLM-Omni and in no wheel")
text, given = script.read_text(encoding="utf-8"), sys.argv[1:]
for known, gone in (("--endpoint", "--backend"), ("--backend", "--endpoint")):
    if f'"{{known}}"' in text and gone in given:
        place = given.index(gone)
        del given[place : place + 2]
        break
sys.argv = [str(script), *given]
sys.path.insert(0, str(script.parent))
runpy.run_path(str(script), run_name="__main__")
"""
"""Runs the script beside the installed package."""

_OURS = (
    *("backend", "endpoint", "base-url", "host", "port", "model", "dataset", "dataset-path", "task", "seed"),
    *("num-prompts", "max-concurrency", "request-rate", "warmup-requests", "output-file", "disable-tqdm"),
)
_STATISTICS = ("median", "mean", "p50", "p99")
_TASKS = ("t2i", "i2i", "ti2i", "t2v", "i2v", "ti2v")
_ALIASES = {path: name for name, path in BACKENDS.items()}


class DiffusionBench(BenchClient):
    """vLLM-Omni's diffusion benchmark script."""

    name = "diffusion_bench"
    package = "vllm_omni"
    sources: tuple[str, ...] = ("../benchmarks/diffusion",)
    usage: Mapping[str, str] = {}
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
            UsageError: a reserved option, an unknown task or an extra body.
        """
        check_reserved_options(cell, _OURS)
        if cell.task not in _TASKS:
            raise UsageError(
                f"cell {cell.name}: unknown task {cell.task!r}; known: {', '.join(_TASKS)}", field="task"
            )
        if cell.extra_body:
            raise UsageError(
                f"cell {cell.name}: diffusion_bench has no extra_body; set sizes and steps in dataset_args",
                field="extra_body",
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
        }
        options = {**own, **cell.dataset_args, **cell.client.args}
        return ("-c", STARTER, *option_tokens(options, negatable=False))

    def metrics(self, cell: Cell) -> tuple[str, ...]:  # noqa: ARG002
        """See :class:`BenchClient`."""
        return (*(f"latency:{part}" for part in _STATISTICS), "throughput_qps", "failed")

    def may_report(self, cell: Cell) -> tuple[str, ...]:  # noqa: ARG002
        """See :class:`BenchClient`."""
        return (
            *("latency:p95", "peak_memory_mb:median", "peak_memory_mb:mean"),
            *("image_distance:median", "image_distance:mean"),
        )

    def parse(
        self,
        cell: Cell,
        document: Mapping[str, Any],
        *,
        index: int,
        seed: int,
        expected: Mapping[str, object] | None = None,
    ) -> RunResult:
        """See :meth:`perfbisect.clients.Client.parse`."""
        model = (expected or {}).get("model_id")
        result = document["result"] if isinstance(document.get("result"), Mapping) else document
        if model is not None and result.get("model") != model:
            raise ClientError(
                f"the result is of another run: model is {result.get('model')!r}, expected {model!r}"
            )
        keys, optional = self.metrics(cell), self.may_report(cell)
        completed, failed = count(result, "completed_requests"), count(result, "failed_requests")
        if completed == 0:
            raise ClientError(
                f"0 of {cell.num_prompts} requests completed ({failed} failed); the client records no errors"
            )
        duration = number(result, "duration")
        if duration <= 0:
            raise ClientError(f"duration is {result['duration']} s")
        values = {"failed": failed / (completed + failed)}
        missing = [name for name in map(_name, keys) if name not in result and name != "failed"]
        if missing:
            raise ClientError(f"the result has no {', '.join(missing)}")
        for name in keys:
            if name in values:
                continue
            value = number(result, _name(name))
            if value <= 0:
                raise ClientError(f"{_name(name)} is {value:g}: no measurement")
            values[name] = value
        if abs(values["latency:median"] - values["latency:p50"]) > _SAME * values["latency:p50"]:
            raise ClientError(
                f"the result contradicts itself: latency_median is {values['latency:median']:g}, latency_p50 "
                f"{values['latency:p50']:g}"
            )
        for name in optional:
            more = result.get(_name(name))
            if not isinstance(more, (int, float)) or not math.isfinite(more):
                continue
            # A distance of 0 is an identical image; other zeros mean "not reported".
            if more > 0 or (more == 0 and name.startswith("image_distance")):
                values[name] = float(more)
        warnings = incomplete_warnings(cell.num_prompts, completed, failed, ["the client records no errors"])
        return RunResult(
            index=index,
            seed=seed,
            values={**values, **stages(result)},
            warnings=tuple(warnings),
            seconds=duration,
            facts={"completed": completed, "failed": failed, "task": result.get("task")},
        )


CLIENT = DiffusionBench()
