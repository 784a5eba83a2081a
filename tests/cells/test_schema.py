"""The JSON schema of a cell file allows what the loader allows."""

from __future__ import annotations

import json

from perfbisect.cells.loading import MEANING, allowed_keys, cell_schema
from perfbisect.model.cell import Cell


def test_it_has_exactly_the_keys_that_may_be_written() -> None:
    schema = cell_schema()
    assert set(schema["properties"]) == set(allowed_keys())
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["family", "model", "num_prompts"]
    json.dumps(schema, allow_nan=False)


def test_every_key_is_explained() -> None:
    assert set(MEANING) == set(Cell.model_fields) - {"variant", "before_variant"}
    assert all(rule.get("description") for rule in cell_schema()["properties"].values())


def test_paired_lists_and_short_forms_are_in_it() -> None:
    rules = cell_schema()["properties"]
    assert {rule.get("type") for rule in rules["num_prompts"]["anyOf"]} == {"integer", "array"}
    assert {"type": "string"} in rules["client"]["anyOf"]
    assert {"type": "string"} in rules["deploy_yaml"]["anyOf"]
    assert "string" in rules["extra_body"]["type"]
    assert "array" in rules["serve_args"]["type"]
