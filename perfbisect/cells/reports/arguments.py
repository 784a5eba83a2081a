"""Words of vLLM's command lines -> fields of a cell, as its parser takes them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from perfbisect.cells.reports.shell import Computed
from perfbisect.cells.reports.vllm_options import CLIENT_OPTIONS, SERVER_OPTIONS, Arity
from perfbisect.common.arguments import long_option, parse_options
from perfbisect.common.text import line as shown
from perfbisect.serving.families import FAMILIES
from perfbisect.serving.families.offline import OPTIONS
from perfbisect.serving.families.text import COMPLETIONS

BENCH_DEFAULTS: Mapping[str, object] = {
    "backend": "openai",
    "endpoint": COMPLETIONS,
    "dataset_name": "random",
    "num_prompts": 1000,
    "num_warmups": 0,
    "max_concurrency": None,
    "request_rate": math.inf,
    "burstiness": 1.0,
    "seed": 0,
    "ignore_eos": False,
}
"""Defaults of ``vllm bench serve``."""

SCRIPT_DEFAULTS = {**BENCH_DEFAULTS, "dataset_name": "sharegpt"}
"""Defaults of ``benchmarks/benchmark_serving.py``."""

BACKENDS = {"vllm": "openai", "vllm-chat": "openai-chat"}
"""Two names of one thing in vLLM's client."""

ENDPOINTS: Mapping[str, str] = {
    backend: endpoints[0] for family in FAMILIES.values() for backend, endpoints in family.backends.items()
}
"""The usual endpoint of a backend; the client's default is that of completions, which others refuse."""

_SERVER_ADDRESS = frozenset(
    {"host", "port", "uds", "served-model-name", "api-key", "omni", "init-timeout", "stage-init-timeout"}
)
"""Options about the server's address and the time of its start."""

_OFFLINE = frozenset(
    (
        *("input-len", "output-len", "prefix-len", "num-iters", "num-iters-warmup", "num-iters-cold"),
        *("num-iters-warm", "n", "backend", "async-engine", "disable-detokenize", "use-beam-search"),
        *("output-json", "no-oversample", "hf-subset", "hf-split", "hf-name", "prequeue-requests"),
        *(name for name in CLIENT_OPTIONS if name.startswith(("random-", "prefix-repetition-"))),
        *(option for options in OPTIONS.values() for option in options.values()),
    )
)
"""Options of ``vllm bench latency`` and the like beside those of the engine."""

OFFLINE_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "latency": {"num_prompts": 8},
    "throughput": {"num_prompts": 1000, "num_warmups": 0, "dataset_name": "random"},
    "startup": {"num_prompts": 1},
}
"""Of each of them. A data set without a file is random whatever it is called."""

_ADDRESS = frozenset({"host", "port", "base-url", "uds", "served-model-name", "tokenizer"})
"""Options about the server's address, not about the requests."""

REPORTING = re.compile(
    r"^(save-.*|append-result|result-.*|metadata|disable-tqdm|percentile-metrics|metric-percentiles|label|"
    r"goodput|ready-check-timeout-sec|omni|trust-remote-code|profile|plot-.*)$"
)
"""Options about reporting the same requests."""

_PACKAGE = re.compile(r"^.*(?=vllm_omni/)")
"""The checkout's folder before a path inside vLLM-Omni."""

_NO_OPTION = "{} is not a long option or the value of one"
DECIMAL = re.compile(r"-?\d{0,15}\.\d{1,15}")
_DASHED = re.compile(r"-{1,2}[A-Za-z]")
_LENGTHS = ("input-len", "output-len")
_HAS_INPUT = ("random", "random-mm", "random-rerank", "sonnet")
"""Data sets with an option for the length of prompts."""
_NAMES = {"random-mm": "random", "random-rerank": "random", "custom_mm": "custom"}
_WORDS = {"true": True, "false": False}


@dataclass(frozen=True)
class GivenOptions:
    """A command line. ``unsaid``: options whose value a shell would compute; ``rest``: words of none."""

    options: dict[str, object]
    rest: tuple[str, ...] = ()
    unsaid: tuple[str, ...] = ()


@dataclass(frozen=True)
class GivenFields:
    """A command as fields of a cell and arguments without one.

    ``computed``: those whose value a shell would compute. ``names``: other names of the model: ``served`` by
    the server, ``asked`` for by the client, ``adapters``.
    """

    fields: dict[str, object]
    arguments: dict[str, object]
    computed: tuple[str, ...] = ()
    defaults: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    names: Mapping[str, object] = field(default_factory=dict)


def read_options(words: Sequence[str], known: Mapping[str, Arity], *, is_server: bool) -> GivenOptions:
    """Read options, abbreviated or short, wherever they stand; of one that is repeated the last counts.

    Raises:
        ValueError: a word with a dash that is no option.
    """
    given: dict[str, list[str]] = {}
    rest: list[str] = []
    name, room = "", 0
    for word in words:
        if _DASHED.match(word):
            long = long_option(word) if is_server else word
            head, equals, tail = long.partition("=")
            if not head.startswith("--"):
                raise ValueError(_NO_OPTION.format(shown(repr(word), 80)))
            first, dot, _ = head[2:].replace("_", "-").partition(".")
            stem = first if first in known else first.removeprefix("no-")
            if stem not in known and len(matching := [one for one in known if one.startswith(stem)]) == 1:
                stem = matching[0]
            is_negated = first.startswith("no-") and first not in known
            # Keys of a JSON option follow the dot and keep their underscores.
            name = f"{'no-' if is_negated else ''}{stem}{dot}{head.partition('.')[2]}"
            arity = "one" if dot else known.get(stem, "")
            arity = "switch" if is_negated and arity else arity
            given[name] = [Computed(tail) if isinstance(word, Computed) else tail] if equals else []
            # An option of another era has one value, or several once the model is known.
            room = 0 if equals else {"one": 1, "switch": 0, "several": len(words)}.get(arity, 1)
            room = len(words) if is_server and arity == "" and rest and not equals else room
        elif room and name:
            given[name].append(word)
            room -= 1
        elif name and not given[name] and word.lower() in _WORDS:
            given[name].append(word)
        else:
            rest.append(word)
            room = 0
    unsaid = tuple(name for name, values in given.items() if any(isinstance(v, Computed) for v in values))
    options = {
        name: _value(values, known.get(name, "")) for name, values in given.items() if name not in unsaid
    }
    parsed = parse_options(options, negatable=is_server)
    return GivenOptions(parsed, tuple(rest), tuple(one.replace("_", "-") for one in unsaid))


def _value(values: Sequence[str], arity: str) -> object:
    if not values:
        return True
    if len(values) == 1:
        # Older servers took a word for a switch.
        word = _WORDS.get(values[0].lower()) if arity in ("switch", "") else None
        return values[0] if word is None else word
    return list(values)


def client_fields(words: Sequence[str], defaults: Mapping[str, object]) -> GivenFields:
    """What a client's command says. :raises ValueError: no arguments of the client."""
    given = read_options(words, CLIENT_OPTIONS, is_server=False)
    if given.rest:
        raise ValueError(_NO_OPTION.format(shown(repr(given.rest[0]), 80)))
    if not given.options and not given.unsaid:
        raise ValueError("it has no options")
    known = dict(defaults)
    arguments: dict[str, object] = {}
    for name, value in given.options.items():
        # Of older clients: a file of ShareGPT.
        name = "dataset-path" if name == "dataset" else name
        own = name.replace("-", "_")
        if name in _ADDRESS or REPORTING.match(name):
            continue
        if isinstance(value, str) and DECIMAL.fullmatch(value):
            value = float(value)
        if own in defaults or own in ("model", "dataset_path", "extra_body"):
            known[own] = value
        else:
            arguments[name] = value
    if str(known["request_rate"]).lower() in ("inf", "infinity"):
        known["request_rate"] = math.inf
    known["backend"] = BACKENDS.get(str(known["backend"]), known["backend"])
    if "endpoint" not in given.options:
        known["endpoint"] = ENDPOINTS.get(str(known["backend"]), known["endpoint"])
    unsaid = [name for name in given.unsaid if name not in _ADDRESS and not REPORTING.match(name)]
    fields = {name for name in unsaid if name.replace("-", "_") in (*defaults, "model", "dataset_path")}
    return GivenFields(
        {name: value for name, value in known.items() if name.replace("_", "-") not in fields},
        dataset_arguments(known["dataset_name"], arguments),
        tuple(name.replace("-", "_") if name in fields else name for name in unsaid),
        tuple(
            name for name in defaults if name.replace("_", "-") not in given.options and name not in fields
        ),
        names={"asked": known.get("model"), "served": given.options.get("served-model-name")},
    )


def offline_fields(words: Sequence[str], benchmark: str) -> GivenFields:
    """What the command of a benchmark without a server says beside its engine's options.

    Raises:
        ValueError: see :func:`server_fields`.
    """
    given = read_options(words, SERVER_OPTIONS, is_server=True)
    own = {option: name for name, option in OPTIONS[benchmark].items()}
    fields = {own[name]: value for name, value in given.options.items() if name in own}
    ignored = {*own, "output-json"}
    # With a file and no name its data set is ShareGPT.
    known = {"dataset_name": "sharegpt"} if "dataset_path" in fields else {}
    return GivenFields(
        {**OFFLINE_DEFAULTS[benchmark], **known, **fields, "task": benchmark},
        {name: value for name, value in given.options.items() if name in _OFFLINE - ignored},
        tuple(own.get(name, name) for name in given.unsaid if name in _OFFLINE - {"output-json"}),
        tuple(name for name in OFFLINE_DEFAULTS[benchmark] if name not in fields),
    )


def dataset_arguments(dataset: object, arguments: Mapping[str, object]) -> dict[str, object]:
    """Arguments with ``--input-len`` and ``--output-len`` by the names of the data set's own."""
    name = str(dataset)
    own = _NAMES.get(name, name.replace("_", "-"))
    found = {key: value for key, value in arguments.items() if key not in _LENGTHS}
    for key in _LENGTHS:
        # The client ignores the length of a prompt where the data set decides it.
        if key in arguments and (key != _LENGTHS[0] or name in _HAS_INPUT):
            found[f"{own}-{key}"] = arguments[key]
    return found


def server_fields(words: Sequence[str]) -> GivenFields:
    """What a server's command says; its arguments are the serve arguments.

    Raises:
        ValueError: no arguments of a server.
    """
    given = read_options(words, SERVER_OPTIONS, is_server=True)
    options, rest = given.options, list(given.rest)
    named = options.pop("model", None) or (rest.pop(0) if rest else None)
    if named is None and "model" not in given.unsaid:
        # After a switch of another era, the model looks like its value.
        switch = next((n for n, v in options.items() if n not in SERVER_OPTIONS and "/" in str(v)), None)
        if switch is None:
            raise ValueError("the server has no model")
        named, options[switch] = options[switch], True
    is_omni = bool(options.get("omni"))
    unsaid = [f"serve_args.{name}" for name in given.unsaid if name not in {*_SERVER_ADDRESS, "model"}]
    deploy = options.pop("deploy-config", None) or options.pop("stage-configs-path", None)
    fields: dict[str, object] = {"model": named}
    if named is None or isinstance(named, Computed):
        fields, unsaid = {}, ["model", *unsaid]
    fields["deploy_yaml"] = None if deploy is None else _PACKAGE.sub("", str(deploy))
    fields["stage_overrides"] = options.pop("stage-overrides", None)
    if rest:
        raise ValueError(_NO_OPTION.format(shown(repr(rest[0]), 80)))
    notes = []
    names = {"served": options.get("served-model-name"), "adapters": options.get("lora-modules")}
    if not is_omni:
        # These are keys of a cell, or the attempt's.
        revision = options.pop("revision", None), options.pop("tokenizer-revision", None)
        pins = {k: str(v) for k, v in zip(("model", "tokenizer"), revision, strict=True) if v is not None}
        tokenizer, seed = options.pop("tokenizer", None), options.pop("seed", None)
        fields |= {"revision": pins} if pins else {}
        fields |= {"tokenizer": tokenizer} if tokenizer not in (None, named) else {}
        notes += [f"the server's --seed {seed}: a cell has one seed, that of its requests"] if seed else []
    others = {name: value for name, value in options.items() if name not in {*_SERVER_ADDRESS, *_OFFLINE}}
    return GivenFields(fields, others, tuple(unsaid), remarks=tuple(notes), names=names)
