"""``LLM(...)`` in the Python of a report: an engine without a server."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from perfbisect.cells.reports.arguments import GivenFields
from perfbisect.common.arguments import parse_options

_LLM = re.compile(r"\bLLM\(")
_PYTHON = re.compile(
    r"\'{3}.*?\'{3}|\"{3}.*?\"{3}|\'(?:\\.|[^\'\\\n])*\'|\"(?:\\.|[^\"\\\n])*\"|#[^\n]*|[()]", re.DOTALL
)
"""Strings, comments and parentheses of Python."""
MOST_CALLS = 100
LONGEST_CALL = 4_000
"""Calls of ``LLM(`` that are tried, and characters of one."""


def read(text: str) -> GivenFields | None:
    """Fields and serve arguments of the first ``LLM(...)`` in Python, but values that it computes."""
    # Bounded: a text of many "LLM(" once took 23 s, as each was parsed to the end.
    for found in islice(_LLM.finditer(text), MOST_CALLS):
        # Up to the parenthesis that closes the call; nothing without one.
        depth = end = 0
        for token in _PYTHON.finditer(text, found.start(), found.start() + LONGEST_CALL):
            depth += (token[0] == "(") - (token[0] == ")")
            if token[0] == ")" and depth <= 0:
                end = token.end()
                break
        try:
            call = ast.parse(text[found.start() : end], mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        if isinstance(call, ast.Call):
            # Keywords without a name are **mappings, whose content is computed.
            given = [(word.arg, word.value) for word in call.keywords if word.arg]
            given += [("model", value) for value in call.args[:1]]
            options = {
                name.replace("_", "-"): literal for name, value in given for literal in _literals(value)
            }
            if options:
                model = options.pop("model", None)
                fields = {"model": model} if model else {}
                return GivenFields({**fields, "deploy_yaml": None, "stage_overrides": None}, options)
    return None


def _literals(value: ast.expr) -> Iterator[object]:
    """The value of an option if it stands there; nothing where it is computed."""
    with suppress(ValueError, TypeError, RecursionError, MemoryError):
        yield from parse_options({"x": ast.literal_eval(value)}, negatable=True).values()
