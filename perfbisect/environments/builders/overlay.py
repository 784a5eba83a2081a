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
from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from perfbisect.changes.git import FileChange, Repository
from perfbisect.common.digests import environment_key, file_blob_id, text_digest
from perfbisect.environments import uv
from perfbisect.environments.base import Builder, Environment, Refusal
from perfbisect.environments.build import BuildRun
from perfbisect.environments.builders.cached import (
    CLIENT_TIMEOUT_S,
    LAYER,
    BuildContext,
    CommitBuilder,
    LayerBuilder,
    compile_files,
)
from perfbisect.environments.builders.existing import ExistingBuilder
from perfbisect.environments.builders.release import ReleaseBuilder
from perfbisect.environments.builders.wheel import WheelBuilder
from perfbisect.environments.cache import CheckedEnvironment
from perfbisect.environments.health import FOREIGN_SHARE, LocatedEngine, locate_engine
from perfbisect.environments.packages import EnginePackage, package
from perfbisect.environments.source_tree import blobs_inside, files_inside, sync_tree
from perfbisect.environments.spec import Spec
from perfbisect.errors import BuildError
from perfbisect.model.change import Change

_BYTE_CODE = "__pycache__"
_BINARY = (".so", ".pyd", ".bin", ".cubin", ".hsaco")


class InterpreterBase(ExistingBuilder):
    """A user's interpreter as the base of overlays: read, never written."""

    def __init__(self, spec: Spec, context: BuildContext) -> None:
        super().__init__(spec, context)
        self.spec = f"existing:{self.interpreter}"
        log = self.cache.log(f"interpreter-{text_digest(str(self.interpreter))}")
        self._build = BuildRun(log, CLIENT_TIMEOUT_S)

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
        return self.client_environment(self._state) if self._located.file else None


def _file_states(folder: Path) -> list[tuple[str, int, int]]:
    """Names, sizes and times of a package's files, which reveal changes in place."""
    states = []
    for file in sorted(folder.rglob("*")):
        if _BYTE_CODE not in file.parts and file.is_file():
            status = file.stat()
            states.append((str(file.relative_to(folder)), status.st_size, status.st_mtime_ns))
    return states


class OverlayBuilder(LayerBuilder, CommitBuilder):
    """Builds commits over a base: a commit's own Python, with what else the base's package has."""

    name = "overlay"

    @abstractmethod
    def base_commit(self, change: Change) -> Change | None:
        """The commit that a change's base was built from; None if nothing in the repository is compiled."""

    @abstractmethod
    def has_old_optional(self, change: Change) -> bool:
        """Whether the base's optional files are built from other sources than the change's."""

    def key_parts(self, change: Change) -> tuple[object, ...]:
        builder, below = self.base(change)
        base_tree = "any"  # the tree that decides which of the base's files are carried over
        if commit := self.base_commit(change):
            self.prepare((commit,))
            base_tree = str(self.trees[commit.id])
        left_out = ("without optional files",) if self.has_old_optional(change) else ()
        return (builder.key(below), self.trees[change.id], self.package.module, base_tree, *left_out)

    def make(self, build: BuildRun, change: Change, staging: Path) -> Mapping[str, Any]:
        """Link what equals the base or is not in git, then write the rest from git."""
        base, target = self.base_environment(build, change), staging / LAYER / self.package.folder
        located = locate_engine(build, base.interpreter, self.package.module, base.env)
        same: list[str] = []
        carried: list[str] = []
        dropped = 0
        if located.folder is not None:
            blobs = read_blobs(located.folder, change.id)
            commit = self.base_commit(change)
            tracked = blobs_inside(self.repository, commit.id, self.package.folder) if commit else None
            if commit and tracked is not None:
                self._check_base(change, commit, blobs, tracked)
            wanted = files_inside(self.repository, change.id, self.package.folder)
            files = {path: entry.blob for path, entry in wanted.items() if entry.mode != "120000"}
            same = [path for path, blob in files.items() if blob == blobs.get(path)]
            others = [path for path in blobs if path not in wanted]
            carried = sorted(path for path in others if self._is_carried(path, change, tracked))
            dropped = len(others) - len(carried)
            link_files(located.folder, target, (*same, *carried), located.tag)
        synced = sync_tree(target, self.repository, change.id, self.package.folder, keep=lambda _: True)
        written = synced.written
        compile_files(build, base.interpreter, target, written)
        return {
            "files_linked": len(same),
            "files_changed": len(written),
            "files_carried": carried,
            "files_dropped": dropped,
        }

    def check(self, build: BuildRun, change: Change, folder: Path) -> CheckedEnvironment:
        base, commit = self.base_environment(build, change), self.base_commit(change)
        found = self.import_layer(build, change, base, folder)
        facts = {
            "base": self.base(change)[1].id,
            "base_commit": commit.id if commit else "any",
            "tree": self.trees[change.id],
            "engine_says_commit": found.commit,
        }
        return found.checked(change.id, base.facts["packages"], facts, folder / LAYER)

    def _is_carried(self, path: str, change: Change, tracked: Mapping[str, str] | None) -> bool:
        """True for the base's compiled and generated files: those that git does not have."""
        name = PurePosixPath(path).name
        if self.package.makes_optional(name) and self.has_old_optional(change):
            return False
        if tracked is not None:
            return path not in tracked
        return _is_binary(name) or any(fnmatch.fnmatch(name, pattern) for pattern in self.package.generated)

    def _check_base(
        self, change: Change, commit: Change, blobs: Mapping[str, str], tracked: Mapping[str, str]
    ) -> None:
        """Raise BuildError if the base is not what its commit says."""
        shared = [path for path, blob in blobs.items() if blob and path in tracked]
        foreign = sorted(path for path in shared if blobs[path] != tracked[path])
        if len(foreign) > FOREIGN_SHARE * max(len(shared), 1) or (tracked and not shared):
            named = f", among them {', '.join(foreign[:3])}" if foreign else ""
            raise BuildError(
                f"{self.base(change)[1].id} was not built from {commit.short}: "
                f"{len(foreign)} of {len(shared)} files differ{named}",
                next_step="name the commit it was built from: base=REV",
            )


class FixedBaseOverlay(OverlayBuilder):
    """Overlays over one base: a release (``NAME==VERSION``) or a user's interpreter."""

    def __init__(self, spec: Spec, context: BuildContext) -> None:
        self._base: ReleaseBuilder | InterpreterBase
        self._platform = ""
        if "==" in spec.argument:
            self._base, self._below = _release_base(spec, context)
            super().__init__(spec, context, self._base.package)
            self._platform = self.package.platform_of(spec.option("variant"))
        else:
            super().__init__(spec, context)
            if unused := {"variant", "wheel", "with"} & set(spec.options):
                raise spec.error(f"{min(unused)}= does not apply to an interpreter", "leave it out")
            self._base = InterpreterBase(spec, context)
            self._below = Change(str(self._base.interpreter), "release")
        revision = spec.option("base")
        self.any_base = revision == "any"
        self.commit = self.repository.resolve(revision) if revision not in ("", "any") else None
        self._differing: dict[str, list[str]] = {}

    def base(self, change: Change) -> tuple[Builder, Change]:
        del change
        return self._base, self._below

    def base_commit(self, change: Change) -> Change | None:
        del change
        return self.commit

    def has_old_optional(self, change: Change) -> bool:
        return any(self.package.is_optional(path) for path in self._differing.get(change.id, ()))

    def look_up(self, shas: Collection[str]) -> None:
        super().look_up(shas)
        if self.commit is not None:
            pairs = [(self.commit.id, sha) for sha in shas]
            changes = self.repository.file_changes(pairs, self.package.pathspecs)
            for sha, changed in zip(shas, changes, strict=True):
                paths = [change.path for change in changed]
                self._differing[sha] = [path for path in paths if self.package.is_used(path, self._platform)]

    def refuses(self, change: Change) -> Refusal | None:
        if change.kind == "commit" and self.commit is None and not self.any_base:
            return Refusal(
                f"{self.spec} does not say which commit {self._below.id} was built from: add base=REV "
                "(base=any if nothing in the repository is compiled)",
                error=True,
            )
        refusal = super().refuses(change)
        if refusal is not None:
            return refusal
        files = [path for path in self._differing.get(change.id, ()) if not self.package.is_optional(path)]
        if files and self.commit is not None:
            count = "1 file differs" if len(files) == 1 else f"{len(files)} files differ"
            more = f" and {len(files) - 3} more" if len(files) > 3 else ""
            return Refusal(
                f"needs compiling or other packages than {self._below.id} (built from {self.commit.short}): "
                f"{count}: {', '.join(files[:3])}{more}"
            )
        return self._base.refuses(self._below) if isinstance(self._base, ReleaseBuilder) else None

    def notes(self) -> tuple[str, ...]:
        return self._base.notes()

    def client(self) -> Environment | None:
        return super().client() or self._base.client()


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


class NearestWheelOverlay(OverlayBuilder):
    """Overlays over the wheels of a per-commit index, one for all commits with the same build inputs.

    The wheel is that of the first such commit that has one, so that holes of the index are filled, too.
    """

    def __init__(self, spec: Spec, context: BuildContext) -> None:
        self.wheels = WheelBuilder(spec, context.here)
        super().__init__(spec, context, self.wheels.package)
        self._states = BuildStates(self.repository, self.package)
        self._of: dict[str, BuildState] = {}
        self._bases: dict[int, Change] = {}

    def base(self, change: Change) -> tuple[Builder, Change]:
        return self.wheels, self._bases[self._of[change.id].needed]

    def base_commit(self, change: Change) -> Change | None:
        return self.base(change)[1]

    def has_old_optional(self, change: Change) -> bool:
        base = self.base(change)[1]
        return self._of[change.id].optional != self._of[base.id].optional

    def look_up(self, shas: Collection[str]) -> None:
        super().look_up(shas)
        ordered = list(dict.fromkeys(shas))
        if self.wheels.variant is None:
            self.wheels.prepare((Change(ordered[0]), Change(ordered[-1])))
        states = self._states.read(ordered, self.package.platform_of(self.wheels.variant or ""))
        self._of |= states
        without: dict[int, list[Change]] = {}
        for sha, state in states.items():
            if state.needed not in self._bases:
                without.setdefault(state.needed, []).append(Change(sha))
        while without:
            candidates = {state: changes.pop(0) for state, changes in without.items()}
            self.wheels.prepare(candidates.values())
            self._bases |= {
                state: change for state, change in candidates.items() if self.wheels.refuses(change) is None
            }
            without = {
                state: changes for state, changes in without.items() if changes and state not in self._bases
            }

    def refuses(self, change: Change) -> Refusal | None:
        refusal = super().refuses(change)
        if refusal is None and self._of[change.id].needed not in self._bases:
            own = self.wheels.refuses(change)
            reason = own.reason if own else "no wheel"
            return Refusal(
                f"{reason}; nor is there one of a commit with equal compiled sources and requirements"
            )
        return refusal

    def notes(self) -> tuple[str, ...]:
        used = {state.needed for state in self._of.values()} & set(self._bases)
        covered = sum(state.needed in self._bases for state in self._of.values())
        if not used:
            return self.wheels.notes()
        note = f"{covered} commits lie over the wheels of {len(used)}: one for all with equal build inputs"
        return (note, *self.wheels.notes())


def overlay_builder(spec: Spec, context: BuildContext) -> OverlayBuilder:
    """The builder of an overlay, by what its base is."""
    return (NearestWheelOverlay if spec.has_index else FixedBaseOverlay)(spec, context)


def _release_base(spec: Spec, context: BuildContext) -> tuple[ReleaseBuilder, Change]:
    """The builder of a base ``NAME==VERSION``, and that release."""
    requirement = spec.requirement("NAME==VERSION")
    pins = list(requirement.specifier)
    if len(pins) != 1 or pins[0].operator != "==" or "*" in pins[0].version or requirement.marker:
        raise spec.error(f"the base {spec.argument!r} is not one version", "write NAME==VERSION")
    name = package(requirement.name, spec.option("package")).name
    kept = ("package", "python", "variant", "wheel", "with")
    options = {key: spec.options[key] for key in kept if key in spec.options}
    text = ",".join((f"release:{name}", *(f"{key}={value}" for key, value in options.items())))
    builder = ReleaseBuilder(Spec(text, "release", name, options), context)
    builder.client_change = builder.change(pins[0].version)
    return builder, builder.client_change


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
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
