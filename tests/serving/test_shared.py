"""Which cells one server can serve."""

from __future__ import annotations

from typing import Any

import pytest

from perfbisect.model.cell import Cell
from perfbisect.serving.families import server_digest, suites
from tests.serving.workloads import SPEECH, make_cell


def cell(name: str = "one", **fields: Any) -> Cell:
    return make_cell({"family": "text", "name": name}, **fields)


@pytest.mark.parametrize(
    "other",
    [
        {"num_prompts": 9},
        {"max_concurrency": 3},
        {"request_rate": 2.0},
        {"dataset_args": {"random-input-len": 7}},
        {"num_warmups": 2},
        {"headline": "ttft"},
        {"client": {"name": "vllm_bench", "args": {"ready-check-timeout-sec": 0}}},
        {"extra_body": {"min_tokens": 2}},
    ],
)
def test_what_a_client_asks_for_is_not_the_servers(other: dict[str, Any]) -> None:
    assert cell(**other).digest != cell().digest or "headline" in other
    assert server_digest(cell(**other)) == server_digest(cell())


@pytest.mark.parametrize(
    "other",
    [
        {"model": "org/n"},
        {"tokenizer": "org/t"},
        {"revision": {"model": "sha256:" + "0" * 64}},
        {"serve_args": {"max-model-len": 512}},
        {"env": {"VLLM_X": "1"}},
        {"seed": 1},
        {"gpus": 2},
    ],
)
def test_what_is_started_is_the_servers(other: dict[str, Any]) -> None:
    assert server_digest(cell(**other)) != server_digest(cell())


def test_cells_by_their_server_in_the_order_given() -> None:
    a, b, c = cell("a"), cell("b", seed=1), cell("c", num_prompts=5)
    assert suites([a, b, c]) == ((a, c), (b,))
    assert suites([c, b, a]) == ((c, a), (b,))
    assert suites([]) == ()


def test_a_server_that_cannot_forget_is_shared_by_nobody() -> None:
    cells = [cell(name, env={"VLLM_SERVER_DEV_MODE": "0"}) for name in "ab"]
    assert suites(cells) == ((cells[0],), (cells[1],))
    speech = [cell(name, **SPEECH) for name in "ab"]
    assert suites(speech) == ((speech[0],), (speech[1],))
