"""Numbers of the package's code that may only fall.

    python -m scripts.house             the numbers, their limits and goals
    python -m scripts.house --list      also what was counted

- **mirror pairs**: two classes that share at least four fields, which are 60 % of the smaller one's. A field
  counts by its name; what both inherit from one base is declared once and does not count.
- **sharing pairs**: the same with inherited fields, except a class and its own base. It has no limit.
- **used once**: functions and classes at the top of a module whose name stands once outside of imports.
- **classes**: all of them, nested ones too.
- **own imports**: modules of the package that a file imports, on average.
- **chain**: modules on the longest chain of definitions, each naming the next, from one of ``cli`` to a class
  ``...Plan``, both ends counted. Annotations do not count.
- **comments**: lines that hold only a comment, in per cent of all; notes to tools (``noqa``) are none.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path

from scripts.simulation import ROOT, print_head, print_row

PACKAGE = ROOT / "perfbisect"
SHARED_FIELDS, SHARED_PART = 4, 0.6
TOOL_NOTES = re.compile(r"#\s*(noqa|type:|pragma:|fmt:|mypy:|!)")


@dataclass(frozen=True)
class Limit:
    """The best value reached, which is not to be passed, and the value to reach."""

    reached: float
    goal: float | None
    rises: bool = False
    """Whether a larger value is the better one."""


LIMITS: Mapping[str, Limit] = {
    "mirror pairs": Limit(32, 40),
    "used once": Limit(550, 550),
    "classes": Limit(718, 450),
    "own imports": Limit(6.81, 5.5),
    "chain": Limit(7, None),
    "comments": Limit(1.79, 1.5, rises=True),
}
"""Moved only towards the goal, to what ``python -m scripts.house`` prints."""

SLACK = 0.03
"""The part of a limit by which a number may be worse: changes that are merged add up."""

MOST_COMMENTS = 4.0

Definition = tuple[str, str]
"""A module and a name at its top; the module itself has the empty name."""


@dataclass(frozen=True)
class Count:
    """A number and what was counted."""

    value: float
    what: Sequence[str]


@dataclass(frozen=True)
class Statement:
    """A statement at the top of a module, and what it consists of."""

    node: ast.stmt
    evaluated: Sequence[ast.AST]
    annotations: Sequence[ast.AST]

    @property
    def nodes(self) -> Sequence[ast.AST]:
        return [*self.evaluated, *self.annotations]

    @property
    def names(self) -> list[str]:
        """The names that it defines."""
        if isinstance(self.node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return [self.node.name]
        if isinstance(self.node, ast.Assign | ast.AnnAssign):
            named = self.node.targets if isinstance(self.node, ast.Assign) else [self.node.target]
            return [target.id for target in named if isinstance(target, ast.Name)]
        return []


@dataclass(frozen=True)
class Module:
    """A module by its dotted name."""

    name: str
    text: str
    statements: Sequence[Statement]

    @property
    def nodes(self) -> Iterator[ast.AST]:
        return (node for statement in self.statements for node in statement.nodes)


def read_package(folder: Path) -> dict[str, Module]:
    """The modules of the package in a folder, by name."""
    modules = {}
    for path in sorted(folder.rglob("*.py")):
        parts = (folder.name, *path.relative_to(folder).with_suffix("").parts)
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text()
        modules[name] = Module(name, text, [read_statement(node) for node in ast.parse(text).body])
    return modules


COUNTED = (ast.Name, ast.Attribute, ast.ClassDef, ast.ImportFrom)


def read_statement(statement: ast.stmt) -> Statement:
    """A statement with the nodes that are counted."""
    evaluated: list[ast.AST] = []
    annotations: list[ast.AST] = []

    def visit(node: ast.AST, found: list[ast.AST]) -> None:
        if isinstance(node, COUNTED):
            found.append(node)
        for field in node._fields:
            value = getattr(node, field, None)
            into = annotations if field in ("annotation", "returns") else found
            if isinstance(value, list):
                for part in value:
                    if isinstance(part, ast.AST):
                        visit(part, into)
            elif isinstance(value, ast.AST) and field not in ("ctx", "op"):
                visit(value, into)

    visit(statement, evaluated)
    return Statement(statement, evaluated, annotations)


def count_all(modules: Mapping[str, Module]) -> dict[str, Count]:
    nodes = [node for module in modules.values() for node in module.nodes]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    mirrors, sharing = sharing_pairs(classes)
    return {
        "mirror pairs": Count(len(mirrors), mirrors),
        "sharing pairs": Count(len(sharing), sharing),
        "used once": used_once(modules, nodes),
        "classes": Count(len(classes), [node.name for node in classes]),
        "own imports": own_imports(modules),
        "chain": longest_chain(modules),
        "comments": comment_lines(modules),
    }


def excesses(counts: Mapping[str, Count], limits: Mapping[str, Limit] = LIMITS) -> list[str]:
    """What is worse than its limit, as sentences."""
    worse = []
    for name, limit in limits.items():
        value, sign = counts[name].value, -1 if limit.rises else 1
        if sign * value > sign * limit.reached * (1 + sign * SLACK):
            worse.append(f"{name}: {value:g} is {'below' if limit.rises else 'above'} {limit.reached:g}")
    if counts["comments"].value > MOST_COMMENTS:
        worse.append(f"comments: {counts['comments'].value:g} % is above {MOST_COMMENTS:g} %")
    return worse


def sharing_pairs(classes: Sequence[ast.ClassDef]) -> tuple[list[str], list[str]]:
    """Pairs of classes that declare the same fields, and that have the same; bases are found by name."""
    by_name = {node.name: node for node in classes}

    @cache
    def lineage(name: str) -> tuple[str, ...]:
        """A class and its bases in the package, nearest first."""
        bases = [base for base in base_names(by_name[name]) if base in by_name and base != name]
        return (name, *dict.fromkeys(far for base in bases for far in lineage(base)))

    owners: dict[str, dict[str, str]] = {}
    for name in by_name:
        owners[name] = {}
        for owner in lineage(name):
            for field in declared_fields(by_name[owner]):
                owners[name].setdefault(field, owner)

    mirrors, sharing = [], []
    for one, other in combinations(by_name, 2):
        mine, theirs = owners[one], owners[other]
        common = mine.keys() & theirs.keys()
        if len(common) < SHARED_FIELDS or one in lineage(other) or other in lineage(one):
            continue
        inherited = sum(mine[field] == theirs[field] for field in common)
        declared = len(common) - inherited
        if is_mirror(len(common), len(mine), len(theirs)):
            sharing.append(f"{one} = {other} ({len(common)})")
        if is_mirror(declared, len(mine) - inherited, len(theirs) - inherited):
            mirrors.append(f"{one} = {other} ({declared})")
    return mirrors, sharing


def is_mirror(shared: int, mine: int, theirs: int) -> bool:
    return shared >= SHARED_FIELDS and shared >= SHARED_PART * min(mine, theirs)


def base_names(node: ast.ClassDef) -> Iterator[str]:
    for base in node.bases:
        named = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(named, ast.Name | ast.Attribute):
            yield named.id if isinstance(named, ast.Name) else named.attr


def declared_fields(node: ast.ClassDef) -> Iterator[str]:
    for part in node.body:
        if not isinstance(part, ast.AnnAssign) or "ClassVar" in ast.unparse(part.annotation):
            continue
        if isinstance(part.target, ast.Name):
            yield part.target.id


def used_once(modules: Mapping[str, Module], nodes: Sequence[ast.AST]) -> Count:
    uses = Counter(
        node.id if isinstance(node, ast.Name) else node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))
    )
    once = [
        f"{module.name}.{statement.node.name}"
        for module in modules.values()
        for statement in module.statements
        if isinstance(statement.node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and uses[statement.node.name] == 1
    ]
    return Count(len(once), once)


def own_imports(modules: Mapping[str, Module]) -> Count:
    each = {
        name: len({source for source, _ in imported_names(module, modules).values()} - {name})
        for name, module in modules.items()
    }
    most = sorted(each, key=each.__getitem__, reverse=True)
    return Count(round(sum(each.values()) / len(each), 2), [f"{each[name]} {name}" for name in most])


def imported_names(module: Module, known: Mapping[str, Module]) -> dict[str, Definition]:
    """The names that a module imports from the package -> what they stand for."""
    found: dict[str, Definition] = {}
    for node in module.nodes:
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module in known:
            for alias in node.names:
                member = f"{node.module}.{alias.name}"
                target = (member, "") if member in known else (node.module, alias.name)
                found[alias.asname or alias.name] = target
    return found


def longest_chain(modules: Mapping[str, Module]) -> Count:
    """The longest chain from a command to a plan; definitions that refer to each other are one link."""
    edges = references(modules)
    group = mutual(edges)
    below: dict[Definition, set[Definition]] = {first: set() for first in group.values()}
    for source, targets in edges.items():
        below[group[source]] |= {group[target] for target in targets} - {group[source]}
    plans = {group[source] for source in edges if source[1].endswith("Plan")}

    @cache
    def down(source: Definition) -> tuple[str, ...]:
        """Modules of the longest chain to a plan; empty where none is reached."""
        if source in plans:
            return source[:1]
        longest = max((down(target) for target in sorted(below[source])), key=len, default=())
        return longest if longest[:1] in ((), source[:1]) else (source[0], *longest)

    commands = sorted({group[source] for source in edges if source[0].split(".")[1:2] == ["cli"]})
    longest = max(map(down, commands), key=len, default=())
    return Count(len(longest), [" > ".join(longest)])


def references(modules: Mapping[str, Module]) -> dict[Definition, set[Definition]]:
    """Each definition at the top of a module -> those that it names, annotations aside."""
    found: dict[Definition, set[Definition]] = {}
    for module in modules.values():
        imports = imported_names(module, modules)
        for statement in module.statements:
            named = {meant(node, module.name, imports) for node in statement.evaluated}
            for name in statement.names:
                found[module.name, name] = named - {(module.name, name)}
    return {source: targets & found.keys() for source, targets in found.items()}


def meant(node: ast.AST, module: str, imports: Mapping[str, Definition]) -> Definition:
    """What a name, or a member of a module, stands for."""
    if isinstance(node, ast.Name):
        return imports.get(node.id, (module, node.id))
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return imports.get(node.value.id, ("", ""))[0], node.attr
    return "", ""


def mutual(edges: Mapping[Definition, set[Definition]]) -> dict[Definition, Definition]:
    """Each node -> the first of those that reach each other, itself among them (Tarjan)."""
    low: dict[Definition, int] = {}
    stack: list[Definition] = []
    group: dict[Definition, Definition] = {}

    def visit(node: Definition) -> None:
        order = low[node] = len(low)
        stack.append(node)
        for target in edges[node]:
            if target not in low:
                visit(target)
            if target not in group:
                low[node] = min(low[node], low[target])
        if low[node] == order:
            members = stack[stack.index(node) :]
            del stack[-len(members) :]
            group.update(dict.fromkeys(members, min(members)))

    for node in edges:
        if node not in low:
            visit(node)
    return group


def comment_lines(modules: Mapping[str, Module]) -> Count:
    comments = [
        f"{module.name}:{token.start[0]}"
        for module in modules.values()
        if re.search(r"^\s*#", module.text, re.MULTILINE)
        for token in tokenize.generate_tokens(io.StringIO(module.text).readline)
        if token.type == tokenize.COMMENT
        and token.line.lstrip().startswith("#")
        and not TOOL_NOTES.match(token.string)
    ]
    lines = sum(module.text.count("\n") for module in modules.values())
    return Count(round(100 * len(comments) / lines, 2), comments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the numbers. :returns: 1 where one is worse than its limit."""
    options = argparse.ArgumentParser(description="Numbers of the package's code that may only fall.")
    options.add_argument("--list", action="store_true", help="print what was counted, too")
    chosen = options.parse_args(arguments)
    counts = count_all(read_package(PACKAGE))
    print_head("number", "now", "limit", "goal")
    for name, count in counts.items():
        limit = LIMITS.get(name, Limit(float("nan"), None))
        columns = (count.value, limit.reached, float("nan") if limit.goal is None else limit.goal)
        print_row([name, *(f"{value:g}".replace("nan", "-") for value in columns)])
    if chosen.list:
        for name, count in counts.items():
            print(f"\n{name}:", *count.what, sep="\n  ")
    worse = excesses(counts)
    for sentence in worse:
        print(sentence)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
