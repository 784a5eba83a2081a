"""Who reaches whom through imports: what no layer contract says."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ENTRY = "perfbisect.cli"
"""It starts every command, so its import of the command line is followed from nowhere."""
KINDS = ("perfbisect.bisect", "perfbisect.experiments", "perfbisect.explain")


@cache
def modules() -> Mapping[str, Path]:
    """Module -> file, packages by their own name."""
    paths = sorted((ROOT / "perfbisect").rglob("*.py"))
    dotted = (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths)
    return {name.removesuffix(".__init__"): path for name, path in zip(dotted, paths, strict=True)}


def statements(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports of a module, in functions too, but those for type checkers alone."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        children: list[ast.AST] = list(node.orelse)
    else:
        children = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node
    for child in children:
        yield from statements(child)


@cache
def imports(module: str) -> frozenset[str]:
    """The modules of ours that one imports."""
    found: set[str] = set()
    for statement in statements(ast.parse(modules()[module].read_text())):
        if isinstance(statement, ast.Import):
            found |= {alias.name for alias in statement.names}
        elif statement.module:
            names = {f"{statement.module}.{alias.name}" for alias in statement.names}
            found |= {name if name in modules() else statement.module for name in names}
    return frozenset(found & modules().keys())


def reached(*starts: str) -> set[str]:
    """The modules that are reached from these, themselves among them."""
    found, waiting = set(starts), list(starts)
    while waiting:
        module = waiting.pop()
        fresh = imports(module) - found if module != ENTRY else set()
        found |= fresh
        waiting += fresh
    return found


def under(*packages: str) -> set[str]:
    """The modules of packages, without the packages themselves."""
    prefixes = tuple(f"{package}." for package in packages)
    files = {name for name, path in modules().items() if path.stem != "__init__"}
    return {name for name in files if name.startswith(prefixes)}


def test_only_a_bisection_reaches_the_bisection() -> None:
    bisection = under("perfbisect.bisect")
    assert reached("perfbisect.cli.bisect") >= bisection, "or nothing here would show"
    assert reached("perfbisect.cli.compare") & bisection == set()


def test_detection_reaches_no_environment_builder() -> None:
    builders = {name for name in modules() if name.startswith("perfbisect.environments.builders")}
    assert reached("perfbisect.cli.compare") & builders
    assert reached("perfbisect.cli.reproduce") & builders
    assert reached("perfbisect.cli.track", "perfbisect.cli.alerts") & builders == set()


def test_the_engine_knows_no_experiment() -> None:
    assert reached(*under("perfbisect.jobs", "perfbisect.engine")) & under(*KINDS) == set()


@pytest.mark.parametrize("module", sorted(name for name in modules() if name.startswith(f"{ENTRY}.")))
def test_no_command_is_in_a_circle(module: str) -> None:
    assert module not in reached(*imports(module))
