"""Records the version and digest of every JSON document's schema: ``python -m scripts.schema_digests``.

A test compares the file with the models: a document's form changes only with a decision about its number.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from perfbisect.cli.schema import document_name, document_schema, documents

TARGET = Path(__file__).parent.parent / "tests" / "cli" / "schema_digests.json"
_ANNOTATIONS = frozenset({"title", "description", "default"})
"""Keys of a schema that do not restrict values."""


def current_digests() -> dict[str, str]:
    """Map each document's name to the digest of what its schema allows."""
    models = {model for models in documents().values() for model in models}
    return {name: _digest(model) for name, model in sorted((document_name(m), m) for m in models)}


def _digest(model: Any) -> str:
    schema = document_schema(model)
    text = json.dumps(_restrictions(schema, schema.get("$defs", {}), ()), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _restrictions(
    part: Any, definitions: dict[str, Any], within: tuple[str, ...], named: bool = False
) -> Any:
    """Without annotations, the order of fields and the names of definitions, whose contents stand instead.

    ``within``: definitions around the part, for one that contains itself; ``named``: the keys of ``part`` are
    names of fields.
    """
    if isinstance(part, dict):
        if "$ref" in part and not named:
            name = part["$ref"].rpartition("/")[2]
            if name in within:
                return {"levels above": len(within) - within.index(name)}
            return _restrictions(definitions[name], definitions, (*within, name))
        return {
            key: sorted(value)
            if key == "required" and not named
            else _restrictions(value, definitions, within, named=not named and key == "properties")
            for key, value in part.items()
            if named or key not in _ANNOTATIONS | {"$defs"}
        }
    if isinstance(part, list):
        return [_restrictions(item, definitions, within) for item in part]
    return part


def main() -> None:
    """Write the file."""
    TARGET.write_text(json.dumps(current_digests(), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
