"""Base classes of builders whose environments are kept in the cache."""

from __future__ import annotations

import statistics
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from perfbisect.changes.git import Repository
from perfbisect.common.digests import environment_key
from perfbisect.environments import uv
from perfbisect.environments.base import Builder, BuildPrice, BuildSite, Environment, Refusal
from perfbisect.environments.build import BuildRun, DependencyLimits, interpreter_environment
from perfbisect.environments.cache import BYTES, CheckedEnvironment, EnvironmentCache, Stamp
from perfbisect.environments.health import ImportedEngine, identify_commit, import_own_engine
from perfbisect.environments.packages import EnginePackage, engine, torch_backend
from perfbisect.environments.source_tree import blobs_inside, tree_digests
from perfbisect.environments.spec import Spec
from perfbisect.errors import BuildError, RevisionError
from perfbisect.model.change import Change

CLIENT_TIMEOUT_S = 3600.0


@dataclass(frozen=True)
class BuildContext:
    """What builders share. ``site``: builds in place of this machine.

    ``machine``: the kind that environments are for, empty: this one. ``is_plan``: lookups may fail.
    """

    cache: EnvironmentCache
    limits: DependencyLimits
    repository: Repository | None
    site: BuildSite | None = None
    machine: str = ""
    is_plan: bool = False

    @property
    def here(self) -> BuildContext:
        """For builders whose environments stand below others: those are brought with them."""
        return replace(self, site=None)

    def required_repository(self, spec: Spec) -> Repository:
        if self.repository is None:
            article = "an" if spec.name[0] in "aeiou" else "a"
            raise spec.error(
                f"{article} {spec.name} is made of commits and needs their repository", "add --repo PATH"
            )
        return self.repository


def median_minutes(stamps: Iterable[Stamp]) -> float | None:
    """Median build time; None without stamps."""
    seconds = [stamp.seconds for stamp in stamps]
    return statistics.median(seconds) / 60.0 if seconds else None


def median_bytes(stamps: Iterable[Stamp]) -> int | None:
    """Median of the bytes that one environment alone holds; None if unknown."""
    sizes = [size for stamp in stamps if isinstance(size := stamp.facts.get(BYTES), int)]
    return round(statistics.median(sizes)) if sizes else None


class CachedBuilder(Builder):
    """A builder over a cache. ``client_change``: whose environment is the client's on all sides."""

    in_place = False
    """Content is made in its final folder, for what cannot be moved."""
    client_change: Change | None = None

    def __init__(self, spec: Spec, context: BuildContext, package: EnginePackage | None = None) -> None:
        self.spec = spec.text
        self.package = package or engine(spec.option("package", "vllm"))
        self.cache = context.cache
        self.limits = context.limits
        self.site = context.site
        self.python = spec.option("python")
        self.extra = spec.words("with")

    @abstractmethod
    def key_parts(self, change: Change) -> tuple[object, ...]:
        """What decides the content of a change's environment."""

    @abstractmethod
    def make(self, build: BuildRun, change: Change, staging: Path) -> Mapping[str, Any]:
        """Write the environment to an empty folder; returns facts for its stamp."""

    @abstractmethod
    def check(self, build: BuildRun, change: Change, folder: Path) -> CheckedEnvironment:
        """Check that the environment in its final folder is the change."""

    def install_parts(self) -> tuple[object, ...]:
        """The part of a key that decides what an installation of a package gives."""
        package = self.package
        python = self.python or uv.base_python_version()
        beside = (self.extra,) if self.extra else ()
        names = (package.name, package.module, package.alias, package.drop, python)
        return (*names, *self.limits.key_parts(), *beside)

    def key(self, change: Change) -> str:
        if self.refuses(change) is not None:  # never built: equal to no other key
            return environment_key(f"{self.name} refused/1", self.spec, change.id)
        return environment_key(f"{self.name}/1", *self.key_parts(change))

    def cached(self, change: Change) -> bool:
        return self.cache.stamp(self.key(change)) is not None

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        build, seconds = BuildRun(log, timeout, self.limits), 0.0
        if not self.cached(change):
            if (refusal := self.refuses(change)) is not None:
                raise BuildError(f"{change.short}: {refusal.reason}", code=refusal.code)
            if self.site is not None:
                key = self.key(change)
                seconds = self.site.build(self.spec, change, key, log=log, timeout=timeout)
        seconds += self.ensure_base(build, change)
        environment = self.cache.ensure(
            self.key(change),
            builder=self.name,
            spec=self.spec,
            change=self.label(change),
            make=partial(self.make, build, change),
            check=partial(self.check, build, change),
            timeout=timeout,
            in_place=self.in_place,
        )
        environment = replace(environment, seconds=seconds + environment.seconds)
        return self.claim(environment, change)

    def ensure_base(self, build: BuildRun, change: Change) -> float:
        """Build what the environment stands on, if anything; returns the seconds that it took."""
        del build, change
        return 0.0

    def label(self, change: Change) -> str:
        """What the stamp says was built."""
        return change.id

    def claim(self, environment: Environment, change: Change) -> Environment:
        """An environment built for another commit with the same key is this commit's as well."""
        return replace(environment, engine_commit=change.source) if change.kind == "commit" else environment

    def client(self) -> Environment | None:
        if self.client_change is None:
            return None
        log = self.cache.log(self.key(self.client_change))
        return self.ensure(self.client_change, log=log, timeout=CLIENT_TIMEOUT_S)

    def minutes(self, change: Change) -> float | None:
        return 0.0 if self.cached(change) else median_minutes(self.stamps())

    def disk(self, changes: Iterable[Change]) -> int | None:
        missing = self.missing(changes)
        each = self.bytes_of(missing[0]) if missing else 0
        return None if each is None else each * len(missing)

    def bytes_of(self, change: Change) -> int | None:
        """Estimated bytes of the environment of a change that is not cached."""
        del change
        return median_bytes(self.stamps())

    def stamps(self) -> tuple[Stamp, ...]:
        """Earlier builds of this specification, else of this builder, from which costs are estimated."""
        stamps = [stamp for stamp in self.cache.stamps() if stamp.builder == self.name and stamp.seconds > 0]
        return tuple(stamp for stamp in stamps if stamp.spec == self.spec) or tuple(stamps)

    def missing(self, changes: Iterable[Change]) -> list[Change]:
        """One change per key that can be built and is not cached."""
        absent = (change for change in changes if not self.cached(change))
        return list({self.key(change): change for change in absent if self.refuses(change) is None}.values())

    def create_venv(
        self, build: BuildRun, staging: Path, requirements: Iterable[str], variant: str = ""
    ) -> Path:
        """Create ``staging/venv`` with requirements and those of ``with=``; returns its interpreter."""
        interpreter = uv.create(build, staging / "venv", self.python)
        wanted, backend = (*requirements, *self.extra), torch_backend(variant)
        uv.install(build, interpreter, wanted, self.package, folder=staging, torch_backend=backend)
        return interpreter

    def import_venv(self, build: BuildRun, folder: Path, what: str, venv: str = "venv") -> ImportedEngine:
        return import_own_engine(build, folder / venv / "bin" / "python", self.package, folder, what=what)


class CommitBuilder(CachedBuilder):
    """A cached builder of commits; ``folder`` of the repository must exist at a commit.

    ``whole``: documentation, tests and CI decide the environment; None: only ``folder`` does.
    """

    def __init__(
        self, spec: Spec, context: BuildContext, package: EnginePackage | None = None, *,
        folder: str | None = None, whole: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(spec, context, package)
        self.repository = context.required_repository(spec)
        self.folder = self.package.folder if folder is None else folder
        self.whole = whole
        if revision := spec.option("client"):
            self.client_change = self.repository.resolve(revision)
        self.trees: dict[str, str | None] = {}
        """Digest of the part of a commit that enters its environment; None if ``folder`` is missing."""

    def prepare(self, changes: Iterable[Change]) -> None:
        unknown = [change.id for change in changes if change.kind == "commit" and change.id not in self.trees]
        if unknown:
            self.look_up(unknown)

    def look_up(self, shas: Collection[str]) -> None:
        """Read what decides the environments of new commits, by few git processes in all."""
        if self.whole is None:
            self.trees |= self.repository.tree_ids(shas, self.folder)
        else:
            self.trees |= tree_digests(self.repository, shas, self.folder, whole=self.whole)

    def refuses(self, change: Change) -> Refusal | None:
        if change.kind != "commit":
            return Refusal(f"{self.spec} builds commits; {change.id} is a release", error=True)
        try:
            self.prepare((change,))
        except RevisionError as error:
            return Refusal(f"{change.short} cannot be read: {error.message}", error=True)
        if self.trees[change.id] is None:
            return Refusal(f"{change.short} has no folder {self.folder}/")
        return None

    def check_commit(
        self,
        build: BuildRun,
        change: Change,
        folder: Path,
        *,
        inside: str,
        venv: str = "venv",
        what: str = "",
    ) -> CheckedEnvironment:
        """Check that the virtual environment in ``folder`` runs a commit, whose package is ``inside``."""
        found = self.import_venv(build, folder, change.short, venv)
        tracked = blobs_inside(self.repository, change.id, inside)
        shown = identify_commit(found, change.id, tracked, what=what or change.short, log=build.log)
        facts = {"identified_by": shown, "engine_says_commit": found.commit}
        return found.checked(change.id, uv.list_packages(build, found.interpreter), facts)


LAYER = "layer"
_FIRST_MINUTES = 0.2
_FIRST_BYTES = 50_000_000
"""Estimated cost of the first layer; the cost of later ones is measured."""


class LayerBuilder(CachedBuilder):
    """Environments that are a folder, first on the path, over another environment."""

    @abstractmethod
    def base(self, change: Change) -> tuple[Builder, Change]:
        """What a change's layer lies over: a builder, and the change that it builds."""

    def binaries(self, change: Change) -> str:
        builder, below = self.base(change)
        return builder.binaries(below)

    def base_environment(self, build: BuildRun, change: Change) -> Environment:
        builder, below = self.base(change)
        return builder.ensure(below, log=build.log, timeout=build.timeout)

    def ensure_base(self, build: BuildRun, change: Change) -> float:
        """The base is locked as in use as long as the layer."""
        return self.base_environment(build, change).seconds

    def import_layer(
        self, build: BuildRun, change: Change, base: Environment, folder: Path
    ) -> ImportedEngine:
        return import_own_engine(
            build, base.interpreter, self.package, folder, what=change.short, layer=folder / LAYER
        )

    def minutes(self, change: Change) -> float | None:
        if self.cached(change):
            return 0.0
        if self.refuses(change) is not None:
            return None
        builder, below = self.base(change)
        base = builder.minutes(below)
        return None if base is None else base + (median_minutes(self.stamps()) or _FIRST_MINUTES)

    def price(self, changes: Iterable[Change]) -> BuildPrice:
        missing = self.missing(changes)
        layers = len(missing) * (median_minutes(self.stamps()) or _FIRST_MINUTES)
        below = (builder.price(changes) for builder, changes in self._bases_of(missing).items())
        return sum(below, BuildPrice(layers))

    def _bases_of(self, changes: Iterable[Change]) -> Mapping[Builder, list[Change]]:
        bases: dict[Builder, list[Change]] = {}
        for builder, below in map(self.base, changes):
            bases.setdefault(builder, []).append(below)
        return bases

    def disk(self, changes: Iterable[Change]) -> int | None:
        missing = self.missing(changes)
        sizes = [builder.disk(changes) for builder, changes in self._bases_of(missing).items()]
        known = [size for size in sizes if size is not None]
        layers = len(missing) * (median_bytes(self.stamps()) or _FIRST_BYTES)
        return layers + sum(known) if len(known) == len(sizes) else None


def compile_files(build: BuildRun, interpreter: Path, folder: Path, files: Iterable[str]) -> None:
    """Compile Python files of a folder to byte code; the import reports those that do not compile."""
    paths = [str(folder / path) for path in files if path.endswith(".py")]
    if paths:
        listed = folder.parent / "compiled.txt"
        listed.write_text("".join(f"{path}\n" for path in paths))
        argv = [str(interpreter), "-I", "-m", "compileall", "-q", "-i", str(listed)]
        build.run(argv, env=interpreter_environment(interpreter), cwd=folder.parent)
        listed.unlink()
