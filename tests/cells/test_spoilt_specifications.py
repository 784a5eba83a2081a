"""Whatever stands at any place of a specification: cells, or an error that says where. Nothing else."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perfbisect.cells.importers import read_specification
from perfbisect.cells.importers.base import read_file, write_cell
from perfbisect.cells.loading import load_cells
from perfbisect.errors import LocatedError

SERVERS: list[dict[str, Any]] = [
    {
        "test_name": "test_talk",
        "mark": [{"hardware_marks": {"num_cards": 2}}],
        "server_params": {
            "model": "org/model",
            "stage_overrides": {"1": {"devices": "1"}},
            "extra_cli_args": ["--max-len", 8],
        },
        "benchmark_params": [
            {
                "task": "talk",
                "dataset_name": "random",
                "backend": "openai-chat-omni",
                "endpoint": "/v1/chat/completions",
                "num_prompts": [4, 8],
                "max_concurrency": [1, 2],
                "random_input_len": 8,
                "extra_body": {"modalities": ["text", "audio"]},
                "percentile-metrics": "ttft,e2el",
                "baseline": {"mean_ttft_ms": [1, 2]},
            }
        ],
    },
    {
        "test_name": "test_paint",
        "server_params": {
            "model": "org/model",
            "serve_args": {
                "deploy-config-inline": {"type": "yaml", "content": {"stages": [{"devices": "0"}]}}
            },
        },
        "benchmark_params": [
            {
                "name": "a",
                "dataset": "custom",
                "dataset-path-inline": {"type": "jsonl", "content": [{"prompt": "x"}]},
                "task": "t2i",
                "num-prompts": 2,
            }
        ],
    },
]

TESTS: dict[str, Any] = {
    "defaults": {
        "qps_list": [1, "inf"],
        "server_environment_variables": {"A": 1},
        "client_parameters": {"model": "org/model", "num_prompts": 20, "ignore-eos": ""},
    },
    "tests": [
        {
            "test_name": "serving_a",
            "max_concurrency_list": [1, 2],
            "server_parameters": {"model": "org/model", "tensor_parallel_size": 2, "x": "'{\"a\": 1}'"},
            "client_parameters": {"dataset_name": "random", "endpoint": "/v1/completions", "temperature": 0},
        }
    ],
}

RECIPE: dict[str, Any] = {
    "name": "talk-h200",
    "gpu": "H200",
    "vllm": {"model": "org/model", "env": {"A": 1}, "serve_args": "--max-model-len 8 --trust-remote-code"},
    "lm_eval": {"tasks": [{"name": "gsm8k"}]},
    "vllm_bench": {
        "configs": [
            {
                "name": "1k-in-1k-out",
                "input_len": 1024,
                "output_len": 1024,
                "num_prompts": [10, 20],
                "max_concurrency": [1, 2],
                "repetitions": 3,
                "args": {"num_warmups": 2, "request_rate": 4},
            }
        ]
    },
}

VALUES: tuple[Any, ...] = (None, True, -3, "x", "'", "", [], [1], ["x"], {}, {"a": 1}, [{}])


def places(document: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in inner:
        yield (*above, key)
        if isinstance(value, dict | list):
            yield from places(value, (*above, key))


def spoilt(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(document)
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return changed


@pytest.mark.parametrize("document", [SERVERS, TESTS, RECIPE], ids=["servers", "tests", "recipe"])
def test_cells_or_an_error_that_says_where(document: Any, tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    refused = read = 0
    loaded: set[str] = set()
    for place in places(document):
        for value in VALUES:
            path.write_text(json.dumps(spoilt(document, place, value)))
            try:
                found = read_specification(read_file(path))
                for cell in found.cells:
                    if repr(cell) not in loaded:  # a place spoils one cell, and the others were read before
                        load_cells(write_cell(tmp_path, cell))
                        loaded.add(repr(cell))
                refused += bool(found.errors)
                read += not found.errors
            except LocatedError:
                refused += 1
            except Exception as error:
                raise AssertionError(f"{place} = {value!r}") from error
    assert refused > 50 and read > 50
