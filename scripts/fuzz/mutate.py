"""Good inputs with a few faults, drawn from a seed."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

_DEEP = 3000

_VALUES: tuple[object, ...] = (
    *(None, True, False, 0, -1, 1, 1.5, -0.0, 5e-324, 1e-300, 1e300, math.nan, math.inf, -math.inf),
    *(2**31, 2**63, 10**20, 10**400, -(10**400), "", " ", "x", "0", "1", "-1.5", "nan", "1e999", "9" * 5000),
    *("\0", "a\0b", "\ud800", "\x1b[31m", "\u202e", "é" * 300, "a" * 300, "../../x", "/", "~", "*", "[[["),
    *("2026-04-12T19:00:00Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59Z", "20260412-190255"),
    *([], {}, [[]], [None], ["x"], [1, "x"], [math.nan], {"": None}, {"a": [1]}, {"\0": 1}, {"a": {"b": {}}}),
)

_TOKENS = (
    *(
        "[",
        "{",
        "]",
        "}",
        '"',
        "'",
        ",",
        ":",
        "\0",
        "\n",
        "\t",
        " ",
        "-",
        "- ",
        "&a ",
        "*a",
        "<<: ",
        "!!x ",
        "|",
    ),
    *(
        "#",
        "~",
        "null",
        "true",
        "0x",
        "1e999",
        "NaN",
        "Infinity",
        "9" * 400,
        "9" * 5000,
        "\\u0000",
        "\\ud800",
    ),
    *("é", "\ufeff", "\u2028", "LLM(", "vllm serve ", "--", "`", "```", "$", "${", ")", "a" * 300, "(" * 50),
)

Mutation = Callable[[Random, Any], Any]


def bend_json(random: Random, document: object) -> Any:
    """A document with one to three wrong values."""
    found: Any = {"": copy.deepcopy(document)}
    for _ in range(random.randint(1, 3)):
        place = random.choice(list(_places(found)))
        above = found
        for step in place[:-1]:
            above = above[step]
        _bend_at(random, above, place[-1])
    return found[""]


def json_text(random: Random, value: object) -> str:
    """JSON, sometimes spoilt as text."""
    text = json.dumps(value, default=str, ensure_ascii=random.random() < 0.5)
    return bend_text(random, text) if random.random() < 0.3 else text


def bend_text(random: Random, text: str) -> str:
    """A text with one to four faults."""
    for _ in range(random.randint(1, 4)):
        text = random.choice(_OF_TEXT)(random, text)
    return text


def bend_bytes(random: Random, content: bytes) -> bytes:
    """Bytes with one to four faults."""
    for _ in range(random.randint(1, 4)):
        start, end = _span(random, len(content))
        kind = random.randrange(4)
        if kind == 0:
            content = content[:start] + content[end:]
        elif kind == 1:
            content = content[:start]
        elif kind == 2:
            content = content[:start] + random.randbytes(min(16, end - start + 1)) + content[end:]
        else:
            content = content[:end] + content[start:end] + content[end:]
    return content


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in items:
        yield (*place, step)
        yield from _places(inner, (*place, step))


def _bend_at(random: Random, above: Any, step: Any) -> None:
    kind = random.randrange(8)
    if kind < 4:
        above[step] = copy.deepcopy(random.choice(_VALUES))
    elif kind == 4:
        above[step] = [above[step]] if random.random() < 0.5 else {"x": above[step]}
    elif kind == 5 and isinstance(above, dict) and step:
        above[f"{step}{random.choice(['', 's', chr(0), '.x'])}"] = above.pop(step)
    elif kind == 6 and isinstance(above, list):
        above.insert(step, copy.deepcopy(above[step]))
    elif step:
        above.pop(step)


def _span(random: Random, length: int) -> tuple[int, int]:
    start = random.randint(0, length)
    return start, min(length, start + random.choice((0, 1, 3, 10, 100)))


def _insert(random: Random, text: str) -> str:
    at = random.randint(0, len(text))
    return text[:at] + random.choice(_TOKENS) + text[at:]


def _repeat(random: Random, text: str) -> str:
    at = random.randint(0, len(text))
    token = random.choice(_TOKENS)
    return text[:at] + token * min(random.choice((2, 50, _DEEP, 20_000)), 60_000 // len(token)) + text[at:]


def _remove(random: Random, text: str) -> str:
    start, end = _span(random, len(text))
    return text[:start] + text[end:]


def _cut(random: Random, text: str) -> str:
    return text[: random.randint(0, len(text))]


def _copy(random: Random, text: str) -> str:
    start, end = _span(random, len(text))
    at = random.randint(0, len(text))
    return text[:at] + text[start:end] + text[at:]


def _lines(random: Random, text: str) -> str:
    lines = text.splitlines(keepends=True) or [""]
    random.shuffle(lines)
    return "".join(lines[: random.randint(1, len(lines))])


def _flip(random: Random, text: str) -> str:
    at = random.randrange(len(text)) if text else 0
    return (
        text[:at] + chr(random.choice((0, 9, 10, 32, 39, 127, 133, 0x202E, 0xFFFE, 0x1F600))) + text[at + 1 :]
    )


_OF_TEXT: tuple[Mutation, ...] = (_insert, _insert, _repeat, _remove, _cut, _copy, _lines, _flip)
