"""vLLM's multi-turn benchmark: users who hold conversations, each turn with the answers before it.

The script is in ``benchmarks/multi_turn/`` of the repository, since 0.10.1, and in no wheel, so the client's
environment needs a checkout first on its path. It reports the requests that it measured in a file since
0.20.0, and never those that failed: the starter takes both from its functions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from operator import add
from pathlib import PurePath

from perfbisect.clients.base import (
    CELL,
    NO_VALUES,
    SEED,
    Client,
    Document,
    check_identity,
    check_number,
    check_reserved_options,
    count,
    find_script,
    request_statistics,
)
from perfbisect.common.arguments import option_tokens
from perfbisect.errors import ClientError, UsageError
from perfbisect.model.attempt import RunResult, relative_spread
from perfbisect.model.cell import Cell
from perfbisect.serving.families import FAMILIES, Endpoint
from perfbisect.serving.families.text import CHAT

DATASET = "conversations"

STARTER = (
    find_script("vllm", "benchmarks/multi_turn/benchmark_serving_multi_turn.py")
    + """
import asyncio, json, multiprocessing, os
result, stamp, given = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:]
place = given.index("--input-file") + 1
data = pathlib.Path(given[place])
if data.is_dir():
    found = sorted(data.glob("*.json"))
    if len(found) != 1:
        sys.exit(f"{data} holds {len(found)} files *.json: one is to say what the conversations are")
    data = found[0]
given[place] = str(data)
# The file names its texts by paths relative to the working folder.
os.chdir(data.parent)
# Users are processes: forked ones have what is replaced here.
multiprocessing.set_start_method("fork")
sys.argv = [str(script), *given]
try:
    import benchmark_serving_multi_turn as benchmark
except ModuleNotFoundError as error:
    sys.exit(f"{error}, which {script} imports: add with={error.name} to --client")
failed, requests, send = multiprocessing.Value("i"), [], benchmark.send_turn

async def send_counted(*args, **kwargs):
    answer = None
    try:
        answer = await send(*args, **kwargs)
        return answer
    finally:
        if answer is None:
            with failed.get_lock():
                failed.value += 1

def take(measured, *_, **__):
    requests.extend(request._asdict() for request in measured)

benchmark.send_turn, benchmark.process_statistics = send_counted, take
asyncio.run(benchmark.main())
result.write_text(json.dumps({**stamp, "failed": failed.value, "requests": requests}), encoding="utf-8")
"""
)
"""Runs the script beside the installed package; its first arguments are the result and what identifies it."""

_RESERVED = (
    *("input-file", "output-file", "seed", "model", "served-model-name", "url", "num-clients"),
    *("max-num-requests", "request-rate", "warmup-percentages", "stats-json-output", "excel-output"),
    "no-stream",
)
_COLUMNS = (
    *("ttft_ms", "tpot_ms", "latency_ms", "start_time_ms"),
    *("input_num_turns", "input_num_tokens", "output_num_tokens"),
)
"""What is read of each request."""


class MultiTurnBench(Client):
    """``benchmark_serving_multi_turn.py``: each of ``max_concurrency`` users asks one request at a time."""

    name = "multi_turn_bench"
    package = "vllm"
    sources: tuple[str, ...] = ("../benchmarks/multi_turn",)

    def command(
        self, cell: Cell, endpoint: Endpoint, *, seed: int, result: PurePath, metadata: Mapping[str, str]
    ) -> tuple[str, ...]:
        """Arguments after the interpreter.

        Raises:
            UsageError: a reserved option, or requests that the script does not make.
        """
        check_reserved_options(cell, _RESERVED)
        for field, is_wrong, said in (
            ("endpoint", cell.endpoint != CHAT, f"conversations are held at {CHAT}"),
            ("dataset_name", cell.dataset_name != DATASET, f"its data set is {DATASET}"),
            ("dataset_path", cell.dataset_path is None, "a file says what the conversations are"),
            ("sampling", cell.sampling.sent, "it sends no sampling: say sampling: server"),
            ("extra_body", cell.extra_body, "it adds nothing to its requests"),
            ("ignore_eos", cell.ignore_eos, "it cannot ignore the end of a text"),
            ("burstiness", cell.burstiness != 1, "its users wait for exponential times"),
            ("num_warmups", cell.num_warmups, "its warm-up is warmup-step of the client's args"),
        ):
            if is_wrong:
                raise UsageError(f"cell {cell.name}: client {self.name}: {said}", field=field)
        users = cell.max_concurrency or 1
        own: dict[str, object] = {
            "url": endpoint.base_url,
            "model": cell.tokenizer or cell.model,
            "served-model-name": endpoint.model_name,
            "input-file": cell.dataset_path,
            "num-clients": users,
            # Each user has an equal part of them, and at least one.
            "max-num-requests": max(users, cell.num_prompts),
            # That of each user.
            "request-rate": None if math.isinf(cell.request_rate) else f"{cell.request_rate / users:.12g}",
            "seed": seed,
        }
        stamp = {"model_id": endpoint.model_name, **metadata, SEED: str(seed), CELL: cell.digest}
        options = option_tokens({**own, **cell.dataset_args, **cell.client.args}, negatable=False)
        return ("-c", STARTER, str(result), json.dumps(stamp), *options)

    def metrics(self, cell: Cell) -> tuple[str, ...]:
        parts = ("median", "mean", *(f"p{percentile:g}" for percentile in cell.percentiles))
        keys = [f"{name}:{part}" for name in ("ttft", "tpot", "e2el") for part in parts]
        return (*keys, *FAMILIES["text"].run_metrics, "e2el_per_token")

    def may_report(self, cell: Cell) -> tuple[str, ...]:
        """The first turns' TTFT, which a warm-up takes away."""
        keys = (key for key in self.metrics(cell) if key.startswith("ttft:"))
        return tuple(key.replace("ttft", "ttft_first_turn") for key in keys)

    def field(self, key: str) -> str:
        return key

    def parse(
        self, cell: Cell, document: Document, *, index: int, seed: int, expected: Document = NO_VALUES
    ) -> RunResult:
        check_identity(document, {**expected, SEED: str(seed), CELL: cell.digest})
        failed, rows = count(document, "failed"), document.get("requests")
        if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
            raise ClientError("the result has no requests")
        if not rows:
            raise ClientError(f"0 requests completed ({failed} failed)")
        ttft, tpot, e2el, start, turns, inputs, outputs = (
            [check_number(row.get(name), f"requests[{i}].{name}") for i, row in enumerate(rows)]
            for name in _COLUMNS
        )
        seconds = (max(map(add, start, e2el)) - min(start)) / 1000
        if seconds <= 0 or min(ttft) <= 0:
            raise ClientError(f"{len(rows)} requests in {seconds:g} s, with a TTFT of {min(ttft):g} ms")
        if not sum(outputs):
            raise ClientError(f"{len(rows)} requests completed without one output token", code="no_output")
        samples = {
            "ttft": ttft,
            # An answer of one token, or in one chunk, has no time between tokens.
            "tpot": [time for time in tpot if time > 0],
            "e2el": e2el,
            "ttft_first_turn": [time for time, turn in zip(ttft, turns, strict=True) if turn == 1],
        }
        known = {
            "request_throughput": len(rows) / seconds,
            "output_throughput": sum(outputs) / seconds,
            "total_token_throughput": (sum(inputs) + sum(outputs)) / seconds,
            "failed": failed / (len(rows) + failed),
            "output_tokens": sum(outputs) / len(rows),
            "input_tokens": sum(inputs) / len(rows),
        }
        for name, times in samples.items():
            known |= request_statistics(name, times, cell.percentiles)
        return RunResult(
            index=index,
            seed=seed,
            values=self.read_values(cell, document, known),
            spread={f"{name}:median": relative_spread(times) for name, times in samples.items() if times},
            warnings=(f"{failed} of {len(rows) + failed} requests failed",) if failed else (),
            seconds=seconds,
            facts={"completed": len(rows), "failed": failed, "turns": max(turns)},
        )


CLIENT = MultiTurnBench()
