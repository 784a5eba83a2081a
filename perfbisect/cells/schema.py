"""The JSON schema of a cell file: for editors, and for whoever writes cells by program."""

from __future__ import annotations

from typing import Any

from perfbisect.cells.ladder import LADDERS
from perfbisect.cells.loading import DATASET_KEYS, INTERNAL
from perfbisect.model.cell import Cell

MEANING = {
    "name": "what it is called; by default the name of the file",
    "family": "how it is served: text",
    "description": "what it is for, in a line",
    "model": "a hub's name, or a folder relative to this file (./ or ../ in front)",
    "tokenizer": "as model; by default the model's",
    "revision": "state of model, tokenizer and dataset: a hub's commit or tag; a local folder's content",
    "task": "what the model does, in the words of the engine",
    "deploy_yaml": "of families with stages: {text}, {file}, {at, path}; a bare path is the change's own",
    "backend": "the client's way to ask: openai, openai-chat, ...",
    "endpoint": "the path that is asked: /v1/completions",
    "dataset_name": "as the client knows it: random, prefix_repetition, sharegpt, hf, custom, ...",
    "dataset_path": "a hub's name, or a file relative to this one",
    "dataset_args": "the client's options for the data set: lengths, ranges, splits",
    "sampling": "sampling of every request; greedy by default for text, else the deploy YAML's",
    "ignore_eos": "whether requests run to the length that was asked for",
    "extra_body": "what is added to the body of every request",
    "num_prompts": "requests of a run; may be a list",
    "num_warmups": "requests that the client sends before a run and does not count",
    "discard_prompts": "requests of the run that each launch discards; by default as many as in a run",
    "max_concurrency": "requests under way at most; may be a list",
    "request_rate": "requests per second; inf, the default, is all at once; may be a list",
    "burstiness": "1 is a Poisson process, less is burstier",
    "percentile_metrics": "metrics of which the client reports percentiles",
    "metric_percentiles": "which percentiles, 0 to 100",
    "stage_overrides": "of families with stages: overrides by stage",
    "serve_args": "options of the server, by name or as tokens",
    "env": "environment variables of the server",
    "headline": "the metric that is judged: tpot, ttft:p99, output_throughput, ...",
    "guards": "metrics that must not move while the headline does",
    "reference": "an image that each launch makes again, for image_distance: image (a file), prompt, body",
    "client": "the load generator: its name, or name, args and env",
    "gpus": "devices to reserve; 0 for none",
    "ready_timeout": "seconds that a start may take",
    "seed": "seed of the first run; run k uses seed + k",
    "known_baselines": "what was measured elsewhere; never compared with",
    "variants": "server-side overrides by name: serve_args, env, deploy_yaml, stage_overrides",
}
"""What each key of a cell file says."""


def cell_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a cell file: what may be written, paired lists and short forms included."""
    schema = Cell.model_json_schema(mode="validation")
    properties: dict[str, Any] = schema["properties"]
    for name in INTERNAL:
        del properties[name]
    for name, text in MEANING.items():
        properties[name]["description"] = text
        properties[name].pop("title", None)
    for name in LADDERS:
        single = {
            key: item for key, item in properties[name].items() if key not in ("description", "default")
        }
        kept = {key: item for key, item in properties[name].items() if key in ("description", "default")}
        properties[name] = {"anyOf": [single, {"type": "array", "items": single, "minItems": 1}], **kept}
    for name in ("client", "revision", "deploy_yaml"):
        form = properties[name]
        forms = form.pop("anyOf", None) or [{"$ref": form.pop("$ref")}]
        properties[name] = {"anyOf": [*forms, {"type": "string"}], **form}
    properties["request_rate"]["default"] = "inf"
    for name in DATASET_KEYS:
        properties[name] = {"type": ["number", "string"], "description": "the same as in dataset_args"}
    schema["required"] = [name for name in schema["required"] if name != "name"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "perfbisect cell"}
