"""Cell: one workload, exactly as it is measured."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from perfbisect.common.arguments import merge_options, parse_options, string_keys
from perfbisect.common.digests import canonical, canonical_json, digest
from perfbisect.common.json_text import parse_json
from perfbisect.common.secret_references import hide_literals
from perfbisect.common.text import hint
from perfbisect.errors import UsageError
from perfbisect.model.metric import MetricRef, check_metrics, parse_metric

_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_SIZE = re.compile(r"[0-9]{1,9}")
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*(@[A-Za-z0-9._-]+)?$")


def _read_whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _split(value: object) -> object:
    """A comma-separated text or a list as a tuple."""
    if isinstance(value, str):
        return tuple(word.strip() for word in value.split(",") if word.strip())
    return tuple(value) if isinstance(value, list) else value


def _read_numbers(value: object) -> object:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return (float(value),)
    numbers = _split(value)
    return tuple(map(float, numbers)) if isinstance(value, str) and isinstance(numbers, tuple) else numbers


def _read_json_mapping(value: object) -> object:
    if isinstance(value, str):
        try:
            value = parse_json(value) if value.strip() else {}
        except ValueError as error:
            raise ValueError(f"is text but no JSON: {error}") from None
    elif value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a mapping or JSON text of one, not {type(value).__name__}")
    return string_keys(value)


def _read_variables(value: object) -> object:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a mapping of variables, not {type(value).__name__}")
    for name, item in value.items():
        if not isinstance(name, str) or not _VARIABLE.match(name):
            raise ValueError(f"{name!r} is no name of an environment variable")
        if isinstance(item, bool) or not isinstance(item, (str, int, float)):
            raise ValueError(f"{name} must be text or a number, not {item!r} (quote it)")
    return {name: str(item) for name, item in value.items()}


_OPTIONS = WithJsonSchema({"type": ["object", "array", "null"], "description": "options by name, or tokens"})

Whole = Annotated[int, BeforeValidator(_read_whole)]
Count = Annotated[int, BeforeValidator(_read_whole), Field(ge=1)]
Rate = Annotated[
    float,
    Field(gt=0, allow_inf_nan=True),
    BeforeValidator(
        lambda v: math.inf if isinstance(v, str) and v.strip().lower() in ("inf", "infinity") else v
    ),
    PlainSerializer(lambda v: "inf" if math.isinf(v) else v, return_type=float | str),
    WithJsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"const": "inf"}]}),
]
Words = Annotated[
    tuple[str, ...],
    BeforeValidator(_split),
    WithJsonSchema({"type": ["array", "string"], "items": {"type": "string"}}),
]
Numbers = Annotated[
    tuple[float, ...],
    BeforeValidator(_read_numbers),
    WithJsonSchema({"type": ["array", "string", "number"], "items": {"type": "number"}}),
]
JsonMapping = Annotated[
    dict[str, Any],
    BeforeValidator(_read_json_mapping),
    WithJsonSchema({"type": ["object", "string", "null"], "description": "a mapping, or JSON text of one"}),
]
Variables = Annotated[
    dict[str, str],
    BeforeValidator(_read_variables),
    WithJsonSchema({"type": ["object", "null"], "additionalProperties": {"type": ["string", "number"]}}),
]
ServeArgs = Annotated[dict[str, Any], BeforeValidator(lambda v: parse_options(v, negatable=True)), _OPTIONS]
ServeOverrides = Annotated[
    dict[str, Any], BeforeValidator(lambda v: parse_options(v, negatable=True, keep_null=True)), _OPTIONS
]
ClientArgs = Annotated[dict[str, Any], BeforeValidator(lambda v: parse_options(v, negatable=False)), _OPTIONS]

LOCAL = "sha256:"
"""Prefix of the revision of a local folder or file: the hash of its content."""


class _Frozen(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, populate_by_name=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _read_short_form(cls, value: object) -> object:
        return cls._from_text(value) if isinstance(value, str) else value

    @classmethod
    def _from_text(cls, text: str) -> object:
        return text


SERVER: Literal["server"] = "server"
"""The temperature of requests that name none."""


class Sampling(_Frozen):
    """Sampling of every request: set by the cell, never by a hub's generation config.

    Text is greedy by default; other families use their deploy YAML, because greedy speech does not end.
    With the temperature ``server``, or ``sampling: server``, requests have none: the server takes what the
    model's generation config says.
    """

    temperature: Annotated[float, Field(ge=0)] | Literal["server"] | None = None
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: Whole | None = None
    min_p: float | None = Field(default=None, ge=0, le=1)
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None

    @classmethod
    def _from_text(cls, text: str) -> object:
        return {"temperature": text}

    @property
    def sent(self) -> dict[str, float]:
        """What requests say, by option of the client: ``top-p``."""
        fields = self.model_dump(exclude_none=True).items()
        return {name.replace("_", "-"): value for name, value in fields if value != SERVER}


class Revision(_Frozen):
    """Revisions of model, tokenizer and data set: a hub's commit or tag, or ``sha256:...`` if local."""

    model: str | None = None
    tokenizer: str | None = None
    dataset: str | None = None

    @classmethod
    def _from_text(cls, text: str) -> object:
        return {"model": text}


class DeployYaml(_Frozen):
    """A deploy YAML: pinned (``text``, ``file``, ``at`` a commit), or the change's own (``from: change``).

    A bare path is ``from: change``. ``text`` is set once the file or commit has been read.
    """

    text: str | None = None
    file: str | None = None
    at: str | None = None
    origin: Literal["change"] | None = Field(default=None, alias="from")
    path: str | None = None

    @classmethod
    def _from_text(cls, text: str) -> object:
        return {"from": "change", "path": text}

    @model_validator(mode="after")
    def _one_form(self) -> DeployYaml:
        named = [word for word in (self.file, self.at, self.origin) if word is not None]
        if len(named) > 1 or (not named and self.text is None) or (self.origin and self.text is not None):
            raise ValueError("say one of text, file, at (with path), from: change (with path)")
        if (self.at or self.origin) and not self.path:
            raise ValueError("needs path, the file inside the repository")
        if self.path and not (self.at or self.origin):
            raise ValueError("path belongs to at or from: change")
        return self

    def workload(self) -> dict[str, object]:
        """What enters the digest: the pinned text, else the path. :raises UsageError: it was not read."""
        if self.text is not None:
            return {"text": self.text}
        if self.origin:
            return {"from": self.origin, "path": self.path}
        place = self.file if self.file else f"{self.path} at {self.at}"
        raise UsageError(
            f"the deploy YAML {place} has not been read, so the cell has no digest",
            next_step="name the repository: --repo PATH",
        )


class Pixel(_Frozen):
    """A pixel of an expected image: its place from the upper left corner, and its colour of 0 to 255."""

    at: Annotated[tuple[Whole, Whole], BeforeValidator(_split)]
    rgb: Annotated[tuple[Whole, Whole, Whole], BeforeValidator(_split)]


class Reference(_Frozen):
    """An image that the server generates again after the runs, with its request.

    ``image``: the expected image, or ``pixels`` of it. ``input``: the address of the image to edit; without
    it a picture of our own. ``body``: fields of the request beside the prompt (``seed``,
    ``num_inference_steps``). ``content``: the image's digest, set once the file has been read.
    """

    image: str | None = Field(default=None, min_length=1)
    pixels: Annotated[tuple[Pixel, ...], BeforeValidator(_split)] = ()
    prompt: str = Field(min_length=1)
    input: str | None = Field(default=None, pattern="^(https?|data):")
    body: JsonMapping = Field(default_factory=dict)
    content: str | None = None

    @model_validator(mode="after")
    def _one_expectation(self) -> Reference:
        if (self.image is None) == (not self.pixels):
            raise ValueError("say what is expected: image, or pixels of it, and not both")
        return self

    def workload(self) -> dict[str, object]:
        """What enters the digest: the image by its content."""
        expected = {"image": self.content or self.image, "pixels": [p.model_dump() for p in self.pixels]}
        asked = {"prompt": self.prompt, "input": self.input}
        return {**{k: v for k, v in (expected | asked).items() if v}, "body": self.body}

    @property
    def described(self) -> str:
        return pinned(self.image, self.content) if self.image else f"{len(self.pixels)} pixels"


class ExpectedAnswer(_Frozen):
    """What a launch's server is asked before it is measured, greedily, and a text that its answer has."""

    prompt: str = Field(min_length=1)
    text: str = Field(min_length=1)


class ClientSpec(_Frozen):
    """The load generator with its options and environment variables."""

    name: str = "vllm_bench"
    args: ClientArgs = Field(default_factory=dict)
    env: Variables = Field(default_factory=dict)

    @classmethod
    def _from_text(cls, text: str) -> object:
        return {"name": text}


class Variant(_Frozen):
    """Server-side overrides: part of the change, not of the workload. Null removes a serve argument."""

    serve_args: ServeOverrides = Field(default_factory=dict)
    env: Variables = Field(default_factory=dict)
    deploy_yaml: DeployYaml | None = None
    stage_overrides: JsonMapping = Field(default_factory=dict)


SERVER_SIDE = ("serve_args", "env", "deploy_yaml", "stage_overrides")
"""The fields a variant may set."""

NOT_WORKLOAD = frozenset(
    {
        *("name", "description", "headline", "guards", "channels", "ready_timeout", "known_baselines"),
        *("percentile_metrics", "metric_percentiles"),  # reports about the same requests
        "expected_answer",  # asked before them
        *("variants", "variant", "before_variant"),  # part of the change
        "revision",  # enters with the model, tokenizer and data set that it pins
    }
)
"""Fields that do not enter the digest by themselves."""


OTHER_MACHINES = (
    *("node-rank", "master-addr", "master-port", "headless", "data-parallel-start-rank"),
    *("data-parallel-address", "data-parallel-external-lb", "data-parallel-hybrid-lb"),
)
"""Serve arguments of a server over several machines, with ``nnodes`` above 1."""

PARALLEL_SIZES = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")
"""Serve arguments of vLLM whose product is the number of devices of a server on one machine."""


def parallel_devices(serve_args: Mapping[str, object], sizes: Sequence[str] = PARALLEL_SIZES) -> int:
    """Product of the sizes of parallelism; one that is not given, or no number, counts as 1."""
    given = (serve_args.get(name) for name in sizes)
    return math.prod(
        int(size) for size in given if isinstance(size, int | str) and _SIZE.fullmatch(str(size))
    )


_GREEDY = ("text", "sglang")
"""Families whose cells have the temperature 0 where they say none."""


class Cell(_Frozen):
    """One workload that is measured.

    ``request_rate`` in requests per second (infinite: limited by ``max_concurrency`` alone);
    ``ready_timeout`` in seconds; ``gpus``: devices to reserve. Run k of a launch uses ``seed + k``.
    """

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
    channels: Words = ()
    reference: Reference | None = None
    expected_answer: ExpectedAnswer | None = None
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
    def _greedy_text(cls, value: object) -> object:
        if not isinstance(value, Mapping) or value.get("family") not in _GREEDY:
            return value
        sampling = value.get("sampling", {})
        if isinstance(sampling, str):
            return value
        if isinstance(sampling, Sampling):
            sampling = sampling.model_dump()
        if not isinstance(sampling, Mapping) or sampling.get("temperature") is not None:
            return value
        # Newer clients of vLLM send no temperature by themselves: the hub's generation config would decide.
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

    _known_metrics = field_validator("headline", "guards", "channels")(check_metrics)

    @field_validator("metric_percentiles")
    @classmethod
    def _percentiles(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not value or any(not 0 < percentile < 100 for percentile in value):
            raise ValueError("percentiles lie between 0 and 100")
        return tuple(sorted(set(value)))

    @property
    def percentiles(self) -> tuple[float, ...]:
        """What the client reports beside median and mean: of headline, guards and channels, too."""
        return self.reporting((self.headline, *self.guards, *self.channels)).metric_percentiles

    def reporting(self, metrics: Iterable[str]) -> Cell:
        """The same workload, whose client also reports the percentiles of these metrics (``ttft:p10``)."""
        statistics = (parse_metric(name).statistic for name in metrics)
        asked = {float(statistic[1:]) for statistic in statistics if statistic[:1] == "p"}
        percentiles = tuple(sorted(asked.difference({0.0}).union(self.metric_percentiles)))
        return self.model_copy(update={"metric_percentiles": percentiles})

    @model_validator(mode="after")
    def _watches_reference(self) -> Cell:
        if self.reference is not None and "image_distance" not in self.guards:
            raise ValueError("a cell that brings a reference has image_distance among its guards")
        return self

    @model_validator(mode="after")
    def _reserves_enough_devices(self) -> Cell:
        served = {"": self.serve_args}
        for name, variant in self.variants.items():
            served[name] = {**self.serve_args, **variant.serve_args}
        for name, serve_args in served.items():
            if others := [o for o in OTHER_MACHINES if serve_args.get(o) not in (None, False)]:
                raise ValueError(f"serve_args.{others[0]}: a server over several machines cannot be measured")
            if serve_args.get("nnodes", 1) != 1:
                raise ValueError("serve_args.nnodes: a server over several machines cannot be measured")
            needed = parallel_devices(serve_args)
            # Stages of other families may share devices: there the product says nothing.
            if self.family == "text" and 0 < self.gpus < needed:
                of = f" of variant {name}" if name else ""
                raise ValueError(
                    f"gpus: {self.gpus} is too few for serve_args{of}: they take {needed} devices"
                )
        return self

    @property
    def discarded(self) -> Cell:
        """The cell of the discarded run: the same load, with ``discard_prompts`` requests if fewer.

        It has no warm-ups: its requests are as little counted as they are.
        """
        prompts = min(self.num_prompts, self.discard_prompts or self.num_prompts)
        return self.model_copy(update={"num_prompts": prompts, "num_warmups": 0})

    @property
    def metric(self) -> MetricRef:
        """The headline metric."""
        return parse_metric(self.headline)

    @property
    def needs_no_hub(self) -> bool:
        """Whether model, tokenizer and data set are local or generated by the client."""
        tokenizer = self.revision.tokenizer if self.tokenizer else self.revision.model
        pins = [self.revision.model, tokenizer, *([self.revision.dataset] if self.dataset_path else [])]
        return all(pin is not None and pin.startswith(LOCAL) for pin in pins)

    def workload(self) -> dict[str, object]:
        """The canonical workload of the cell before variants, without empty fields.

        Local folders and files enter by their content, not by their path.

        Raises:
            UsageError: a pinned deploy YAML has not been read.
        """
        fields: dict[str, object] = {
            name: getattr(self.before_variant if self.before_variant and name in SERVER_SIDE else self, name)
            for name in type(self).model_fields
            if name not in NOT_WORKLOAD
        }
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
        return {name: canonical(value) for name, value in fields.items() if value not in (None, {}, "", ())}

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
    """The cell as a variant serves it; its digest stays that of the cell before variants.

    Serve arguments and variables replace those of the same name (null removes one), a stage's overrides
    are merged by key, a deploy YAML replaces the whole.

    Raises:
        UsageError: no such variant, or the cell already has one.
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


def cell_difference(a: Cell, b: Cell) -> tuple[tuple[str, str, str], ...]:
    """Differences of two workloads: (field, left, right), ``-`` if missing; empty if the digests are equal.

    Mappings are compared by key (``serve_args.max-model-len``).
    """
    left, right = _flat(a.workload()), _flat(b.workload())
    shown = [_flat(hide_literals(cell.workload())) for cell in (a, b)]
    return tuple(
        (field, shown[0].get(field, "-"), shown[1].get(field, "-"))
        for field in sorted({*left, *right})
        if left.get(field) != right.get(field)
    )


def _flat(value: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    rows: dict[str, str] = {}
    for name, item in value.items():
        # A dot in a name would look like a nested key.
        field = prefix + (json.dumps(name) if "." in name else name)
        if isinstance(item, Mapping) and item:
            rows |= _flat(item, f"{field}.")
        else:
            rows[field] = _unambiguous(item)
    return rows


def _unambiguous(value: object) -> str:
    """Text bare, unless it would read as a number, a word of JSON or as missing."""
    if not isinstance(value, str):
        return canonical_json(value)
    try:
        parse_json(value)
    except ValueError:
        return value if value.strip() not in ("", "-") else json.dumps(value)
    return json.dumps(value)


def pinned(name: str, revision: str | None) -> str:
    """A model, data set or file with its revision, shortened where that is a hash of its content."""
    if not revision:
        return name
    if revision.startswith(LOCAL):
        return f"{name} ({revision[: len(LOCAL) + 12]})"
    return f"{name} at {revision}"
