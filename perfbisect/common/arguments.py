"""Command-line options as data: one spelling for ``--max-model-len 512``, however a cell writes it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

_NAME = re.compile(r"^[A-Za-z][A-Za-z0-9_.+-]*$")
_NUMBER = re.compile(r"^-?\d+(\.\d+)?$")

Options = dict[str, object]
"""Option name without dashes, kebab-case -> true, false, number, text, list or mapping."""


def parse_options(value: object, *, negatable: bool, keep_null: bool = False) -> Options:
    """A mapping of names to values, or a list of tokens (``["--enforce-eager", "--seed", "1"]``) -> options.

    Names may be written with underscores or dashes. Text that is a number or a JSON object becomes that, so
    that equal command lines are equal options. ``negatable``: ``--no-x`` is ``x: false`` (the engine has both
    forms of a switch, the client has not). ``keep_null``: null stays (a variant takes an option away), or
    it is left out.

    :raises ValueError: not an option, twice the same option, or a short option.
    """
    if value is None:
        return {}
    if isinstance(value, str):
        raise ValueError("expected a mapping of options or a list of tokens, not one text")
    if isinstance(value, Mapping):
        pairs: list[tuple[str, object]] = [(_name(key), item) for key, item in value.items()]
    elif isinstance(value, Sequence):
        pairs = _from_tokens(value)
    else:
        raise ValueError(f"expected a mapping of options or a list of tokens, not {type(value).__name__}")
    options: Options = {}
    for name, item in pairs:
        if item is None and not keep_null:
            continue
        if negatable and name.startswith("no-") and isinstance(item, bool):
            name, item = name.removeprefix("no-"), not item
        if name in options:
            raise ValueError(f"option {name!r} is given twice")
        options[name] = _value(item)
    return options


def merge_options(base: Mapping[str, object], override: Mapping[str, object]) -> Options:
    """``base`` with the options of ``override`` in their place; null there takes an option away."""
    return {name: value for name, value in {**base, **override}.items() if value is not None}


def option_tokens(options: Mapping[str, object], *, negatable: bool) -> tuple[str, ...]:
    """Options -> argv, sorted by name. ``false`` is ``--no-x`` where the program has it, else nothing."""
    tokens: list[str] = []
    for name in sorted(options):
        value = options[name]
        if value is True:
            tokens.append(f"--{name}")
        elif value is False:
            tokens += [f"--no-{name}"] if negatable else []
        elif isinstance(value, (list, tuple)):
            tokens += [f"--{name}", *(_text(item) for item in value)]
        elif value is not None:
            text = _text(value)
            tokens += [f"--{name}={text}"] if text.startswith("-") else [f"--{name}", text]
    return tuple(tokens)


def _name(key: object) -> str:
    text = str(key).removeprefix("--")
    if not isinstance(key, str) or not _NAME.match(text):
        raise ValueError(f"{key!r} is no option name (write it long, as max_model_len or max-model-len)")
    head, dot, tail = text.partition(".")
    return head.replace("_", "-") + dot + tail


def _from_tokens(tokens: Sequence[object]) -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = []
    values: list[object] = []
    for token in tokens:
        if isinstance(token, str) and token.startswith("--"):
            if pairs:
                pairs[-1] = (pairs[-1][0], _joined(values))
            head, equals, tail = token.partition("=")
            pairs.append((_name(head), True))
            values = [tail] if equals else []
        elif not pairs or (isinstance(token, str) and token.startswith("-") and not _NUMBER.match(token)):
            raise ValueError(f"{token!r} is not a long option or the value of one")
        else:
            values.append(token)
    if pairs:
        pairs[-1] = (pairs[-1][0], _joined(values))
    return pairs


def _joined(values: list[object]) -> object:
    if not values:
        return True
    return values[0] if len(values) == 1 else values


def _value(item: object) -> object:
    if isinstance(item, str):
        if item.lstrip().startswith("{"):
            try:
                return string_keys(json.loads(item))
            except json.JSONDecodeError:
                return item
        if _NUMBER.match(item):
            number = float(item) if "." in item else int(item)
            return number if str(number) == item else item
        return item
    if isinstance(item, Mapping):
        return string_keys(item)
    if isinstance(item, (list, tuple)):
        return [_value(part) for part in item]
    if item is None or isinstance(item, (bool, int, float)):
        return item
    raise ValueError(f"{item!r} cannot be the value of an option")


def string_keys(value: object) -> object:
    """A nested value with every key as text, as JSON has it. :raises ValueError: a key of another kind."""
    if isinstance(value, Mapping):
        for key in value:
            if isinstance(key, bool) or not isinstance(key, (str, int)):
                raise ValueError(f"{key!r} cannot be a key")
        return {str(key): string_keys(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [string_keys(item) for item in value]
    return value


def _text(value: object) -> str:
    if isinstance(value, (Mapping, list, tuple)):
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
