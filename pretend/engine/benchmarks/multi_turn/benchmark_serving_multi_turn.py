"""The multi-turn benchmark: users who hold conversations; it prints the statistics of their requests."""

import argparse
import http.client
import json
import multiprocessing
import statistics
import time
import urllib.parse
from collections import namedtuple
from pathlib import Path

Request = namedtuple(
    "Request",
    "ttft_ms tpot_ms latency_ms start_time_ms input_num_turns input_num_tokens output_num_tokens "
    "output_num_chunks output_num_first_chunk_tokens approx_cached_percent conversation_id client_id",
)


def ask(options, messages):
    """One streamed answer: its text, and seconds to its tokens; None if it was refused."""
    address = urllib.parse.urlsplit(options.url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
    body = {"model": options.served_model_name, "messages": messages, "stream": True, "max_tokens": 6}
    began, times, text = time.perf_counter(), [], ""
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        return None
    for line in iter(response.readline, b""):
        if line.startswith(b"data: {") and (choices := json.loads(line[6:])["choices"]):
            text += choices[0]["delta"].get("content", "")
            times.append(time.perf_counter() - began)
    connection.close()
    return began, times, text


async def send_turn(options, user, name, messages):
    """The request of a turn; None if it failed."""
    answer = ask(options, messages)
    if answer is None or not answer[1]:
        return None
    began, times, text = answer
    words = sum(len(message["content"].split()) for message in messages)
    tpot = (times[-1] - times[0]) / max(1, len(times) - 1)
    numbers = (1e3 * times[0], 1e3 * tpot, 1e3 * times[-1], 1e3 * began, len(messages), words, len(times))
    stats = Request(*numbers, len(times) - 1, 1, 0.0, name, user)
    messages.append({"role": "assistant", "content": text})
    return stats


async def hold(options, user, conversations, results):
    """The conversations of one user, one request at a time."""
    left = options.max_num_requests // options.num_clients
    for name, said in conversations:
        messages = []
        for message in said:
            if message["role"] == "user" and left:
                messages.append(message)
                left -= 1
                stats = await send_turn(options, user, name, messages)
                if stats is None:
                    break
                results.put(stats)
    results.put(None)


def work(*arguments):
    """A user's process."""
    import asyncio

    asyncio.run(hold(*arguments))


def process_statistics(client_metrics, test_params):
    """Print the medians."""
    print(test_params)
    for name in ("ttft_ms", "tpot_ms", "latency_ms"):
        print(name, statistics.median(getattr(row, name) for row in client_metrics))


async def main():
    """The whole benchmark."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("--input-file", "--model", "--served-model-name", "--url"):
        parser.add_argument(name, required=True)
    for name in ("--seed", "--num-clients", "--max-num-requests", "--max-active-conversations"):
        parser.add_argument(name, type=int)
    options = parser.parse_args()
    said = json.loads(Path(options.input_file).read_text(encoding="utf-8"))
    conversations = [(one["id"], one["messages"]) for one in said]
    results, users = multiprocessing.Queue(), range(options.num_clients)
    for user in users:
        own = conversations[user :: options.num_clients]
        multiprocessing.Process(target=work, args=(options, user, own, results)).start()
    measured, ended = [], 0
    while ended < options.num_clients:
        stats = results.get()
        measured += [stats] if stats else []
        ended += stats is None
    process_statistics(measured, test_params=vars(options))
