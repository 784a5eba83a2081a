"""What an engine says of itself while it starts: which kernels, how much cache, how long each step took.

The wordings are those of vLLM from 0.4 to 0.32, on CPU, CUDA and ROCm; what a version does not say is not a
fact. Only the start is read, and only whole messages: a prompt in the log says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Final

from perfbisect.families.printed import leaves

NOT_SAID: Final = "not said"
"""Stands in a difference for a fact that one side's log does not have."""

_STARTED = "Application startup complete"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PREFIX = re.compile(
    r"(?:\([^()]*\)\s*)*(?:(?:DEBUG|INFO|WARNING|ERROR)\s+[\d-]+ [\d:.,]+\s+\[?[\w./-]+:\d+\]\s*)?"
    r"(?:\[[\w ]+\] )?"
)
_CONFIG = re.compile(r"Initializing an? (?:(V\d) )?LLM engine \((.+?)\) with config: (.*)")
_ARGUMENTS = re.compile(r"non-default args: \{(.*)\}")
_LONGEST = 300

_SAID: Final[tuple[tuple[str, re.Pattern[str]], ...]] = tuple(
    (fact, re.compile(pattern))
    for fact, pattern in (
        ("platform", r"Automatically detected platform (\w+)"),
        ("architecture", r"Resolved architecture: (\w+)"),
        ("model runner", r"Using (V\d) Model Runner|.*using the (V\d) model runner instead"),
        ("attention", r"Using (\w+) attention backend\b"),
        ("attention", r"Using AttentionBackendEnum\.(\w+) backend"),
        ("attention", r"Using (.+?) backend on V\d engine"),
        ("attention", r"Using \w+ KV cache layout for (\w+) backend"),
        (
            "attention",
            r"Using (?!.*(?:KV cache|MLA prefill|MoE|MOE|SSU|SSM))([\w -]+?) backend(?: out of .*|\.)?$",
        ),
        ("attention refused", r"Cannot use ([\w-]+) backend\b"),
        ("attention version", r"Using FlashAttention version (\S+?)\.?$"),
        ("attention of prefill", r"Using (\S+) MLA prefill backend"),
        ("attention of vision", r"Using (?:AttentionBackendEnum\.)?(\w+) for (?:MMEncoderAttention|vit)"),
        ("cache layout", r"Using (\w+) KV cache layout"),
        ("cache format", r"Using (.+ KV cache format)"),
        ("experts", r"Using '?(.+?)'? MoE (?:LoRA )?backend"),
        ("experts", r"Using '?(\w+)'? .*for \w+ MoE$"),
        ("kernel", r"Selected (\w+ for .+?)\.?$"),
        ("kernel", r"Using (\w+ for (?:mixed-precision linear|\w+ GEMM|Compressed\w+|\w+LinearMethod))"),
        ("kernel", r"Using (.+? Mamba SSU backend|.+? GDN prefill kernel|.+? for prefill)\b"),
        ("fusions", r"Enabled custom fusions: (.+)"),
        ("sampler", r"Using (FlashInfer|the fused XPU kernel) for top-p"),
        ("sampler", r"Using (aiter sampler)"),
        ("sampler", r"FlashInfer is not available\. Falling back to the (PyTorch-native)"),
        ("sampler", r"(FlashInfer top-p/top-k sampling (?:disabled|unavailable))"),
        ("graph mode changed", r".*setting (cudagraph_mode=\w+)"),
        ("graphs", r"(Skipping) CUDA graph capture"),
        ("all-reduce", r"(Custom allreduce is disabled) because"),
        ("collectives", r"vLLM is using (nccl==\S+)"),
    )
)
"""A message at its beginning -> what it says; several messages of one fact are told together."""

_MEASURED: Final[tuple[tuple[str, str, re.Pattern[str]], ...]] = tuple(
    (fact, unit, re.compile(pattern))
    for fact, unit, pattern in (
        ("batched tokens", "tokens", r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)"),
        ("block size", "tokens", r"Setting attention block size to (\d+) tokens"),
        ("cache", "tokens", r"(?:\w+ )?KV cache size: ([\d,]+) tokens"),
        ("cache blocks", "blocks", r"# (?:\w+ )?blocks: (\d+)"),
        ("cache memory", "GiB", r"Available KV cache memory: ([\d.]+) GiB"),
        ("cache memory", "GiB", r"Explicitly set \(([\d.]+)/[\d.]+\) GiB for KV cache"),
        ("requests at once", "x", r".*Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x"),
        ("model memory", "GiB", r"Model loading took ([\d.]+) GiB"),
        ("model memory", "GiB", r"Loading model weights took ([\d.]+) GB"),
        ("graph memory", "GiB", r"Graph capturing finished in [\d.]+ secs?, took ([\d.]+) GiB"),
        ("loading weights", "s", r"Loading weights took ([\d.]+) s"),
        ("loading the model", "s", r"Model loading took .* and ([\d.]+) s"),
        ("bytecode transform", "s", r"Dynamo bytecode transform time: ([\d.]+) s"),
        ("compiling", "s", r"torch\.compile (?:takes|took) ([\d.]+) s"),
        ("compiled before", "s", r"Directly load .*, took ([\d.]+) s"),
        ("profiling", "s", r"Initial profiling/warmup run took ([\d.]+) s"),
        ("warming kernels", "s", r"JIT kernel warmup finished in ([\d.]+) ?s"),
        ("capturing graphs", "s", r"Graph capturing finished in ([\d.]+) secs?"),
        ("starting the engine", "s", r"init engine \(.*?\) took ([\d.]+) s"),
    )
)
"""A message -> a number with its unit; of several workers the largest."""

_ASYNC = re.compile(r"(?:Asynchronous|Async) scheduling (.*)")
_SWITCHES: Final = {
    "enforce_eager": "eager",
    "enable_prefix_caching": "prefix caching",
    "enable_chunked_prefill": "chunked prefill",
    "chunked_prefill_enabled": "chunked prefill",
    "async_scheduling": "async scheduling",
}
_NAMED: Final = {
    "dtype": "dtype",
    "quantization": "quantization",
    "kv_cache_dtype": "cache dtype",
    "load_format": "load format",
    "max_seq_len": "longest sequence",
    "tensor_parallel_size": "tensor parallel",
    "pipeline_parallel_size": "pipeline parallel",
    "data_parallel_size": "data parallel",
    "compilation_config.mode": "compile mode",
    "compilation_config.level": "compile mode",
    "compilation_config.cudagraph_mode": "graph mode",
    "compilation_config.use_cudagraph": "graph mode",
    "compilation_config.cudagraph_capture_sizes": "graph sizes",
}
_OF_THE_ATTEMPT = re.compile(
    r"(?:^|\.)(?:model|model_tag|tokenizer|served_model_name|host|port|seed|\w*(?:path|dir|folder|file|url)"
    r"|download_dir|cache_dir|\w*(?:token|key|secret|password)|\w*addr\w*|\w*_id)$"
)
"""Settings that are of one attempt, one machine, or nobody's business."""

_END = r"(?=[/\s'\",:)]|$)"
_PASSING: Final = tuple(
    (re.compile(pattern), instead)
    for pattern, instead in (
        (rf"[^\s'\"=(,:]*/environments/[0-9a-f]{{8,}}(?:/tree)?{_END}", "ENVIRONMENT"),
        (rf"[^\s'\"=(,:]*/attempts/\d+{_END}", "ATTEMPT"),
        (rf"/tmp/tmp[a-z0-9_]{{8}}{_END}", "TEMPORARY"),
        (r"\bpb-[0-9a-f]{12}\b", "MODEL"),
        (r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID"),
        (r"\b0x[0-9a-f]{6,}\b", "ADDRESS"),
        (r"(?<=://)([\w.-]+|\[[0-9a-f:]+\]):\d{2,5}\b", r"\1:PORT"),
        (r"\b(127\.0\.0\.1|localhost):\d{2,5}\b", r"\1:PORT"),
        (r"\b(pid[ =:]+)\d+", r"\1PID"),
        (r"\b\d{4}-\d\d-\d\d[T _]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?", "TIME"),
    )
)
"""What is of one environment, attempt, process or moment in a value -> what stands for it in all."""

_UNLIKE = ("version",)
"""Facts that differ between any two changes and explain nothing."""

_CLOSE = {"s": 0.3, "GiB": 0.01, "tokens": 0.01, "blocks": 0.01, "x": 0.01}
"""A share of the larger value by which two starts of one engine may differ; see ``_SECONDS``."""

_SECONDS = 1.0
"""Seconds under which a difference of times is none."""


def engine_facts(log_text: str) -> dict[str, str]:
    """Fact -> value, of a server's log: ``attention``: ``FLASH_ATTN``; ``cache``: ``125680 tokens``.

    Numbers carry their unit after a space. Settings without a name of their own stand under ``config ...``
    and ``argument ...``; ports, paths, names and secrets are left out.
    """
    said: dict[str, set[str]] = {}
    measured: dict[tuple[str, str], float] = {}
    settings: dict[str, str] = {}
    for line in log_text.splitlines():
        if _STARTED in line:
            break
        message = _PREFIX.sub("", _COLOUR.sub("", line), count=1).rstrip()
        if message:
            _hear(message, said, measured, settings)
    facts = {fact: ", ".join(sorted(values)) for fact, values in said.items()}
    facts |= {fact: f"{value:.12g} {unit}" for (fact, unit), value in measured.items()}
    return {name: value[:_LONGEST] for name, value in (settings | facts).items()}


def agreed(launches: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """The facts of several launches of one change: numbers at their median, others as ``A or B``.

    A word stands for what is of one environment, attempt, process or moment: paths, ports, times.
    """
    every = [{name: _lasting(value) for name, value in facts.items()} for facts in launches]
    out: dict[str, str] = {}
    for fact in dict.fromkeys(name for facts in every for name in facts):
        values = [facts.get(fact, NOT_SAID) for facts in every]
        numbers = [number for number in map(_number, values) if number is not None]
        if len(numbers) == len(values) and len({unit for _, unit in numbers}) == 1:
            out[fact] = f"{median(value for value, _ in numbers):.12g} {numbers[0][1]}"
        else:
            out[fact] = " or ".join(sorted(set(values)))
    return out


def differences(a: Mapping[str, str], b: Mapping[str, str]) -> tuple[tuple[str, str, str], ...]:
    """(fact, left, right) for what differs by more than two starts of one engine do; choices before numbers.

    Times differ where they do by a second and by 30 %, memory and cache sizes by 1 %.
    """
    found = [
        (fact, a.get(fact, NOT_SAID), b.get(fact, NOT_SAID))
        for fact in dict.fromkeys((*a, *b))
        if fact not in _UNLIKE and not _alike(a.get(fact, NOT_SAID), b.get(fact, NOT_SAID))
    ]
    return tuple(sorted(found, key=_rank))


def _hear(
    message: str,
    said: dict[str, set[str]],
    measured: dict[tuple[str, str], float],
    settings: dict[str, str],
) -> None:
    config = _CONFIG.match(message)
    if config:
        settings["version"] = config[2].removeprefix("v")
        settings["engine"] = config[1] or "V0"
        settings |= _settings(config[3], "config")
        return
    arguments = _ARGUMENTS.match(message)
    if arguments:
        settings |= {k: v for k, v in _settings(arguments[1], "argument").items() if k not in settings}
        return
    scheduling = _ASYNC.match(message)
    if scheduling:
        settings["async scheduling"] = "on" if scheduling[1].startswith("is enabled") else "off"
        return
    for fact, unit, pattern in _MEASURED:
        found = pattern.match(message)
        if found:
            value = float(found[1].replace(",", ""))
            measured[fact, unit] = max(value, measured.get((fact, unit), value))
    known: set[str] = set()
    for fact, pattern in _SAID:
        found = pattern.match(message)
        if found and fact not in known:
            known.add(fact)
            said.setdefault(fact, set()).add(next(group for group in found.groups() if group))


def _settings(text: str, kind: str) -> dict[str, str]:
    out: dict[str, str] = {}
    for name, value in leaves(text):
        if name in _SWITCHES:
            out[_SWITCHES[name]] = "on" if value == "True" else "off"
        elif name in _NAMED:
            out[_NAMED[name]] = value
        elif not _OF_THE_ATTEMPT.search(name):
            out[f"{kind} {name}"] = value
    return out


def _lasting(value: str) -> str:
    for pattern, instead in _PASSING:
        value = pattern.sub(instead, value)
    return value


def _number(value: str) -> tuple[float, str] | None:
    number, _, unit = value.partition(" ")
    try:
        return (float(number), unit) if unit in _CLOSE else None
    except ValueError:
        return None


def _alike(left: str, right: str) -> bool:
    a, b = _number(left), _number(right)
    if a is None or b is None or a[1] != b[1]:
        return left == right
    apart, unit = abs(a[0] - b[0]), a[1]
    return apart <= _CLOSE[unit] * max(a[0], b[0]) or (unit == "s" and apart < _SECONDS)


def _rank(row: Sequence[str]) -> tuple[int, str]:
    """Choices first, then sizes, times, and settings by their printed name last."""
    fact, values = row[0], row[1:]
    if fact.startswith(("config ", "argument ")):
        return 3, fact
    units = {number[1] for number in map(_number, values) if number}
    return (2 if units == {"s"} else 1 if units else 0), fact
