"""An engine's sources at one commit, read from git's objects: which words, options and files are there."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from packaging.version import InvalidVersion, Version

from perfbisect.cells.lint import Facts
from perfbisect.changes.git import Repository
from perfbisect.changes.pins import DOCKERFILE, pins_of
from perfbisect.errors import LocatedError, RevisionError
from perfbisect.machine.profile import Machine, load_machine, machine, machine_names, profile_of
from perfbisect.model.change import Change
from perfbisect.setup.checkout_kind import ENGINES, PYPROJECT, SETUP, Project, engine_of, project_of
from perfbisect.setup.templates import Seen

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


_UPSTREAM = re.compile(r"[/:]vllm-project/vllm(?:\.git)?/?$")
_TAGS = ("refname:short", "objectname", "*objectname", "creatordate:unix", "*committerdate:unix")


def look(repository: Repository, shell: Mapping[str, str]) -> Seen:
    """What is there at HEAD and on this machine; nothing is started, written or fetched.

    :raises LocatedError: the repository is neither vLLM nor vLLM-Omni.
    :raises RevisionError: it has no commit.
    """
    head = repository.head()
    checkout = Checkout(repository, head.id)
    project = project_of(checkout.text(PYPROJECT), checkout.text(SETUP))
    there = [name for name in ENGINES if repository.tree_id(head.id, f"{name}/__init__.py")]
    engine = engine_of(there)
    if engine is None:
        raise _another(repository, project)
    tags = _releases(repository, head)
    dockerfile = checkout.text(DOCKERFILE) if engine == "vllm_omni" else None
    kind, here = _machine(shell)
    return Seen(
        engine=engine,
        evidence=f"{engine}/, {project.told}",
        releases=tuple(tags),
        at_head=frozenset(tag for tag, sha in tags.items() if sha == head.id),
        upstream=_UPSTREAM.search(repository.remote()) is not None,
        pins=None if dockerfile is None else pins_of(dockerfile),
        machine=kind,
        hardware=here.kind if here.gpus else f"no devices, {here.kind}",
        devices=len(here.gpus),
    )


def _another(repository: Repository, project: Project) -> LocatedError:
    known = " or ".join(f"{name}/ ({people})" for name, people in reversed(ENGINES.items()))
    if project.plugin_line:
        return LocatedError(
            f"{project.name or repository.path.name} is a plug-in of vLLM, with no engine of its own",
            file=repository.path / project.plugin_file,
            line=project.plugin_line,
            next_step="how it is installed only you know: --env 'command:./environment.sh {env} {tree}"
            f",package={project.name.replace('-', '_') or 'NAME'}' (docs/environments.md, Examples)",
        )
    return LocatedError(
        f"no engine that is known: the root has no package {known}; {project.told}",
        file=repository.path / project.file,
        line=project.line or None,
        field="project.name" if project.name else None,
        next_step="perfbisect init --repo PATH, of a checkout of vLLM or vLLM-Omni",
    )


def _releases(repository: Repository, head: Change) -> dict[str, str]:
    """Tag of a release -> its commit, newest first, of those that are not younger than HEAD."""
    form = "%00".join(f"%({field})" for field in _TAGS)
    rows = [
        row.split("\0")
        for row in repository.text("for-each-ref", f"--format={form}", "refs/tags").splitlines()
    ]
    until = int(repository.text("show", "-s", "--format=%ct", head.id).strip())
    found: list[tuple[Version, str, str]] = []
    for tag, own, commit, own_second, commit_second in rows:
        version = _version(tag)
        if version is not None and int(commit_second or own_second or 0) <= until:
            found.append((version, tag, commit or own))
    return {tag: sha for _, tag, sha in sorted(found, reverse=True)}


def _version(tag: str) -> Version | None:
    """The release that a tag names; None for candidates, development versions and other words."""
    try:
        version = Version(tag)
    except InvalidVersion:
        return None
    plain = len(version.release) >= 2 and version.local is None and not version.is_prerelease
    return version if plain else None


def _machine(shell: Mapping[str, str]) -> tuple[str, Machine]:
    """The first kind of machine of which there are devices here, NVIDIA's first; else the processors."""
    names = sorted(machine_names(), key=lambda name: name != "cuda")
    for name in names:
        found = machine(shell, profile_of(load_machine(name)))
        if found.gpus:
            return name, found
    return "cpu", machine(shell, profile_of(load_machine("cpu")))
