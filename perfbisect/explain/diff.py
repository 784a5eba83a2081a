"""Changed lines and functions of a diff, and where a stack meets them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal

from perfbisect.changes.git import Repository
from perfbisect.changes.hunks import FileDiff, read_files
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


def assigned_names(source: bytes, lines: frozenset[int]) -> tuple[tuple[str, int], ...]:
    """Names that these lines assign in a module or a class, with the line."""
    tree = parse_python(source)
    bodies = [tree.body] if tree is not None else []
    found = []
    for body in bodies:
        for node in body:
            if isinstance(node, ast.ClassDef):
                bodies.append(node.body)
            targets = (
                node.targets
                if isinstance(node, ast.Assign)
                else [node.target]
                if isinstance(node, ast.AnnAssign)
                else []
            )
            touched = lines & set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            if touched:
                found += [(name.id, min(touched)) for name in targets if isinstance(name, ast.Name)]
    return tuple(found)


def _innermost(spans: Iterable[FunctionSpan], line: int) -> FunctionSpan | None:
    around = [span for span in spans if span.first <= line <= span.last]
    return max(around, key=lambda span: span.first, default=None)


@dataclass(frozen=True)
class DiffSources:
    """One side of a diff: changed lines and all functions of each Python file, by path of the side after."""

    lines: Mapping[str, frozenset[int]]
    functions: Mapping[str, tuple[FunctionSpan, ...]]
    changed: Mapping[str, frozenset[str]]
    """Names of changed functions."""

    def is_changed_line(self, frame: StackFrame) -> bool:
        return frame.line in self.lines.get(frame.path, frozenset())

    def function_of(self, path: str, line: int) -> FunctionSpan | None:
        """The innermost function around a line."""
        return _innermost(self.functions.get(path, ()), line)

    def is_changed_function(self, frame: StackFrame) -> bool:
        span = self.function_of(frame.path, frame.line)
        return span is not None and span.name in self.changed.get(frame.path, frozenset())


@dataclass(frozen=True)
class StackDiff:
    """What differs between two commits, for stacks. ``packages``: top folders of its code."""

    files: tuple[FileDiff, ...]
    before: DiffSources
    after: DiffSources
    packages: tuple[str, ...]
    renamed: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    """File -> names that changed lines outside of functions assign, with the line."""
    read: Callable[[str], str | None] | None = field(default=None, compare=False)
    """The text of a file after the diff."""

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
        sources = self.before if side == "before" else self.after
        frames = [_renamed(frame, self.renamed) if side == "before" else frame for frame in sample.frames]
        own = [frame for frame in reversed(frames) if self.is_own(frame)]
        if not own:
            return "elsewhere", frames[-1]
        nearest = own[0]
        if sources.is_changed_line(nearest):
            return "changed line", nearest
        if sources.is_changed_function(nearest):
            return "changed function", nearest
        for caller in own[1 : 1 + CALLER_LEVELS]:
            if sources.is_changed_line(caller):
                return "called from the diff", caller
        return "elsewhere", frames[-1]

    def work(self, side: DiffSide) -> Callable[[Sequence[StackSample]], Iterable[StackSample]]:
        """Samples that work, under the paths of the side after; time in a library is its caller's.

        Waiting counts as work of a changed line that waits: nothing else tells a wait that was added from one
        for work.
        """
        sources = self.before if side == "before" else self.after
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
                if is_waiting(sample) and (top is None or not sources.is_changed_line(frames[top])):
                    continue
                if frames:
                    kept = frames if top is None else frames[: top + 1]
                    yield StackSample(sample.process, sample.thread, kept, sample.count)

        return reduced


def _renamed(frame: StackFrame, renamed: Mapping[str, str]) -> StackFrame:
    new = renamed.get(frame.path)
    return frame if new is None else StackFrame(frame.function, new, frame.line)


def build_diff(
    files: Sequence[FileDiff], packages: Sequence[str], read: Callable[[str], str | None] | None = None
) -> StackDiff:
    """A diff with the functions that it changes. ``read``: the text of any file after it."""
    lines: dict[DiffSide, dict[str, frozenset[int]]] = {"before": {}, "after": {}}
    spans: dict[DiffSide, dict[str, tuple[FunctionSpan, ...]]] = {"before": {}, "after": {}}
    changed: dict[str, frozenset[str]] = {}
    values: dict[str, tuple[tuple[str, int], ...]] = {}
    for file in files:
        if file.suffix != "py":
            continue
        removed = frozenset(line for hunk in file.hunks for line in hunk.removed)
        added = frozenset(line for hunk in file.hunks for line in hunk.added)
        lines["before"][file.path] = removed - silent_lines(file.before or b"")
        lines["after"][file.path] = added - silent_lines(file.after or b"")
        spans["before"][file.path], spans["after"][file.path] = file.functions
        around = (
            _innermost(spans[side][file.path], line) for side in spans for line in lines[side][file.path]
        )
        changed[file.path] = frozenset(span.name for span in around if span is not None)
        values[file.path] = assigned_names(file.after or b"", lines["after"][file.path])
    before, after = (DiffSources(lines[side], spans[side], changed) for side in spans)
    renamed = {file.old_path: file.path for file in files if file.state == "renamed"}
    return StackDiff(tuple(files), before, after, tuple(packages), renamed, values, read)


def read_diff(repository: Repository, before: str, after: str, packages: Sequence[str]) -> StackDiff:
    """The diff between two commits.

    Raises:
        RevisionError: git does not know one.
    """
    return build_diff(
        read_files(repository, before, after, errors="replace"),
        packages,
        lambda path: repository.read_text(after, path),
    )


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
            lines = (line.decode(errors="replace") for line in (*file.new_lines(hunk), *file.old_lines(hunk)))
            for word in _WORD.findall("\n".join((hunk.heading.partition("(")[0], *_definitions(lines)))):
                if word not in _NOT_A_SYMBOL:
                    symbols.setdefault(word, (file.path, hunk.new_start))
    found = []
    for operation in dict.fromkeys(operations):
        words = set(_WORD.findall(operation))
        named = [s for s in symbols if s in words or any(w in (f"{s}_kernel", f"{s}_impl") for w in words)]
        if named:
            symbol = max(named, key=lambda s: (len(s), s))
            found.append(SymbolMatch(operation, symbol, *symbols[symbol]))
    return tuple(found)


def _definitions(lines: Iterable[str]) -> list[str]:
    """What changed lines of C++ or Rust define: names before a bracket at the beginning of a line."""
    return [line.partition("(")[0] for line in lines if _DEFINITION.match(line)]
