"""Traces as torch's profiler writes them: of a CPU worker, and of one with a device."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.explain import trace
from perfbisect.explain.trace import (
    CountDifference,
    common_steps,
    count_differences,
    kernel_family,
    read_trace,
    summarize_trace,
    trace_events,
)

Event = dict[str, Any]
DECODE = "execute_context_0(0)_generation_1(1)"
PREFILL = "execute_context_1(64)_generation_0(0)"


def event(category: str, name: str, start: float, duration: float, thread: int = 7, **args: int) -> Event:
    return {
        "ph": "X", "cat": category, "name": name, "pid": 7, "tid": thread, "ts": start, "dur": duration,
        "args": args,
    }  # fmt: skip


def step(start: float, copies: int = 1, name: str = DECODE) -> list[Event]:
    """A step of 100 us: a linear layer that calls a product, and copies after the annotation."""
    return [
        event("user_annotation", name, start, 60.0),
        event("cpu_op", "aten::linear", start + 10, 40.0),
        event("cpu_op", "aten::mm", start + 15, 30.0),
        *(event("cpu_op", "aten::copy_", start + 70 + i, 1.0) for i in range(copies)),
    ]


def written(events: Iterable[Event]) -> str:
    """As Kineto writes: indented, with marks that are no events of a duration."""
    body = ",\n  ".join(json.dumps(event, indent=2) for event in events)
    head = '{\n "schemaVersion": 1,\n "deviceProperties": [],\n\n "traceEvents": [\n\n  '
    mark = json.dumps({"ph": "M", "name": "process_name", "ts": 1.5, "pid": 7, "args": {"name": "python"}})
    return f'{head}{mark},\n  {body}\n  ],"traceName": "x.json" }}'


def test_steps_with_counts_and_own_times(tmp_path: Path) -> None:
    events = [*step(0, name=PREFILL), *step(100), *step(200), *step(300)]
    path = tmp_path / "rank0.1.pt.trace.json.gz"
    path.write_bytes(gzip.compress(written(events).encode()))
    profile = read_trace(path)
    # The last step has no end.
    assert [own.name for own in profile.steps] == [PREFILL, DECODE, DECODE]
    first = profile.steps[0]
    assert first.counts == {
        ("operator", "aten::copy_"): 1,
        ("operator", "aten::linear"): 1,
        ("operator", "aten::mm"): 1,
    }
    assert first.times["operator", "aten::linear"] == pytest.approx(0.010)
    assert first.times["operator", "aten::mm"] == pytest.approx(0.030)


def test_a_kernel_belongs_to_the_step_that_launched_it() -> None:
    kernel = "void vllm::rms_norm_kernel<c10::BFloat16>(...)"
    events = [
        event("user_annotation", DECODE, 0, 50.0),
        event("cpu_op", "_C::rms_norm", 5, 10.0),
        event("cuda_runtime", "cudaLaunchKernel", 6, 2.0, correlation=11),
        event("cuda_runtime", "cudaStreamSynchronize", 20, 25.0, correlation=12),
        event("cuda_runtime", "cudaMemcpyAsync", 46, 1.0, correlation=13),
        event("user_annotation", DECODE, 100, 50.0),
        # The device is behind: it runs the first step's kernel in the time of the second.
        event("kernel", kernel, 120, 4.0, 0, correlation=11),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 130, 1.0, 0, correlation=99),
        event("user_annotation", DECODE, 200, 50.0),
    ]  # fmt: skip
    profile = summarize_trace(events)
    first, second = profile.steps
    assert first.counts == {
        ("kernel", kernel): 1,
        ("launch", "cudaLaunchKernel"): 1,
        ("operator", "_C::rms_norm"): 1,
        ("synchronization", "cudaStreamSynchronize"): 1,
    }
    assert second.counts == {("copy", "Memcpy HtoD (Pinned -> Device)"): 1}
    assert first.times["kernel", kernel] == pytest.approx(0.004)
    assert second.times["copy", "Memcpy HtoD (Pinned -> Device)"] == pytest.approx(0.001)
    # The runtime's own time is not what the device ran; the launch is inside of its operator.
    assert first.times["operator", "_C::rms_norm"] == pytest.approx(0.008)


def test_counts_are_compared_exactly() -> None:
    a = [summarize_trace([e for i in range(5) for e in step(100.0 * i)]) for _ in range(2)]
    b = [summarize_trace([e for i in range(5) for e in step(100.0 * i, copies=2)]) for _ in range(2)]
    assert common_steps(a, b) == (DECODE,)
    (difference,) = count_differences(a, b, DECODE)
    assert difference == CountDifference(
        kind="operator", name="aten::copy_", before=(1, 1), after=(2, 2), exact=True
    )
    assert count_differences(a, a[:1], DECODE) == ()


def test_counts_that_vary_within_a_side_are_no_difference_if_they_overlap() -> None:
    mixed = [summarize_trace([e for i, n in enumerate((1, 3, 1, 3, 1)) for e in step(100.0 * i, n)])]
    two = [summarize_trace([e for i in range(5) for e in step(100.0 * i, 2)])]
    four = [summarize_trace([e for i in range(5) for e in step(100.0 * i, 4)])]
    assert count_differences(mixed, two, DECODE) == ()
    (difference,) = count_differences(mixed, four, DECODE)
    assert (difference.before, difference.after, difference.exact) == ((1, 3), (4, 4), False)


def test_steps_of_other_requests_are_not_compared() -> None:
    a = [summarize_trace([e for i in range(9) for e in step(100.0 * i)])]
    b = [summarize_trace([e for i in range(9) for e in step(100.0 * i, name=PREFILL)])]
    assert common_steps(a, b) == ()


def test_a_trace_that_breaks_off_is_refused(tmp_path: Path) -> None:
    text = written(step(0))
    with pytest.raises(ValueError, match="breaks off"):
        list(trace_events(io.StringIO(text[: len(text) // 2])))
    with pytest.raises(ValueError, match="no list of events"):
        list(trace_events(io.StringIO('{"schemaVersion": 1}')))
    with pytest.raises(ValueError, match="nested too deeply"):
        list(trace_events(io.StringIO('{"traceEvents": [' + "[" * 100_000)))
    whole = gzip.compress(text.encode())
    path = tmp_path / "cut.json.gz"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="breaks off"):
        read_trace(path)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MAX_EVENTS", 10)
    with pytest.raises(ValueError, match="more than 10 events"):
        summarize_trace(e for i in range(10) for e in step(100.0 * i))


@given(st.integers(1, 40), st.integers(40, 400))
def test_any_size_of_chunk_reads_the_same(count: int, chunk: int) -> None:
    events = [e for i in range(count) for e in step(100.0 * i)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "_CHUNK", chunk)
        found = [e for e in trace_events(io.StringIO(written(events))) if e["ph"] == "X"]
    assert found == events


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("_C::onednn_mm", "gemm"),
        ("aten::addmm", "gemm"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>", "gemm"),
        ("_C::fused_add_rms_norm", "norm"),
        ("void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits>", "attention"),
        ("_C::cpu_attention_with_kv_cache", "attention"),
        ("_C::rotary_embedding", "rope"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "collective"),
        ("fused_moe_kernel", "moe"),
        ("_C::static_scaled_fp8_quant", "quantize"),
        ("_C::silu_and_mul", "activation"),
        ("aten::copy_", "copy"),
        ("aten::argmax", "sampling"),
        ("aten::empty_strided", "other"),
    ],
)
def test_families(name: str, family: str) -> None:
    assert kernel_family(name) == family
