"""SGLang's ``bench_serving``: its command line and its results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

from perfbisect.clients.base import (
    NO_VALUES,
    Document,
    check_identity,
    check_reserved_options,
    count,
    number,
)
from perfbisect.clients.vllm_bench import VllmBench
from perfbisect.common.arguments import option_tokens
from perfbisect.errors import ClientError, UsageError
from perfbisect.model.attempt import RunResult
from perfbisect.model.cell import SERVER, Cell
from perfbisect.serving.families import Endpoint, Family
from perfbisect.serving.families.text import CHAT, COMPLETIONS

_GENERATE = "/generate"
_ENDPOINTS: Mapping[str, str] = {
    "sglang": _GENERATE,
    "sglang-native": _GENERATE,
    "sglang-oai": COMPLETIONS,
    "sglang-oai-chat": CHAT,
}
_FIELDS: Mapping[str, str] = {
    "e2el": "e2e_latency",
    "total_token_throughput": "total_throughput",
    "spec_decode_acceptance_length": "accept_length",
}
_STATISTICS = ("median", "mean", "std", "p99")
_RESERVED = (
    *("backend", "base-url", "host", "port", "model", "served-model-name", "tokenizer", "dataset-name"),
    *("dataset-path", "num-prompts", "warmup-requests", "max-concurrency", "request-rate", "seed"),
    *("disable-ignore-eos", "temperature", "top-p", "extra-request-body", "output-file", "output-details"),
    "disable-tqdm",
)


class SglangBench(VllmBench):
    """``python -m sglang.bench_serving``, which loads servers of SGLang.

    Prompts and outputs have the lengths that are asked for, unless the cell sets ``random-range-ratio``: by
    itself SGLang draws lengths between one token and these.
    """

    name = "sglang_bench"
    package = "sglang"
    sources: tuple[str, ...] = ("bench_serving.py", "benchmark")
    no_usage: Mapping[str, str] = {"DO_NOT_TRACK": "1"}
    # SGLang's whole latency ends with the stream, after the last token.
    agreeing = ("ttft:median",)

    def command(
        self,
        cell: Cell,
        endpoint: Endpoint,
        *,
        seed: int,
        result: PurePath,
        metadata: Mapping[str, str],  # noqa: ARG002
    ) -> tuple[str, ...]:
        """See :class:`Client`. :raises UsageError: also for what SGLang's client cannot send."""
        check_reserved_options(cell, _RESERVED)
        known = _ENDPOINTS.get(cell.backend)
        if cell.endpoint != known:
            problem = f"uses {known}" if known else f"is none of SGLang's: {', '.join(_ENDPOINTS)}"
            raise _refusal(cell, "backend", f"backend {cell.backend} {problem}")
        if cell.burstiness != 1:
            raise _refusal(cell, "burstiness", "SGLang's client has no burstiness")
        if cell.dataset_name == "random" and not cell.dataset_path:
            raise _refusal(
                cell, "dataset_name", "SGLang's random draws from ShareGPT: random-ids, or a dataset_path"
            )
        sent = {name.replace("-", "_"): value for name, value in cell.sampling.sent.items()}
        if sent.get("temperature") == 0:
            del sent["temperature"]  # the client's own
        if cell.sampling.temperature == SERVER or (sent and known == _GENERATE):
            own = "by itself it sends the temperature 0"
            raise _refusal(cell, "sampling", f"SGLang's client sends no other sampling to {known}; {own}")
        options: dict[str, object] = {
            "backend": cell.backend,
            "base-url": endpoint.base_url,
            "model": endpoint.model_name,
            "tokenizer": cell.tokenizer or cell.model,
            "dataset-name": cell.dataset_name,
            "dataset-path": cell.dataset_path,
            "num-prompts": cell.num_prompts,
            "warmup-requests": cell.num_warmups,
            "max-concurrency": cell.max_concurrency,
            "request-rate": f"{cell.request_rate:.12g}",
            "seed": seed,
            "disable-ignore-eos": not cell.ignore_eos,
            "extra-request-body": {**sent, **cell.extra_body} or None,
            "output-file": str(result),
            # Errors and times of single requests.
            "output-details": True,
            "disable-tqdm": True,
        }
        lengths = {"random-range-ratio": 1} if cell.dataset_name.startswith("random") else {}
        options |= {**lengths, **cell.dataset_args, **cell.client.args}
        return ("-m", "sglang.bench_serving", *option_tokens(options, negatable=False))

    def preload(self, env: Mapping[str, str]) -> tuple[str, ...]:  # noqa: ARG002
        return ()

    def metrics(self, cell: Cell) -> tuple[str, ...]:
        names = [name for name in cell.percentile_metrics if name in Family.request_metrics]
        keys = [f"{name}:{part}" for name in names for part in _STATISTICS]
        return (*keys, *Family.run_metrics, *(("e2el_per_token",) if "e2el" in names else ()))

    def may_report(self, cell: Cell) -> tuple[str, ...]:
        is_speculative = any(name.startswith("speculative-") for name in cell.serve_args)
        return ("spec_decode_acceptance_length",) if is_speculative else ()

    def field(self, key: str) -> str:
        name, _, statistic = key.partition(":")
        name = _FIELDS.get(name, name)
        return f"{statistic}_{name}_ms" if statistic else name

    def parse(
        self, cell: Cell, document: Document, *, index: int, seed: int, expected: Document = NO_VALUES
    ) -> RunResult:
        del expected  # the client records neither model nor metadata
        check_identity(document, {"backend": cell.backend, "dataset_name": cell.dataset_name})
        errors = document.get("errors")
        if not isinstance(errors, list):
            raise ClientError("the result has no errors: it was written without --output-details")
        known = {name: value for name, value in document.items() if value is not None}
        # A request that failed may have no text of its error.
        known["failed"] = max(0, len(errors) - count(document, "completed"))
        if "total_throughput" not in known:
            known["total_throughput"] = sum(
                number(document, f"{side}_throughput") for side in ("input", "output")
            )
        return super().parse(cell, known, index=index, seed=seed)


def _refusal(cell: Cell, field: str, problem: str) -> UsageError:
    return UsageError(f"cell {cell.name}: {problem}", field=field)


CLIENT = SglangBench()
