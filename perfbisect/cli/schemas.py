"""JSON Schemas of the documents that ``--json`` prints, generated from their models."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from perfbisect.cli.documents import VERBS

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def document_names() -> dict[str, list[str]]:
    """Map each verb to the names of its documents, such as ``perfbisect.report/1``."""
    return {verb: [document_name(model) for model in VERBS[verb]] for verb in sorted(VERBS)}


def document_name(model: type[BaseModel]) -> str:
    """Return the value of a document's ``schema`` field."""
    return str(model.model_fields["schema_"].default)


def document_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Generate a document's schema, open for additional keys because readers ignore unknown ones."""
    schema = model.model_json_schema(mode="serialization")
    if "$ref" in schema:  # pydantic refers to the definition of a model that contains itself
        definition = schema["$defs"][schema["$ref"].rpartition("/")[2]]
        schema = {**definition, "$defs": schema["$defs"]}
    opened: dict[str, Any] = _allow_additional_keys(schema)
    return opened


def verb_schema(verb: str) -> dict[str, Any]:
    """Generate the schema of what a verb prints: any one of its documents.

    Raises:
        KeyError: the verb does not exist.
    """
    references: list[dict[str, str]] = []
    definitions: dict[str, Any] = {}
    for model in VERBS[verb]:
        schema = document_schema(model)
        definitions.update(schema.pop("$defs", {}))
        definitions[schema["title"]] = schema
        references.append({"$ref": f"#/$defs/{schema['title']}"})
    return {
        "$schema": DIALECT,
        "title": f"perfbisect {verb} --json",
        "anyOf": references,
        "$defs": definitions,
    }


def _allow_additional_keys(part: Any) -> Any:
    if isinstance(part, dict):
        return {
            key: _allow_additional_keys(value)
            for key, value in part.items()
            if (key, value) != ("additionalProperties", False)
        }
    if isinstance(part, list):
        return [_allow_additional_keys(item) for item in part]
    return part
