"""Builder ``overlay:BASE,base=REV``: a commit's Python tree over a base's compiled files and packages.

It takes about a second a commit. An engine does not check that its Python and compiled files fit, so a
commit is refused unless its compiled sources, build files and requirements equal those of the base's commit.
"""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import os
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from perfbisect.changes.git import FileChange, Repository
from perfbisect.common.digests import environment_key, file_blob_id, text_digest
from perfbisect.environments import uv
from perfbisect.environments.base import Builder, Environment, Refusal
from perfbisect.environments.build import BuildRun
from perfbisect.environments.builders import release, wheel
from perfbisect.environments.builders.cached import (
    CLIENT_TIMEOUT_S,
    LAYER,
    BuildContext,
    CachedBuilder,
    CommitTree,
    CommitTrees,
    Found,
    Installation,
    Recipe,
    base_environment,
    compile_files,
)
from perfbisect.environments.builders.existing import ExistingBuilder
from perfbisect.environments.builders.wheel import CommitWheel, ReleaseWheels, WheelSettings, variant_of
from perfbisect.environments.health import FOREIGN_SHARE, LocatedEngine, locate_engine
from perfbisect.environments.packages import EnginePackage, package
from perfbisect.environments.source_tree import blobs_inside, files_inside, sync_tree
from perfbisect.environments.spec import Spec
from perfbisect.errors import BuildError
from perfbisect.model.change import Change

_BYTE_CODE = "__pycache__"
_BINARY = (".so", ".pyd", ".bin", ".cubin", ".hsaco")


class InterpreterBase(Builder):
    """A user's interpreter as the base of overlays: read, never written."""

    name = "existing"

    def __init__(self, spec: Spec, context: BuildContext) -> None:
        self._existing = ExistingBuilder(spec, context)
        self.interpreter, self.module = self._existing.interpreter, self._existing.module
        self.spec = self._existing.spec = f"existing:{self.interpreter}"
        self.cache = context.cache
        log = self.cache.log(f"interpreter-{text_digest(str(self.interpreter))}")
        self._build = BuildRun(log, CLIENT_TIMEOUT_S)

    def refuses(self, change: Change) -> Refusal | None:
        del change
        return None

    def cached(self, change: Change) -> bool:
        del change
        return True

    def minutes(self, change: Change) -> float | None:
        del change
        return 0.0

    def disk(self, changes: Iterable[Change]) -> int | None:
        del changes
        return 0

    @functools.cached_property
    def _packages(self) -> str:
        packages = uv.list_packages(self._build, self.interpreter, with_origin=True)
        return "".join(f"{line}\n" for line in packages)

    @functools.cached_property
    def _located(self) -> LocatedEngine:
        return locate_engine(self._build, self.interpreter, self.module, {"PYTHONPATH": ""})

    @functools.cached_property
    def _state(self) -> str:
        located = self._located
        files = _file_states(located.folder) if located.folder else []
        parts = (str(self.interpreter), located.python, self._packages, self.module, files)
        return environment_key("interpreter/1", *parts)

    def key(self, change: Change) -> str:
        del change
        return self._state

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        """The interpreter with its packages; its engine is not imported."""
        del change, log, timeout
        return Environment(
            key=self._state,
            interpreter=self.interpreter,
            folder=self.cache.folder(self._state),
            env={"PYTHONPATH": ""},
            engine_version="",
            engine_commit="",
            engine_file=self._located.file,
            packages_digest=text_digest(self._packages),
            facts={"packages": self._packages.splitlines()},
        )

    def client(self) -> Environment | None:
        return self._existing.client_environment(self._state) if self._located.file else None


def _file_states(folder: Path) -> list[tuple[str, int, int]]:
    """Names, sizes and times of a package's files, which reveal changes in place."""
    states = []
    for file in sorted(folder.rglob("*")):
        if _BYTE_CODE not in file.parts and file.is_file():
            status = file.stat()
            states.append((str(file.relative_to(folder)), status.st_size, status.st_mtime_ns))
    return states


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


def refuses(settings: OverlaySettings, commit: OverlaidCommit) -> Refusal | None:
    return settings.trees.refuses(commit) or commit.refusal


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
            _check_base(commit.base, built_from, blobs, tracked)
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
    found = settings.installation.import_layer(build, commit.change, base, folder)
    facts = {
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


def _check_base(base: Change, commit: Change, blobs: Mapping[str, str], tracked: Mapping[str, str]) -> None:
    """Raise BuildError if the base is not what its commit says."""
    shared = [path for path, blob in blobs.items() if blob and path in tracked]
    foreign = sorted(path for path in shared if blobs[path] != tracked[path])
    if len(foreign) > FOREIGN_SHARE * max(len(shared), 1) or (tracked and not shared):
        named = f", among them {', '.join(foreign[:3])}" if foreign else ""
        raise BuildError(
            f"{base.id} was not built from {commit.short}: "
            f"{len(foreign)} of {len(shared)} files differ{named}",
            next_step="name the commit it was built from: base=REV",
        )


@dataclass(frozen=True)
class FixedBase(OverlaySettings):
    """Overlays over one base: a release (``NAME==VERSION``) or a user's interpreter.

    ``commit``: that it was built from; ``any_base``: nothing in the repository is compiled.
    """

    spec: str
    below: Change
    platform: str
    commit: Change | None
    any_base: bool


def fixed_base_builder(spec: Spec, context: BuildContext) -> CachedBuilder[FixedBase, OverlaidCommit]:
    base: Builder
    if "==" in spec.argument:
        base, below = _release_base(spec, context)
        package = base.settings.installation.package
        platform = package.platform_of(spec.option("variant"))
        installation = Installation.of(spec, context, package)
    else:
        installation, platform = Installation.of(spec, context), ""
    trees = CommitTrees(context.required_repository(spec), installation.package.folder)
    client = trees.client(spec)
    if "==" not in spec.argument:
        if unused := {"variant", "wheel", "with"} & set(spec.options):
            raise spec.error(f"{min(unused)}= does not apply to an interpreter", "leave it out")
        base = InterpreterBase(spec, context)
        below = Change(str(base.interpreter), "release")
    revision = spec.option("base")
    commit = trees.repository.resolve(revision) if revision not in ("", "any") else None
    settings = FixedBase(installation, trees, base, spec.text, below, platform, commit, revision == "any")
    return CachedBuilder(FIXED_BASE, spec.text, context, settings, client=client or base)


def look_up_fixed(
    settings: FixedBase, changes: Sequence[Change], _known: Mapping[str, OverlaidCommit]
) -> dict[str, OverlaidCommit]:
    commit, package = settings.commit, settings.installation.package
    trees = settings.trees.look_up((*changes, commit) if commit else changes)
    differing: dict[str, list[str]] = {}
    if commit is not None:
        there = [change.id for change in changes if trees[change.id] is not None]
        pairs = [(commit.id, sha) for sha in there]
        files = settings.trees.repository.file_changes(pairs, package.pathspecs)
        for sha, changed in zip(there, files, strict=True):
            differing[sha] = [each.path for each in changed if package.is_used(each.path, settings.platform)]
    found = {}
    for change in changes:
        paths = differing.get(change.id, [])
        found[change.id] = OverlaidCommit(
            change,
            trees[change.id],
            BuildState(),
            settings.below,
            commit,
            str(trees[commit.id]) if commit else "any",
            any(package.is_optional(path) for path in paths),
            _refuses_base(settings, [path for path in paths if not package.is_optional(path)]),
        )
    return found


def _refuses_base(settings: FixedBase, differing: Sequence[str]) -> Refusal | None:
    """``differing``: compiled sources, build files and requirements unlike those of the base's commit."""
    if not differing or settings.commit is None:
        return None
    count = "1 file differs" if len(differing) == 1 else f"{len(differing)} files differ"
    more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
    return Refusal(
        f"needs compiling or other packages than {settings.below.id} (built from {settings.commit.short}): "
        f"{count}: {', '.join(differing[:3])}{more}"
    )


def refuses_fixed(settings: FixedBase, commit: OverlaidCommit) -> Refusal | None:
    if settings.commit is None and not settings.any_base:
        return Refusal(
            f"{settings.spec} does not say which commit {settings.below.id} was built from: add base=REV "
            "(base=any if nothing in the repository is compiled)",
            error=True,
        )
    return refuses(settings, commit) or settings.base.refuses(settings.below)


FIXED_BASE = Recipe(
    name="overlay",
    look_up=look_up_fixed,
    refuses=refuses_fixed,
    key_parts=key_parts,
    make=make,
    check=check,
    base=lambda settings, commit: (settings.base, commit.base),
    notes=lambda settings, _known, _stamps: settings.base.notes(),
)


@dataclass(frozen=True)
class BuildState:
    """Digests of a commit's build inputs, relative to some commit: ``needed`` and :attr:`optional` ones."""

    needed: int = 0
    optional: int = 0


class BuildStates:
    """States of the build inputs of commits on one platform; comparable with each other only."""

    def __init__(self, repository: Repository, package: EnginePackage) -> None:
        self._repository = repository
        self._package = package
        self._states: dict[str, BuildState] = {}

    def read(self, shas: Collection[str], platform: str) -> dict[str, BuildState]:
        """The states of commits, each read as its difference from the one before, by one git process."""
        unknown = [sha for sha in dict.fromkeys(shas) if sha not in self._states]
        if unknown:
            last = next(reversed(self._states), unknown[0])
            state = self._states.get(last, BuildState())
            pairs = list(zip((last, *unknown), unknown, strict=False))
            changes = self._repository.file_changes(pairs, self._package.pathspecs)
            for sha, changed in zip(unknown, changes, strict=True):
                state = self._after(state, changed, platform)
                self._states[sha] = state
        return {sha: self._states[sha] for sha in shas}

    def _after(self, state: BuildState, changes: Collection[FileChange], platform: str) -> BuildState:
        needed, optional = state.needed, state.optional
        for change in changes:
            if not self._package.is_used(change.path, platform):
                continue
            # Files in any order, each in and out again: the state is a sum of digests without carry.
            difference = _digest(change.path, change.before) ^ _digest(change.path, change.after)
            if self._package.is_optional(change.path):
                optional ^= difference
            else:
                needed ^= difference
        return BuildState(needed, optional)


def _digest(path: str, blob: str) -> int:
    """A file's part of a state; 0 if it does not exist."""
    if not blob.strip("0"):
        return 0
    return int.from_bytes(
        hashlib.sha256(f"{path}\0{blob}".encode(errors="surrogateescape")).digest()[:16], "big"
    )


@dataclass(frozen=True)
class NearestWheel(OverlaySettings):
    """Overlays over the wheels of a per-commit index, one for all commits with the same build inputs.

    The wheel is that of the first such commit that has one, so that holes of the index are filled, too.
    """

    base: CachedBuilder[WheelSettings, CommitWheel]
    states: BuildStates


def nearest_wheel_builder(spec: Spec, context: BuildContext) -> CachedBuilder[NearestWheel, OverlaidCommit]:
    wheels = wheel.builder(spec, context.here)
    installation = wheels.settings.installation
    trees = CommitTrees(wheels.settings.trees.repository, installation.package.folder)
    states = BuildStates(trees.repository, installation.package)
    settings = NearestWheel(installation, trees, wheels, states)
    return CachedBuilder(NEAREST_WHEEL, spec.text, context, settings, client=trees.client(spec))


def look_up_nearest(
    settings: NearestWheel, changes: Sequence[Change], known: Mapping[str, OverlaidCommit]
) -> dict[str, OverlaidCommit]:
    wheels, package = settings.base, settings.installation.package
    # A commit that had no wheel may use the wheel of a commit that is asked for now.
    changes = (*changes, *(commit.change for commit in known.values() if commit.below is None))
    trees = settings.trees.look_up(changes)
    if not wheels.known:
        wheels.prepare((changes[0], changes[-1]))
    platform = package.platform_of(variant_of(wheels.known) or "")
    there = [change.id for change in changes if trees[change.id] is not None]
    states = settings.states.read(there, platform)
    bases = {commit.state.needed: commit.below for commit in known.values() if commit.below}
    without: dict[int, list[Change]] = {}
    for sha, state in states.items():
        if state.needed not in bases:
            without.setdefault(state.needed, []).append(Change(sha))
    while without:
        candidates = {state: changes.pop(0) for state, changes in without.items()}
        wheels.prepare(candidates.values())
        bases |= {state: change for state, change in candidates.items() if wheels.refuses(change) is None}
        without = {state: changes for state, changes in without.items() if changes and state not in bases}
    base_trees = settings.trees.look_up(bases.values())
    optional = settings.states.read([below.id for below in bases.values()], platform)
    found = {}
    for change in changes:
        state = states.get(change.id, BuildState())
        below = bases.get(state.needed) if change.id in states else None
        found[change.id] = OverlaidCommit(
            change,
            trees[change.id],
            state,
            below,
            below,
            str(base_trees[below.id]) if below else "",
            below is not None and optional[below.id].optional != state.optional,
            None if below else _refuses_without_wheel(wheels.refuses(change)),
        )
    return found


def _refuses_without_wheel(own: Refusal | None) -> Refusal:
    reason = own.reason if own else "no wheel"
    return Refusal(f"{reason}; nor is there one of a commit with equal compiled sources and requirements")


def notes_nearest(
    settings: NearestWheel, known: Mapping[str, OverlaidCommit], _stamps: Sequence[Environment]
) -> tuple[str, ...]:
    covered = [commit.state.needed for commit in known.values() if commit.below is not None]
    if not covered:
        return settings.base.notes()
    wheels = f"the wheels of {len(set(covered))}: one for all with equal build inputs"
    return (f"{len(covered)} commits lie over {wheels}", *settings.base.notes())


NEAREST_WHEEL = Recipe(
    name="overlay",
    look_up=look_up_nearest,
    refuses=refuses,
    key_parts=key_parts,
    make=make,
    check=check,
    base=lambda settings, commit: (settings.base, commit.base),
    notes=notes_nearest,
)


def builder(spec: Spec, context: BuildContext) -> Builder:
    """The builder of an overlay, by what its base is."""
    return (nearest_wheel_builder if spec.has_index else fixed_base_builder)(spec, context)


def _release_base(spec: Spec, context: BuildContext) -> tuple[CachedBuilder[ReleaseWheels, Found], Change]:
    """The builder of a base ``NAME==VERSION``, and that release."""
    requirement = spec.requirement("NAME==VERSION")
    pins = list(requirement.specifier)
    if len(pins) != 1 or pins[0].operator != "==" or "*" in pins[0].version or requirement.marker:
        raise spec.error(f"the base {spec.argument!r} is not one version", "write NAME==VERSION")
    name = package(requirement.name, spec.option("package")).name
    kept = ("package", "python", "variant", "wheel", "with")
    options = {key: spec.options[key] for key in kept if key in spec.options}
    text = ",".join((f"release:{name}", *(f"{key}={value}" for key, value in options.items())))
    builder = release.builder(Spec(text, "release", name, options), context)
    builder.pinned_client = Change(f"{name}=={pins[0].version}", "release")
    return builder, builder.pinned_client


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
