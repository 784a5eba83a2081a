"""``vllm bench serve``: its command line and its results."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfbisect.clients.bench_serve import BenchClient, Totals, read_totals, reporting_options
from perfbisect.clients.result_fields import count, incomplete_warnings, number
from perfbisect.errors import ClientError
from perfbisect.model.attempt import RunResult
from perfbisect.model.cell import Cell
from perfbisect.model.metric import PER_UNIT, per_unit

MAD_TO_SIGMA = 1.4826
"""Standard deviation of a normal distribution over its MAD."""

_AGREE = 0.01
"""Relative tolerance between a reported median and that of its requests."""

_LENGTHS = (
    "random-output-len",
    "prefix-repetition-output-len",
    "output-len",
    "sharegpt-output-len",
    "hf-output-len",
)
_ACCEPTANCE = ("spec_decode_acceptance_rate", "spec_decode_acceptance_length")


def _values(
    document: Mapping[str, Any], keys: Sequence[str], totals: Totals, tokens: int
) -> dict[str, float]:
    completed = totals.completed
    computed = {
        "failed": totals.failed / (completed + totals.failed),
        "output_tokens": tokens / completed,
        "input_tokens": count(document, "total_input_tokens") / completed,
    }
    single = tokens <= completed
    missing = [
        _name(key)
        for key in keys
        if key not in computed and key not in _ACCEPTANCE and _name(key) not in document
    ]
    if missing:
        raise ClientError(f"the result has no {', '.join(missing)}")
    values: dict[str, float] = {}
    for key in keys:
        name = _name(key)
        if key in computed:
            values[key] = computed[key]
        elif single and key.split(":")[0] in ("tpot", "itl"):
            # One token has no time between tokens; the client writes 0.
            continue
        elif name in document:
            value = number(document, name)
            if value < 0 or (
                value == 0 and not key.endswith(":std") and key not in ("request_goodput", *_ACCEPTANCE)
            ):
                raise ClientError(f"{name} is {value:g}: no measurement")
            values[key] = value / 100 if key == "spec_decode_acceptance_rate" else value
    return values


def _name(key: str) -> str:
    """The client's name of a metric key: ``tpot:median`` -> ``median_tpot_ms``."""
    name, _, statistic = key.partition(":")
    return f"{statistic}_{name}_ms" if statistic else name


@dataclass(frozen=True)
class _Request:
    ttft: float
    latency: float
    tokens: int
    gaps: Sequence[float]


def _details(document: Mapping[str, Any], completed: int) -> dict[str, tuple[float, ...]]:
    """Seconds of each completed request (itl: chunk) by metric; empty without usable detail."""
    lists = [document.get(name) for name in ("ttfts", "itls", "output_lens", "errors")]
    if (
        not all(isinstance(items, list) for items in lists)
        or len({len(items) for items in lists if items is not None}) != 1
    ):
        return {}
    ttfts, itls, lengths, errors = (items or [] for items in lists)
    latencies = document.get("latencies")
    if not isinstance(latencies, list) or len(latencies) != len(ttfts):
        latencies = [ttft + math.fsum(gaps) for ttft, gaps in zip(ttfts, itls, strict=True)]
    requests = [
        _Request(float(ttft), float(latency), int(tokens), gaps)
        for ttft, latency, tokens, gaps, error in zip(ttfts, latencies, lengths, itls, errors, strict=True)
        if not error and tokens > 0
    ]
    if len(requests) != completed:
        return {}
    raw = {
        "ttft": (request.ttft for request in requests),
        "e2el": (request.latency for request in requests),
        "tpot": ((r.latency - r.ttft) / (r.tokens - 1) for r in requests if r.tokens > 1),
        "itl": (float(gap) for request in requests for gap in request.gaps),
    }
    for name, values in (found := {name: tuple(items) for name, items in raw.items()}).items():
        if any(not math.isfinite(value) for value in values):
            raise ClientError(f"a request's {name} is not a number")
    return {name: values for name, values in found.items() if values}


def _check_median(name: str, reported: float | None, raw: Iterable[float]) -> None:
    values = tuple(raw)
    if reported is None or not values:
        return
    median = statistics.median(values) * 1000
    if abs(median - reported) > _AGREE * max(median, reported):
        raise ClientError(
            f"the result contradicts itself: median_{name}_ms is {reported:g}, its requests have {median:g}"
        )


def _short_outputs(cell: Cell, document: Mapping[str, Any], completed: int, tokens: int) -> list[str]:
    asked = next((cell.dataset_args[name] for name in _LENGTHS if name in cell.dataset_args), None)
    if not isinstance(asked, int) or cell.dataset_args.get("random-range-ratio"):
        return []
    lengths = document.get("output_lens")
    short = (
        sum(0 < n < asked for n in lengths) if isinstance(lengths, list) else int(tokens < asked * completed)
    )
    if not short:
        return []
    return [f"outputs are shorter than requested: {tokens / completed:.1f} of {asked} tokens per request"]


def _robust_cv(values: Sequence[float]) -> float:
    """MAD x 1.4826 / median."""
    median = statistics.median(values)
    if median <= 0:
        return 0.0
    return MAD_TO_SIGMA * statistics.median(abs(value - median) for value in values) / median


REPORTED = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2el"}
"""Percentile metrics of the client that the metric table has."""

_IMPORTED = (
    *(f"vllm.entrypoints.cli.benchmark.{name}" for name in ("main", "serve", "latency", "throughput")),
    *(f"vllm.entrypoints.cli.benchmark.{name}" for name in ("startup", "sweep", "mm_processor")),
    *(f"vllm.entrypoints.cli.{name}" for name in ("openai", "serve", "launch", "run_batch", "collect_env")),
    *(f"vllm.entrypoints.cli.{name}" for name in ("download_kernels", "preload", "snapshot")),
    *("vllm.benchmarks.serve", "vllm.utils.argparse_utils", "vllm.entrypoints.serve.utils.api_utils"),
)
"""Modules that a version of vLLM lacks are skipped."""


class VllmBench(BenchClient):
    """``vllm bench serve``."""

    name = "vllm_bench"
    package = "vllm"
    sources: tuple[str, ...] = ("benchmarks", "entrypoints/cli/benchmark")

    def options(self, cell: Cell) -> dict[str, object]:
        """See :class:`BenchClient`."""
        return {
            "extra-body": dict(cell.extra_body) or None,
            "ready-check-timeout-sec": 30,
            **reporting_options(cell.percentile_metrics, cell.metric_percentiles),
        }

    def preload(self, env: Mapping[str, str]) -> tuple[str, ...]:
        """The imports of ``vllm bench serve``; none for the Rust client."""
        return () if env.get("VLLM_USE_RUST_BENCH", "0") not in ("", "0") else _IMPORTED

    def metrics(self, cell: Cell) -> tuple[str, ...]:
        """See :class:`BenchClient`."""
        statistics = [
            "median",
            "mean",
            "std",
            *(f"p{percentile:g}" for percentile in cell.metric_percentiles),
        ]
        keys = [
            f"{name}:{part}" for name in cell.percentile_metrics if name in REPORTED for part in statistics
        ]
        keys += ["request_throughput", "output_throughput", "total_token_throughput"]
        keys += ["request_goodput"] if "goodput" in cell.client.args else []
        keys += ["failed", "output_tokens", "input_tokens"]
        keys += ["e2el_per_token"] if "e2el" in cell.percentile_metrics else []
        if uses_speculative_decoding(cell):
            keys += ["spec_decode_acceptance_rate", "spec_decode_acceptance_length"]
        return tuple(keys)

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
        totals = read_totals(cell, document, seed, expected or {})
        tokens = count(document, "total_output_tokens")
        if tokens == 0:
            raise ClientError(f"{totals.completed} requests completed without one output token")
        keys = self.metrics(cell)
        details = _details(document, totals.completed)
        values = _values(document, [key for key in keys if key not in PER_UNIT], totals, tokens)
        values |= {key: value for key, value in per_unit(values).items() if key in keys}
        for name in ("ttft", "e2el"):
            _check_median(name, values.get(f"{name}:median"), details.get(name, ()))
        warnings = [
            *incomplete_warnings(cell.num_prompts, totals.completed, totals.failed, totals.errors),
            *_short_outputs(cell, document, totals.completed, tokens),
            *(
                f"{guard} is a guard but was not reported"
                for guard in cell.guards
                if guard in _ACCEPTANCE and guard not in values
            ),
        ]
        return RunResult(
            index=index,
            seed=seed,
            values=values,
            spread={
                f"{name}:median": _robust_cv(raw)
                for name, raw in details.items()
                if f"{name}:median" in values
            },
            warnings=tuple(warnings),
            seconds=totals.duration,
            facts={
                **totals.facts(document),
                "draft_tokens": document.get("spec_decode_draft_tokens"),
                "accepted_tokens": document.get("spec_decode_accepted_tokens"),
                "medians_of_requests": {
                    f"{name}:median": statistics.median(raw) * 1000 for name, raw in details.items()
                },
            },
        )


def uses_speculative_decoding(cell: Cell) -> bool:
    """Whether the server, in any variant, decodes speculatively."""
    options = [cell.serve_args, *(variant.serve_args for variant in cell.variants.values())]
    return any(name.startswith(("speculative-config", "spec-")) for names in options for name in names)


CLIENT = VllmBench()
