"""Cell: exactly what is measured."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field, field_validator, model_validator

from perfbisect.core.cell_parts import (
    FROZEN,
    LOCAL,
    ClientSpec,
    DeployYaml,
    Reference,
    Revision,
    Sampling,
    Variant,
)
from perfbisect.core.digest import canonical, canonical_json, digest
from perfbisect.core.fields import (
    ClientArgs,
    Count,
    JsonMapping,
    Numbers,
    Rate,
    ServeArgs,
    Variables,
    Whole,
    Words,
)
from perfbisect.core.metric import MetricRef, check_metrics, parse_metric
from perfbisect.core.nearest import hint
from perfbisect.core.options import merge_options
from perfbisect.errors import UsageError

_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*(@[A-Za-z0-9._-]+)?$")


SERVER_SIDE = ("serve_args", "env", "deploy_yaml", "stage_overrides")
"""The fields a variant may set."""

NOT_WORKLOAD: dict[str, str] = {
    "name": "what it is called",
    "description": "what it is for",
    "percentile_metrics": "what is reported of the same requests",
    "metric_percentiles": "what is reported of the same requests",
    "headline": "which number is judged",
    "guards": "which numbers are watched",
    "ready_timeout": "how long a start may take",
    "known_baselines": "what was measured elsewhere",
    "variants": "part of the change",
    "variant": "part of the change",
    "before_variant": "enters in place of what a variant has set",
    "revision": "enters with the model, tokenizer and data set that it pins",
}
"""Fields that are no key of the workload of their own, and why."""


class Cell(BaseModel):
    """One workload that is measured (glossary: cell). Frozen; every key that is not named here is an error.

    ``request_rate`` in requests per second (infinite: all at once, held back by ``max_concurrency``
    alone); ``ready_timeout`` in seconds; ``gpus`` the devices to reserve, 0 for none. Run k of a launch uses
    ``seed + k``.
    """

    model_config = FROZEN

    name: str
    family: str
    description: str = ""
    model: str = Field(min_length=1)
    tokenizer: str | None = None
    revision: Revision = Revision()
    task: str = ""
    deploy_yaml: DeployYaml | None = None
    backend: str = "openai"
    endpoint: str = Field(default="/v1/completions", pattern="^/")
    dataset_name: str = "random"
    dataset_path: str | None = None
    dataset_args: ClientArgs = Field(default_factory=dict)
    sampling: Sampling = Sampling()
    ignore_eos: bool = False
    extra_body: JsonMapping = Field(default_factory=dict)
    num_prompts: Count
    num_warmups: Whole = Field(default=0, ge=0)
    discard_prompts: Count | None = None
    max_concurrency: Count | None = None
    request_rate: Rate = math.inf
    burstiness: float = Field(default=1.0, gt=0)
    percentile_metrics: Words = ("ttft", "tpot", "itl", "e2el")
    metric_percentiles: Numbers = (50.0, 90.0, 95.0, 99.0)
    stage_overrides: JsonMapping = Field(default_factory=dict)
    serve_args: ServeArgs = Field(default_factory=dict)
    env: Variables = Field(default_factory=dict)
    headline: str = "tpot"
    guards: Words = ()
    reference: Reference | None = None
    client: ClientSpec = ClientSpec()
    gpus: Whole = Field(default=0, ge=0)
    ready_timeout: float = Field(default=900.0, gt=0)
    seed: Whole = Field(default=0, ge=0)
    known_baselines: Any = None
    variants: dict[str, Variant] = Field(default_factory=dict)
    variant: str = ""
    before_variant: Variant | None = None

    @model_validator(mode="before")
    @classmethod
    def _revision_text(cls, value: object) -> object:
        if isinstance(value, Mapping) and isinstance(value.get("revision"), str):
            return {**value, "revision": {"model": value["revision"]}}
        return value

    @model_validator(mode="before")
    @classmethod
    def _greedy_text(cls, value: object) -> object:
        if not isinstance(value, Mapping) or value.get("family") != "text":
            return value
        sampling = value.get("sampling", {})
        if isinstance(sampling, Sampling):
            sampling = sampling.model_dump()
        if not isinstance(sampling, Mapping) or sampling.get("temperature") is not None:
            return value
        return {**value, "sampling": {**sampling, "temperature": 0.0}}

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        if not _NAME.match(value):
            raise ValueError("letters, digits, dot, dash and underscore; @ before the place in a ladder")
        return value

    @field_validator("variants")
    @classmethod
    def _variant_names(cls, value: dict[str, Variant]) -> dict[str, Variant]:
        for name in value:
            if not _NAME.match(name) or "@" in name:
                raise ValueError(f"{name!r} is no name of a variant")
        return value

    _known_metrics = field_validator("headline", "guards")(check_metrics)

    @field_validator("metric_percentiles")
    @classmethod
    def _percentiles(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not value or any(not 0 < percentile < 100 for percentile in value):
            raise ValueError("percentiles lie between 0 and 100")
        return tuple(sorted(set(value)))

    @model_validator(mode="after")
    def _watches_reference(self) -> Cell:
        if self.reference is not None and "image_distance" not in self.guards:
            raise ValueError("a cell that brings a reference has image_distance among its guards")
        return self

    @property
    def discarded(self) -> Cell:
        """The cell of the run that a launch discards: the same load, with fewer requests where it says so."""
        return self.model_copy(
            update={"num_prompts": min(self.num_prompts, self.discard_prompts or self.num_prompts)}
        )

    @property
    def metric(self) -> MetricRef:
        """The headline metric."""
        return parse_metric(self.headline)

    @property
    def needs_no_hub(self) -> bool:
        """True if model, tokenizer and data set are files of this machine, or made up by the client."""
        tokenizer = self.revision.tokenizer if self.tokenizer else self.revision.model
        pins = [self.revision.model, tokenizer, *([self.revision.dataset] if self.dataset_path else [])]
        return all(pin is not None and pin.startswith(LOCAL) for pin in pins)

    def workload(self) -> dict[str, object]:
        """All that makes the workload, canonical, of the cell before variants; what is empty is left out.

        Local folders and files stand there by the hash of their content, not by where they lie.

        :raises UsageError: a pinned deploy YAML has not been read.
        """
        before = self.before_variant
        fields: dict[str, object] = {}
        for name in type(self).model_fields:
            if name not in NOT_WORKLOAD:
                fields[name] = getattr(before if before is not None and name in SERVER_SIDE else self, name)
        deploy = fields["deploy_yaml"]
        tokenizer = None if self.tokenizer is None else _identity(self.tokenizer, self.revision.tokenizer)
        fields |= {
            "model": _identity(self.model, self.revision.model),
            "tokenizer": tokenizer or _identity(self.model, self.revision.tokenizer or self.revision.model),
            "dataset_path": _identity(self.dataset_path, self.revision.dataset),
            "deploy_yaml": deploy.workload() if isinstance(deploy, DeployYaml) else None,
            "sampling": self.sampling.model_dump(exclude_none=True),
            "reference": self.reference.workload() if self.reference else None,
            "client": {key: item for key, item in self.client.model_dump().items() if item},
        }
        return {
            name: canonical(value)
            for name, value in fields.items()
            if value is not None and value not in ({}, "", ())
        }

    @property
    def digest(self) -> str:
        """Hash of the workload, in hex: attempts of different digests are never compared."""
        return digest(self.workload())


def _identity(name: str | None, revision: str | None) -> dict[str, object] | None:
    if revision and revision.startswith(LOCAL):
        return {"content": revision}
    if name is None and revision is None:
        return None
    return {"name": name, "revision": revision} if revision else {"name": name}


def apply_variant(cell: Cell, name: str) -> Cell:
    """The cell as a variant serves it; its digest stays the one of the cell before variants.

    Serve arguments and variables replace those of the same name (null takes one away), a stage's overrides
    are merged key by key, a deploy YAML replaces the whole.

    :raises UsageError: no such variant, or a cell that has one applied already.
    """
    if name not in cell.variants:
        near = hint(name, cell.variants)
        raise UsageError(
            f"cell {cell.name} has no variant {name!r}{near}; it has: {', '.join(cell.variants) or 'none'}",
            next_step="leave the variant out, or add it to the cell: perfbisect cells show CELL",
        )
    if cell.variant:
        raise UsageError(
            f"cell {cell.name} has its variant {cell.variant!r} already; {name!r} cannot be added"
        )
    variant = cell.variants[name]
    stages = dict(cell.stage_overrides)
    for stage, override in variant.stage_overrides.items():
        both = isinstance(override, Mapping) and isinstance(stages.get(stage), Mapping)
        stages[stage] = {**stages[stage], **override} if both else override
    return cell.model_copy(
        update={
            "variant": name,
            "before_variant": Variant(**{field: getattr(cell, field) for field in SERVER_SIDE}),
            "serve_args": merge_options(cell.serve_args, variant.serve_args),
            "env": {**cell.env, **variant.env},
            "deploy_yaml": variant.deploy_yaml or cell.deploy_yaml,
            "stage_overrides": stages,
        }
    )


def difference(a: Cell, b: Cell) -> tuple[tuple[str, str, str], ...]:
    """Where the workloads of two cells differ: (field, left, right), ``-`` for what is not there.

    Empty exactly where the digests are equal. Mappings are compared by key (``serve_args.max-model-len``).
    """
    left, right = _flat(a.workload()), _flat(b.workload())
    return tuple(
        (field, left.get(field, "-"), right.get(field, "-"))
        for field in sorted({*left, *right})
        if left.get(field) != right.get(field)
    )


def _flat(value: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    rows: dict[str, str] = {}
    for name, item in value.items():
        field = prefix + (json.dumps(name) if "." in name else name)
        if isinstance(item, Mapping) and item:
            rows |= _flat(item, f"{field}.")
        else:
            rows[field] = _shown(item)
    return rows


def _shown(value: object) -> str:
    """A value in a row: text bare, unless it would read as a number, a word of JSON or nothing at all."""
    if not isinstance(value, str):
        return canonical_json(value)
    try:
        json.loads(value)
    except json.JSONDecodeError:
        return value if value.strip() not in ("", "-") else json.dumps(value)
    return json.dumps(value)


def echo(cell: Cell, metric: MetricRef | None = None) -> list[tuple[str, str]]:
    """What will be measured, as (label, value) rows: the 7-tuple, the knobs set, the digest, the metric.

    ``metric`` is the one that is judged, by default the cell's headline.
    """
    judged = metric or cell.metric
    rate = "inf" if math.isinf(cell.request_rate) else f"{cell.request_rate:g} req/s"
    lengths = "".join(f" {name}={_plain(value)}" for name, value in sorted(cell.dataset_args.items()))
    place = f" {cell.dataset_path}" if cell.dataset_path else ""
    load = [f"max concurrency {cell.max_concurrency}"] if cell.max_concurrency else []
    load += [f"request rate {rate}"] if not load or not math.isinf(cell.request_rate) else []
    rows = [
        ("cell", cell.name + (f" +{cell.variant}" if cell.variant else "")),
        ("model", _pinned(cell.model, cell.revision.model)),
        ("task", cell.task or cell.family),
        ("deploy YAML", _deploy(cell.deploy_yaml)),
        (
            "dataset",
            _pinned(f"{cell.dataset_name}{place}", cell.revision.dataset) + f"{lengths}, seed {cell.seed}",
        ),
        ("prompts", str(cell.num_prompts)),
        ("load", ", ".join(load)),
        ("warm-ups", str(cell.num_warmups)),
        *([("discarded run", f"{cell.discarded.num_prompts} prompts")] if cell.discard_prompts else []),
        ("backend", f"{cell.backend} {cell.endpoint}"),
        (
            "sampling",
            (_pairs(cell.sampling.model_dump(exclude_none=True)) or "of the deploy YAML")
            + (", ignore EOS" if cell.ignore_eos else ""),
        ),
    ]
    if cell.gpus:
        rows.append(("devices", str(cell.gpus)))
    if cell.tokenizer:
        rows.append(("tokenizer", _pinned(cell.tokenizer, cell.revision.tokenizer)))
    knobs: tuple[tuple[str, Mapping[str, Any]], ...] = (
        ("extra body", cell.extra_body),
        ("stage overrides", cell.stage_overrides),
        ("serve arguments", cell.serve_args),
        ("environment", cell.env),
        ("client", {"name": cell.client.name, **cell.client.args, **cell.client.env}),
    )
    rows += [(label, _pairs(values)) for label, values in knobs if values]
    rows.append(("digest", cell.digest))
    rows.append(
        (
            "metric",
            f"{judged} ({judged.metric.display}), {judged.metric.unit}, {judged.metric.direction} is better",
        )
    )
    if cell.guards:
        rows.append(("guards", ", ".join(cell.guards)))
    if cell.reference:
        rows.append(("reference", _pinned(cell.reference.image, cell.reference.content)))
    return rows


def _plain(value: object) -> str:
    return value if isinstance(value, str) else canonical_json(value)


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_plain(values[name])}" for name in values)


def _pinned(name: str, revision: str | None) -> str:
    if not revision:
        return name
    return (
        f"{name} ({revision[: len(LOCAL) + 12]})" if revision.startswith(LOCAL) else f"{name} at {revision}"
    )


def _deploy(deploy: DeployYaml | None) -> str:
    if deploy is None:
        return "none"
    if deploy.origin:
        return f"{deploy.path} of the change"
    if deploy.at:
        return f"{deploy.path} at {deploy.at}"
    return deploy.file or f"given in the cell ({digest(deploy.text)[:12]})"
