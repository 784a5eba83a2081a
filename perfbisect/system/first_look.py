"""A checkout and a machine that perfbisect meets for the first time: what can be seen of them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from packaging.version import InvalidVersion, Version

from perfbisect.config.profile import load_machine, machine_names
from perfbisect.core.change import Change
from perfbisect.core.checkout_kind import ENGINES, PYPROJECT, SETUP, Project, engine_of, project_of
from perfbisect.core.first_settings import Seen
from perfbisect.core.pins import DOCKERFILE, pins_of
from perfbisect.errors import LocatedError
from perfbisect.system.checkout import Checkout
from perfbisect.system.git import Repository
from perfbisect.system.machine import Machine, machine
from perfbisect.system.profile import profile_of

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
