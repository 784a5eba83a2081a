"""``bench serve``, the command that vLLM's client and vLLM-Omni's share, and what a client runs in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath

from perfbisect.clients import result_fields
from perfbisect.common.arguments import option_tokens
from perfbisect.errors import UsageError
from perfbisect.model.cell import Cell
from perfbisect.serving.families import OFFLINE, Endpoint

_OURS = (
    *(
        "backend",
        "base-url",
        "host",
        "port",
        "endpoint",
        "model",
        "served-model-name",
        "tokenizer",
        "dataset-name",
    ),
    *("dataset-path", "num-prompts", "num-warmups", "max-concurrency", "request-rate", "burstiness", "seed"),
    *(
        "ignore-eos",
        "extra-body",
        "temperature",
        "top-p",
        "top-k",
        "min-p",
        "frequency-penalty",
        "presence-penalty",
    ),
    *("repetition-penalty", "percentile-metrics", "metric-percentiles", "save-result", "save-detailed"),
    *("append-result", "result-dir", "result-filename", "metadata", "disable-tqdm"),
)
"""Options that an attempt or a key of the cell sets."""

NO_USAGE = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
"""vLLM reports to nobody that it was run."""


def check_reserved_options(cell: Cell, ours: Iterable[str] = _OURS) -> None:
    """:raises UsageError: a client or dataset argument that is not the cell's to set."""
    extra = {**cell.dataset_args, **cell.client.args}
    found = [name for name in ours if name in extra]
    if found:
        raise UsageError(
            f"cell {cell.name}: client.args and dataset_args cannot set {', '.join(found)}: "
            "these have keys of their own in the cell, or belong to the attempt",
            field="client" if found[0] in cell.client.args else "dataset_args",
        )


def bench_command(
    package: str,
    cell: Cell,
    endpoint: Endpoint,
    *,
    seed: int,
    result: PurePath,
    metadata: Mapping[str, str],
    differing: Mapping[str, object],
) -> tuple[str, ...]:
    """Arguments after the interpreter. Seed and digest are stamped on the result as metadata.

    :param package: the one whose client it is.
    :param differing: options that one of the two clients has its own way of setting.
    :raises UsageError: a client or dataset argument that is not the cell's to set.
    """
    check_reserved_options(cell)
    own: dict[str, object] = {
        "backend": cell.backend,
        "base-url": endpoint.base_url,
        "endpoint": cell.endpoint,
        "model": endpoint.model_name,
        "tokenizer": cell.tokenizer or cell.model,
        "dataset-name": cell.dataset_name,
        "dataset-path": cell.dataset_path,
        "num-prompts": cell.num_prompts,
        "num-warmups": cell.num_warmups,
        "max-concurrency": cell.max_concurrency,
        "request-rate": f"{cell.request_rate:.12g}",
        "burstiness": None if cell.burstiness == 1 else cell.burstiness,
        "ignore-eos": cell.ignore_eos,
        "seed": seed,
        "disable-tqdm": True,
        "save-result": True,
        "save-detailed": True,
        "result-dir": str(result.parent),
        "result-filename": result.name,
    }
    sampling = {name.replace("_", "-"): value for name, value in cell.sampling.model_dump().items()}
    stamped = {**metadata, result_fields.SEED: str(seed), result_fields.CELL: cell.digest}
    options = {**own, **differing, **sampling, **cell.dataset_args, **cell.client.args}
    return (
        *("-m", f"{package}.entrypoints.cli.main", "bench", "serve"),
        *option_tokens(options, negatable=False),
        *("--metadata", *(f"{name}={value}" for name, value in stamped.items())),
    )


def reporting_options(percentile_metrics: Sequence[str], percentiles: Sequence[float]) -> dict[str, object]:
    """The options that say what is to be reported."""
    return {
        "percentile-metrics": ",".join(percentile_metrics),
        "metric-percentiles": ",".join(f"{percentile:g}" for percentile in percentiles),
    }


def client_environment(cell: Cell, usage: Mapping[str, str]) -> dict[str, str]:
    """Loopback past every proxy; offline where all that is needed is on this machine; the cell's own."""
    env = {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost", **usage}
    if cell.needs_no_hub:
        env |= OFFLINE
    return {**env, **cell.client.env}
