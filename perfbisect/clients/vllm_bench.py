"""``vllm bench serve``: its command line and its results."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

from perfbisect.clients.base import (
    ACCEPTANCE,
    NO_VALUES,
    Client,
    Document,
    bench_facts,
    check_bench_identity,
    check_number,
    count,
    fact,
    is_number,
    read_totals,
    reporting_options,
    shown,
    token_values,
)
from perfbisect.errors import ClientError, UsageError
from perfbisect.model.attempt import RunResult, relative_spread
from perfbisect.model.cell import Cell
from perfbisect.serving.families import FAMILIES, Family

_AGREE = 0.01
"""Relative tolerance between a reported median and that of its requests."""

_LENGTHS = (
    *("random-output-len", "prefix-repetition-output-len", "output-len", "sharegpt-output-len"),
    "hf-output-len",
)
_IMPORTED = (
    *(f"vllm.entrypoints.cli.benchmark.{name}" for name in ("main", "serve", "latency", "throughput")),
    *(f"vllm.entrypoints.cli.benchmark.{name}" for name in ("startup", "sweep", "mm_processor")),
    *(f"vllm.entrypoints.cli.{name}" for name in ("openai", "serve", "launch", "run_batch", "collect_env")),
    *(f"vllm.entrypoints.cli.{name}" for name in ("download_kernels", "preload", "snapshot")),
    *("vllm.benchmarks.serve", "vllm.utils.argparse_utils", "vllm.entrypoints.serve.utils.api_utils"),
)
"""Modules that a version of vLLM lacks are skipped."""


class VllmBench(Client):
    """``vllm bench serve``."""

    name = "vllm_bench"
    package = "vllm"
    sources: tuple[str, ...] = ("benchmarks", "entrypoints/cli/benchmark")
    agreeing: tuple[str, ...] = ("ttft:median", "e2el:median")
    """Metrics that are those of its single requests."""

    def options(self, cell: Cell) -> dict[str, object]:
        """See :class:`Client`. :raises UsageError: the backend is unknown or does not fit the endpoint."""
        family = FAMILIES[cell.family]
        endpoints = family.backends.get(cell.backend, ())
        if cell.endpoint not in endpoints:
            problem = (
                f"uses {' or '.join(endpoints)}, but the cell's endpoint is {cell.endpoint}"
                if endpoints
                else f"is none of family {family.name}: {', '.join(family.backends)}"
            )
            raise UsageError(f"cell {cell.name}: backend {cell.backend} {problem}", field="backend")
        # What a family does not report stands in the defaults of a cell.
        never = {*Family.request_metrics} - {*family.request_metrics}
        return {
            "extra-body": dict(cell.extra_body) or None,
            # With it the client fails if the server is down; without it the client ends with 0 and a result
            # of zeros.
            "ready-check-timeout-sec": 30,
            **reporting_options(
                [name for name in cell.percentile_metrics if name not in never], cell.percentiles
            ),
        }

    def preload(self, env: Mapping[str, str]) -> tuple[str, ...]:
        """The imports of ``vllm bench serve``; none for the Rust client."""
        return () if env.get("VLLM_USE_RUST_BENCH", "0") not in ("", "0") else _IMPORTED

    def metrics(self, cell: Cell) -> tuple[str, ...]:
        family = FAMILIES[cell.family]
        parts = ("median", "mean", "std", *(f"p{percentile:g}" for percentile in cell.percentiles))
        names = [name for name in cell.percentile_metrics if name in family.request_metrics]
        keys = [f"{name}:{part}" for name in names for part in parts]
        has_output = "output_tokens" in family.run_metrics
        keys += family.run_metrics
        keys += ["request_goodput"] if "goodput" in cell.client.args and has_output else []
        keys += ["e2el_per_token"] if "e2el" in names and has_output else []
        is_speculative = has_output and not family.lacks(cell, "speculative decoding")
        return (*keys, *(ACCEPTANCE if is_speculative else ()))

    def may_report(self, cell: Cell) -> tuple[str, ...]:
        return FAMILIES[cell.family].newer_metrics

    def field(self, key: str) -> str:
        name, _, statistic = key.partition(":")
        return f"{statistic}_{name}_ms" if statistic else name

    def reported(self, document: Document, key: str) -> float | None:
        value = super().reported(document, key)
        # The client reports this rate in per cent.
        return value / 100 if value is not None and key == "spec_decode_acceptance_rate" else value

    def parse(
        self, cell: Cell, document: Document, *, index: int, seed: int, expected: Document = NO_VALUES
    ) -> RunResult:
        check_bench_identity(cell, document, seed, expected)
        has_output = "output_tokens" in FAMILIES[cell.family].run_metrics
        if "failed" not in document and not has_output:
            # Of requests without output tokens the client counts those that completed alone.
            errors = document.get("errors")
            sent = len(errors) if isinstance(errors, list) else _requests_of(cell)
            document = {**document, "failed": max(0, sent - count(document, "completed"))}
        totals = read_totals(cell, document)
        if has_output and count(document, "total_output_tokens") == 0:
            raise ClientError(
                f"{totals.completed} requests completed without one output token", code="no_output"
            )
        values = self.read_values(cell, document, token_values(document, totals, has_output=has_output))
        requests = {
            f"{name}:median": raw for name, raw in _request_values(document, totals.completed).items()
        }
        medians = {key: statistics.median(raw) * 1000 for key, raw in requests.items()}
        for key in self.agreeing:
            reported, median = values.get(key), medians.get(key)
            if reported is None or median is None:
                continue
            if abs(median - reported) > _AGREE * max(median, reported):
                raise ClientError(
                    f"the result contradicts itself: {self.field(key)} is {reported:g}, "
                    f"its requests have {median:g}"
                )
        warnings = totals.warnings(_requests_of(cell))
        warnings += _short_outputs(cell, document, totals.completed) if has_output else []
        for guard in cell.guards:
            if guard in ACCEPTANCE and guard not in values:
                warnings.append(f"{guard} is a guard but was not reported")
        spread = {key: relative_spread(raw) for key, raw in requests.items() if key in values}
        return RunResult(
            index=index,
            seed=seed,
            values=values,
            spread=spread,
            warnings=tuple(warnings),
            seconds=totals.duration,
            facts={
                **bench_facts(document, totals),
                "draft_tokens": fact(document, "spec_decode_draft_tokens"),
                "accepted_tokens": fact(document, "spec_decode_accepted_tokens"),
                "medians_of_requests": medians,
            },
        )


def _requests_of(cell: Cell) -> int:
    """Requests of a run: ``num_prompts`` counts texts, of which random data may put several into one."""
    batch = cell.dataset_args.get("random-batch-size", 1)
    # Without a reranker the first text of each request is the query.
    queries = int(cell.dataset_args.get("no-reranker") is True)
    is_batch = isinstance(batch, int) and batch > 1 and cell.dataset_name in ("random", "random-rerank")
    return math.ceil((cell.num_prompts - queries) / (batch - queries)) if is_batch else cell.num_prompts


def _request_values(document: Document, completed: int) -> dict[str, tuple[float, ...]]:
    """Seconds of each completed request (itl: chunk) by metric; empty without usable detail.

    Raises:
        ClientError: an item is no number.
    """
    whole, failures = document.get("latencies"), document.get("errors")
    if "output_lens" not in document and isinstance(whole, list) and isinstance(failures, list):
        # Answers without tokens have no first one.
        e2els = tuple(
            check_number(latency, f"latencies[{i}]")
            for i, (latency, error) in enumerate(zip(whole, failures, strict=False))
            if not error
        )
        return {"e2el": e2els} if len(e2els) == completed else {}
    lists = [document.get(name) for name in ("ttfts", "itls", "output_lens", "errors")]
    rows = [items for items in lists if isinstance(items, list)]
    if len(rows) < len(lists) or len({len(items) for items in rows}) != 1:
        return {}
    latencies = document.get("latencies")
    if not isinstance(latencies, list) or len(latencies) != len(rows[0]):
        # Older clients save no latencies: TTFT and the gaps add up to one.
        latencies = [None] * len(rows[0])
    found: dict[str, list[float]] = {"ttft": [], "e2el": [], "tpot": [], "itl": []}
    for index, (ttft, gaps, tokens, error, latency) in enumerate(zip(*rows, latencies, strict=True)):
        if error or check_number(tokens, f"output_lens[{index}]") <= 0:
            continue
        ttft = check_number(ttft, f"ttfts[{index}]")
        if not isinstance(gaps, list):
            raise ClientError(f"itls[{index}] is {shown(gaps)}, not a list")
        gaps = [check_number(gap, f"itls[{index}]") for gap in gaps]
        total = ttft + math.fsum(gaps)
        latency = total if latency is None else check_number(latency, f"latencies[{index}]")
        found["ttft"].append(ttft)
        found["e2el"].append(latency)
        found["tpot"] += [(latency - ttft) / (tokens - 1)] if tokens > 1 else []
        found["itl"] += gaps
    # Lists that disagree with the counts give no spread.
    if len(found["ttft"]) != completed:
        return {}
    return {name: tuple(values) for name, values in found.items() if values}


def _short_outputs(cell: Cell, document: Document, completed: int) -> list[str]:
    requested = next((cell.dataset_args[name] for name in _LENGTHS if name in cell.dataset_args), None)
    # With a range the lengths are drawn, so that none is too short.
    if not isinstance(requested, int) or cell.dataset_args.get("random-range-ratio"):
        return []
    tokens, lengths = count(document, "total_output_tokens"), document.get("output_lens")
    is_short = tokens < requested * completed
    if isinstance(lengths, list):
        is_short = any(0 < length < requested for length in filter(is_number, lengths))
    per_request = f"{tokens / completed:.1f} of {requested} tokens per request"
    return [f"outputs are shorter than requested: {per_request}"] if is_short else []


CLIENT = VllmBench()
