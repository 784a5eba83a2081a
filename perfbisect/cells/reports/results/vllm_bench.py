"""Results of ``vllm bench serve``."""

from __future__ import annotations

from perfbisect.cells.reports.arguments import BACKENDS, ENDPOINTS
from perfbisect.cells.reports.report import ReportedWorkload
from perfbisect.cells.reports.results.base import MEANS, Record, length_fields, load_fields, load_number
from perfbisect.cells.reports.vllm_options import SERVER_OPTIONS
from perfbisect.serving.families.text import COMPLETIONS

KEYS = frozenset({"model_id", "num_prompts"})


def read(record: Record) -> ReportedWorkload:
    """``vllm bench serve``, which names no data set; a sweep adds the parameters that it varies."""
    backend = BACKENDS.get(str(record.get("backend")), record.get("backend") or record.get("endpoint_type"))
    fields = {
        "model": record["model_id"],
        **load_fields(record, num_prompts="num_prompts", max_concurrency="max_concurrency"),
        **load_fields(record, request_rate="request_rate", burstiness="burstiness"),
    }
    if isinstance(backend, str):
        fields |= {"backend": backend, "endpoint": ENDPOINTS.get(backend, COMPLETIONS)}
    if record.get("tokenizer_id") not in (None, record["model_id"]):
        fields["tokenizer"] = record["tokenizer_id"]
    varied = {key.replace("_", "-"): value for key, value in record.items()}
    served = {key: v for key, v in varied.items() if key in SERVER_OPTIONS and key not in ("model", "seed")}
    completed = load_number(record.get("completed")) or 1
    means = [
        (load_number(record.get(f"total_{side}_tokens")) or 0) / completed for side in ("input", "output")
    ]
    missing = ("task", "deploy YAML", "dataset", "warm-ups")
    return ReportedWorkload(
        fields, missing, serve_args=served or None, likely=length_fields(*means), notes=(MEANS,)
    )
