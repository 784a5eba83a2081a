"""Groups the hunks of a commit, so that each group can be taken back by itself and what is left imports.

A group is what the commit changed in one function. Groups are merged where a file would not compile without
one of them, or where a name would be used that nothing binds any more. Other files than Python are taken back
whole, each by itself. What cannot make a server slower is left out: tests, documentation, comments.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Literal

from perfbisect.changes.hunks import CommitDiff, DiffHunk, FileDiff, HunkId
from perfbisect.common.python_source import parse_python

LeftOutReason = Literal["test", "documentation", "comments", "link", "mode"]

_TEST_FOLDERS = frozenset({"tests", "test", "testing"})
_TEST_NAME = re.compile(r"test_.*\.py$|.*_test\.(py|cc|cpp|cu)$|conftest\.py$")
_DOCUMENT_FOLDERS = frozenset({"docs", "doc", ".github", ".buildkite", ".circleci", "examples"})
_DOCUMENT_SUFFIXES = frozenset({".md", ".rst", ".png", ".jpg", ".svg", ".ipynb"})
_WORD = re.compile(rb"[A-Za-z_]\w*")


@dataclass(frozen=True)
class LeftOutFile:
    """A file, or some of its hunks, that cannot carry a step."""

    path: str
    reason: LeftOutReason


@dataclass(frozen=True)
class HunkGroup:
    """Hunks that are taken back together, in the order of files and lines."""

    hunks: tuple[DiffHunk, ...]

    @property
    def ids(self) -> tuple[HunkId, ...]:
        return tuple(hunk.id for hunk in self.hunks)

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(hunk.path for hunk in self.hunks))

    @property
    def label(self) -> str:
        """``scheduler.py: Scheduler.schedule`` of each file, with lines where no function is."""
        parts = []
        for path in self.paths:
            inside = [hunk for hunk in self.hunks if hunk.path == path]
            places = dict.fromkeys(hunk.function or f"line {hunk.lines}" for hunk in inside)
            parts.append(f"{path}: {', '.join(places)}")
        return "; ".join(parts)


def group_hunks(diff: CommitDiff) -> tuple[tuple[HunkGroup, ...], tuple[LeftOutFile, ...]]:
    """The groups of a commit, and what is left out of them."""
    left_out: dict[str, LeftOutFile] = {}
    clusters: dict[tuple[str, str], list[DiffHunk]] = {}
    reason: LeftOutReason | None
    for file in diff.files:
        path, reason = PurePosixPath(file.path), None
        if _TEST_FOLDERS & set(path.parts[:-1]) or _TEST_NAME.match(path.name):
            reason = "test"
        elif path.parts[0] in _DOCUMENT_FOLDERS or path.suffix in _DOCUMENT_SUFFIXES:
            reason = "documentation"
        elif file.is_link:
            reason = "link"
        elif not file.hunks:
            reason = "mode"
        if reason:
            left_out[file.path] = LeftOutFile(file.path, reason)
            continue
        plain = _Facts.of(file.path, file.after).plain
        for hunk in file.hunks:
            is_split = plain and not file.is_whole
            if is_split and _Facts.of(file.path, file.without({hunk.index})).plain == plain:
                left_out.setdefault(file.path, LeftOutFile(file.path, "comments"))
            else:
                key = hunk.function or f":{hunk.index}" if file.is_python else ""
                clusters.setdefault((file.path, key), []).append(hunk)
    merged = _Merger(diff, [tuple(hunks) for hunks in clusters.values()]).merged()
    return tuple(HunkGroup(hunks) for hunks in merged), tuple(left_out.values())


@dataclass(frozen=True)
class _Facts:
    """What a Python file binds and uses. ``plain``: its code without comments and docstrings."""

    compiles: bool = True
    plain: str = ""
    names: frozenset[str] = frozenset()
    """Bare names that are used and bound nowhere in the file."""
    bound: frozenset[str] = frozenset()
    used: frozenset[str] = frozenset()
    """Names that are looked up in other objects: attributes, keywords, imported names."""
    modules: frozenset[str] = frozenset()
    """Modules that are imported, with dots."""

    @classmethod
    def of(cls, path: str, content: bytes | None) -> _Facts:
        if content is None or not path.endswith(".py"):
            return cls()
        tree = parse_python(content)
        if tree is None:
            return cls(compiles=False)
        reader = _Reader(path)
        try:
            reader.visit(tree)
            plain = _plain(tree)
        except RecursionError:
            return cls(compiles=False)
        # After "from x import *" any name may be bound.
        loaded = reader.loaded - reader.bound if not reader.star else set()
        facts = frozenset(loaded), frozenset(reader.bound | reader.stored), frozenset(reader.used)
        return cls(True, plain, *facts, frozenset(reader.modules))


def _plain(tree: ast.Module) -> str:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = 0 if ast.get_docstring(node, clean=False) is None else 1
            node.body = node.body[first:]
    return ast.dump(tree)


@dataclass
class _Reader(ast.NodeVisitor):
    path: str
    loaded: set[str] = field(default_factory=set)
    bound: set[str] = field(default_factory=set)
    stored: set[str] = field(default_factory=set)
    """Attributes that are assigned to."""
    used: set[str] = field(default_factory=set)
    modules: set[str] = field(default_factory=set)
    star: bool = False

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name):
            (self.loaded if isinstance(node.ctx, ast.Load) else self.bound).add(node.id)
        elif isinstance(node, ast.Attribute):
            (self.used if isinstance(node.ctx, ast.Load) else self.stored).add(node.attr)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self.bound.add(node.name)
        elif isinstance(node, ast.arg):
            self.bound.add(node.arg)
        elif isinstance(node, ast.keyword) and node.arg:
            self.used.add(node.arg)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            self.bound.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            self.bound.add(node.rest)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            self.bound.update(node.names)
        super().generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        for name in node.names:
            self.bound.add(name.asname or name.name.partition(".")[0])
            self.modules.add(name.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        folder = PurePosixPath(self.path).parts[:-1]
        above = ".".join(folder[: len(folder) - node.level + 1]) if node.level else ""
        module = ".".join(filter(None, (above, node.module or "")))
        self.modules.add(module)
        for name in node.names:
            self.star |= name.name == "*"
            self.bound.add(name.asname or name.name)
            self.used.add(name.name)
            self.modules.add(f"{module}.{name.name}")


@dataclass
class _Merger:
    """Merges clusters of hunks until each can be taken back by itself."""

    diff: CommitDiff
    clusters: list[tuple[DiffHunk, ...]]
    _known: dict[tuple[str, frozenset[int]], _Facts] = field(default_factory=dict)

    def merged(self) -> list[tuple[DiffHunk, ...]]:
        # Names that the commit or its parent lacks anyway, as those made at run time, are not a group's
        # problem.
        self._usual = self._problems(()) | self._problems(self.diff.hunks)
        at = 0
        while at < len(self.clusters):
            others = self._needed(at)
            if not others:
                at += 1
                continue
            joined = sorted({at, *others})
            hunks = [hunk for index in joined for hunk in self.clusters[index]]
            order = {file.path: number for number, file in enumerate(self.diff.files)}
            whole = tuple(sorted(hunks, key=lambda hunk: (order[hunk.path], hunk.index)))
            first, *gone = joined
            self.clusters[first] = whole
            for index in reversed(gone):
                del self.clusters[index]
            # A cluster that needed no other may be missing from a larger one now: all are checked again.
            at = 0
        return self.clusters

    def _needed(self, at: int) -> list[int]:
        """The other clusters that must be taken back with one."""
        cluster = self.clusters[at]
        problems = sorted(self._problems(cluster) - self._usual)
        others = [index for index in range(len(self.clusters)) if index != at]
        for kind, place, name in problems:
            near = self._near(kind, place, name, others, cluster)
            for index in near:
                if (kind, place, name) not in self._problems((*cluster, *self.clusters[index])):
                    return [index]
            # All of them only where no single one mends it: small groups tell more.
            if near and (kind, place, name) not in self._problems(
                [*cluster, *(hunk for index in near for hunk in self.clusters[index])]
            ):
                return near
        return []

    def _near(
        self, kind: str, place: str, name: str, others: Iterable[int], cluster: Collection[DiffHunk]
    ) -> list[int]:
        """Clusters that could mend a problem: of the same file, or with the name in their lines."""
        if kind == "syntax":
            lines = [hunk.new_start for hunk in cluster if hunk.path == place]
            distances: dict[int, int] = {}
            for index in others:
                starts = [hunk.new_start for hunk in self.clusters[index] if hunk.path == place]
                if starts and lines:
                    distances[index] = min(abs(start - line) for start in starts for line in lines)
            return sorted(distances, key=lambda index: distances[index])
        words = {part.encode() for part in name.split(".")}
        return [
            index
            for index in others
            if any(words <= self._words(hunk) or _is_module(hunk.path, name) for hunk in self.clusters[index])
        ]

    def _words(self, hunk: DiffHunk) -> set[bytes]:
        file = self.diff.by_path[hunk.path]
        lines = (*file.old_lines(hunk), *file.new_lines(hunk))
        return {word for line in lines for word in _WORD.findall(line)}

    def _problems(self, hunks: Collection[DiffHunk]) -> frozenset[tuple[str, str, str]]:
        """What does not compile or is missing with hunks taken back: (kind, path, name)."""
        reverted: dict[str, set[int]] = {}
        for hunk in hunks:
            reverted.setdefault(hunk.path, set()).add(hunk.index)
        facts: dict[str, _Facts] = {}
        gone: list[str] = []
        ever: set[str] = set()
        for file in self.diff.files:
            if not file.is_python:
                continue
            every = frozenset(hunk.index for hunk in file.hunks)
            taken = frozenset(reverted.get(file.path, ()))
            for state in (frozenset[int](), every):
                ever |= self._facts(file, state).bound
            if file.without(taken) is None:
                gone.append(file.path)
            else:
                facts[file.path] = self._facts(file, taken)
        bound = {name for fact in facts.values() for name in fact.bound}
        found = set[tuple[str, str, str]]()
        for path, fact in facts.items():
            if not fact.compiles:
                found.add(("syntax", path, ""))
            found.update(("name", path, name) for name in fact.names)
            # Most attributes belong to other files: only those that the commit's files bound at some time can
            # be missing.
            found.update(("attribute", path, name) for name in fact.used & (ever - bound))
            found.update(
                ("module", path, module)
                for module in fact.modules
                if any(_is_module(other, module) for other in gone)
            )
        return frozenset(found)

    def _facts(self, file: FileDiff, reverted: frozenset[int]) -> _Facts:
        key = file.path, reverted
        if key not in self._known:
            self._known[key] = _Facts.of(file.path, file.without(reverted))
        return self._known[key]


def _is_module(path: str, module: str) -> bool:
    """True if a dotted name may be a file: ``vllm.v1.core`` is ``vllm/v1/core.py``."""
    dotted = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return "." in module and (dotted == module or dotted.endswith(f".{module}"))


_WHY_LEFT_OUT: Mapping[LeftOutReason, str] = {
    "test": "tests",
    "documentation": "documentation and examples",
    "comments": "comments and docstrings",
    "link": "links and submodules",
    "mode": "permissions or a name alone",
}


def left_out_texts(files: Iterable[LeftOutFile]) -> tuple[str, ...]:
    """What is left out and why, a line a reason."""
    grouped: dict[LeftOutReason, list[str]] = {}
    for file in files:
        grouped.setdefault(file.reason, []).append(file.path)
    return tuple(f"{_WHY_LEFT_OUT[reason]}: {', '.join(paths)}" for reason, paths in grouped.items())
