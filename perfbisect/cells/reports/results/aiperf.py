"""Results of AIPerf (``profile_export_aiperf.json``)."""

from __future__ import annotations

from perfbisect.cells.reports.report import ReportedWorkload
from perfbisect.cells.reports.results.base import (
    MEANS,
    Record,
    endpoint_fields,
    length_fields,
    load_count,
    load_fields,
)

KEYS = frozenset({"input_config"})


def read(record: Record) -> ReportedWorkload:
    config = record["input_config"]
    if "models" not in config:
        # The older form has the command's options.
        load, asked = config.get("loadgen") or {}, config.get("endpoint") or {}
        options = {"concurrency": "concurrency", "rate": "request_rate", "requests": "request_count"}
        phases = [{name: load[option] for name, option in options.items() if load.get(option)}]
        models = {"items": [{"name": name} for name in asked["model_names"]]}
        config = {**config, "models": models, "phases": phases}
    names = [one["name"] for one in config["models"]["items"]]
    tokenizer = (config.get("tokenizer") or {}).get("name")
    # The name that the server answers to is often no hub's; the tokenizer's is.
    model = tokenizer if tokenizer and "/" not in str(names[0]) else names[0]
    endpoint = config.get("endpoint") or {}
    phase: Record = next((one for one in config.get("phases") or [] if one.get("name") != "warmup"), {})
    fields = {
        "model": model,
        **endpoint_fields(str(endpoint.get("type"))),
        **load_fields(phase, max_concurrency="concurrency", num_prompts="requests"),
        **load_fields(phase, request_rate="rate"),
    }
    fields.setdefault("num_prompts", load_count((record.get("request_count") or {}).get("avg")) or 1)
    means = [(record.get(f"{side}_sequence_length") or {}).get("avg") for side in ("input", "output")]
    if means[1] is None:
        means[1] = (record.get("total_output_tokens") or {}).get("avg", 0) / fields["num_prompts"]
    notes = ["its client is AIPerf: vLLM's sends the same load", MEANS]
    notes += (
        [f"the model is that of the tokenizer, {model}; the server answers to {names[0]}"]
        if model != names[0]
        else []
    )
    missing = ("task", "deploy YAML", "dataset", "warm-ups")
    return ReportedWorkload(fields, missing, likely=length_fields(*means), notes=tuple(notes))
