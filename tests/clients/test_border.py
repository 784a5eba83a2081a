"""Whatever a client writes is a run or a ClientError."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from perfbisect.clients.vllm_bench import CLIENT
from perfbisect.common.json_text import parse_json
from perfbisect.errors import ClientError
from scripts.fuzz.results import read_bent_result
from tests.clients.test_vllm_bench import cell, document


def test_five_hundred_bent_results(tmp_path: Path) -> None:
    for seed in range(500):
        read_bent_result(Random(seed), tmp_path)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"errors": 1.5}, "errors is 1.5, not a list"),
        ({"errors": ["", {}, {"a": 1}, ""]}, r"errors\[1\] is {}, not text"),
        ({"duration": 10**400}, "duration is inf, not a number"),
        ({"completed": 10**400}, "completed is inf"),
        ({"ttfts": [0.01, "soon", 0.03, 0.04]}, r"ttfts\[1\] is 'soon', not a number"),
        ({"itls": [[0.005], {"a": 1}, [0.005], [0.005]]}, r"itls\[1\] is {'a': 1}, not a list"),
        ({"output_lens": [3, 3, None, 3]}, r"output_lens\[2\] is None"),
        ({"latencies": [[], 1, 1, 1]}, r"latencies\[0\] is \[\]"),
        ({"median_ttft_ms": "x" * 10_000}, r"median_ttft_ms is 'x+…, not a number"),
        ({"median_ttft_ms": 1e300}, "median_ttft_ms is 1e\\+300, not a number"),
        ({"model_id": {"a": ["\x1b"]}}, r"of another run: model_id is {'a': \['\\x1b'\]}"),
    ],
)
def test_a_value_of_another_type_is_named(fields: dict[str, Any], said: str) -> None:
    found = parse_json(json.dumps(document(**fields)))
    assert isinstance(found, dict)
    with pytest.raises(ClientError, match=said):
        CLIENT.read(cell(), found, index=1, seed=7, expected={"model_id": "pb-1a2b"})


def test_odd_covariates_do_not_cost_the_measurement() -> None:
    odd = {"date": ["x"], "max_concurrent_requests": {"a": 1}, "spec_decode_draft_tokens": "x" * 1000}
    facts = CLIENT.read(cell(), document(**odd), index=1, seed=7).facts
    assert facts["date"] is None and facts["max_concurrent_requests"] is None
    assert len(facts["draft_tokens"]) == 200
