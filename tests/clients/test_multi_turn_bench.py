"""vLLM's multi-turn benchmark: how its script is found and run, and what its requests say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from perfbisect.clients.multi_turn_bench import CLIENT, STARTER
from perfbisect.errors import ClientError, UsageError
from perfbisect.model.cell import Cell
from tests.clients.test_conformance import MULTI_TURN
from tests.measure.pretend import attempt, environment
from tests.measure.pretend import cell as pretend_cell
from tests.serving.workloads import ENDPOINT, make_cell

SAID = [{"role": "user", "content": "a b c"}, {"role": "assistant", "content": "d"}] * 3


def cell(**fields: Any) -> Cell:
    return make_cell(MULTI_TURN, **fields)


def argv(one: Cell) -> tuple[str, ...]:
    return CLIENT.command(one, ENDPOINT, seed=17, result=PurePosixPath("/a/run-1.json"), metadata={"x": "y"})


def request(start: float, ttft: float, tokens: int = 5, **changed: Any) -> dict[str, Any]:
    """A request of 2 ms a token after the first."""
    decode = 2.0 * (tokens - 1)
    return {
        "ttft_ms": ttft, "tpot_ms": 2.0 if tokens > 1 else 0.0, "latency_ms": ttft + decode,
        "start_time_ms": start, "input_num_turns": 1, "input_num_tokens": 10, "output_num_tokens": tokens,
        **changed,
    }  # fmt: skip


def document(one: Cell, *requests: dict[str, Any], **changed: Any) -> dict[str, Any]:
    stamp = {"model_id": "pb-1a2b", "perfbisect_seed": "17", "perfbisect_cell": one.digest}
    return {**stamp, "failed": 0, "requests": list(requests), **changed}


def parse(one: Cell, told: dict[str, Any]) -> Any:
    return CLIENT.parse(one, told, index=1, seed=17, expected={"model_id": "pb-1a2b"})


def test_the_whole_command() -> None:
    one = cell(max_concurrency=8, num_prompts=6, request_rate=4, dataset_args={"max-turns": 4})
    code, starter, result, stamp, *options = argv(one)
    assert (code, starter, result) == ("-c", STARTER, "/a/run-1.json")
    assert json.loads(stamp) == {
        "model_id": "pb-1a2b", "x": "y", "perfbisect_seed": "17", "perfbisect_cell": one.digest
    }  # fmt: skip
    # Each user sends at least one request, and half of one a second.
    assert options == [
        *("--input-file", "/c", "--max-num-requests", "8", "--max-turns", "4", "--model", "org/m"),
        *("--num-clients", "8", "--request-rate", "0.5", "--seed", "17", "--served-model-name", "pb-1a2b"),
        *("--url", "http://127.0.0.1:4321"),
    ]


@pytest.mark.parametrize(
    "field",
    [
        {"endpoint": "/v1/completions"},
        {"dataset_name": "random"},
        {"dataset_path": None},
        {"sampling": {"temperature": 0}},
        {"extra_body": {"a": 1}},
        {"ignore_eos": True},
        {"burstiness": 0.5},
        {"num_warmups": 1},
        {"client": {"name": "multi_turn_bench", "args": {"num-clients": 2}}},
    ],
    ids=str,
)
def test_requests_that_it_does_not_make_are_refused(field: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as refused:
        argv(cell(**field))
    assert refused.value.field == next(iter(field))


def test_a_run_is_its_requests() -> None:
    one = cell()
    later = request(30.0, 20.0, input_num_turns=3, input_num_tokens=30)
    run = parse(one, document(one, request(0.0, 10.0), later, request(80.0, 12.0, tokens=1), failed=1))
    assert run.seconds == pytest.approx(0.092)
    assert (run.values["ttft:median"], run.values["ttft_first_turn:mean"]) == (12.0, 11.0)
    assert (run.values["tpot:mean"], run.values["e2el:p99"]) == (2.0, pytest.approx(27.8))
    assert run.values["request_throughput"] == pytest.approx(3 / 0.092)
    assert run.values["output_tokens"] == pytest.approx(11 / 3)
    assert run.values["failed"] == 0.25
    assert run.warnings == ("1 of 4 requests failed",)
    without = parse(one, document(one, later))
    assert "ttft_first_turn:median" not in without.values


@pytest.mark.parametrize(
    "changed",
    [
        {"requests": []},
        {"requests": None},
        {"requests": [{**request(0.0, 10.0), "ttft_ms": "fast"}]},
        {"requests": [request(0.0, 0.0)]},
        {"requests": [request(0.0, 10.0, tokens=2, tpot_ms=0.0)]},
        {"requests": [request(0.0, 10.0, tokens=1, output_num_tokens=0)]},
        {"failed": None},
        {"model_id": "other"},
        {"perfbisect_seed": "18"},
    ],
    ids=str,
)
def test_what_is_no_measurement(changed: dict[str, Any]) -> None:
    one = cell()
    with pytest.raises(ClientError):
        parse(one, document(one, request(0.0, 10.0), **changed))


def talk(folder: Path, **fields: Any) -> Cell:
    """A cell for the pretend engine with conversations of three turns."""
    (folder / "talk").mkdir()
    said = [{"id": str(number), "messages": SAID} for number in range(6)]
    (folder / "talk" / "said.json").write_text(json.dumps(said))
    own = {**MULTI_TURN, "dataset_path": str(folder / "talk"), "num_prompts": 12, "dataset_args": {}}
    return pretend_cell(**{**own, "ignore_eos": False, **fields})


def test_a_launch(tmp_path: Path) -> None:
    made = attempt(tmp_path, environment(tmp_path), runs=2, workload=talk(tmp_path))
    assert made.failure is None, made.failure
    for run in made.runs:
        assert run.values["output_tokens"] == 6
        assert run.values["failed"] == 0
        assert run.values["tpot:median"] > 3.0
        assert run.facts["turns"] == 5
        assert run.facts["completed"] == 12


def test_requests_that_fail_are_counted(tmp_path: Path) -> None:
    made = attempt(tmp_path, environment(tmp_path, PRETEND_FAULT="some_failed"), workload=talk(tmp_path))
    (run,) = made.runs
    assert run.facts["failed"] >= 2
    assert run.values["failed"] == run.facts["failed"] / (run.facts["failed"] + run.facts["completed"])


def start(folder: Path, *arguments: str) -> str:
    words = [sys.executable, "-c", STARTER, str(folder / "result"), "{}", *arguments]
    return subprocess.run(
        words, env={"PYTHONPATH": str(folder)}, capture_output=True, text=True, check=False
    ).stderr


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    script = tmp_path / "benchmarks/multi_turn/benchmark_serving_multi_turn.py"
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    data = ("--input-file", str(tmp_path))
    assert "stands in a checkout" in start(tmp_path, *data)
    script.parent.mkdir(parents=True)
    script.write_text("import no_such_package")
    assert "holds 0 files *.json" in start(tmp_path, *data)
    (tmp_path / "said.json").touch()
    assert "add with=no_such_package to --client" in start(tmp_path, *data)
