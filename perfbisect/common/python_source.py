"""Python of other programs: parsed, never run."""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass


def parse_python(source: str | bytes) -> ast.Module | None:
    """The tree of a file; None if it does not parse or is nested too deeply."""
    try:
        with warnings.catch_warnings():
            # Python warns of invalid escapes in the strings of a file.
            warnings.simplefilter("ignore")
            return ast.parse(source)
    # CPython's parser raises MemoryError where its stack is full; a NUL raises ValueError before Python 3.12.
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


@dataclass(frozen=True)
class FunctionSpan:
    """A function of a file by its qualified name, with its lines, decorators included."""

    name: str
    first: int
    last: int

    @property
    def lines(self) -> range:
        return range(self.first, self.last + 1)

    @property
    def is_local(self) -> bool:
        """Whether it is defined in another function."""
        return ".<locals>." in self.name


def function_spans(source: str | bytes) -> tuple[FunctionSpan, ...]:
    """Functions of a Python file, outer before inner; none if it does not parse."""
    tree = parse_python(source)
    found: list[FunctionSpan] = []

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                found.append(FunctionSpan(prefix + child.name, first, child.end_lineno or child.lineno))
                visit(child, f"{prefix}{child.name}.<locals>.")
            elif isinstance(child, ast.ClassDef):
                visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
                visit(child, prefix)

    if tree is not None:
        visit(tree, "")
    return tuple(found)
