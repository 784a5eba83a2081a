"""Python of other programs: parsed, never run."""

from __future__ import annotations

import ast
import warnings


def parse_python(source: str | bytes) -> ast.Module | None:
    """The tree of a file; None if it does not parse or is nested too deeply."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
