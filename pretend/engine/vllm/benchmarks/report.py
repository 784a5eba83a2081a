"""The result document with the real client's keys, and the ways in which it can be wrong."""

import json
import math
import os
import statistics
import sys
import time
from pathlib import Path

from vllm.faults import wanted


def fault_before():
    """The client's faults that come before the first measured request."""
    if wanted("hang"):
        time.sleep(3600)
    if wanted("client_exit1"):
        print("Traceback (most recent call last): RuntimeError: pretend fault client_exit1", file=sys.stderr)
        sys.exit(1)


def percentile(values, share):
    """Linear interpolation between the order statistics, as numpy's default."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    place = (len(ordered) - 1) * share / 100.0
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _summary(options, name, seconds):
    values = [1e3 * value for value in seconds]
    rows = {
        f"mean_{name}_ms": statistics.fmean(values) if values else 0.0,
        f"median_{name}_ms": statistics.median(values) if values else 0.0,
        f"std_{name}_ms": statistics.pstdev(values) if values else 0.0,
    }
    for share in options.metric_percentiles.split(","):
        rows[f"p{share}_{name}_ms"] = percentile(values, float(share))
    return rows


def document(options, outputs, duration, peak):
    """The numbers of one run."""
    done = [output for output in outputs if not output.error]
    received = sum(output.tokens for output in done)
    sent = sum(output.input_len for output in done)
    rate = options.request_rate
    result = {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": options.backend,
        "backend": options.backend,
        "label": options.label,
        "model_id": options.model,
        "tokenizer_id": options.tokenizer or options.model,
        "num_prompts": options.num_prompts,
        **dict(pair.split("=", 1) for pair in options.metadata),
        "request_rate": rate if math.isfinite(rate) else "inf",
        "burstiness": options.burstiness,
        "max_concurrency": options.max_concurrency,
        "duration": duration,
        "completed": len(done),
        "failed": len(outputs) - len(done),
        "total_input_tokens": sent,
        "total_output_tokens": received,
        "request_throughput": len(done) / duration,
        "request_goodput": None,
        "output_throughput": received / duration,
        "total_token_throughput": (sent + received) / duration,
        "max_output_tokens_per_s": received / max(1.0, duration),
        "max_concurrent_requests": peak,
        "rtfx": 0.0,
    }
    if options.save_detailed:
        result |= {
            "input_lens": [output.input_len for output in outputs],
            "output_lens": [output.tokens for output in outputs],
            "ttfts": [output.ttft for output in outputs],
            "itls": [output.itls for output in outputs],
            "latencies": [output.latency for output in outputs],
            "start_times": [output.start for output in outputs],
            "queue_times": [output.queued for output in outputs],
            "generated_texts": [output.text for output in outputs],
            "errors": [output.error for output in outputs],
        }
    samples = {
        "ttft": [output.ttft for output in done],
        "tpot": [
            (output.latency - output.ttft) / (output.tokens - 1) for output in done if output.tokens > 1
        ],
        "itl": [gap for output in done for gap in output.itls],
        "e2el": [output.latency for output in done],
    }
    for name in options.percentile_metrics.split(","):
        result |= _summary(options, name, samples[name])
    return result


def _numbers(result):
    return [key for key in result if key.endswith(("_ms", "throughput"))]


def falsify(result):
    """Apply the faults of a report that is wrong."""
    if wanted("nothing_completed"):
        result |= dict.fromkeys(_numbers(result), 0.0) | {"completed": 0, "failed": result["num_prompts"]}
        result |= {"total_input_tokens": 0, "total_output_tokens": 0}
    if wanted("zero_template"):
        result |= dict.fromkeys(_numbers(result), 0.0)
    if wanted("nan"):
        result |= dict.fromkeys(_numbers(result), math.nan)
    if wanted("some_failed") and result["failed"] == 0:
        result |= {"completed": result["completed"] - 1, "failed": 1}
    if wanted("short_outputs"):
        result["total_output_tokens"] //= 2
        if "output_lens" in result:
            result["output_lens"] = [max(1, count // 2) for count in result["output_lens"]]
    if wanted("missing_keys"):
        for key in _numbers(result):
            del result[key]
    return result


def write(options, outputs, duration, peak):
    """Print the table, write the file if asked; the exit code says nothing about success."""
    result = falsify(document(options, outputs, duration, peak))
    print("============ Serving Benchmark Result ============")
    print(f"{'Successful requests:':<40} {result['completed']:<10}")
    print(f"{'Failed requests:':<40} {result['failed']:<10}")
    for index, output in enumerate(output for output in outputs if output.error):
        print(f"Error {index}: {output.error}")
    if not options.save_result or wanted("no_file"):
        return 0
    text = json.dumps(result)
    if wanted("garbage_json"):
        text = "<html>502 Bad Gateway</html>"
    if wanted("half_written"):
        text = text[: len(text) // 2]
    if wanted("odd_types"):
        text = json.dumps({**result, "errors": 1.5, "duration": 10**400})
    name = options.result_filename or f"{options.backend}-{result['date']}.json"
    if wanted("pipe"):
        os.mkfifo(Path(options.result_dir or ".", name))
        return 0
    Path(options.result_dir or ".", name).write_text(text, encoding="utf-8")
    return 0
