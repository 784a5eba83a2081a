"""The command of vLLM's ``benchmark_serving_multi_turn.py``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from perfbisect.cells.reports.arguments import DECIMAL, GivenFields, read_options
from perfbisect.cells.reports.vllm_options import option_table
from perfbisect.clients.multi_turn_bench import DATASET
from perfbisect.model.cell import SERVER
from perfbisect.serving.families.text import CHAT

_OPTIONS = option_table(
    switches="warmup-step no-early-stop verify-output no-stream send-conversation-id excel-output verbose "
    "print-content trust-remote-code",
    several="",
    one="input-file output-file seed model served-model-name url api-key header num-clients "
    "max-active-conversations max-num-requests max-turns limit-max-tokens limit-min-tokens request-rate "
    "max-retries conversation-sampling request-timeout-sec stats-json-output warmup-percentages",
)
_SHORT: Mapping[str, str] = {
    "-i": "--input-file",
    "-o": "--output-file",
    "-m": "--model",
    "-u": "--url",
    "-p": "--num-clients",
    "-k": "--max-active-conversations",
    "-n": "--max-num-requests",
    "-e": "--excel-output",
    "-v": "--verbose",
}
_REPORTING = frozenset(
    {"output-file", "excel-output", "stats-json-output", "verbose", "print-content", "warmup-percentages"}
)
_ADDRESS = frozenset({"url", "api-key", "served-model-name"})

_NO_LIMIT = 100_000
"""Requests of a run, of which there are as many as the conversations have turns."""

_FIELDS: Mapping[str, str] = {
    "model": "model",
    "input-file": "dataset_path",
    "num-clients": "max_concurrency",
    "max-num-requests": "num_prompts",
    "request-rate": "request_rate",
    "seed": "seed",
}
"""Options that are keys of a cell."""


def multi_turn_fields(words: Sequence[str]) -> GivenFields:
    """What the command says. :raises ValueError: no arguments of the script."""
    given = read_options([_SHORT.get(word, word) for word in words], _OPTIONS, is_server=False)
    if given.rest or not (given.options or given.unsaid):
        raise ValueError(f"it has {given.rest[0] if given.rest else 'no options'}")
    defaults: dict[str, object] = {"max_concurrency": 1, "num_prompts": _NO_LIMIT, "seed": 0}
    unsaid = [_FIELDS.get(name, name) for name in given.unsaid if name not in _ADDRESS | _REPORTING]
    said = {_FIELDS[name]: value for name, value in given.options.items() if name in _FIELDS}
    fields = {name: value for name, value in {**defaults, **said}.items() if name not in unsaid}
    rate, users = fields.get("request_rate", 0), fields.get("max_concurrency")
    if isinstance(rate, str) and DECIMAL.fullmatch(rate):
        rate = float(rate)
    # A user's, where 0 is none.
    fields["request_rate"] = math.inf
    if isinstance(rate, int | float) and isinstance(users, int) and rate > 0:
        fields["request_rate"] = rate * users
    fixed = {"backend": "openai-chat", "endpoint": CHAT, "dataset_name": DATASET}
    ignored = {*_ADDRESS, *_REPORTING, *_FIELDS, "no-stream"}
    arguments = {name: value for name, value in given.options.items() if name not in ignored}
    remarks = ["--no-stream is left out: without a stream there is no TTFT"] * ("no-stream" in given.options)
    if "num_prompts" not in (*said, *unsaid):
        remarks.append(f"num_prompts: a run ends with its conversations; {_NO_LIMIT} are no limit")
    return GivenFields(
        {**fixed, **fields},
        # It sends none.
        {**arguments, "temperature": SERVER},
        tuple(unsaid),
        tuple(name for name in (*defaults, "request_rate") if name not in (*said, *unsaid)),
        remarks=tuple(remarks),
        names={"asked": given.options.get("served-model-name", fields.get("model"))},
    )
