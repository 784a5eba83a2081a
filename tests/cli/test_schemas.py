"""JSON Schemas of documents: generated for every verb, consistent with the models, versioned."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from pydantic import BaseModel

from perfbisect.cli import schema as schemas
from perfbisect.cli.app import run
from perfbisect.cli.schema import documents
from scripts.schema_digests import TARGET, current_digests

MODELS = {schemas.document_name(model): model for models in documents().values() for model in models}
TIME = "2026-01-02T03:04:05Z"


def example(schema: dict[str, Any], definitions: dict[str, Any], depth: int = 0) -> Any:
    """Return a value that the schema allows, with every field set."""
    if "$ref" in schema:
        return example(definitions[schema["$ref"].rpartition("/")[2]], definitions, depth + 1)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return example(schema[key][-1 if depth > 8 else 0], definitions, depth + 1)
    kind = schema.get("type")
    if kind == "object":
        fields = {
            name: field for name, field in schema.get("properties", {}).items() if not field.get("readOnly")
        }
        filled = {name: example(field, definitions, depth + 1) for name, field in fields.items()}
        values = schema.get("additionalProperties")
        return filled | ({"key": example(values, definitions, depth + 1)} if isinstance(values, dict) else {})
    if kind == "array":
        if "prefixItems" in schema:
            return [example(item, definitions, depth + 1) for item in schema["prefixItems"]]
        return [] if depth > 8 else [example(schema["items"], definitions, depth + 1)]
    if "pattern" in schema:
        return next(text for text in (TIME, TIME[:10], "0" * 64) if re.search(schema["pattern"], text))
    simple = {"string": "text", "number": 0.5, "integer": 1, "boolean": True, "null": None}
    return "anything" if kind is None else simple[kind]


def test_each_document_has_a_name_of_its_own() -> None:
    models = {model for models in documents().values() for model in models}
    assert len(MODELS) == len(models)
    assert all(name.startswith("perfbisect.") and name.rpartition("/")[2].isdigit() for name in MODELS)


@pytest.mark.parametrize(("name", "model"), sorted(MODELS.items()))
def test_a_document_that_its_schema_allows_is_valid(name: str, model: type[BaseModel]) -> None:
    schema = schemas.document_schema(model)
    document = example(schema, schema.get("$defs", {}))
    assert document["schema"] == name
    assert "additionalProperties" not in schema
    validated = model.model_validate_json(json.dumps(document))
    # Without what is computed from the other fields.
    assert json.loads(validated.model_dump_json(by_alias=True, round_trip=True)) == document


@pytest.mark.parametrize("verb", sorted(documents()))
def test_the_schema_of_a_verb_contains_all_it_refers_to(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["schema", *verb.split()]) == 0
    text = capsys.readouterr().out
    document = json.loads(text)
    assert len(document["anyOf"]) == len(documents()[verb])
    for reference in {part.split('"')[0] for part in text.split('"$ref": "#/$defs/')[1:]}:
        assert reference in document["$defs"], reference


def test_a_changed_document_has_another_number() -> None:
    recorded, current = json.loads(TARGET.read_text()), current_digests()
    changed = {name for name in {*recorded, *current} if recorded.get(name) != current.get(name)}
    assert not changed, (
        f"{sorted(changed)} changed: raise the number of each that a reader of the old one would misread, "
        "then run python -m scripts.schema_digests"
    )


def test_verbs_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema"]) == 0
    shown = capsys.readouterr().out
    assert [line.split("  ")[0] for line in shown.splitlines()] == sorted(documents())
    assert run(["schema", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["schema"] == "perfbisect.schemas/1"
    assert listed["verbs"]["status"] == ["perfbisect.status/3", "perfbisect.jobs/1"]
    assert run(["schema", "cell"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "perfbisect cell"
