"""Command-line options as data: one spelling for ``--max-model-len 512``, however a cell writes it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from perfbisect.common.json_text import parse_json

_NAME = re.compile(r"^[A-Za-z][A-Za-z0-9_.+-]*$")
_NUMBER = re.compile(r"^-?\d+(\.\d+)?$")
_LONGEST_NUMBER = 100
"""Characters of a text that is read as a number."""

_SHORT = dict(
    re.findall(
        r"(\w+)=(\S+)",
        "q=quantization n=nnodes r=node-rank ep=enable-expert-parallel asc=api-server-count "
        "tp=tensor-parallel-size pp=pipeline-parallel-size dp=data-parallel-size "
        "dcp=decode-context-parallel-size pcp=prefill-context-parallel-size dpn=data-parallel-rank "
        "dpr=data-parallel-start-rank dpl=data-parallel-size-local dpa=data-parallel-address "
        "dpp=data-parallel-rpc-port dpb=data-parallel-backend dph=data-parallel-hybrid-lb "
        "dpe=data-parallel-external-lb dpm=data-parallel-multi-port-external-lb O=optimization-level "
        "sc=speculative-config cc=compilation-config ac=attention-config dc=diffusion-config",
    )
)
"""Short options of ``vllm serve``."""

_SHORT_TOKEN = re.compile(r"^-(?:(?P<level>O)(?:=|(?=\w))|(?P<name>[A-Za-z]+)(?P<rest>[=.].*)?$)")

Options = dict[str, object]
"""Option name without dashes, kebab-case -> true, false, number, text, list or mapping."""


def parse_options(value: object, *, negatable: bool, keep_null: bool = False) -> Options:
    """Read options from a mapping or from a list of tokens (``["--enforce-eager", "-tp", "2"]``).

    Underscores become dashes; text that is a number or a JSON object becomes one, so that equal command lines
    are equal options. ``negatable``: of a server, which has short options, and where ``--no-x`` is
    ``x: false``. ``keep_null``: keep null, by which a variant removes an option.

    Raises:
        ValueError: not an option, an unknown short option, or the same option twice.
    """
    if value is None:
        return {}
    if isinstance(value, Mapping):
        pairs: list[tuple[str, object]] = [(_option_name(key), item) for key, item in value.items()]
    elif isinstance(value, Sequence) and not isinstance(value, str):
        pairs = _pair_tokens(value, has_short=negatable)
    else:
        kind = "one text" if isinstance(value, str) else type(value).__name__
        raise ValueError(f"expected a mapping of options or a list of tokens, not {kind}")
    options: Options = {}
    for name, item in pairs:
        if item is None and not keep_null:
            continue
        # Only a switch has a negated form: with a value, no-x is an option of that name.
        if negatable and name.startswith("no-") and isinstance(item, bool):
            name, item = name.removeprefix("no-"), not item
        if name in options:
            raise ValueError(f"option {name!r} is given twice")
        options[name] = _option_value(item)
    return options


def merge_options(base: Mapping[str, object], override: Mapping[str, object]) -> Options:
    """Replace options of ``base`` by those of ``override``; null removes an option."""
    return {name: value for name, value in {**base, **override}.items() if value is not None}


def option_tokens(options: Mapping[str, object], *, negatable: bool) -> tuple[str, ...]:
    """Options -> argv, sorted by name; ``false`` is ``--no-x`` if ``negatable``, else nothing."""
    tokens: list[str] = []
    for name, value in sorted(options.items()):
        if value is True:
            tokens.append(f"--{name}")
        elif value is False:
            tokens += [f"--no-{name}"] if negatable else []
        elif isinstance(value, (list, tuple)):
            tokens += [f"--{name}", *map(_token, value)]
        elif value is not None:
            text = _token(value)
            # argparse would take a separate value that begins with a dash for an option.
            tokens += [f"--{name}={text}"] if text.startswith("-") else [f"--{name}", text]
    return tuple(tokens)


def _option_name(key: object) -> str:
    text = str(key).removeprefix("--")
    if not isinstance(key, str) or not _NAME.match(text):
        raise ValueError(f"{key!r} is no option name (write it long, as max_model_len or max-model-len)")
    head, dot, tail = text.partition(".")
    # Keys of a JSON option follow the dot and keep their underscores.
    return head.replace("_", "-") + dot + tail


def long_option(token: str) -> str:
    """A token with the long name of its option: ``-tp=2`` -> ``--tensor-parallel-size=2``; else unchanged."""
    found = _SHORT_TOKEN.match(token)
    if found is None or (found["name"] and found["name"] not in _SHORT):
        return token
    if found["level"]:
        # -O3 has its value without a space.
        return f"--{_SHORT['O']}={found.string[found.end() :]}"
    return f"--{_SHORT[found['name']]}{found['rest'] or ''}"


def _pair_tokens(tokens: Sequence[object], *, has_short: bool) -> list[tuple[str, object]]:
    long = [long_option(token) if has_short and isinstance(token, str) else token for token in tokens]
    pairs: list[tuple[str, list[object]]] = []
    for token in long:
        if isinstance(token, str) and token.startswith("--"):
            head, equals, tail = token.partition("=")
            pairs.append((_option_name(head), [tail] if equals else []))
        # A negative number is a value.
        elif not pairs or (isinstance(token, str) and token.startswith("-") and not _NUMBER.match(token)):
            raise ValueError(f"{token!r} is not a long option or the value of one")
        else:
            pairs[-1][1].append(token)
    return [(name, values if len(values) > 1 else values[0] if values else True) for name, values in pairs]


def _option_value(item: object) -> object:
    if isinstance(item, str) and item.lstrip().startswith("{"):
        try:
            return string_keys(parse_json(item))
        except ValueError:
            return item
    if isinstance(item, str) and _NUMBER.match(item):
        # int() raises on thousands of digits.
        if len(item) > _LONGEST_NUMBER:
            return item
        number = float(item) if "." in item else int(item)
        # What a number would spell otherwise (007, 1.10) stays text.
        return number if str(number) == item else item
    if isinstance(item, Mapping):
        return string_keys(item)
    if isinstance(item, (list, tuple)):
        return [_option_value(part) for part in item]
    if item is None or isinstance(item, (str, bool, int, float)):
        return string_keys(item)
    raise ValueError(f"{item!r} cannot be the value of an option")


def string_keys(value: object) -> object:
    """Turn every key of a nested value into text. :raises ValueError: no text or integer; a value is NaN."""
    if isinstance(value, Mapping):
        for key in value:
            if isinstance(key, bool) or not isinstance(key, (str, int)):
                raise ValueError(f"{key!r} cannot be a key")
        return {str(key): string_keys(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [string_keys(item) for item in value]
    if value != value:
        raise ValueError("NaN is no number")
    return value


def _token(value: object) -> str:
    if isinstance(value, (Mapping, list, tuple, bool)):
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    return str(value)
