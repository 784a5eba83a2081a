"""Base classes of builders whose environments are kept in the cache."""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Container, Iterable
from dataclasses import dataclass
from pathlib import Path

from perfbisect.changes.git import Repository
from perfbisect.environments.base import Environment, Refusal
from perfbisect.environments.cache import (
    BYTES,
    CheckedEnvironment,
    EnvironmentCache,
    Stamp,
    stamped_environment,
)
from perfbisect.environments.packages import EnginePackage, engine
from perfbisect.environments.spec import Spec
from perfbisect.environments.uv import DependencyLimits
from perfbisect.errors import BuildError, RevisionError
from perfbisect.model.change import Change

_CLIENT_TIMEOUT_S = 3600.0


@dataclass(frozen=True)
class BuildContext:
    """What all builders of a specification share."""

    cache: EnvironmentCache
    limits: DependencyLimits
    repository: Repository | None

    def required_repository(self, spec: Spec) -> Repository:
        """:raises UsageError: no repository was given."""
        if self.repository is None:
            article = "an" if spec.name[0] in "aeiou" else "a"
            raise spec.error(
                f"{article} {spec.name} is made of commits and needs their repository", "add --repo PATH"
            )
        return self.repository


def earlier_stamps(cache: EnvironmentCache, builder: str, spec: str) -> tuple[Stamp, ...]:
    """Stamps of a builder: those of the same specification if there are any, else all."""
    stamps = [stamp for stamp in cache.stamps() if stamp.builder == builder and stamp.seconds > 0.0]
    return tuple(stamp for stamp in stamps if stamp.spec == spec) or tuple(stamps)


def median_minutes(stamps: Iterable[Stamp]) -> float | None:
    """Median build time; None without stamps."""
    seconds = [stamp.seconds for stamp in stamps]
    return statistics.median(seconds) / 60.0 if seconds else None


def median_bytes(stamps: Iterable[Stamp]) -> int | None:
    """Median of the bytes that one environment alone holds; None if unknown."""
    sizes = [size for stamp in stamps if isinstance(size := stamp.facts.get(BYTES), int)]
    return round(statistics.median(sizes)) if sizes else None


def unknown_commits(changes: Iterable[Change], known: Container[str]) -> list[str]:
    """Ids of the commits among ``changes`` that are not in ``known``."""
    return [change.id for change in changes if change.kind == "commit" and change.id not in known]


class CachedBuilder(ABC):
    """Implements :class:`perfbisect.environments.base.Builder` over a cache.

    ``client_change``: the change whose environment is the client's on all sides; None if nothing pins it.
    """

    name: str
    client_change: Change | None = None

    def __init__(self, spec: Spec, context: BuildContext, package: EnginePackage | None = None) -> None:
        self.spec = spec.text
        self.package = package or engine(spec.option("package", "vllm"))
        self.cache = context.cache
        self.limits = context.limits
        self.python = spec.option("python")

    def prepare(self, changes: Iterable[Change]) -> None:  # noqa: B027 - nothing to look up
        pass

    @abstractmethod
    def refuses(self, change: Change) -> Refusal | None: ...

    @abstractmethod
    def key(self, change: Change) -> str: ...

    @abstractmethod
    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment: ...

    def cached(self, change: Change) -> bool:
        return self.cache.stamp(self.key(change)) is not None

    def client(self) -> Environment | None:
        if self.client_change is None:
            return None
        log = self.cache.log(self.key(self.client_change))
        return self.ensure(self.client_change, log=log, timeout=_CLIENT_TIMEOUT_S)

    def minutes(self, change: Change) -> float | None:
        return 0.0 if self.cached(change) else median_minutes(self.stamps())

    def notes(self) -> tuple[str, ...]:
        return ()

    def disk(self, changes: Iterable[Change]) -> int | None:
        missing = self.missing(changes)
        if not missing:
            return 0
        each = median_bytes(self.stamps())
        return None if each is None else each * len(missing)

    def stamps(self) -> tuple[Stamp, ...]:
        """Earlier builds, from which costs are estimated."""
        return earlier_stamps(self.cache, self.name, self.spec)

    def missing(self, changes: Iterable[Change]) -> dict[str, Change]:
        """One change per key that can be built and is not cached."""
        buildable = (change for change in changes if self.refuses(change) is None)
        return {self.key(change): change for change in buildable if not self.cached(change)}

    def folder_of(self, change: Change) -> Path:
        """The folder of a change's environment, built or not. :raises BuildError: it is refused."""
        refusal = self.refuses(change)
        if refusal is not None:
            raise BuildError(f"{change.short}: {refusal.reason}")
        return self.cache.folder(self.key(change))

    def ensure_cached(
        self,
        change: Change,
        *,
        make: Callable[[Path], None],
        check: Callable[[Path], CheckedEnvironment],
        timeout: float,
        in_place: bool = False,
        python_path: str = "",
        base_seconds: float = 0.0,
    ) -> Environment:
        """Return a change's environment; make and check it if it is missing.

        An environment built for another commit with the same key is this commit's as well. ``base_seconds``:
        what building the environment below it took.

        :raises BuildError: it is refused, or ``make`` or ``check`` fail.
        :raises MachineError: no disk, lock or registry.
        """
        folder, key = self.folder_of(change), self.key(change)
        stamp, seconds = self.cache.ensure(
            key,
            builder=self.name,
            spec=self.spec,
            change=change.id,
            make=make,
            check=check,
            timeout=timeout,
            in_place=in_place,
        )
        if change.kind == "commit":
            stamp = stamp.model_copy(update={"engine_commit": change.id})
        return stamped_environment(stamp, folder, seconds=base_seconds + seconds, python_path=python_path)


class CommitBuilder(CachedBuilder):
    """A cached builder of commits; ``folder`` of the repository must exist at a commit."""

    def __init__(
        self,
        spec: Spec,
        context: BuildContext,
        package: EnginePackage | None = None,
        folder: str | None = None,
    ) -> None:
        super().__init__(spec, context, package)
        self.repository = context.required_repository(spec)
        self.folder = self.package.folder if folder is None else folder
        if revision := spec.option("client"):
            self.client_change = self.repository.resolve(revision)
        self._trees: dict[str, str | None] = {}

    def read_trees(self, shas: Collection[str]) -> dict[str, str | None]:
        """Digest of the part of each commit that enters its environment; None if ``folder`` is missing."""
        return self.repository.tree_ids(shas, self.folder)

    def prepare(self, changes: Iterable[Change]) -> None:
        unknown = unknown_commits(changes, self._trees)
        if unknown:
            self._trees |= self.read_trees(unknown)

    def refuses(self, change: Change) -> Refusal | None:
        if change.kind != "commit":
            return Refusal(f"{self.spec} builds commits; {change.id} is a release", error=True)
        try:
            self.prepare((change,))
        except RevisionError as error:
            return Refusal(f"{change.short} cannot be read: {error.message}", error=True)
        if self._trees[change.id] is None:
            return Refusal(f"{change.short} has no folder {self.folder}/")
        return None
