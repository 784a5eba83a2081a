"""The builder over the cache. What differs between kinds of environments is a recipe of functions."""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from perfbisect.changes.git import Repository
from perfbisect.common.digests import environment_key
from perfbisect.environments import uv
from perfbisect.environments.base import Artifact, Builder, BuildPrice, BuildSite, Environment, Refusal
from perfbisect.environments.build import BuildRun, DependencyLimits, interpreter_environment
from perfbisect.environments.cache import BYTES, EnvironmentCache, variables
from perfbisect.environments.health import ImportedEngine, identify_commit, import_engine
from perfbisect.environments.kept import LINKS
from perfbisect.environments.packages import EnginePackage, engine, torch_backend
from perfbisect.environments.source_tree import blobs_inside, is_built, project_digest, tree_rows
from perfbisect.environments.spec import Spec
from perfbisect.errors import BuildError, RevisionError
from perfbisect.model.change import Change, Kind

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


def requirement_name(requirement: str) -> str:
    """The normalized name of a requirement or of a wheel by its path; empty if unknown."""
    with suppress(InvalidRequirement, InvalidWheelFilename):
        if requirement.startswith("/"):
            return parse_wheel_filename(Path(requirement).name)[0]
        return canonicalize_name(Requirement(requirement).name)
    return ""


@dataclass(frozen=True)
class Installation:
    """An engine's package, and how it is installed.

    ``beside``: requirements installed with it, and paths of wheels and projects; ``beside_key``: the same,
    with digests of what is at these paths.
    """

    package: EnginePackage
    limits: DependencyLimits
    python: str = ""
    beside: tuple[str, ...] = ()
    beside_key: tuple[str, ...] = ()

    @classmethod
    def of(cls, spec: Spec, context: BuildContext, package: EnginePackage | None = None) -> Installation:
        package = package or engine(spec.option("package", "vllm"))
        beside, key = [], []
        for word in spec.words("with"):
            path = Path(word).expanduser().absolute()
            if not word.startswith(("/", ".", "~")):
                beside.append(word)
                key.append(word)
            elif path.exists():
                beside.append(str(path))
                key.append(f"{path.name} {project_digest(path)}")
            else:
                problem = f"with= names {word}, and there is no such file"
                raise spec.error(problem, "give a wheel or the folder of a project by its path")
        named = set(map(requirement_name, beside))
        package = replace(package, drop=tuple(name for name in package.drop if name not in named))
        return cls(package, context.limits, spec.option("python"), tuple(beside), tuple(key))

    def key_parts(self) -> tuple[object, ...]:
        """The part of a key that decides what an installation of the package gives."""
        package = self.package
        python = self.python or uv.base_python_version()
        # A key without ``with=`` is as it was before that option existed: built environments stay valid.
        beside = (self.beside_key,) if self.beside_key else ()
        names = (package.name, package.module, package.alias, package.drop, python)
        return (*names, *self.limits.key_parts(), *beside)

    def create_venv(
        self, build: BuildRun, staging: Path, requirements: Iterable[str], variant: str = ""
    ) -> Path:
        """Create ``staging/venv`` with requirements and those beside; returns its interpreter."""
        interpreter = uv.create(build, staging / "venv", self.python)
        wanted, backend = (*requirements, *self.beside), torch_backend(variant)
        uv.install(build, interpreter, wanted, self.package, folder=staging, torch_backend=backend)
        # Links to kept wheels: they would hold the bytes of what is dropped.
        shutil.rmtree(staging / LINKS, ignore_errors=True)
        return interpreter

    def import_engine(
        self, build: BuildRun, folder: Path, what: str, *, venv: str = "venv", base: Environment | None = None
    ) -> ImportedEngine:
        """Import the engine of the environment in ``folder``, or of its layer over ``base``.

        Raises:
            BuildError: it does not import, or comes from elsewhere.
        """
        own = folder if base is None else folder / LAYER
        interpreter = folder / venv / "bin" / "python" if base is None else base.interpreter
        env = variables(folder, "" if base is None else str(own))
        package = self.package
        found = import_engine(build, interpreter, package.module, server=package.server, env=env, what=what)
        # A .pth file, or an editable installation, may bring the engine from elsewhere.
        if not Path(os.path.realpath(found.file)).is_relative_to(os.path.realpath(own)):
            message = f"{what}: imported {self.package.module} from {found.file}, not from {own}"
            raise BuildError(message, where=build.log)
        return found


@dataclass(frozen=True)
class Found:
    """A change; a builder's own value adds what it looked up of it."""

    change: Change


@dataclass(frozen=True)
class CommitTree(Found):
    """A commit, and the digest of what enters its environment; None if it lacks the folder."""

    tree: str | None


@dataclass(frozen=True)
class CommitTrees:
    """The part of a repository's commits that enters their environments.

    ``whole``: documentation, tests and CI decide the environment; None: only ``folder`` does.
    """

    repository: Repository
    folder: str
    whole: bool | None = None

    def find(self, changes: Sequence[Change]) -> dict[str, CommitTree]:
        trees = self.look_up(changes)
        return {change.id: CommitTree(change, trees[change.id]) for change in changes}

    def look_up(self, changes: Iterable[Change]) -> dict[str, str | None]:
        """Digest of that part of each commit, by few git processes in all; None if there is no ``folder``.

        Raises:
            RevisionError: a commit is not in the repository.
        """
        trees = self.repository.tree_ids([change.id for change in changes], self.folder)
        if self.whole is None:
            return trees
        for sha, tree in trees.items():
            if tree is None and not self.folder:
                raise RevisionError(f"the repository {self.repository.path} does not have commit {sha[:12]}")
        wanted = sorted({tree for tree in trees.values() if tree is not None})
        digests: dict[str | None, str | None] = {None: None}
        for tree, data in self.repository.contents(wanted):
            rows = tree_rows(data, len(tree) // 2)
            digests[tree] = environment_key([row for row in rows if self.whole or is_built(row[0])])
        return {sha: digests[tree] for sha, tree in trees.items()}

    def refuses(self, commit: CommitTree) -> Refusal | None:
        is_missing = commit.tree is None
        return Refusal(f"{commit.change.short} has no folder {self.folder}/") if is_missing else None

    def client(self, spec: Spec) -> Change | None:
        """The commit of ``client=``, if the specification has it."""
        revision = spec.option("client")
        return self.repository.resolve(revision) if revision else None

    def check(
        self,
        installation: Installation,
        build: BuildRun,
        folder: Path,
        change: Change,
        *,
        inside: str = "",
        what: str = "",
        venv: str = "venv",
    ) -> Environment:
        """Check that the engine of the environment in ``folder`` is a commit.

        ``inside``: folder of the package in the repository; by default its own, or that in ``src/`` or
        ``python/``.
        """
        found = installation.import_engine(build, folder, change.short, venv=venv)
        own = installation.package.folder
        places = (inside,) if inside else (own, f"src/{own}", f"python/{own}")
        found_in = (blobs_inside(self.repository, change.id, place) for place in places)
        tracked = next(filter(None, found_in), {})
        shown = identify_commit(found, change.id, tracked, what=what or change.short, log=build.log)
        facts = {"identified_by": shown, "engine_says_commit": found.commit}
        return found.checked(change.id, uv.list_packages(build, found.interpreter), facts)


S = TypeVar("S")
L = TypeVar("L", bound=Found)


def claim_commit(_settings: object, found: Found, _build: BuildRun, environment: Environment) -> Environment:
    """An environment built for another commit with the same key is this commit's as well."""
    change = found.change
    return replace(environment, engine_commit=change.source) if change.kind == "commit" else environment


def median_minutes(stamps: Iterable[Environment]) -> float | None:
    """Median build time; None without stamps."""
    seconds = [stamp.seconds for stamp in stamps]
    return statistics.median(seconds) / 60.0 if seconds else None


def median_bytes(stamps: Iterable[Environment]) -> int | None:
    """Median of the bytes that one environment alone holds; None if unknown."""
    sizes = [size for stamp in stamps if isinstance(size := stamp.facts.get(BYTES), int)]
    return round(statistics.median(sizes)) if sizes else None


@dataclass(frozen=True)
class Recipe(Generic[S, L]):
    """One way to make environments: functions of settings ``S`` and of what was found of a change, ``L``.

    ``refuses``: cheaply, without building, why a change cannot be built. ``key_parts``: what decides the
    content: equal parts are equal environments. ``make``: writes the environment to an empty folder, and
    returns facts for its stamp. ``check``: checks that the engine in the final folder is the change.
    ``look_up``: what git, indices and registries say of many changes at once; it gets what is known already.
    Without it, ``L`` is the change alone.

    ``binaries``: what decides the compiled files, where that is less than the key. ``in_place``: content is
    made in its final folder, for what cannot be moved. ``keyed_if_refused``: a key
    needs no ``refuses``. ``wrong_kind``: why a release, or a commit, is refused. ``base``: of a layer, a
    builder and the change that it builds. ``renew``: asks again for what was without an answer. ``claim``:
    takes an environment as that of a change. ``label``: what the stamp says was built. ``artifact``: what a
    registry has of a change, and may delete. ``minutes``, ``price`` and ``disk``: estimates, from earlier
    builds.
    """

    name: str
    refuses: Callable[[S, L], Refusal | None]
    key_parts: Callable[[S, L], tuple[object, ...]]
    make: Callable[[S, L, BuildRun, Path], Mapping[str, Any]]
    check: Callable[[S, L, BuildRun, Path], Environment]
    look_up: Callable[[S, Sequence[Change], Mapping[str, L]], Mapping[str, L]] | None = None
    guess_min: float = 4.0
    in_place: bool = False
    keyed_if_refused: bool = False
    wrong_kind: str = "{spec} builds {kind}s; {change} is a {other}"
    base: Callable[[S, L], tuple[Builder, Change]] | None = None
    binaries: Callable[[S, L], tuple[object, ...]] | None = None
    renew: Callable[[S, L], L] | None = None
    claim: Callable[[S, L, BuildRun, Environment], Environment] = claim_commit
    label: Callable[[S, L], str] = lambda _, found: found.change.id
    group: Callable[[S, L], str] | None = None
    artifact: Callable[[S, L], Artifact | None] | None = None
    minutes: Callable[[S, Sequence[Environment]], float | None] = lambda _, stamps: median_minutes(stamps)
    price: Callable[[S, Sequence[Environment], Sequence[Change]], BuildPrice] | None = None
    disk: Callable[[S, L, Sequence[Environment]], int | None] = lambda _settings, _found, stamps: (
        median_bytes(stamps)
    )
    notes: Callable[[S, Mapping[str, L], Sequence[Environment]], tuple[str, ...]] = lambda *_: ()


LAYER = "layer"
"""Folder of an environment that comes first on the path, over another environment."""
_FIRST_LAYER_MIN = 0.2
_FIRST_LAYER_BYTES = 50_000_000
"""Estimated cost of the first layer; the cost of later ones is measured."""


class CachedBuilder(Builder, Generic[S, L]):
    """Builds by a recipe, and keeps environments in the cache.

    ``kind``: of the changes, None: either. ``client``: whose environment is the client's on all sides, or
    the builder that has one. ``known``: what was looked up, by the id of its change.
    """

    def __init__(
        self,
        recipe: Recipe[S, L],
        spec: str,
        context: BuildContext,
        settings: S,
        *,
        kind: Kind | None = "commit",
        client: Change | Builder | None = None,
    ) -> None:
        self.recipe = recipe
        self.name = recipe.name
        self.guess_min = recipe.guess_min
        self.spec = spec
        self.settings = settings
        self.cache = context.cache
        self.limits = context.limits
        self.site = context.site
        self.kind = kind
        self.pinned_client = client
        self.known: dict[str, L] = {}

    def prepare(self, changes: Iterable[Change]) -> None:
        unknown = {
            change.id: change for change in changes if change.id not in self.known and self._takes(change)
        }
        if unknown and self.recipe.look_up is not None:
            self.known |= self.recipe.look_up(self.settings, tuple(unknown.values()), self.known)

    def found(self, change: Change) -> L:
        """What is known of a change, which is looked up if nothing is."""
        if self.recipe.look_up is None:
            return cast(L, Found(change))
        self.prepare((change,))
        return self.known[change.id]

    def _takes(self, change: Change) -> bool:
        return self.kind is None or change.kind == self.kind

    def refuses(self, change: Change) -> Refusal | None:
        if not self._takes(change):
            words = {"spec": self.spec, "kind": self.kind, "change": change.short, "other": change.kind}
            return Refusal(self.recipe.wrong_kind.format(**words), error=True)
        try:
            found = self.found(change)
        except RevisionError as error:
            return Refusal(f"{change.short} cannot be read: {error.message}", error=True)
        return self.recipe.refuses(self.settings, found)

    def key(self, change: Change) -> str:
        if not self.recipe.keyed_if_refused and self.refuses(change) is not None:
            # A refused change is never built: its key must equal no other.
            return environment_key(f"{self.name} refused/1", self.spec, change.id)
        return environment_key(f"{self.name}/1", *self.recipe.key_parts(self.settings, self.found(change)))

    def cached(self, change: Change) -> bool:
        return self.cache.stamp(self.key(change)) is not None

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        if self.recipe.renew is not None and self._takes(change):
            self.known[change.id] = self.recipe.renew(self.settings, self.found(change))
        build, seconds = BuildRun(log, timeout, self.limits), 0.0
        if not self.cached(change):
            if (refusal := self.refuses(change)) is not None:
                raise BuildError(f"{change.short}: {refusal.reason}", code=refusal.code)
            if self.site is not None:
                key = self.key(change)
                seconds = self.site.build(self.spec, change, key, log=log, timeout=timeout)
        found = self.found(change)
        if self.recipe.base is not None:
            # The base must stay locked as in use for as long as the layer.
            seconds += base_environment(self.recipe.base(self.settings, found), build).seconds
        environment = self.cache.ensure(
            self.key(change),
            builder=self.name,
            spec=self.spec,
            change=self.recipe.label(self.settings, found),
            make=partial(self.recipe.make, self.settings, found, build),
            check=partial(self.recipe.check, self.settings, found, build),
            timeout=timeout,
            in_place=self.recipe.in_place,
        )
        environment = replace(environment, seconds=seconds + environment.seconds)
        return self.recipe.claim(self.settings, found, build, environment)

    def client(self) -> Environment | None:
        client = self.pinned_client
        if not isinstance(client, Change):
            return client.client() if client else None
        return self.ensure(client, log=self.cache.log(self.key(client)), timeout=CLIENT_TIMEOUT_S)

    def binaries(self, change: Change) -> str:
        is_refused = not self.recipe.keyed_if_refused and self.refuses(change) is not None
        if not is_refused and self.recipe.binaries is not None:
            return environment_key(
                f"{self.name} binaries/1", *self.recipe.binaries(self.settings, self.found(change))
            )
        if self.recipe.base is None or is_refused:
            return self.key(change)
        builder, below = self.recipe.base(self.settings, self.found(change))
        return builder.binaries(below)

    def group(self, change: Change) -> str:
        if self.recipe.group is None or not self._takes(change):
            return ""
        return self.recipe.group(self.settings, self.found(change))

    def artifact(self, change: Change) -> Artifact | None:
        if self.refuses(change) is not None:
            return None
        found = self.found(change)
        if self.recipe.artifact is not None:
            return self.recipe.artifact(self.settings, found)
        if self.recipe.base is None:
            return None
        builder, below = self.recipe.base(self.settings, found)
        return builder.artifact(below)

    def minutes(self, change: Change) -> float | None:
        if self.cached(change):
            return 0.0
        if self.recipe.base is None:
            return self.recipe.minutes(self.settings, self.stamps())
        if self.refuses(change) is not None:
            return None
        builder, below = self.recipe.base(self.settings, self.found(change))
        base = builder.minutes(below)
        return None if base is None else base + (median_minutes(self.stamps()) or _FIRST_LAYER_MIN)

    def price(self, changes: Iterable[Change]) -> BuildPrice:
        if self.recipe.price is not None:
            missing = self._missing(changes)
            return self.recipe.price(self.settings, self.stamps(), missing) if missing else BuildPrice()
        if self.recipe.base is None:
            return super().price(changes)
        missing = self._missing(changes)
        layers = len(missing) * (median_minutes(self.stamps()) or _FIRST_LAYER_MIN)
        below = (
            builder.price(changes) for builder, changes in self._bases_of(missing, self.recipe.base).items()
        )
        return sum(below, BuildPrice(layers))

    def disk(self, changes: Iterable[Change]) -> int | None:
        missing, stamps = self._missing(changes), self.stamps()
        if self.recipe.base is None:
            each = self.recipe.disk(self.settings, self.found(missing[0]), stamps) if missing else 0
            return None if each is None else each * len(missing)
        sizes = [
            builder.disk(changes) for builder, changes in self._bases_of(missing, self.recipe.base).items()
        ]
        known = [size for size in sizes if size is not None]
        layers = len(missing) * (median_bytes(stamps) or _FIRST_LAYER_BYTES)
        return layers + sum(known) if len(known) == len(sizes) else None

    def notes(self) -> tuple[str, ...]:
        return self.recipe.notes(self.settings, self.known, self.stamps())

    def stamps(self) -> tuple[Environment, ...]:
        """Earlier builds of this specification, else of this builder, from which costs are estimated."""
        stamps = [stamp for stamp in self.cache.stamps() if stamp.builder == self.name and stamp.seconds > 0]
        return tuple(stamp for stamp in stamps if stamp.spec == self.spec) or tuple(stamps)

    def _missing(self, changes: Iterable[Change]) -> list[Change]:
        """One change per key that can be built and is not cached."""
        absent = (change for change in changes if not self.cached(change))
        return list({self.key(change): change for change in absent if self.refuses(change) is None}.values())

    def _bases_of(
        self, changes: Iterable[Change], base: Callable[[S, L], tuple[Builder, Change]]
    ) -> Mapping[Builder, list[Change]]:
        bases: dict[Builder, list[Change]] = {}
        for builder, below in (base(self.settings, self.found(change)) for change in changes):
            bases.setdefault(builder, []).append(below)
        return bases


def base_environment(base: tuple[Builder, Change], build: BuildRun) -> Environment:
    """The environment that a layer lies over, built if it is missing."""
    builder, below = base
    return builder.ensure(below, log=build.log, timeout=build.timeout)


def compile_files(build: BuildRun, interpreter: Path, folder: Path, files: Iterable[str]) -> None:
    """Compile Python files of a folder to byte code; the import reports those that do not compile."""
    paths = [str(folder / path) for path in files if path.endswith(".py")]
    if paths:
        listed = folder.parent / "compiled.txt"
        listed.write_text("".join(f"{path}\n" for path in paths))
        argv = [str(interpreter), "-I", "-m", "compileall", "-q", "-i", str(listed)]
        build.run(argv, env=interpreter_environment(interpreter), cwd=folder.parent)
        listed.unlink()
