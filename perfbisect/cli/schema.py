"""``perfbisect schema`` and ``--version``: the JSON documents of every command, and their JSON Schemas."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel

from perfbisect.commands.output import CommandResult
from perfbisect.commands.request import Argument, prints

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_OTHER = {
    "version": ("perfbisect.commands.documents:VersionDocument",),
    "error": ("perfbisect.jobs.documents:ErrorDocument",),
}
"""What is printed by no command of the table."""


@prints("perfbisect.commands.documents:SchemasDocument")
def schema(
    *,
    verb: Annotated[tuple[str, ...], Argument("[VERB|cell]")] = (),
) -> CommandResult | int:
    """The JSON Schema of what VERB prints with --json, or of a cell file. Without VERB: list all schemas.

    The number behind a document's name grows with every incompatible change; a new field does not change it.

    \b
    Examples:
      perfbisect schema
      perfbisect schema bisect
      perfbisect schema track detect
      perfbisect schema cell
    """
    import json

    from perfbisect.cells.loading import cell_schema
    from perfbisect.commands.documents import SchemasDocument
    from perfbisect.commands.output import print_text
    from perfbisect.common.text import hint
    from perfbisect.errors import UsageError

    verbs = document_names()
    if not verb:
        document = SchemasDocument(verbs={name: tuple(names) for name, names in verbs.items()})
        width = max(map(len, verbs))
        return CommandResult(
            document, [f"{name:<{width}}  {', '.join(names)}" for name, names in verbs.items()]
        )
    name = " ".join(verb)
    if name != "cell" and name not in verbs:
        known = ["cell", *verbs]
        raise UsageError(
            f"no schema of {name!r}{hint(name, known)}; there are: {', '.join(known)}",
            next_step="perfbisect schema",
        )
    if name == "cell":
        shown = cell_schema()
    else:
        schemas = [document_schema(model) for model in documents()[name]]
        definitions: dict[str, Any] = {}
        for one in schemas:
            definitions |= one.pop("$defs", {}) | {one["title"]: one}
        shown = {
            "$schema": DIALECT,
            "title": f"perfbisect {name} --json",
            "anyOf": [{"$ref": f"#/$defs/{one['title']}"} for one in schemas],
            "$defs": definitions,
        }
    print_text(json.dumps(shown, indent=2))
    return 0


def versions() -> CommandResult:
    """The version; as a document also those of the journal, the store and the documents."""
    import perfbisect
    from perfbisect.commands.documents import VersionDocument
    from perfbisect.jobs import journal
    from perfbisect.series.store import VERSION

    document = VersionDocument(
        version=perfbisect.__version__,
        journal=journal.SCHEMA,
        store=VERSION,
        documents=tuple(sorted({name for printed in document_names().values() for name in printed})),
    )
    return CommandResult(document, [f"perfbisect, version {document.version}"])


def documents() -> Mapping[str, tuple[type[BaseModel], ...]]:
    """A command -> the documents that its ``--json`` prints; without those that print none."""
    from perfbisect.cli.table import build_commands, verbs

    places = _OTHER | {path: verb.prints for path, verb in verbs(build_commands()) if verb.prints}
    found = {}
    for path in sorted(places):
        named = map(pkgutil.resolve_name, places[path])
        found[path] = tuple(one for some in named for one in (some if isinstance(some, tuple) else (some,)))
    return found


def document_names() -> dict[str, list[str]]:
    """Map each command to the names of its documents, such as ``perfbisect.report/2``."""
    return {path: [document_name(model) for model in models] for path, models in documents().items()}


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
