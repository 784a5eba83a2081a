"""Traces of the torch profiler: what each step of the engine calls, how often and for how long.

A step begins where vLLM's worker annotates it (``execute_context_0(0)_generation_1(1)``: requests and tokens
of prefill and decode) and ends where the next one begins, so that sampling after it belongs to it.
Counts of a step are exact: launches do not move them.
"""

from __future__ import annotations

import bisect
import gzip
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal

from perfbisect.jobs.documents import Document

OperationKind = Literal["operator", "kernel", "copy", "launch", "synchronization"]

OperationKey = tuple[OperationKind, str]

STEP = re.compile(r"execute_(?:\w*?context_|new_)\S*")
"""Names of the annotations of a step, of all eras that annotate."""

# torch launches by the runtime API (cudaLaunchKernel), Triton by the driver API (cuLaunchKernel).
_LAUNCH = re.compile(r"(?:cuda|hip|cu)\w*Launch\w*")
_SYNCHRONIZE = re.compile(r"(?:cuda|hip|cu)(?:Device|Stream|Event|Ctx)Synchronize\w*")
_RUNTIME: Final = frozenset({"cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime"})
_COPIES: Final = frozenset({"gpu_memcpy"})
_KERNELS: Final = frozenset({"kernel", "gpu_memset"})
_ANNOTATION: Final = "user_annotation"

_CHUNK = 1 << 20
_LONGEST_EVENT = 1 << 24
MAX_EVENTS = 4_000_000
"""Events that are kept in memory, at most; a trace without stacks of 20 steps has less than 100,000."""

FAMILIES_OF_KERNELS: Final = tuple(
    (family, re.compile(pattern, re.IGNORECASE))
    for family, pattern in (
        ("collective", r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device_reduce"),
        ("moe", r"moe|expert|grouped_topk|topk_softmax|topkgating|permute_tokens|fused_marlin_moe"),
        ("attention", r"attn|attention|flash_?(?:fwd|infer|mla)|fmha|mla_|paged|merge_state|kv_?cache"),
        ("rope", r"rope|rotary"),
        ("norm", r"norm(?!al_)"),
        ("quantize", r"quant|scaled_fp[48]|fp8_cast|mxfp|nvfp|int8_cvt"),
        (
            "gemm",
            r"gemm|gemv|cutlass|cublas|marlin|wgmma|xmma|nvjet|tensile|onednn_mm"
            r"|(?:^|[:_])(?:mm|addmm|bmm|matmul|linear)\b",
        ),
        ("sampling", r"sampl|argmax|top_?[kp]\b|multinomial|logits|penalt|softmax|exponential|bincount"),
        ("activation", r"silu|gelu|relu|swiglu|act_and_mul|sigmoid|tanh"),
        ("copy", r"memcpy|memset|copy|cat\b|catarray|index_?select|gather|scatter|fill"),
        ("elementwise", r"elementwise|vectorized|triton_poi|(?:^|:)(?:add|mul|sub|div|where|eq|lt|gt)_?$"),
        ("reduction", r"reduce|triton_red|triton_per|cumsum|scan|sort"),
    )
)  # fmt: skip
"""Family of a kernel or operator -> pattern of its name; the first that is found counts."""


def kernel_family(name: str) -> str:
    """The family of a kernel or operator; ``other`` if no pattern knows it."""
    return next((family for family, pattern in FAMILIES_OF_KERNELS if pattern.search(name)), "other")


@dataclass(frozen=True)
class TraceStep:
    """One step of the engine. ``times``: own ms, of what is called."""

    name: str
    counts: Mapping[OperationKey, int]
    times: Mapping[OperationKey, float]


@dataclass(frozen=True)
class TraceProfile:
    """Steps of one process of one launch; the last one is left out: its end is unknown."""

    steps: tuple[TraceStep, ...]

    def named(self, name: str) -> tuple[TraceStep, ...]:
        return tuple(step for step in self.steps if step.name == name)


class CountDifference(Document):
    """How often a step calls something on both sides: least and most over steps of equal requests.

    ``exact``: every step of a side has the same count.
    """

    kind: str
    name: str
    before: tuple[int, int]
    after: tuple[int, int]
    exact: bool


@dataclass(frozen=True, slots=True)
class _Call:
    key: OperationKey
    start: float
    duration: float
    thread: object
    correlation: int


def trace_events(stream: IO[str]) -> Iterator[dict[str, Any]]:
    """Events of a trace, one at a time; raises ValueError if it has none or breaks off."""
    # A trace is tens of megabytes: events are decoded one at a time, never the list as a whole.
    decoder, buffer = json.JSONDecoder(), ""
    while (found := re.search(r'"traceEvents"\s*:\s*\[', buffer)) is None:
        chunk = stream.read(_CHUNK)
        if not chunk:
            raise ValueError("the trace has no list of events")
        # The key may lie across two chunks.
        buffer = buffer[-64:] + chunk
    at = found.end()
    while True:
        while at < len(buffer) and buffer[at] in " \t\r\n,":
            at += 1
        if buffer[at : at + 1] == "]":
            return
        try:
            event, at = decoder.raw_decode(buffer, at)
        except json.JSONDecodeError as error:
            chunk = stream.read(_CHUNK)
            # An event that the chunk cuts off continues in the next one; nothing as long as this is an event.
            if not chunk or len(buffer) - at > _LONGEST_EVENT:
                raise ValueError("the trace breaks off") from error
            buffer, at = buffer[at:] + chunk, 0
            continue
        except RecursionError:
            raise ValueError("an event of the trace is nested too deeply") from None
        if isinstance(event, dict):
            yield event


def read_trace(path: Path) -> TraceProfile:
    """Read a ``*.pt.trace.json`` or ``.json.gz``.

    Raises:
        ValueError: it is no trace, breaks off or is too large.
        OSError: it cannot be read.
    """
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8", errors="replace")
            if path.suffix == ".gz"
            else path.open(encoding="utf-8", errors="replace")
        ) as stream:
            return summarize_trace(trace_events(stream))
    except EOFError as error:
        raise ValueError("the trace breaks off") from error


def summarize_trace(events: Iterable[Mapping[str, Any]]) -> TraceProfile:
    """Counts and own times of each step. A kernel belongs to the step that launched it."""
    steps: list[tuple[float, str]] = []
    calls: list[_Call] = []
    for event in events:
        # X are complete events, with a duration; the others are metadata, flows and counters.
        if event.get("ph") != "X":
            continue
        name, category = str(event.get("name", "")), str(event.get("cat", "")).lower()
        if category == _ANNOTATION and STEP.fullmatch(name):
            steps.append((float(event.get("ts", 0.0)), name))
        elif (key := _key(category, name)) is not None:
            arguments = event.get("args") or {}
            calls.append(
                _Call(
                    key,
                    float(event.get("ts", 0.0)),
                    float(event.get("dur", 0.0)),
                    (event.get("pid"), event.get("tid")),
                    _number(arguments.get("correlation")),
                )
            )
            if len(calls) > MAX_EVENTS:
                raise ValueError(f"the trace has more than {MAX_EVENTS} events")
    steps.sort()
    starts = [start for start, _ in steps]
    # A device lags behind the host: a kernel may run during the next step, so its launch tells its step.
    launched = {
        call.correlation: call.start for call in calls if call.key[0] == "launch" and call.correlation
    }
    counts: list[Counter[OperationKey]] = [Counter() for _ in steps]
    times: list[defaultdict[OperationKey, float]] = [defaultdict(float) for _ in steps]
    for call, own in _own_times(calls):
        on_device = call.key[0] in ("kernel", "copy")
        moment = launched.get(call.correlation, call.start) if on_device else call.start
        step = bisect.bisect_right(starts, moment) - 1
        if step >= 0:
            counts[step][call.key] += 1
            # The profiler writes microseconds.
            times[step][call.key] += own / 1000.0
    return TraceProfile(
        tuple(
            TraceStep(name, dict(sorted(counts[i].items())), dict(sorted(times[i].items())))
            for i, (_, name) in enumerate(steps[:-1])
        )
    )


def _key(category: str, name: str) -> OperationKey | None:
    if category == "cpu_op":
        return "operator", name
    if category in _KERNELS:
        return "kernel", name
    if category in _COPIES:
        return "copy", name
    if category in _RUNTIME:
        if _LAUNCH.fullmatch(name):
            return "launch", name
        if _SYNCHRONIZE.fullmatch(name):
            return "synchronization", name
    return None


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _own_times(calls: Sequence[_Call]) -> Iterator[tuple[_Call, float]]:
    """Each call with its time without the calls inside of it, in microseconds."""
    threads: defaultdict[object, list[_Call]] = defaultdict(list)
    for call in calls:
        # On a device nothing is called from within a kernel.
        if call.key[0] in ("kernel", "copy"):
            yield call, call.duration
        else:
            threads[call.thread].append(call)
    for thread in threads.values():
        # If two calls begin at the same time, the longer one is the caller.
        thread.sort(key=lambda call: (call.start, -call.duration))
        outer: list[tuple[_Call, list[float]]] = []
        for call in thread:
            while outer and outer[-1][0].start + outer[-1][0].duration <= call.start:
                yield _closed(*outer.pop())
            if outer:
                outer[-1][1].append(call.duration)
            outer.append((call, []))
        while outer:
            yield _closed(*outer.pop())


def _closed(call: _Call, inner: Sequence[float]) -> tuple[_Call, float]:
    # Times are rounded: the calls inside may add up to more than the caller.
    return call, max(0.0, call.duration - sum(inner))


def common_steps(a: Sequence[TraceProfile], b: Sequence[TraceProfile], least: int = 3) -> tuple[str, ...]:
    """Names of steps that each side has at least ``least`` times, the most frequent first."""
    sides = [Counter(step.name for profile in side for step in profile.steps) for side in (a, b)]
    shared = {name: min(side[name] for side in sides) for name in sides[0]}
    return tuple(sorted((n for n in shared if shared[n] >= least), key=lambda n: (-shared[n], n)))


def count_differences(
    a: Sequence[TraceProfile], b: Sequence[TraceProfile], step: str
) -> tuple[CountDifference, ...]:
    """What steps of one name call more or less often on side ``b``, in every one of them."""
    before, after = _ranges(a, step), _ranges(b, step)
    differences = []
    for key in sorted(before.keys() | after.keys()):
        left, right = before.get(key, (0, 0)), after.get(key, (0, 0))
        # Ranges that do not overlap differ in every step: no test is needed.
        if left[1] < right[0] or right[1] < left[0]:
            is_exact = left[0] == left[1] and right[0] == right[1]
            kind, name = key
            differences.append(
                CountDifference(kind=kind, name=name, before=left, after=right, exact=is_exact)
            )
    return tuple(differences)


def _ranges(profiles: Sequence[TraceProfile], step: str) -> dict[OperationKey, tuple[int, int]]:
    steps = [own for profile in profiles for own in profile.named(step)]
    keys = {key for own in steps for key in own.counts}
    return {
        key: (min(own.counts.get(key, 0) for own in steps), max(own.counts.get(key, 0) for own in steps))
        for key in keys
    }
