"""Records the version and digest of every JSON document's schema: ``python -m scripts.schema_digests``.

A test compares the file with the models: a document's form changes only with a decision about its number.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from perfbisect.cli.schema import VERBS, document_name, document_schema

TARGET = Path(__file__).parent.parent / "tests" / "cli" / "schema_digests.json"
_ANNOTATIONS = frozenset({"title", "description", "default"})
"""Keys of a schema that do not restrict values."""


def current_digests() -> dict[str, str]:
    """Map each document's name to the digest of what its schema allows."""
    models = {model for models in VERBS.values() for model in models}
    return {name: _digest(model) for name, model in sorted((document_name(m), m) for m in models)}


def _digest(model: Any) -> str:
    text = json.dumps(_without_annotations(document_schema(model)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _without_annotations(part: Any, named: bool = False) -> Any:
    """Drop annotations; ``named``: the keys of ``part`` are names of fields or definitions."""
    if isinstance(part, dict):
        return {
            key: _without_annotations(value, named=not named and key in ("properties", "$defs"))
            for key, value in part.items()
            if named or key not in _ANNOTATIONS
        }
    if isinstance(part, list):
        return [_without_annotations(item) for item in part]
    return part


def main() -> None:
    """Write the file."""
    TARGET.write_text(json.dumps(current_digests(), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
