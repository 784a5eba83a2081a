"""Writes perfbisect/cli/schemas, the JSON Schemas that are shipped: ``python -m scripts.gen_schemas``.

A schema may only grow under its number: where a reader of the shipped one would go wrong, nothing is written
until the document has the next number. ``--anew perfbisect.NAME/1`` writes one that no release has had yet.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from perfbisect.cli.documents import VERBS
from perfbisect.cli.schemas import CELL_FILE, DIALECT, FOLDER, VERBS_FILE, file_of
from perfbisect.config.schema import cell_schema

_SAID = frozenset({"title", "description", "default", "$defs", "$id", "$schema"})
"""Keys that say nothing about which values there are."""


def name_of(model: type[BaseModel]) -> str:
    """``perfbisect.report/1``: the value of the document's ``schema``."""
    return str(model.model_fields["schema_"].default)


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """A document's schema. Readers leave alone what they do not know: more keys are no error in it."""
    made = model.model_json_schema(mode="serialization")
    if "$ref" in made:  # a document that holds others of its kind
        made = {**_resolved(made, made), "$defs": made["$defs"]}
    return {"$schema": DIALECT, "$id": name_of(model), **_open(made)}


def _open(part: Any) -> Any:
    if isinstance(part, dict):
        return {k: _open(v) for k, v in part.items() if (k, v) != ("additionalProperties", False)}
    return [_open(item) for item in part] if isinstance(part, list) else part


def files() -> dict[str, Any]:
    """What stands in the folder: name of a file -> its JSON."""
    models = {model for models in VERBS.values() for model in models}
    made: dict[str, Any] = {file_of(name_of(model)): schema_of(model) for model in models}
    made[VERBS_FILE] = {verb: [name_of(model) for model in VERBS[verb]] for verb in sorted(VERBS)}
    made[CELL_FILE] = cell_schema()
    return made


def breaks(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Where a reader who knows the old schema of a document would go wrong with a document of the new one."""
    return list(_breaks(old, new, old, new, "document", frozenset()))


def _breaks(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    all_old: Mapping[str, Any],
    all_new: Mapping[str, Any],
    place: str,
    seen: frozenset[tuple[str, str]],
) -> Iterator[str]:
    both = (str(old.get("$ref", "")), str(new.get("$ref", "")))
    if both in seen and all(both):
        return
    seen |= {both}
    old, new = _resolved(old, all_old), _resolved(new, all_new)
    kept, given = old.get("properties", {}), new.get("properties", {})
    for name in kept:
        if name not in given:
            yield f"{place}.{name} is gone"
        else:
            yield from _breaks(kept[name], given[name], all_old, all_new, f"{place}.{name}", seen)
    for name in sorted({*old.get("required", ())} - {*new.get("required", ())}):
        if name in given:
            yield f"{place}.{name} may be missing"
    for key in ("items", "additionalProperties"):
        if isinstance(old.get(key), Mapping) and isinstance(new.get(key), Mapping):
            yield from _breaks(old[key], new[key], all_old, all_new, f"{place}[]", seen)
        elif old.get(key) != new.get(key):
            yield f"{place} has other {key}"
    for key in ("anyOf", "oneOf", "prefixItems"):
        before, after = old.get(key, ()), new.get(key, ())
        if len(before) != len(after):
            yield f"{place} has other {key}"
        else:
            for one, other in zip(before, after, strict=True):
                yield from _breaks(one, other, all_old, all_new, place, seen)
    handled = {"properties", "required", "items", "additionalProperties", "anyOf", "oneOf", "prefixItems"}
    for key in sorted({*old, *new} - handled - _SAID):
        if old.get(key) != new.get(key):
            yield f"{place}: {key} was {old.get(key)}, is {new.get(key)}"


def _resolved(part: Mapping[str, Any], whole: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = part.get("$ref")
    if reference is None:
        return part
    found: Mapping[str, Any] = whole["$defs"][str(reference).rpartition("/")[2]]
    return found


def write(folder: Path, made: Mapping[str, Any], anew: Collection[str] = ()) -> list[str]:
    """Writes what changed; returns why not, with nothing written, where a reader would go wrong.

    ``anew``: names of documents that have no readers yet.
    """
    wrong = []
    for name, document in made.items():
        path = folder / name
        if not path.is_file() or document.get("$id", name) in {*anew, name}:
            continue
        old = json.loads(path.read_text(encoding="utf-8"))
        if old.get("$id") == document["$id"]:
            wrong += [f"{document['$id']}: {text}" for text in breaks(old, document)]
    if wrong:
        return wrong
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*.json"):
        if path.name not in made:
            path.unlink()
    for name, document in made.items():
        (folder / name).write_text(text_of(document), encoding="utf-8")
    return []


def text_of(document: Any) -> str:
    """A file's text."""
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    """Writes the schemas; 1 where a document must have another number first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--anew", nargs="*", default=(), metavar="NAME")
    wrong = write(FOLDER, files(), parser.parse_args().anew)
    for text in wrong:
        print(text, file=sys.stderr)
    if wrong:
        print("give the document the next number: a reader of this one would go wrong", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
