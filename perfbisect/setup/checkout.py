"""An engine's checkout at HEAD, read from git objects: engine, releases, pins and machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from functools import partial

from packaging.version import InvalidVersion, Version

from perfbisect.cells.lint import ENGINES
from perfbisect.changes.git import Repository
from perfbisect.changes.pins import DOCKERFILE, Pins, parse_pins
from perfbisect.errors import LocatedError
from perfbisect.machine.profile import load_machine, machine, machine_names
from perfbisect.model.change import Change

SETTINGS_FILE = "perfbisect.yaml"
"""At the root of the checkout: defaults of options."""

PYPROJECT, SETUP = "pyproject.toml", "setup.py"

_TABLE = re.compile(r"^\[(?P<table>[^\[\]]+)\]\s*(?:#.*)?$")
_NAME = re.compile(r"""^name\s*=\s*["'](?P<name>[A-Za-z0-9._-]+)["']""")
_SETUP_NAME = re.compile(r"""\bname\s*=\s*["'](?P<name>[A-Za-z0-9._-]+)["']""")
_PLUGIN = re.compile(r"\bvllm\.(?:platform|general)_plugins\b")


@dataclass(frozen=True)
class DetectedCheckout:
    """A checkout at HEAD, and the machine.

    ``engine``: import name; ``evidence``: how it was recognised. ``releases``: release tags not younger than
    HEAD, newest first; ``at_head``: those of HEAD itself; ``commits_behind``, ``days_behind``: how far the
    newest is behind HEAD. ``upstream``: whether its remote is the engine's own repository.
    ``pins``: of vLLM-Omni, None without a Dockerfile. ``machine``: the kind, as ``--machine`` takes it;
    ``hardware``: a description; ``devices``: their number.
    """

    engine: str
    evidence: str
    releases: tuple[str, ...]
    at_head: frozenset[str]
    upstream: bool
    pins: Pins | None
    machine: str
    hardware: str
    devices: int
    commits_behind: int = 0
    days_behind: int = 0


@dataclass(frozen=True)
class Project:
    """A checkout's project files; lines count from 1, 0 means absent."""

    file: str = ""
    name: str = ""
    line: int = 0
    plugin_file: str = ""
    plugin_line: int = 0

    @property
    def description(self) -> str:
        if not self.name:
            return f"{self.file}, without a project name" if self.file else "no project file"
        return f"project {self.name!r} ({self.file}:{self.line})"


def parse_project(pyproject: str | None, setup: str | None) -> Project:
    """Parse the texts of ``pyproject.toml`` and ``setup.py``, None if missing."""
    found = []
    for file, text, find_name in ((PYPROJECT, pyproject, _name_in_table), (SETUP, setup, _name_in_setup)):
        if text is not None:
            name, line = find_name(text)
            rows = enumerate(text.splitlines(), 1)
            plugin_line = next((number for number, row in rows if _PLUGIN.search(row)), 0)
            found.append(Project(file, name, line, file if plugin_line else "", plugin_line))
    if not found:
        return Project()
    named = next((project for project in found if project.name), found[0])
    plugin = next((project for project in found if project.plugin_line), named)
    return replace(named, plugin_file=plugin.plugin_file, plugin_line=plugin.plugin_line)


def _name_in_table(text: str) -> tuple[str, int]:
    """``name`` of the ``[project]`` table."""
    table = ""
    # By lines, not tomllib: Python 3.10 has none, and the line is part of the message.
    for number, row in enumerate(text.splitlines(), 1):
        if head := _TABLE.match(row):
            table = head["table"].strip()
        elif table == "project" and (found := _NAME.match(row)):
            return found["name"], number
    return "", 0


def _name_in_setup(text: str) -> tuple[str, int]:
    """The first ``name="..."``."""
    found = _SETUP_NAME.search(text)
    return (found["name"], text.count("\n", 0, found.start()) + 1) if found else ("", 0)


_UPSTREAM = re.compile(r"[/:]vllm-project/vllm(?:\.git)?/?$")
_TAGS = ("refname:short", "objectname", "*objectname", "creatordate:unix", "*committerdate:unix")


def detect_checkout(repository: Repository, shell: Mapping[str, str]) -> DetectedCheckout:
    """Detect engine, releases and machine at HEAD; starts, writes and fetches nothing."""
    head = repository.head()
    read = partial(repository.read_text, head.id)
    project = parse_project(read(PYPROJECT), read(SETUP))
    engine = next((name for name in ENGINES if repository.tree_id(head.id, f"{name}/__init__.py")), None)
    if engine is None:
        if project.plugin_line:
            raise LocatedError(
                f"{project.name or repository.path.name} is a vLLM plug-in without an engine of its own",
                file=repository.path / project.plugin_file,
                line=project.plugin_line,
                next_step="say how to install it: --env 'command:./environment.sh {env} {tree}"
                f",package={project.name.replace('-', '_') or 'NAME'}' (docs/environments.md, Examples)",
            )
        known = " or ".join(f"{name}/ ({display})" for name, display in reversed(ENGINES.items()))
        raise LocatedError(
            f"unknown engine: the root has no package {known}; {project.description}",
            file=repository.path / project.file,
            line=project.line or None,
            field="project.name" if project.name else None,
            next_step="perfbisect init --repo PATH, of a checkout of vLLM or vLLM-Omni",
        )
    tags = _releases(repository, head)
    dockerfile = read(DOCKERFILE) if engine == "vllm_omni" else None
    # The first kind of machine with devices here, NVIDIA first; otherwise the CPU.
    names = sorted(machine_names(), key=lambda name: name != "cuda")
    machines = ((name, machine(shell, load_machine(name))) for name in names)
    with_devices = next((found for found in machines if found[1].gpus), None)
    kind, hardware = with_devices or ("cpu", machine(shell, load_machine("cpu")))
    return DetectedCheckout(
        engine=engine,
        evidence=f"{engine}/, {project.description}",
        releases=tuple(tags),
        at_head=frozenset(tag for tag, sha in tags.items() if sha == head.id),
        upstream=_UPSTREAM.search(repository.remote()) is not None,
        pins=None if dockerfile is None else parse_pins(dockerfile),
        machine=kind,
        hardware=hardware.kind if hardware.gpus else f"no devices, {hardware.kind}",
        devices=len(hardware.gpus),
        **(_distance(repository, next(iter(tags.values())), head) if tags else {}),
    )


def _distance(repository: Repository, release: str, head: Change) -> dict[str, int]:
    days = date.fromisoformat(head.date[:10]) - date.fromisoformat(repository.resolve(release).date[:10])
    commits = repository.text("rev-list", "--count", f"{release}..{head.id}")
    return {"commits_behind": int(commits), "days_behind": days.days}


def _releases(repository: Repository, head: Change) -> dict[str, str]:
    """Commits by release tag, newest first, without those younger than HEAD."""
    form = "%00".join(f"%({field})" for field in _TAGS)
    rows = [
        row.split("\0")
        for row in repository.text("for-each-ref", f"--format={form}", "refs/tags").splitlines()
    ]
    # A checkout of an old commit has tags of the future, which no bisection up to HEAD can use.
    until = int(repository.text("show", "-s", "--format=%ct", head.id).strip())
    releases: list[tuple[Version, str, str]] = []
    for tag, own, commit, own_second, commit_second in rows:
        version = _version(tag)
        if version is not None and int(commit_second or own_second or 0) <= until:
            releases.append((version, tag, commit or own))
    return {tag: sha for _, tag, sha in sorted(releases, reverse=True)}


def _version(tag: str) -> Version | None:
    """Parse a release tag; None for pre-releases and other tags."""
    try:
        version = Version(tag)
    except InvalidVersion:
        return None
    is_release = len(version.release) >= 2 and version.local is None and not version.is_prerelease
    return version if is_release else None
