"""Changed lines and functions of a diff, where a stack meets them, and what a function uses of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal, get_args

from perfbisect.changes.git import Repository
from perfbisect.changes.hunks import FileDiff, line_texts, read_files
from perfbisect.common.python_source import FunctionSpan, parse_python
from perfbisect.explain.stacks import StackFrame, StackSample, is_asleep, is_waiting, sleepers

DiffPlace = Literal["changed line", "changed function", "called from the diff", "elsewhere"]
"""Where a sample meets a diff, the closest first."""

DiffSide = Literal["before", "after"]

CALLER_LEVELS: Final = 2
"""Callers of the repository above the function on top that may be a changed line."""

_SOURCE: Final = ("c", "cc", "cpp", "cu", "cuh", "h", "hpp", "hip", "rs")
_CONFIGURATION: Final = ("json", "yaml", "yml", "toml", "cfg", "ini", "txt", "in", "lock")
_DEFINITION = re.compile(
    r"\s*(?:__global__|template|static|inline|void|torch::|fn |pub |extern|struct |class )"
)
_WORD = re.compile(r"[A-Za-z_]\w{3,}")
_KEYWORDS = """
const void auto static inline template typename class struct namespace return float double bool char half long
short unsigned size_t __global__ __device__ __forceinline__ __restrict__ torch Tensor else switch case while
int32_t int64_t uint8_t uint32_t false true this include define extern public private using constexpr scalar_t
operator kernel
"""
_NOT_A_SYMBOL: Final = frozenset(_KEYWORDS.split())


def silent_lines(source: bytes) -> frozenset[int]:
    """Lines of a Python file that run nothing: empty ones, comments, docstrings."""
    lines = enumerate(source.splitlines(), 1)
    silent = {number for number, line in lines if not line.strip() or line.lstrip().startswith(b"#")}
    tree = parse_python(source)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            silent |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return frozenset(silent)


@dataclass(frozen=True)
class StackDiff:
    """What differs between two commits, for stacks. ``packages``: top folders of its code.

    Files are named by their paths after the diff.
    """

    files: tuple[FileDiff, ...]
    packages: tuple[str, ...]
    read: Callable[[str], str | None] | None = field(default=None, compare=False)
    """The text of a file after the diff."""

    @cached_property
    def by_path(self) -> Mapping[str, FileDiff]:
        return {file.path: file for file in self.files}

    @cached_property
    def renamed(self) -> Mapping[str, str]:
        return {file.old_path: file.path for file in self.files if file.state == "renamed"}

    @cached_property
    def lines(self) -> Mapping[DiffSide, Mapping[str, frozenset[int]]]:
        """Changed lines of Python files that run something."""
        found: dict[DiffSide, dict[str, frozenset[int]]] = {"before": {}, "after": {}}
        for file in self.files:
            if file.is_python:
                removed = frozenset(line for hunk in file.hunks for line in hunk.removed)
                added = frozenset(line for hunk in file.hunks for line in hunk.added)
                # A hunk of comments alone must not make the function around it a changed one.
                found["before"][file.path] = removed - silent_lines(file.before or b"")
                found["after"][file.path] = added - silent_lines(file.after or b"")
        return found

    @cached_property
    def changed(self) -> Mapping[str, frozenset[str]]:
        """Names of functions that have changed lines before or after."""
        names: dict[str, set[str]] = {}
        for side, files in self.lines.items():
            for path, lines in files.items():
                around = (self.function_of(path, line, side) for line in lines)
                names.setdefault(path, set()).update(span.name for span in around if span is not None)
        return {path: frozenset(found) for path, found in names.items()}

    def values(self, path: str) -> tuple[tuple[str, int], ...]:
        """Names that changed lines outside of functions assign after the diff, with the line."""
        tree = parse_python(self.by_path[path].after or b"")
        changed = self.lines["after"].get(path, frozenset())
        bodies = [tree.body] if tree is not None else []
        found = []
        for body in bodies:
            for node in body:
                if isinstance(node, ast.ClassDef):
                    bodies.append(node.body)
                targets: Sequence[ast.expr] = ()
                if isinstance(node, ast.Assign | ast.AnnAssign):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                touched = changed & set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
                if touched:
                    found += [(name.id, min(touched)) for name in targets if isinstance(name, ast.Name)]
        return tuple(found)

    def functions(self, path: str, side: DiffSide) -> tuple[FunctionSpan, ...]:
        """The functions of a Python file of the diff."""
        file = self.by_path.get(path)
        if file is None:
            return ()
        return file.functions_before if side == "before" else file.functions_after

    def function_of(self, path: str, line: int, side: DiffSide) -> FunctionSpan | None:
        """The innermost function around a line."""
        around = [span for span in self.functions(path, side) if line in span.lines]
        return max(around, key=lambda span: span.first, default=None)

    def is_changed_line(self, frame: StackFrame, side: DiffSide) -> bool:
        return frame.line in self.lines[side].get(frame.path, frozenset())

    def is_changed_function(self, frame: StackFrame, side: DiffSide) -> bool:
        span = self.function_of(frame.path, frame.line, side)
        return span is not None and span.name in self.changed[frame.path]

    @cached_property
    def paths(self) -> frozenset[str]:
        return frozenset(path for file in self.files for path in (file.path, file.old_path))

    @property
    def configuration(self) -> tuple[str, ...]:
        """Files that set values: JSON, YAML, requirements."""
        return tuple(file.path for file in self.files if file.suffix in _CONFIGURATION)

    @property
    def compiled(self) -> tuple[FileDiff, ...]:
        """Sources of compiled code."""
        return tuple(file for file in self.files if file.suffix in _SOURCE)

    def is_own(self, frame: StackFrame) -> bool:
        """Whether a frame is of the repository."""
        return frame.path.split("/", 1)[0] in self.packages or frame.path in self.paths

    def place(self, sample: StackSample, side: DiffSide) -> tuple[DiffPlace, StackFrame]:
        """Where a stack meets the diff, and by which frame; ``elsewhere`` with the frame on top.

        Time in a library counts for the line of the repository that calls it.
        """
        frames = [_renamed(frame, self.renamed) if side == "before" else frame for frame in sample.frames]
        own = [frame for frame in reversed(frames) if self.is_own(frame)]
        if not own:
            return "elsewhere", frames[-1]
        nearest = own[0]
        if self.is_changed_line(nearest, side):
            return "changed line", nearest
        if self.is_changed_function(nearest, side):
            return "changed function", nearest
        # Changed lines only: an unchanged line of a changed function calls what it called before.
        for caller in own[1 : 1 + CALLER_LEVELS]:
            if self.is_changed_line(caller, side):
                return "called from the diff", caller
        return "elsewhere", frames[-1]

    def work(self, side: DiffSide) -> Callable[[Sequence[StackSample]], Iterable[StackSample]]:
        """Samples that work, under the paths of the side after; time in a library is its caller's.

        Waiting counts as work of a changed line that waits: nothing else tells a wait that was added from one
        for work.
        """
        renamed = self.renamed if side == "before" else {}

        def reduced(samples: Sequence[StackSample]) -> Iterable[StackSample]:
            asleep = sleepers(samples)
            for sample in samples:
                frames = (
                    tuple(_renamed(frame, renamed) for frame in sample.frames) if renamed else sample.frames
                )
                top = next((i for i in reversed(range(len(frames))) if self.is_own(frames[i])), None)
                if is_asleep(sample, asleep):
                    continue
                if is_waiting(sample) and (top is None or not self.is_changed_line(frames[top], side)):
                    continue
                if frames:
                    kept = frames if top is None else frames[: top + 1]
                    yield StackSample(sample.process, sample.thread, kept, sample.count)

        return reduced


def _renamed(frame: StackFrame, renamed: Mapping[str, str]) -> StackFrame:
    new = renamed.get(frame.path)
    return frame if new is None else StackFrame(frame.function, new, frame.line)


def read_diff(repository: Repository, before: str, after: str, packages: Sequence[str]) -> StackDiff:
    """The diff between two commits.

    Raises:
        RevisionError: git does not know one.
    """
    files = read_files(repository, before, after, errors="replace")
    return StackDiff(files, tuple(packages), lambda path: repository.read_text(after, path))


@dataclass(frozen=True)
class SymbolMatch:
    """A kernel or operator whose name stands in the changed code of a compiled file."""

    operation: str
    symbol: str
    path: str
    line: int


def match_symbols(operations: Iterable[str], diff: StackDiff) -> tuple[SymbolMatch, ...]:
    """Which kernels or operators the changed compiled code names, the longest symbol first.

    A symbol is a name of a changed line, or of the function that git names above it.
    """
    symbols: dict[str, tuple[str, int]] = {}
    for file in diff.compiled:
        for hunk in file.hunks:
            # A kernel that only lost lines is changed as well.
            lines = line_texts((*file.new_lines(hunk), *file.old_lines(hunk)))
            # What C++ or Rust defines: names before a bracket at the beginning of a line.
            defined = (text.partition("(")[0] for text in lines if _DEFINITION.match(text))
            for word in _WORD.findall("\n".join((hunk.heading.partition("(")[0], *defined))):
                if word not in _NOT_A_SYMBOL:
                    symbols.setdefault(word, (file.path, hunk.new_start))
    found = []
    for operation in dict.fromkeys(operations):
        words = set(_WORD.findall(operation))
        named = [s for s in symbols if s in words or any(w in (f"{s}_kernel", f"{s}_impl") for w in words)]
        if named:
            # Short names, as of a namespace, occur in many kernels: the longest is the most specific.
            symbol = max(named, key=lambda s: (len(s), s))
            found.append(SymbolMatch(operation, symbol, *symbols[symbol]))
    return tuple(found)


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


def find_link(path: str, line: int, diff: StackDiff) -> DiffLink | None:
    """The closest thing that the function around a line after the diff uses of other changed files.

    A value is what a changed line outside of functions assigns. A module counts only where its code changed.
    """
    source = diff.read(path) if diff.read is not None else None
    tree = parse_python(source) if source is not None else None
    node = _function_around(tree, line) if tree is not None else None
    if tree is None or node is None:
        return None
    found = [*_imported(tree, node, path, diff)]
    data = {
        file.path.rpartition("/")[2]: file for file in diff.files if file.suffix in ("json", "yaml", "yml")
    }
    for used in ast.walk(node):
        if isinstance(used, ast.Constant) and isinstance(used.value, str):
            file = data.get(used.value.rpartition("/")[2])
            if file is not None:
                first = file.hunks[0].new_start if file.hunks else 0
                found.append(DiffLink("data file", used.value, file.path, first))
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
                # Without an alias the top package is bound: chains of attributes are not followed.
                if alias.asname and (file := _module_file(alias.name, diff)):
                    modules[alias.asname] = file
        elif isinstance(statement, ast.ImportFrom):
            # A relative import begins at the folder of the file.
            folder = path.split("/")[: -statement.level] if statement.level else []
            package = ".".join(filter(None, (*folder, statement.module)))
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
            if changed := diff.lines["after"].get(file):
                yield DiffLink("module", used.value.id, file, min(changed))
        elif isinstance(used, ast.Name) and used.id in members:
            yield from _member(*members[used.id], diff)


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
