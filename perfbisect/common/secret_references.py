"""``${NAME}``: a reference to a secret in a variable of the environment of perfbisect.

Cells and machine profiles hold references only: what they hold is kept in journals and shown in reports.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from perfbisect.errors import UsageError
from perfbisect.redaction import REDACTED, REFERENCE, SHORTEST_SECRET, has_secret_format, holds_secret

_SECRET_KEY = re.compile(
    r"(?:^|[._-])(?:(?:api|access|secret|private|account|encryption)[_-]?key|secret|password|passwd|passphrase"
    r"|authorization|credentials?|cookie"
    r"|(?:hf|hub|auth|access|api|bearer|refresh|id|session|security|github|gitlab)[_-]?token)$|(?:^|[.])token$",
    re.IGNORECASE,
)
"""Narrow: ``eos_token``, ``tokenizer`` and ``ssl-keyfile`` are none."""
_SECRET_VARIABLE = re.compile(r"(?:^|[._])(?:TOKEN|KEY)$")
_PAIR = re.compile(r"\s*([\w-]+)\s*[=:]\s*((?:(?:bearer|basic)\s+)?\S+)\s*", re.IGNORECASE)
"""As options take headers and variables: ``NAME=VALUE``, ``NAME: VALUE``."""

SECRET_REFUSED = "a secret does not belong in a file that is kept or shown"


def names_secret(key: str) -> bool:
    """Whether a value under this key, option or variable is a secret."""
    return bool(_SECRET_KEY.search(key) or _SECRET_VARIABLE.search(key))


def references(value: object) -> tuple[str, ...]:
    """The variables that texts in a value refer to."""
    if isinstance(value, str):
        return tuple(dict.fromkeys(name for name in REFERENCE.findall(value) if holds_secret(name)))
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return tuple(dict.fromkeys(name for part in parts for name in references(part)))


def fill(value: Any, environment: Mapping[str, str]) -> Any:
    """A value with the secrets in place of its references.

    Raises:
        UsageError: a variable is not set.
    """
    if isinstance(value, Mapping):
        return {key: fill(part, environment) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(fill(part, environment) for part in value)
    names = references(value)
    if not names:
        return value
    # A secret may contain quotes: inside of JSON it must be escaped.
    if (document := _json_of(value)) is not None:
        return json.dumps(fill(document, environment), ensure_ascii=False)
    for name in names:
        if not environment.get(name):
            raise UsageError(
                f"a secret is missing: the cell takes {name} from the environment, where it is not set",
                next_step=f"set {name}, then run the command again",
            )
        value = value.replace(f"${{{name}}}", environment[name])
    return value


def literal_secrets(value: object, place: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The places where a secret stands by itself, recognised by the key or by its format."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from literal_secrets(part, (*place, str(key)))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from literal_secrets(part, place)
    elif isinstance(value, str) and (document := _json_of(value)) is not None:
        yield from literal_secrets(document, place)
    elif _is_literal(value, place):
        yield place


def secret_refused(key: str) -> tuple[str, str]:
    """The message about a secret under a key, and what to write instead."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", key).strip("_").upper()
    name = name if holds_secret(name) else f"{name}_TOKEN"
    return SECRET_REFUSED, f"${{{name}}}, with {name} set where perfbisect runs"


def hide_literals(value: Any, place: tuple[str, ...] = ()) -> Any:
    """A value to be shown: with a mark in place of secrets that stand by themselves."""
    if isinstance(value, Mapping):
        return {key: hide_literals(part, (*place, str(key))) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(hide_literals(part, place) for part in value)
    if isinstance(value, str) and (document := _json_of(value)) is not None:
        hidden = hide_literals(document, place)
        # Text without a secret keeps its own spelling.
        return value if hidden == document else json.dumps(hidden)
    return REDACTED if _is_literal(value, place, shortest=1) else value


def _is_literal(value: object, place: tuple[str, ...], shortest: int = SHORTEST_SECRET) -> bool:
    """Whether a value is a secret by its format, or by its name and with ``shortest`` characters."""
    # A switch is no secret, whatever its name.
    if isinstance(value, bool) or not isinstance(value, str | int):
        return False
    text = str(value)
    if references(text):
        return False
    pair = _PAIR.fullmatch(text)
    if pair is not None and names_secret(pair[1]) and len(pair[2]) >= shortest:
        return True
    is_named = any(map(names_secret, place)) and len(text) >= shortest
    return is_named or has_secret_format(text)


def _json_of(text: str) -> dict[str, Any] | list[Any] | None:
    """The JSON object or list that an option's text is."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict | list) else None
