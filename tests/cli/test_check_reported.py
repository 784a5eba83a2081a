"""``perfbisect check`` against a result file of a client: what is compared, and what is said of the rest."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import type_command, type_json
from tests.fakes.history import make_history
from tests.series.made import write
from tests.series.sources.test_forms import aiperf, guidellm_run, sglang

SERVED = {
    "model_id": "org/model",
    "backend": "openai",
    "num_prompts": 96,
    "max_concurrency": 16,
    "request_rate": "inf",
    "duration": 48.0,
    "completed": 96,
    "failed": 0,
    "total_input_tokens": 96 * 180,
    "total_output_tokens": 96 * 100,
    "request_throughput": 2.0,
    "median_tpot_ms": 12.0,
    "date": "20260703-052224",
}
LATENCY = {"avg_latency": 4.1, "latencies": [4.0, 4.2, 4.1], "percentiles": {"50": 4.1}}
CELL = """family: text
model: org/model
dataset_name: random
random_input_len: 180
random_output_len: 100
ignore_eos: true
num_prompts: 96
max_concurrency: 16
gpus: 0
"""
OFFLINE = """family: offline
task: latency
model: org/model
dataset_args: {input-len: 64, output-len: 8}
num_prompts: 4
client: offline_bench
gpus: 0
"""


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A check of a history against the file ``other.json``."""
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "c.yaml": CELL,
        "chat.yaml": CELL + "backend: openai-chat\nendpoint: /v1/chat/completions\n",
        "o.yaml": OFFLINE,
    }.items():
        Path(name).write_text(text)
    history = make_history(tmp_path / "repo", commits=3, slow=1, factor=2.0)
    against = ("--against", "baseline", "--baseline", "other.json", "--max-regression", "5%")
    return ["--repo", str(history.path), "--env", f"overlay:{sys.executable},base=any", "--dry-run", *against]


def guidellm(*streams: int) -> dict[str, Any]:
    runs = [guidellm_run(count) for count in streams]
    return {"metadata": {}, "args": {"model": "org/model"}, "benchmarks": runs}


@pytest.mark.parametrize(
    ("cell", "document", "client", "level", "unsaid"),
    [
        ("c.yaml", SERVED, "vllm bench serve", 12.0, "task, deploy YAML, dataset, warm-ups"),
        ("chat.yaml", aiperf(), "AIPerf", 12.0, "task, deploy YAML, dataset, warm-ups"),
        ("chat.yaml", guidellm(1, 16, 50), "GuideLLM", 28.0, "task, deploy YAML, dataset, warm-ups, prompts"),
        ("o.yaml", LATENCY, "vllm bench latency", 4100.0, "model, deploy YAML, dataset, prompts, load"),
    ],
)
def test_one_value_of_a_client_is_the_level(
    words: list[str], cell: str, document: Any, client: str, level: float, unsaid: str
) -> None:
    write(Path("other.json"), document)
    plan = type_json("check", cell, *words)
    metric = plan["metric"]["name"]
    assert (plan["reported"]["client"], plan["reported"]["values"]) == (
        client,
        {metric: pytest.approx(level)},
    )
    assert (plan["line"], plan["recorded"]) == (pytest.approx(1.05 * level), [])
    assert any(f"the report does not say it: {unsaid}" in note for note in plan["notes"])
    assert f"one value of {client}" in type_command(["check", cell, *words]).out


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (SERVED | {"max_concurrency": 8}, "max_concurrency: 8 there, 16 here"),
        (SERVED | {"failed": 1, "completed": 95}, "1 of 96 requests failed"),
        (SERVED | {"median_tpot_ms": None}, "it does not have tpot; it has: failed, input_tokens"),
        (
            SERVED | {"total_input_tokens": 96 * 900},
            "its requests have 900 input tokens, those of cell c 180",
        ),
        ([SERVED, SERVED], "2 results in it are of the workload of cell c"),
        (aiperf(was_cancelled=True), "it was cancelled before its end"),
        (guidellm(1, 50), "max_concurrency: 1 there, 16 here"),
        (sglang(), "random-output-len: 400 there, 100 here"),
        (LATENCY, "task: latency there"),
        ([], "the JSON is no result of a client that is known"),
        (SERVED | {"median_tpot_ms": "x"}, "median_tpot_ms is 'x'"),
        ("{", "Invalid JSON"),
    ],
)
def test_a_file_that_is_no_level_of_this_cell_says_why(words: list[str], document: Any, said: str) -> None:
    write(Path("other.json"), document)
    told = type_json("check", "c.yaml", *words, code=2)
    assert said in told["error"] and told["next"]
    assert told["where"].startswith("other.json")


def test_results_a_line_are_read(words: list[str]) -> None:
    other = SERVED | {"max_concurrency": 1}
    Path("other.json").write_text("\n".join(map(json.dumps, (other, SERVED))))
    assert type_json("check", "c.yaml", *words)["reported"]["day"] == "2026-07-03"
