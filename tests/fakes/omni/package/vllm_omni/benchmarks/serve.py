"""Asks for speech, measures when its sound arrives, writes the result document of the real client.

It asks ``ASKED`` times at the most and tells the rest as it found these: what is looked at here is what
becomes of a result, not how a server bears a load.
"""

import argparse
import http.client
import json
import math
import statistics
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ASKED, AT_ONCE = 12, 6
BYTES_A_SECOND = 2 * 24000
"""Of sound: 16 bits, one channel."""


def parse(argv):
    """The options that the pretend client obeys; all others are accepted and ignored."""
    parser = argparse.ArgumentParser(prog="vllm bench serve", allow_abbrev=False)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokenizer")
    parser.add_argument("--num-prompts", type=int, default=1000)
    parser.add_argument("--num-warmups", type=int, default=0)
    parser.add_argument("--max-concurrency", type=int)
    parser.add_argument("--extra-body", default="{}")
    parser.add_argument("--percentile-metrics", default="audio_ttfp,audio_rtf,audio_duration,e2el")
    parser.add_argument("--metric-percentiles", default="99")
    parser.add_argument("--result-dir", default=".")
    parser.add_argument("--result-filename", required=True)
    parser.add_argument("--metadata", nargs="*", default=[])
    return parser.parse_known_args(argv)[0]


def ask(options):
    """One request: seconds to the first sound, seconds in all, seconds of sound."""
    address = urllib.parse.urlsplit(options.base_url)
    body = {
        "model": options.model,
        "input": "One sentence.",
        "stream": True,
        **json.loads(options.extra_body),
    }
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
    try:
        start = time.perf_counter()
        connection.request("POST", options.endpoint, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        sound = response.read1(65536)
        first = time.perf_counter() - start
        size = len(sound) + len(response.read())
        return first, time.perf_counter() - start, size / BYTES_A_SECOND
    finally:
        connection.close()


def percentile(values, share):
    """Linear interpolation between the order statistics, as numpy's default."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * share / 100.0
    low, high = math.floor(place), math.ceil(place)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summary(options, told):
    """The statistics of each metric that was asked for, under the client's own names."""
    samples = {
        "audio_ttfp": ([1e3 * first for first, _, _ in told], "_ms"),
        "audio_rtf": ([whole / sound for _, whole, sound in told], ""),
        "audio_duration": ([sound for _, _, sound in told], "_s"),
        "e2el": ([1e3 * whole for _, whole, _ in told], "_ms"),
    }
    rows = {}
    for name in options.percentile_metrics.split(","):
        values, unit = samples[name]
        rows[f"mean_{name}{unit}"] = statistics.fmean(values)
        rows[f"median_{name}{unit}"] = statistics.median(values)
        for share in options.metric_percentiles.split(","):
            rows[f"p{share}_{name}{unit}"] = percentile(values, float(share))
    return rows


def run(argv):
    """The whole run; returns the exit code."""
    options = parse(argv)
    for _ in range(min(options.num_warmups, 2)):
        ask(options)
    count = min(ASKED, options.num_prompts)
    begin = time.perf_counter()
    with ThreadPoolExecutor(min(AT_ONCE, options.max_concurrency or AT_ONCE)) as pool:
        told = list(pool.map(ask, [options] * count))
    scale = options.num_prompts / count
    duration = (time.perf_counter() - begin) * scale
    sound = sum(seconds for _, _, seconds in told) * scale
    result = {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": options.backend,
        "backend": options.backend,
        "label": None,
        "model_id": options.model,
        "tokenizer_id": options.tokenizer,
        "num_prompts": options.num_prompts,
        **dict(pair.split("=", 1) for pair in options.metadata),
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": options.max_concurrency,
        "duration": duration,
        "completed": options.num_prompts,
        "failed": 0,
        "total_input_tokens": 4 * options.num_prompts,
        "total_output_tokens": 0,
        "request_throughput": options.num_prompts / duration,
        "output_throughput": 0.0,
        "total_audio_duration_s": sound,
        "audio_throughput": sound / duration,
        **summary(options, told),
        "errors": [""] * options.num_prompts,
    }
    Path(options.result_dir, options.result_filename).write_text(json.dumps(result), encoding="utf-8")
    return 0
