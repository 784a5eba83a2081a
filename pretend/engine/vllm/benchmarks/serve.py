"""Send the prompts, measure when each token arrives, write the result document of the real client."""

import http.client
import json
import random
import sys
import threading
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from . import report


@dataclass
class Output:
    """What came back for one request; times in seconds of the monotonic clock."""

    start: float = 0.0
    ttft: float = 0.0
    latency: float = 0.0
    itls: list = field(default_factory=list)
    tokens: int = 0
    text: str = ""
    error: str = ""
    input_len: int = 0
    queued: float = 0.0


def prompts(options):
    """The prompts of a seed with their output lengths: equal seeds, equal prompts."""
    draw = random.Random(options.seed)
    if options.dataset_name == "prefix_repetition":
        heads = [
            _words(draw, options.prefix_repetition_prefix_len)
            for _ in range(options.prefix_repetition_num_prefixes)
        ]
        tail, count = options.prefix_repetition_suffix_len, options.prefix_repetition_output_len
        return [
            (f"{heads[index % len(heads)]} {_words(draw, tail)}", count)
            for index in range(options.num_prompts)
        ]
    head = _words(draw, options.random_prefix_len)
    return [
        (f"{head} {_words(draw, options.random_input_len)}".strip(), options.random_output_len)
        for _ in range(options.num_prompts)
    ]


def _words(draw, count):
    return " ".join(f"t{draw.randrange(1024)}" for _ in range(count))


def request(options, address, prompt, count, queued=0.0):
    """One streamed completion."""
    output = Output(input_len=len(prompt.split()), start=time.perf_counter(), queued=queued)
    body = {
        "model": options.served_model_name or options.model,
        "prompt": prompt,
        "max_tokens": count,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": options.ignore_eos,
        **({"temperature": options.temperature} if options.temperature is not None else {}),
        **json.loads(options.extra_body or "{}"),
    }
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
    try:
        connection.request("POST", options.endpoint, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            output.error = f"{response.reason}: {response.read().decode(errors='replace')}"
        else:
            _receive(response, output)
    except (OSError, http.client.HTTPException) as error:
        output.error = f"{type(error).__name__}: {error}"
    finally:
        connection.close()
    return output


def _receive(response, output):
    last = output.start
    for line in iter(response.readline, b""):
        if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
            continue
        event, now = json.loads(line[6:]), time.perf_counter()
        if "error" in event:
            output.error = str(event["error"]["message"])
            return
        if event["choices"]:
            if output.tokens:
                output.itls.append(now - last)
            else:
                output.ttft = now - output.start
            output.text += event["choices"][0]["text"]
            output.tokens += 1
            last, output.latency = now, now - output.start
        elif event.get("usage"):
            output.tokens = event["usage"]["completion_tokens"]
    if not output.ttft:
        output.error = "Never received a valid chunk to calculate TTFT."


def _ready(options, address, prompt):
    end = time.monotonic() + options.ready_check_timeout_sec
    while True:
        output = request(options, address, *prompt)
        if not output.error:
            return True
        if time.monotonic() > end:
            print(f"ValueError: Initial test run failed: {output.error}", file=sys.stderr)
            return False
        time.sleep(0.1)


def measure(options):
    """The whole run; returns the exit code."""
    address = urllib.parse.urlsplit(options.base_url or f"http://{options.host}:{options.port}")
    work = prompts(options)
    if options.ready_check_timeout_sec > 0 and not _ready(options, address, work[0]):
        return 1
    report.fault_before()
    for _ in range(options.num_warmups):
        request(options, address, *work[0])
    begin = time.perf_counter()
    workers = options.max_concurrency or len(work)
    draw, arrivals, due = random.Random(options.seed + 1), [], 0.0
    for _ in work:
        arrivals.append(due)
        due += 0.0 if options.request_rate == float("inf") else draw.expovariate(options.request_rate)
    lock, active, peak = threading.Lock(), 0, 0

    def one(item):
        nonlocal active, peak
        (prompt, count), arrival = item
        time.sleep(max(0.0, begin + arrival - time.perf_counter()))
        with lock:
            active += 1
            peak = max(peak, active)
        output = request(options, address, prompt, count, time.perf_counter() - begin - arrival)
        with lock:
            active -= 1
        return output

    with ThreadPoolExecutor(workers) as pool:
        outputs = list(pool.map(one, zip(work, arrivals, strict=True)))
    return report.write(options, outputs, time.perf_counter() - begin, peak)
