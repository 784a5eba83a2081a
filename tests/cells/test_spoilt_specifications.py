"""Whatever stands at any place of a specification: cells, or an error that says where. Nothing else."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfbisect.cells.importers import read_specification
from perfbisect.cells.importers.base import read_file, write_cell
from perfbisect.cells.loading import load_cells
from perfbisect.errors import LocatedError
from tests.cells.importers.test_perf_eval import RECIPE
from tests.cells.importers.test_perf_specs import IMAGE, SPEECH, server
from tests.cells.importers.test_vllm_ci import DEFAULTS

SERVERS = [
    server(
        SPEECH | {"extra_body": {"modalities": ["text", "audio"]}, "temperature": 0},
        stage_overrides={"1": {"devices": "1"}},
        extra_cli_args=["--max-len", 8],
    )
    | {"mark": [{"hardware_marks": {"num_cards": 2}}]},
    server(
        IMAGE | {"dataset-path-inline": {"type": "jsonl", "content": [{"prompt": "x"}]}},
        serve_args={"deploy-config-inline": {"type": "yaml", "content": {"stages": [{"devices": "0"}]}}},
    ),
]
TESTS = {
    "defaults": DEFAULTS,
    "tests": [
        {
            "test_name": "serving_a",
            "max_concurrency_list": [1, 2],
            "server_parameters": {"model": "org/llama", "tensor_parallel_size": 2, "x": "'{\"a\": 1}'"},
            "client_parameters": {"dataset_name": "random", "endpoint": "/v1/completions"},
        }
    ],
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


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(SERVERS, id="servers", marks=pytest.mark.processes),
        pytest.param(TESTS, id="tests", marks=pytest.mark.processes),
        pytest.param(yaml.safe_load(RECIPE), id="recipe"),
    ],
)
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
