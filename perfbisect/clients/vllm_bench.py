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
from perfbisect.serving.families import FAMILIES
from perfbisect.serving.families.text import CHAT, COMPLETIONS

_AGREE = 0.01
"""Relative tolerance between a reported median and that of its requests."""

_LENGTHS = (
    *("random-output-len", "prefix-repetition-output-len", "output-len", "sharegpt-output-len"),
    "hf-output-len",
)
_REPORTED = ("ttft", "tpot", "itl", "e2el")
"""Percentile metrics of the client that the metric table has."""

_BACKENDS: Mapping[str, str] = {
    **dict.fromkeys(("openai", "vllm", "lmdeploy", "scalellm", "sglang"), COMPLETIONS),
    **dict.fromkeys(("openai-chat", "vllm-chat"), CHAT),
}
"""The backends whose requests stream text, and their endpoints."""

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

    def options(self, cell: Cell) -> dict[str, object]:
        """See :class:`Client`. :raises UsageError: the backend is unknown or does not fit the endpoint."""
        endpoint = _BACKENDS.get(cell.backend)
        if endpoint != cell.endpoint:
            problem = (
                f"uses {endpoint}, but the cell's endpoint is {cell.endpoint}"
                if endpoint
                else (f"is none that streams text: {', '.join(_BACKENDS)}")
            )
            raise UsageError(f"cell {cell.name}: backend {cell.backend} {problem}", field="backend")
        return {
            "extra-body": dict(cell.extra_body) or None,
            # With it the client fails if the server is down; without it the client ends with 0 and a result
            # of zeros.
            "ready-check-timeout-sec": 30,
            **reporting_options(cell.percentile_metrics, cell.percentiles),
        }

    def preload(self, env: Mapping[str, str]) -> tuple[str, ...]:
        """The imports of ``vllm bench serve``; none for the Rust client."""
        return () if env.get("VLLM_USE_RUST_BENCH", "0") not in ("", "0") else _IMPORTED

    def metrics(self, cell: Cell) -> tuple[str, ...]:
        parts = ("median", "mean", "std", *(f"p{percentile:g}" for percentile in cell.percentiles))
        keys = [f"{name}:{part}" for name in cell.percentile_metrics if name in _REPORTED for part in parts]
        keys += ["request_throughput", "output_throughput", "total_token_throughput"]
        keys += ["request_goodput"] if "goodput" in cell.client.args else []
        keys += ["failed", "output_tokens", "input_tokens"]
        keys += ["e2el_per_token"] if "e2el" in cell.percentile_metrics else []
        is_speculative = not FAMILIES[cell.family].lacks(cell, "speculative decoding")
        return (*keys, *(ACCEPTANCE if is_speculative else ()))

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
        totals = read_totals(cell, document)
        if count(document, "total_output_tokens") == 0:
            raise ClientError(f"{totals.completed} requests completed without one output token")
        values = self.read_values(cell, document, token_values(document, totals))
        requests = {
            f"{name}:median": raw for name, raw in _request_values(document, totals.completed).items()
        }
        medians = {key: statistics.median(raw) * 1000 for key, raw in requests.items()}
        for key in ("ttft:median", "e2el:median"):
            reported, median = values.get(key), medians.get(key)
            if reported is None or median is None:
                continue
            if abs(median - reported) > _AGREE * max(median, reported):
                raise ClientError(
                    f"the result contradicts itself: {self.field(key)} is {reported:g}, "
                    f"its requests have {median:g}"
                )
        warnings = totals.warnings(cell.num_prompts)
        warnings += _short_outputs(cell, document, totals.completed)
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


def _request_values(document: Document, completed: int) -> dict[str, tuple[float, ...]]:
    """Seconds of each completed request (itl: chunk) by metric; empty without usable detail.

    Raises:
        ClientError: an item is no number.
    """
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
