"""``python -m sglang.bench_serving``: one result a line, with the keys of the real client."""

import argparse
import http.client
import json
import statistics
import time
import urllib.parse
from pathlib import Path


def ask(options, address, count):
    """Seconds to the first token, and those between tokens."""
    body = {"model": options.model, "prompt": "t " * options.random_input_len, "max_tokens": count}
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
    began = last = time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True, "temperature": 0.0}))
    gaps = []
    for line in iter(connection.getresponse().readline, b""):
        if line.startswith(b"data: {"):
            now = time.perf_counter()
            gaps.append(now - last)
            last = now
    connection.close()
    return gaps[0], gaps[1:], last - began


def rows(name, seconds):
    """The statistics that the client reports of a metric."""
    values = [1e3 * second for second in seconds]
    found = {"mean": statistics.fmean(values), "median": statistics.median(values), "p99": max(values)}
    return {f"{part}_{name}_ms": value for part, value in {**found, "std": statistics.pstdev(values)}.items()}


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("backend", "base-url", "model", "tokenizer", "dataset-name", "output-file"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("num-prompts", "warmup-requests", "max-concurrency", "seed"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("random-input-len", "random-output-len"):
        parser.add_argument(f"--{name}", type=int, default=1024)
    for name in ("random-range-ratio", "request-rate"):
        parser.add_argument(f"--{name}", type=float, required=True)
    for name in ("disable-ignore-eos", "output-details", "disable-tqdm"):
        parser.add_argument(f"--{name}", action="store_true")
    options = parser.parse_args()
    address = urllib.parse.urlsplit(options.base_url)
    began = time.perf_counter()
    count = options.random_output_len
    ttfts, itls, whole = zip(*(ask(options, address, count) for _ in range(options.num_prompts)), strict=True)
    took = time.perf_counter() - began
    sent, made = options.num_prompts * options.random_input_len, options.num_prompts * count
    asked = ("backend", "dataset_name", "request_rate", "max_concurrency", "random_input_len")
    result = {
        **{name: getattr(options, name) for name in (*asked, "random_output_len", "random_range_ratio")},
        "duration": took,
        "completed": options.num_prompts,
        "total_input_tokens": sent,
        "total_output_tokens": made,
        "total_output_tokens_retokenized": made,
        "request_throughput": options.num_prompts / took,
        "input_throughput": sent / took,
        "output_throughput": made / took,
        **rows("ttft", ttfts),
        **rows("tpot", [sum(gaps) / max(1, count - 1) for gaps in itls]),
        **rows("itl", [gap for gaps in itls for gap in gaps]),
        **rows("e2e_latency", whole),
        "accept_length": None,
    }
    details = {"ttfts": ttfts, "itls": itls, "output_lens": [count] * len(ttfts), "errors": [""] * len(ttfts)}
    with Path(options.output_file).open("a") as file:
        file.write(json.dumps(result | details) + "\n")


if __name__ == "__main__":
    main()
