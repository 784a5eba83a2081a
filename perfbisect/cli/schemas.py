"""The JSON Schemas that are shipped: a file for each document, and which verb prints which documents.

They are written from the models by ``python -m scripts.gen_schemas``; nothing of the models is imported here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "schemas"
LISTED = "perfbisect.schemas/1"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
VERBS_FILE, CELL_FILE = "verbs.json", "cell-file.json"


def verbs() -> dict[str, list[str]]:
    """A verb -> the names of the documents that its ``--json`` prints: ``perfbisect.report/1``."""
    found: dict[str, list[str]] = _read(VERBS_FILE)
    return found


def of_verb(verb: str) -> dict[str, Any]:
    """The schema of what a verb prints: any one of its documents. :raises KeyError: no such verb."""
    places, definitions = [], {}
    for name in verbs()[verb]:
        document = _read(file_of(name))
        definitions.update(document.pop("$defs", {}))
        # Without an address of its own: its references are to the definitions of the whole.
        body = {key: item for key, item in document.items() if key not in ("$id", "$schema")}
        definitions[document["title"]] = body
        places.append({"$ref": f"#/$defs/{document['title']}"})
    return {
        "$schema": DIALECT,
        "title": f"perfbisect {verb} --json",
        "anyOf": places,
        "$defs": definitions,
    }


def cell_file() -> dict[str, Any]:
    """The schema of a cell file."""
    found: dict[str, Any] = _read(CELL_FILE)
    return found


def file_of(name: str) -> str:
    """``perfbisect.report/1`` -> ``report.json``."""
    return f"{name.removeprefix('perfbisect.').partition('/')[0]}.json"


def _read(name: str) -> Any:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))
