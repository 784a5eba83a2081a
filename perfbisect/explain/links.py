"""What a function that grew uses of a diff elsewhere: a value, a function, a module, a data file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, get_args

from perfbisect.common.python_source import parse_python
from perfbisect.explain.diff import StackDiff
from perfbisect.explain.stacks import FunctionKey

LinkKind = Literal["value", "function", "data file", "module"]
"""The closest first."""

_RANKS: Final[tuple[LinkKind, ...]] = get_args(LinkKind)


@dataclass(frozen=True)
class DiffLink:
    """``name``: what is used; ``path`` and ``line``: where the diff changes it."""

    kind: LinkKind
    name: str
    path: str
    line: int


def find_link(source: str, path: str, line: int, diff: StackDiff) -> DiffLink | None:
    """The closest thing that the function around a line uses of changed files other than its own.

    A value is what a changed line outside of functions assigns. A module counts only where its code changed.
    """
    tree = parse_python(source)
    node = _function_around(tree, line) if tree is not None else None
    if tree is None or node is None:
        return None
    found = [*_imported(tree, node, path, diff), *_data_files(node, diff)]
    return min(found, key=lambda link: (_RANKS.index(link.kind), link.path, link.line), default=None)


def _function_around(tree: ast.Module, line: int) -> ast.AST | None:
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return max(around, key=lambda node: node.lineno, default=None)


def _imported(tree: ast.Module, node: ast.AST, path: str, diff: StackDiff) -> Iterator[DiffLink]:
    modules: dict[str, str] = {}
    members: dict[str, tuple[str, str]] = {}
    for statement in ast.walk(tree):
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                if alias.asname and (file := _module_file(alias.name, diff)):
                    modules[alias.asname] = file
        elif isinstance(statement, ast.ImportFrom):
            package = _package(statement, path)
            for alias in statement.names:
                name = alias.asname or alias.name
                if file := _module_file(f"{package}.{alias.name}", diff):
                    modules[name] = file
                elif file := _module_file(package, diff):
                    members[name] = (file, alias.name)
    for used in ast.walk(node):
        if isinstance(used, ast.Attribute) and isinstance(used.value, ast.Name) and used.value.id in modules:
            file = modules[used.value.id]
            yield from _member(file, used.attr, diff)
            yield from _module(file, used.value.id, diff)
        elif isinstance(used, ast.Name) and used.id in members:
            yield from _member(*members[used.id], diff)


def _package(statement: ast.ImportFrom, path: str) -> str:
    if not statement.level:
        return statement.module or ""
    folder = path.split("/")[: -statement.level]
    return ".".join([*folder, *([statement.module] if statement.module else [])])


def _module_file(dotted: str, diff: StackDiff) -> str:
    stem = dotted.replace(".", "/")
    return next((name for name in (f"{stem}.py", f"{stem}/__init__.py") if name in diff.by_path), "")


def _member(file: str, name: str, diff: StackDiff) -> Iterator[DiffLink]:
    values = dict(diff.values(file))
    if name in values:
        yield DiffLink("value", name, file, values[name])
    if name in diff.changed.get(file, frozenset()):
        spans = [span.first for span in diff.functions(file, "after") if span.name == name]
        yield DiffLink("function", name, file, min(spans, default=0))


def _module(file: str, name: str, diff: StackDiff) -> Iterator[DiffLink]:
    lines = diff.lines["after"].get(file, frozenset())
    if lines:
        yield DiffLink("module", name, file, min(lines))


def _data_files(node: ast.AST, diff: StackDiff) -> Iterator[DiffLink]:
    names = {
        file.path.rpartition("/")[2]: file for file in diff.files if file.suffix in ("json", "yaml", "yml")
    }
    for used in ast.walk(node):
        if isinstance(used, ast.Constant) and isinstance(used.value, str):
            file = names.get(used.value.rpartition("/")[2])
            if file is not None:
                yield DiffLink(
                    "data file", used.value, file.path, file.hunks[0].new_start if file.hunks else 0
                )


def link_of(key: FunctionKey, line: int, diff: StackDiff) -> DiffLink | None:
    """The link of a function that grew, by its file after the diff."""
    source = diff.read(key[0]) if diff.read is not None else None
    return None if source is None else find_link(source, key[0], line, diff)
