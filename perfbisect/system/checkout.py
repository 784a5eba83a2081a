"""An engine's sources at one commit, read from git's objects: which words, options and files are there."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from perfbisect.core.lint import Facts
from perfbisect.errors import RevisionError
from perfbisect.system.git import Repository

_BENCHMARKS = ("vllm_omni/benchmarks", "vllm/benchmarks", "benchmarks")
_ENGINES = ("vllm_omni", "vllm")
"""Packages by which an engine is known, the more special first."""

_REJECTS = (
    ("/v1/audio/speech", "omni", 2763, "speech is for speech models; ask /v1/chat/completions for audio"),
)
"""(endpoint, kind of model, the pull request since which it is refused, what to do)."""


@dataclass(frozen=True)
class Checkout:
    """One commit of a repository of an engine; what does not depend on a cell is read once."""

    repository: Repository
    sha: str

    @cached_property
    def engine(self) -> str:
        """Its package, or the repository's folder where it has none that is known."""
        found = next((name for name in _ENGINES if self.repository.tree_id(self.sha, name)), None)
        return found or self.repository.path.name

    def text(self, path: str) -> str | None:
        """A file; None where it is not there."""
        try:
            return self.repository.read(self.sha, path).decode("utf-8", errors="replace")
        except RevisionError:
            return None

    @cached_property
    def benchmark_words(self) -> frozenset[str]:
        """Every text literal in the Python sources of its benchmarks."""
        words: set[str] = set()
        blobs = [
            entry.blob
            for folder in _BENCHMARKS
            for entry in self.repository.entries(self.sha, folder)
            if entry.path.endswith(".py")
        ]
        for _, content in self.repository.contents(dict.fromkeys(blobs)):
            words |= _literals(content.decode("utf-8", errors="replace"))
        return frozenset(words)

    @cached_property
    def rejects(self) -> tuple[tuple[str, str, str], ...]:
        """Endpoints that its server refuses for a kind of model, with why: those whose change it contains."""
        return tuple(
            (endpoint, kind, f"since #{pull}: {why}")
            for endpoint, kind, pull, why in _REJECTS
            if self.repository.text("log", "-1", "--format=%H", "-F", f"--grep=(#{pull})", self.sha).strip()
        )

    def mentions(self, options: Iterable[str]) -> dict[str, bool]:
        """Whether each option (``max-model-len``) is mentioned, as one or as the field behind it."""
        return {name: self._mentioned(name) for name in options}

    def _mentioned(self, option: str) -> bool:
        name = option.partition(".")[0]
        done = self.repository.run(
            "grep", "-q", "-w", "-F", "-e", f"--{name}", "-e", name.replace("-", "_"), self.sha, "--", "*.py"
        )
        return done.returncode == 0

    def born(self, path: str) -> str:
        """The commit that first added a file, with its date, on any branch; empty where none did."""
        done = self.repository.run(
            "log", "--all", "--diff-filter=A", "--format=%h of %cs", "--reverse", "--", path
        )
        lines = done.stdout.decode(errors="replace").splitlines()
        return lines[0] if done.returncode == 0 and lines else ""


def _literals(source: str) -> set[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return set()
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def facts_of(checkout: Checkout, deploy: str | None, options: Iterable[str]) -> Facts:
    """What the rules need to know for a cell with this deploy YAML of the change and these server options."""
    return Facts(
        engine=checkout.engine,
        at=checkout.sha[:12],
        benchmark_words=checkout.benchmark_words,
        options=checkout.mentions(options),
        deploy=checkout.text(deploy) if deploy else None,
        born=checkout.born(deploy) if deploy else "",
        rejects=checkout.rejects,
    )
