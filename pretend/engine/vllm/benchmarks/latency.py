"""``vllm bench latency``, ``throughput``, ``startup``: no server; the engine's process writes the result."""

import argparse
import json
import sys
from pathlib import Path

from vllm import faults, pace


def run(benchmark, argv):
    """Write the result of the real benchmarks' form; returns the exit code."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--model")
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--num-iters", type=int, default=30)
    parser.add_argument("--num-prompts", type=int, default=1000)
    parser.add_argument("--output-json")
    options, _ = parser.parse_known_args(argv)
    faults.count_launch()
    print(f"GPU KV cache size: {int(pace.KV_TOKENS):,} tokens", flush=True)
    if faults.wanted("exit1"):
        print("RuntimeError: Engine core initialization failed. See root cause above.", file=sys.stderr)
        return 1
    if faults.wanted("no_file"):
        return 0
    step = pace.STEP_MS / 1000
    seconds = [step * options.output_len * (1 + i / 100) for i in range(options.num_iters)]
    rate = 1 / step
    result = {
        "latency": {"avg_latency": sum(seconds) / len(seconds), "latencies": seconds},
        "throughput": {
            "elapsed_time": options.num_prompts / rate,
            "num_requests": options.num_prompts,
            "total_num_tokens": 40 * options.num_prompts,
            "requests_per_second": rate,
            "tokens_per_second": 40 * rate,
        },
        "startup": {
            "cold_startup_times": [30.0, 32.0],
            "warm_startup_times": [10.0, 11.0],
            "cold_compilation_times": [0.0, 0.0],
        },
    }[benchmark]
    Path(options.output_json).write_text(json.dumps(result), encoding="utf-8")
    return 0
