"""The server of an SGLang cell."""

from __future__ import annotations

from typing import Any

import pytest

from perfbisect.clients import CLIENTS
from perfbisect.errors import UsageError
from perfbisect.model.metric import parse_metric
from perfbisect.serving.families import FAMILIES, ServerCommand
from tests.serving.workloads import ENDPOINT, SGLANG, make_cell


def server(**fields: Any) -> ServerCommand:
    return FAMILIES["sglang"].server(make_cell(SGLANG, **fields), ENDPOINT)


def test_it_is_started_by_module_on_the_loopback_under_the_attempts_name() -> None:
    command = server(seed=3, serve_args={"tp-size": 2}, revision={"model": "abc"}, tokenizer="org/t")
    assert command.args == (
        *("-m", "sglang.launch_server", "--host", "127.0.0.1", "--model-path", "org/m", "--port", "4321"),
        *("--random-seed", "3", "--revision", "abc", "--served-model-name", "pb-1a2b"),
        *("--tokenizer-path", "org/t", "--tp-size", "2"),
    )
    assert [request.path for request in command.reset_requests] == ["/flush_cache?timeout=5"]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"serve_args": {"model-path": "x"}}, "cannot set model-path"),
        ({"serve_args": {"disable-radix-cache": False}}, "no --no-disable-radix-cache"),
        ({"stage_overrides": {"a": 1}}, "no stage_overrides"),
    ],
)
def test_what_sglang_does_not_have_is_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        server(**fields)


def test_a_metric_of_vllms_log_is_refused_with_the_plan() -> None:
    cell = make_cell(SGLANG)
    with pytest.raises(UsageError, match="kv_cache_tokens needs kv cache: of SGLang it is not read"):
        CLIENTS["sglang_bench"].check_metric(cell, parse_metric("kv_cache_tokens"))
