"""Changes to a deploy YAML as vLLM-Omni's performance specifications write them (``update``, ``delete``).

Keys are paths with dots; under ``stage_args`` (or ``stages``) they are by stage. What is deleted goes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

_STAGES = ("stages", "stage_args")


def changed(text: str, update: object, delete: object) -> str:
    """The deploy YAML with the changes made, written out again.

    :raises ValueError: the text is no mapping, or a change is none or names what is not there.
    """
    document = _loaded(text)
    for path, value in _mapping(delete):
        if path in _STAGES:
            for stage, paths in _by_stage(document, value):
                for inner in paths if isinstance(paths, list) else ():
                    _delete(stage, str(inner))
        else:
            _delete(document, path)
    for path, value in _mapping(update):
        if path in _STAGES:
            for stage, values in _by_stage(document, value):
                for inner, new in _mapping(values):
                    _set(stage, inner, new)
        else:
            _set(document, path, value)
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def check(text: str) -> None:
    """:raises ValueError: the text is no deploy YAML: no YAML, or no mapping."""
    _loaded(text)


def _loaded(text: str) -> dict[str, Any]:
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict):
        raise ValueError("is no mapping")
    return document


def _mapping(changes: object) -> Iterator[tuple[str, Any]]:
    if not isinstance(changes, Mapping):
        raise ValueError(f"is to be changed by {changes!r}, which is no mapping")
    yield from ((str(name), value) for name, value in changes.items())


def _stages(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    lists = [found for name in _STAGES if isinstance(found := document.get(name), list)]
    return [stage for stages in lists for stage in stages if isinstance(stage, dict)]


def _by_stage(document: Mapping[str, Any], changes: object) -> Iterator[tuple[dict[str, Any], Any]]:
    stages = {str(stage.get("stage_id")): stage for stage in _stages(document)}
    for name, change in _mapping(changes):
        if name not in stages:
            raise ValueError(f"has no stage {name}, only {', '.join(stages) or 'none'}")
        yield stages[name], change


def _inner(document: dict[str, Any], path: str, *, make: bool) -> tuple[dict[str, Any], str]:
    """The mapping in which a path ends, and its last word."""
    *above, last = path.split(".")
    current: Any = document
    for word in above:
        current = current.setdefault(word, {}) if make else current.get(word)
        if not isinstance(current, dict):
            raise ValueError(f"has no mapping at {path}")
    return current, last


def _set(document: dict[str, Any], path: str, value: object) -> None:
    inner, last = _inner(document, path, make=True)
    inner[last] = value


def _delete(document: dict[str, Any], path: str) -> None:
    inner, last = _inner(document, path, make=False)
    inner.pop(last, None)
