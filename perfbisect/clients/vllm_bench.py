"""``vllm bench serve``: its command line, and which of the metric table it reports."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from perfbisect.clients import bench_serve, result_fields
from perfbisect.clients.result_fields import (
    CELL,
    SEED,
    check_identity,
    count,
    first_error,
    incomplete_warnings,
    number,
)
from perfbisect.errors import ClientError
from perfbisect.model.attempt import RunResult
from perfbisect.model.cell import Cell
from perfbisect.model.metric import PER_UNIT, MetricRef, per_unit
from perfbisect.serving.families import Endpoint

MAD_TO_SIGMA = 1.4826
"""A normal distribution's standard deviation over its median absolute deviation."""

_AGREE = 0.01
"""How far, relatively, a reported median may lie from the one of its own requests."""

_LENGTHS = (
    "random-output-len",
    "prefix-repetition-output-len",
    "output-len",
    "sharegpt-output-len",
    "hf-output-len",
)
_ACCEPTANCE = ("spec_decode_acceptance_rate", "spec_decode_acceptance_length")


def parse(
    cell: Cell,
    document: Mapping[str, Any],
    *,
    keys: Sequence[str],
    index: int,
    seed: int,
    expected: Mapping[str, object],
) -> RunResult:
    """The run, with every metric of ``keys``; ``expected`` are top-level values that the document must hold.

    :raises ClientError: a gate was touched: the message says which and with what value.
    """
    check_identity(cell, document, {SEED: str(seed), CELL: cell.digest}, expected)
    completed, failed = count(document, "completed"), count(document, "failed")
    asked, tokens = cell.num_prompts, count(document, "total_output_tokens")
    errors = [str(error) for error in document.get("errors") or () if error]
    if completed == 0:
        raise ClientError(
            f"none of {asked} requests completed ({failed} failed): {first_error(errors)}",
            output=first_error(errors),
        )
    if len(errors) > failed:
        raise ClientError(
            f"{len(errors)} requests carry an error in the stream, {failed} count as failed: {first_error(errors)}",
            output=first_error(errors),
        )
    if tokens == 0:
        raise ClientError(f"{completed} requests completed but not one output token came back")
    if number(document, "duration") <= 0:
        raise ClientError(f"duration is {document['duration']} s")
    details = _details(document, completed)
    own = [key for key in keys if key not in PER_UNIT]
    values = _values(document, own, completed=completed, failed=failed, tokens=tokens)
    values |= {key: value for key, value in per_unit(values).items() if key in keys}
    for name in ("ttft", "e2el"):
        _agrees(name, values.get(f"{name}:median"), details.get(name, ()))
    warnings = [
        *incomplete_warnings(asked, completed, failed, errors),
        *_short(cell, document, completed, tokens),
        *(
            f"{guard} is a guard but was not reported"
            for guard in cell.guards
            if guard in _ACCEPTANCE and guard not in values
        ),
    ]
    spread = {
        f"{name}:median": _robust_cv(raw) for name, raw in details.items() if f"{name}:median" in values
    }
    recomputed = {f"{name}:median": statistics.median(raw) * 1000 for name, raw in details.items() if raw}
    return RunResult(
        index=index,
        seed=seed,
        values=values,
        spread=spread,
        warnings=tuple(warnings),
        seconds=number(document, "duration"),
        facts={
            "completed": completed,
            "failed": failed,
            "input_tokens": count(document, "total_input_tokens"),
            "output_tokens": tokens,
            "draft_tokens": document.get("spec_decode_draft_tokens"),
            "accepted_tokens": document.get("spec_decode_accepted_tokens"),
            "max_concurrent_requests": document.get("max_concurrent_requests"),
            "date": document.get("date"),
            "medians_of_requests": recomputed,
            "errors": errors[:3],
        },
    )


def _values(
    document: Mapping[str, Any], keys: Sequence[str], *, completed: int, failed: int, tokens: int
) -> dict[str, float]:
    computed = {
        "failed": failed / (completed + failed),
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
            # One token a request has no time between tokens; the client writes 0.
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
    """``tpot:median`` -> ``median_tpot_ms``, the client's name for it."""
    name, _, statistic = key.partition(":")
    return f"{statistic}_{name}_ms" if statistic else name


@dataclass(frozen=True)
class _Request:
    ttft: float
    latency: float
    tokens: int
    gaps: Sequence[float]


def _details(document: Mapping[str, Any], completed: int) -> dict[str, tuple[float, ...]]:
    """Seconds of each completed request (for itl: chunk), by metric; empty where detail does not allow."""
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


def _agrees(name: str, reported: float | None, raw: Iterable[float]) -> None:
    values = tuple(raw)
    if reported is None or not values:
        return
    median = statistics.median(values) * 1000
    if abs(median - reported) > _AGREE * max(median, reported):
        raise ClientError(
            f"the result contradicts itself: median_{name}_ms is {reported:g}, its requests have {median:g}"
        )


def _short(cell: Cell, document: Mapping[str, Any], completed: int, tokens: int) -> list[str]:
    asked = next((cell.dataset_args[name] for name in _LENGTHS if name in cell.dataset_args), None)
    if not isinstance(asked, int) or cell.dataset_args.get("random-range-ratio"):
        return []
    lengths = document.get("output_lens")
    short = (
        sum(0 < n < asked for n in lengths) if isinstance(lengths, list) else int(tokens < asked * completed)
    )
    if not short:
        return []
    return [f"outputs shorter than asked: {tokens / completed:.1f} tokens a request of {asked}"]


def _robust_cv(values: Sequence[float]) -> float:
    """MAD x 1.4826 / median: the spread between requests, as a share."""
    median = statistics.median(values)
    if median <= 0:
        return 0.0
    return MAD_TO_SIGMA * statistics.median(abs(value - median) for value in values) / median


REPORTED = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2el"}
"""The client's percentile metrics that are rows of the metric table."""

_IMPORTED = (
    *(f"vllm.entrypoints.cli.benchmark.{name}" for name in ("main", "serve", "latency", "throughput")),
    *(f"vllm.entrypoints.cli.benchmark.{name}" for name in ("startup", "sweep", "mm_processor")),
    *(f"vllm.entrypoints.cli.{name}" for name in ("openai", "serve", "launch", "run_batch", "collect_env")),
    *(f"vllm.entrypoints.cli.{name}" for name in ("download_kernels", "preload", "snapshot")),
    *("vllm.benchmarks.serve", "vllm.utils.argparse_utils", "vllm.entrypoints.serve.utils.api_utils"),
)
"""A version of vLLM has most of these; one that it lacks is left out."""


class VllmBench:
    """See :class:`perfbisect.clients.Client`."""

    name = "vllm_bench"
    package = "vllm"
    sources: tuple[str, ...] = ("benchmarks", "entrypoints/cli/benchmark")

    def command(
        self, cell: Cell, endpoint: Endpoint, *, seed: int, result: PurePath, metadata: Mapping[str, str]
    ) -> tuple[str, ...]:
        """Arguments after the interpreter. Seed and digest are stamped on the result as metadata.

        :raises UsageError: a client or dataset argument that is not the cell's to set.
        """
        differing = {
            "extra-body": dict(cell.extra_body) or None,
            "ready-check-timeout-sec": 30,
            **bench_serve.reporting_options(cell.percentile_metrics, cell.metric_percentiles),
        }
        return bench_serve.bench_command(
            self.package, cell, endpoint, seed=seed, result=result, metadata=metadata, differing=differing
        )

    def env(self, cell: Cell) -> dict[str, str]:
        """See :func:`perfbisect.clients.bench_serve.environment`."""
        return bench_serve.client_environment(cell, bench_serve.NO_USAGE)

    def preload(self, env: Mapping[str, str]) -> tuple[str, ...]:
        """What ``vllm bench serve`` imports before it reads arguments; none where it is a Rust program."""
        return () if env.get("VLLM_USE_RUST_BENCH", "0") not in ("", "0") else _IMPORTED

    def metrics(self, cell: Cell) -> tuple[str, ...]:
        """Keys that a result of this cell reports: each statistic of its percentile metrics, the rest."""
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

    def check_metric(self, cell: Cell, metric: MetricRef) -> None:
        """:raises UsageError: a result of this cell will not report the metric; names those that it will."""
        result_fields.check_metric_reported(self.name, cell, metric, self.metrics(cell))

    def parse(
        self,
        cell: Cell,
        document: Mapping[str, Any],
        *,
        index: int,
        seed: int,
        expected: Mapping[str, object] | None = None,
    ) -> RunResult:
        """A result document -> a run; see :mod:`perfbisect.clients.vllm_bench`."""
        return parse(cell, document, keys=self.metrics(cell), index=index, seed=seed, expected=expected or {})


def uses_speculative_decoding(cell: Cell) -> bool:
    """True if the server, in some variant, decodes speculatively: then the client reports acceptance."""
    options = [cell.serve_args, *(variant.serve_args for variant in cell.variants.values())]
    return any(name.startswith(("speculative-config", "spec-")) for names in options for name in names)


CLIENT = VllmBench()
