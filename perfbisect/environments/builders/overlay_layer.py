"""The layer of an overlay: a commit's Python tree over a base's compiled files and packages.

It takes about a second a commit, and an import of what is served. An engine does not check that its Python
and compiled files fit, so a commit is refused unless its compiled sources, build files and requirements equal
those of the base's commit.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from perfbisect.common.digests import file_blob_id
from perfbisect.environments.base import Builder, Environment, Refusal
from perfbisect.environments.build import BuildRun
from perfbisect.environments.builders.cached import (
    LAYER,
    CommitTree,
    CommitTrees,
    Installation,
    base_environment,
    compile_files,
)
from perfbisect.environments.health import FOREIGN_SHARE, locate_engine
from perfbisect.environments.packages import EnginePackage
from perfbisect.environments.source_tree import blobs_inside, files_inside, sync_tree
from perfbisect.errors import BuildError
from perfbisect.model.change import Change

_BYTE_CODE = "__pycache__"
_BINARY = (".so", ".pyd", ".bin", ".cubin", ".hsaco")


@dataclass(frozen=True)
class BuildState:
    """Digests of a commit's build inputs, relative to some commit: ``needed`` and :attr:`optional` ones."""

    needed: int = 0
    optional: int = 0


@dataclass(frozen=True)
class OverlaySettings:
    """``base``: the builder of what lies below."""

    installation: Installation
    trees: CommitTrees
    base: Builder


@dataclass(frozen=True)
class OverlaidCommit(CommitTree):
    """A commit, and what lies below it.

    ``below``: the change whose environment that is, if any. ``base_commit``: from which that was built, None
    if nothing in the repository is compiled. ``base_tree``: decides which of its files are carried over.
    ``has_old_optional``: its optional files are built from other sources. ``refusal``: why nothing fits.
    """

    state: BuildState
    below: Change | None
    base_commit: Change | None
    base_tree: str
    has_old_optional: bool
    refusal: Refusal | None

    @property
    def base(self) -> Change:
        # A commit without a base is refused before this is asked.
        assert self.below is not None
        return self.below


def key_parts(settings: OverlaySettings, commit: OverlaidCommit) -> tuple[object, ...]:
    left_out = ("without optional files",) if commit.has_old_optional else ()
    module, below = settings.installation.package.module, settings.base.key(commit.base)
    return (below, commit.tree, module, commit.base_tree, *left_out)


def make(
    settings: OverlaySettings, commit: OverlaidCommit, build: BuildRun, staging: Path
) -> Mapping[str, Any]:
    """Link what equals the base or is not in git, then write the rest from git."""
    package, repository, change = settings.installation.package, settings.trees.repository, commit.change
    base, target = base_environment((settings.base, commit.base), build), staging / LAYER / package.folder
    located = locate_engine(build, base.interpreter, package.module, base.env)
    same: list[str] = []
    carried: list[str] = []
    dropped = 0
    if located.folder is not None:
        blobs = read_blobs(located.folder, change.id)
        built_from = commit.base_commit
        # Nothing in an engine checks that its Python fits its compiled files: a base of another commit
        # would run, and measure something else.
        tracked = blobs_inside(repository, built_from.id, package.folder) if built_from else None
        if built_from and tracked is not None:
            shared = [path for path, blob in blobs.items() if blob and path in tracked]
            foreign = sorted(path for path in shared if blobs[path] != tracked[path])
            if len(foreign) > FOREIGN_SHARE * max(len(shared), 1) or (tracked and not shared):
                named = f", among them {', '.join(foreign[:3])}" if foreign else ""
                raise BuildError(
                    f"{commit.base.id} was not built from {built_from.short}: "
                    f"{len(foreign)} of {len(shared)} files differ{named}",
                    next_step="name the commit it was built from: base=REV",
                )
        wanted = files_inside(repository, change.id, package.folder)
        # Symbolic links are written from git: copied, they could lead into the base.
        files = {path: entry.blob for path, entry in wanted.items() if entry.mode != "120000"}
        same = [path for path, blob in files.items() if blob == blobs.get(path)]
        others = [path for path in blobs if path not in wanted]
        carried = sorted(path for path in others if _is_carried(path, package, commit, tracked))
        dropped = len(others) - len(carried)
        link_files(located.folder, target, (*same, *carried), located.tag)
    written = sync_tree(target, repository, change.id, package.folder, keep=lambda _: True).written
    compile_files(build, base.interpreter, target, written)
    return {
        "files_linked": len(same),
        "files_changed": len(written),
        "files_carried": carried,
        "files_dropped": dropped,
    }


def check(settings: OverlaySettings, commit: OverlaidCommit, build: BuildRun, folder: Path) -> Environment:
    base = base_environment((settings.base, commit.base), build)
    found = settings.installation.import_engine(build, folder, commit.change.short, base=base)
    facts = {
        **{name: base.facts[name] for name in ("kept",) if name in base.facts},
        "base": commit.base.id,
        "base_commit": commit.base_commit.id if commit.base_commit else "any",
        "tree": commit.tree,
        "engine_says_commit": found.commit,
    }
    return found.checked(commit.change.id, base.facts["packages"], facts, folder / LAYER)


def _is_carried(
    path: str, package: EnginePackage, commit: OverlaidCommit, tracked: Mapping[str, str] | None
) -> bool:
    """True for the base's compiled and generated files: those that git does not have."""
    name = PurePosixPath(path).name
    if package.makes_optional(name) and commit.has_old_optional:
        return False
    if tracked is not None:
        return path not in tracked
    return _is_binary(name) or any(fnmatch.fnmatch(name, pattern) for pattern in package.generated)


def read_blobs(folder: Path, like: str) -> dict[str, str]:
    """Path inside an installed package -> git object name; empty for binary files."""
    blobs = {}
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != _BYTE_CODE)
        for name in files:
            file = Path(parent) / name
            if not name.endswith(".pyc"):
                path = file.relative_to(folder).as_posix()
                blobs[path] = "" if _is_binary(name) else file_blob_id(file, like)
    return blobs


def _is_binary(name: str) -> bool:
    return name.endswith(_BINARY) or ".so." in name


def link_files(source: Path, target: Path, paths: Collection[str], tag: str) -> None:
    """Link files with their byte code (``tag``: ``cpython-311``) from one folder into another."""
    for path in paths:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        _link(source / path, target / path)
        inside = PurePosixPath(path)
        compiled = inside.parent / _BYTE_CODE / f"{inside.stem}.{tag}.pyc"
        if inside.suffix == ".py" and (source / compiled).exists():
            (target / compiled.parent).mkdir(exist_ok=True)
            _link(source / compiled, target / compiled)


def _link(source: Path, target: Path) -> None:
    """Hard link, or else copy with the same time, so that byte code stays valid."""
    try:
        # A hard link takes no room: an engine has several GB, of which few files differ.
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
