"""Programs in the commands of a report: those that are read, and those that are only named."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from perfbisect.cells.reports.shell import split_commands

CALLS = re.compile(
    r"^export\s|^ENV\s|\bserve\b|benchmark_serving(?:_multi_turn)?\.py|\bapi_server\b|vllm-openai|\bbench\s+(?:latency|throughput|startup)\b"
    r"|^[A-Z]\w*=\S*(?:\s+[A-Z]\w*=\S*)*[ ;]*$"
)
"""Lines that may hold a command which is read."""

Verb = Literal["bench", "script", "multi turn", "server", "offline", "export", "assign"]
"""``vllm bench serve``, ``benchmark_serving.py`` before it, ``benchmark_serving_multi_turn.py``, a server,
``vllm bench latency`` and the like, the shell's ``export``, and assignments alone."""

_PROGRAM = re.compile(r"(?:\S*/)?vllm(?:-omni)?|\S*\bcli\.main")
_SCRIPTS: Mapping[str, Verb] = {
    "benchmark_serving.py": "script",
    "benchmark_serving_multi_turn.py": "multi turn",
}
_API_SERVER = re.compile(r"vllm(?:_omni)?\.entrypoints\.openai\.api_server|(?:\S*/)?vllm-openai(?:[:@]\S+)?")
"""The server's module, or the image that runs it."""
_OFFLINE = ("latency", "throughput", "startup")
_NESTED = re.compile(r"-[a-z]*c|--(?:serve|bench)[-_]cmd")
"""Options whose value is a command: of a shell, and of ``vllm bench sweep``."""
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)


@dataclass(frozen=True)
class Call:
    """A call of a program. ``before``: the words before it; ``sub``: what an offline benchmark measures."""

    verb: Verb
    before: Sequence[str]
    words: Sequence[str]
    sub: str = ""


def find_calls(words: Sequence[str]) -> Iterator[Call]:
    """The calls in the words of a command, also those that it hands to a shell; none of other programs.

    Raises:
        ValueError: what it hands on cannot be read.
    """
    if words[:1] in (["export"], ["ENV"]):
        yield Call("export", (), words[1:])
        return
    if all(_ASSIGNMENT.fullmatch(word) for word in words):
        yield Call("assign", (), words)
        return
    for index, word in enumerate(words):
        before = words[index - 1] if index else ""
        if _NESTED.fullmatch(before) and " " in word:
            for nested in split_commands(word):
                yield from find_calls(nested)
            continue
        verb: Verb | None = None
        if word == "serve" and before == "bench":
            verb = "bench"
        elif word in _OFFLINE and before == "bench":
            verb = "offline"
        elif script := _SCRIPTS.get(word.rpartition("/")[2]):
            verb = script
        elif _API_SERVER.fullmatch(word) or (word == "serve" and _PROGRAM.fullmatch(before)):
            verb = "server"
        if verb:
            yield Call(verb, words[:index], words[index + 1 :], word if verb == "offline" else "")
            return


def _compiled(programs: Mapping[str, str]) -> Mapping[str, re.Pattern[str]]:
    return {name: re.compile(pattern) for name, pattern in programs.items()}


OTHER_SERVERS: Mapping[str, re.Pattern[str]] = _compiled(
    {
        "SGLang": r"\bsglang\.launch_server\b|\bsglang serve\b|\blmsysorg/sglang\b",
        "TensorRT-LLM": r"\btrtllm-serve\b|\btensorrt_llm\.commands\.serve\b",
        "Triton": r"\btritonserver\b",
        "LMDeploy": r"\blmdeploy serve\b",
        "text-generation-inference": r"\btext-generation-(?:launcher|inference:)",
        "llama.cpp": r"\bllama-server\b",
        "Ollama": r"\bollama (?:serve|run)\b",
        "MLX": r"\bmlx_lm\.server\b",
        "MindIE": r"\bmindieservice_daemon\b",
    }
)
"""Engines that are no vLLM, by what starts them."""

OTHER_CLIENTS: Mapping[str, re.Pattern[str]] = _compiled(
    {
        "vLLM's benchmark_serving_structured_output.py": r"\bbenchmark_serving_structured_output\.py\b",
        "vLLM's benchmark_prefix_caching.py": r"\bbenchmark_prefix_caching\.py\b",
        "SGLang's bench_serving": r"\bsglang\.bench_\w+|\bbench_serving\.py\b",
        "AIPerf": r"\baiperf profile\b",
        "GenAI-Perf": r"\bgenai-perf\b",
        "GuideLLM": r"\bguidellm (?:benchmark|run)\b|\bguidellm --",
        "AISBench": r"\bais_bench\b",
        "EvalScope": r"\bevalscope perf\b",
        "LLMPerf": r"\btoken_benchmark_ray\.py\b|\bllmperf\b",
        "inference-perf": r"\binference-perf\b",
        "lm-eval": r"\blm_eval\b|\blm-eval\b",
        "Locust": r"\blocust -",
        "k6": r"\bk6 run\b",
        "wrk": r"\bwrk -",
    }
)
"""Load generators that are not read, by what starts them."""

PROXIES: Mapping[str, re.Pattern[str]] = _compiled(
    {
        "a proxy": r"\b[\w-]{0,60}proxy[\w-]{0,60}\.py\b",
        "a router": r"\bvllm-router\b|\bsglang_router\b|\bproduction-stack\b",
        "HAProxy": r"\bhaproxy\b",
        "nginx": r"\bnginx\b",
        "the split of prefill and decode": r"\bkv_(?:producer|consumer)\b",
    }
)
"""What stands before several servers."""


def named_in(text: str, programs: Mapping[str, re.Pattern[str]]) -> tuple[str, ...]:
    """The programs of a table that a text starts."""
    return tuple(name for name, pattern in programs.items() if pattern.search(text))
