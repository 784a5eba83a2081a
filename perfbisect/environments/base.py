"""An environment in which a change runs, and the builders that make one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

from pydantic import ConfigDict, Field

from perfbisect.errors import FaultCode
from perfbisect.model.change import Change

if TYPE_CHECKING:
    from perfbisect.environments.build import BuildRun


@dataclass(frozen=True)
class Environment:
    """An interpreter in which a change's engine imports, health-checked; written, it is its own stamp.

    ``folder``: its own, with ``caches`` inside for compile and kernel caches; ``env``: variables that it
    needs (``PYTHONPATH``, cache folders). A stamp has neither, and its paths inside the folder are relative.
    ``seconds``: build time, 0.0 if it was cached. ``python_path``: folders that come first on its path.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    key: str
    interpreter: Path
    folder: Annotated[Path, Field(exclude=True)] = Path()
    env: Annotated[Mapping[str, str], Field(exclude=True)] = field(default_factory=dict)
    engine_version: str = ""
    engine_commit: str = ""
    engine_file: str = ""
    packages_digest: str = ""
    seconds: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)
    python_path: tuple[Path, ...] = ()
    builder: str = ""
    spec: str = ""
    change: str = ""
    built_at: float = 0.0
    schema: Literal["perfbisect.environment/2"] = "perfbisect.environment/2"

    @property
    def caches(self) -> Path:
        return self.folder / "caches"

    @property
    def is_cold(self) -> bool:
        """Whether its compile and kernel caches are empty."""
        try:
            return not any(path.is_file() for path in self.caches.rglob("*"))
        except OSError:
            return True


@dataclass(frozen=True)
class Artifact:
    """The wheel or image of a change in a registry, which can be kept.

    ``source``: what the registry is asked for: the address of a page, or the name of an image. ``save``:
    writes its files to a folder; returns the origin of each by its name. ``digest``: of an image's
    configuration.
    """

    source: str
    save: Callable[[BuildRun, Path], Mapping[str, str]]
    digest: str = ""


@dataclass(frozen=True)
class Refusal:
    """Why a builder cannot build a change, known before anything is built.

    ``error``: the request is wrong (an unknown base commit), not this one change. ``code``: of the failure.
    """

    reason: str
    error: bool = False
    code: FaultCode | None = None


@dataclass(frozen=True)
class BuildPrice:
    """Estimated minutes of builds; ``guesses``: of one by each builder that has built nothing yet."""

    minutes: float = 0.0
    guesses: Mapping[str, float] = field(default_factory=dict)

    def __add__(self, other: BuildPrice) -> BuildPrice:
        return BuildPrice(self.minutes + other.minutes, {**self.guesses, **other.guesses})

    def notes(self) -> tuple[str, ...]:
        """A plan's note on what was guessed."""
        if not self.guesses:
            return ()
        each = ", ".join(f"{name} {minutes:g} min" for name, minutes in self.guesses.items())
        return (f"the minutes of a build are a guess, as nothing was built here that way: {each}",)


class Builder(ABC):
    """One way to build environments; reads git and the registry, never imports the engine.

    ``spec``: as the user wrote it; enough to build the environment again.
    """

    name: str
    spec: str
    guess_min: float = 4.0
    """Minutes of a build where nothing was built before."""

    def prepare(self, changes: Iterable[Change]) -> None:  # noqa: B027 - most have nothing to look up
        """Look up changes that will be asked for, in bulk; only an optimization."""

    @abstractmethod
    def refuses(self, change: Change) -> Refusal | None:
        """Check cheaply, without building, whether the change can be built; None if it can."""

    @abstractmethod
    def key(self, change: Change) -> str:
        """Digest of all inputs: equal keys mean byte-identical environments. Builds nothing."""

    @abstractmethod
    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        """Return the environment; build it if it is not cached.

        Raises:
            BuildError: it does not build, or its health check fails; see the log.
            MachineError: no disk, lock or registry: not the change's fault.
        """

    def cached(self, change: Change) -> bool:
        """True if ``ensure`` would build nothing."""
        del change
        return False

    def client(self) -> Environment | None:
        """Environment of the pinned client, the same on all sides; None if nothing pins it."""
        return None

    def binaries(self, change: Change) -> str:
        """Digest of what decides the compiled files: equal for changes that share them. Builds nothing."""
        return self.key(change)

    def group(self, change: Change) -> str:
        """The engine that a change is built on (``vllm v0.21.0``); empty if unknown."""
        del change
        return ""

    def minutes(self, change: Change) -> float | None:
        """Estimated build time from earlier builds: 0.0 if cached, None if unknown."""
        return 0.0 if self.cached(change) else None

    def price(self, changes: Iterable[Change]) -> BuildPrice:
        """Estimated minutes of the builds that are not cached, of changes that can be built."""
        missing = {self.key(change): change for change in changes if not self.cached(change)}
        known = [self.minutes(change) for change in missing.values()]
        guesses = {self.name: self.guess_min} if None in known and self.guess_min else {}
        return BuildPrice(sum(self.guess_min if x is None else x for x in known), guesses)

    def disk(self, changes: Iterable[Change]) -> int | None:
        """Estimated bytes of the builds that are not cached; None if unknown."""
        return 0 if all(map(self.cached, changes)) else None

    def artifact(self, change: Change) -> Artifact | None:
        """What an environment needs that its registry may delete; None: nothing that can be kept."""
        del change
        return None

    def notes(self) -> tuple[str, ...]:
        """Lines for the user before the first launch; call it after ``prepare``."""
        return ()


class BuildSite(Protocol):
    """Machines that build environments for the cache of this one."""

    def prepare(self, changes: Iterable[Change]) -> None:
        """Note changes that will be asked for: a builder there looks them up together, as one here does."""
        ...

    def build(self, spec: str, change: Change, key: str, *, log: Path, timeout: float) -> float:
        """Build an environment, and bring it and what it stands on into the cache; returns its seconds.

        ``key``: of the environment here, which that of the other machine must equal. ``timeout``: seconds.

        Raises:
            BuildError: it does not build, or its health check fails; the log has the output.
            MachineError: the machine does not answer, or would build another environment.
        """
        ...
