"""Output of engines, clients and profilers: bent, read for facts, causes, counters and stacks."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from random import Random

from perfbisect.common.python_source import function_spans
from perfbisect.errors import ServerError
from perfbisect.explain.diff import silent_lines
from perfbisect.explain.stacks import read_folded, sleepers
from perfbisect.explain.trace import summarize_trace, trace_events
from perfbisect.machine.torch_probe import parse
from perfbisect.measure.faults import FaultClassifier
from perfbisect.serving.counters import hit_rate, prefix_cache, read_counters, requests_in_flight
from perfbisect.serving.log_facts import engine_facts
from perfbisect.system import logs
from scripts.fuzz.mutate import bend_bytes, bend_text

_LOG = """\
INFO 11-01 10:00:00 [__init__.py:1] Automatically detected platform cuda.
(EngineCore_DP0 pid=12) INFO 11-01 10:00:01 [core.py:7] Initializing a V1 LLM engine (v0.12.0) with config: \
model='org/m', dtype=torch.bfloat16, compilation_config={'mode': <Mode.VLLM: 3>, 'sizes': [1, 2]}, seed=0
INFO 11-01 10:00:02 [cuda.py:3] Using FLASH_ATTN attention backend
INFO 11-01 10:00:03 [kv.py:9] GPU KV cache size: 125,680 tokens
\x1b[31mERROR\x1b[0m 11-01 10:00:04 [core.py:9] RuntimeError: Engine core initialization failed. See root \
cause above.
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123456789
INFO:     Application startup complete.
"""
_METRICS = """\
# HELP vllm:num_requests_running Number of requests.
vllm:num_requests_running{engine="0",model_name="m"} 1.0
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 10.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 5.0
vllm:request_prefill_time_seconds_sum{engine="0",stage="a"} 0.5
"""
_STACKS = (
    'process 12:"VLLM::EngineCore";thread (12): "MainThread";run (vllm/core.py:7);step (vllm/core.py:9) 12\n'
    * 3
)
_TRACE = (
    '{"traceEvents": [{"ph": "X", "cat": "user_annotation", "name": "execute_context_1(8)_generation_2(2)", '
    '"ts": 1, "dur": 9, "tid": 1}, {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 2, "dur": 3, '
    '"args": {"correlation": 7}}]}'
)
_SOURCE = (
    "class A:\n    def step(self):\n        return [x for x in (1, 2)]\n\n\ndef f(a=lambda: 1):\n    pass\n"
)


def read_bent_log(random: Random, folder: Path) -> None:
    """Read one bent output with every reader of it; a reader that refuses it says so by ValueError."""
    text = bend_text(random, random.choice([_LOG, _METRICS, _STACKS, _TRACE, _SOURCE]))
    path = folder / "server.log"
    path.write_bytes(bend_bytes(random, text.encode("utf-8", "surrogatepass")))
    text = logs.text_of(path)
    engine_facts(text)
    logs.tail(path)
    logs.cause(path)
    counters = read_counters(text)
    hit_rate(prefix_cache(counters), prefix_cache(counters))
    requests_in_flight(text)
    error = ServerError("the server failed", output=text[-2000:])
    FaultClassifier(oom_kills=1 << 60).reason(error, "bench", text)
    parse(f"perfbisect-torch: {text}")
    sleepers(read_folded(text))
    with contextlib.suppress(ValueError):
        summarize_trace(trace_events(io.StringIO(text)))
    function_spans(text)
    silent_lines(text.encode(errors="replace"))
