"""Interfaces: an environment in which a change runs, and the builders that make one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from perfbisect.model.change import Change


@dataclass(frozen=True)
class Environment:
    """An interpreter in which a change's engine imports, health-checked.

    ``env``: variables that it needs (``PYTHONPATH``, cache folders); ``folder``: its own folder, with
    ``caches`` inside for compile and kernel caches; ``seconds``: build time, 0.0 if it was cached.
    """

    key: str
    interpreter: Path
    folder: Path
    env: Mapping[str, str]
    engine_version: str
    engine_commit: str
    engine_file: str
    packages_digest: str
    seconds: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def caches(self) -> Path:
        return self.folder / "caches"


@dataclass(frozen=True)
class Refusal:
    """Why a builder cannot build a change, known before anything is built.

    ``error``: the request is wrong (an unknown base commit), not this one change.
    """

    reason: str
    error: bool = False


class Builder(Protocol):
    """One way to build environments; reads git and the registry, never imports the engine.

    ``spec``: as the user wrote it; enough to build the environment again.
    """

    name: str
    spec: str

    def prepare(self, changes: Iterable[Change]) -> None:
        """Look up changes that will be asked for, in bulk; only an optimization."""

    def refuses(self, change: Change) -> Refusal | None:
        """Check cheaply, without building, whether the change can be built; None if it can."""

    def key(self, change: Change) -> str:
        """Digest of all inputs: equal keys mean byte-identical environments. Builds nothing."""

    def cached(self, change: Change) -> bool:
        """True if ``ensure`` would build nothing."""

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        """Return the environment; build it if it is not cached.

        Raises:
            BuildError: it does not build, or its health check fails; see the log.
            MachineError: no disk, lock or registry: not the change's fault.
        """

    def client(self) -> Environment | None:
        """Environment of the pinned client, the same on all sides; None if nothing pins it."""

    def minutes(self, change: Change) -> float | None:
        """Estimated build time from earlier builds: 0.0 if cached, None if unknown."""

    def notes(self) -> tuple[str, ...]:
        """Lines for the user before the first launch; call it after ``prepare``."""

    def disk(self, changes: Iterable[Change]) -> int | None:
        """Estimated bytes of the builds that are not cached; None if unknown."""


@runtime_checkable
class Grouping(Protocol):
    """A builder that knows which engine a change is built on."""

    def group(self, change: Change) -> str:
        """The engine with its version (``vllm v0.21.0``); empty if unknown."""


def group_of(builder: Builder, change: Change) -> str:
    """The engine that a change is built on; empty if the builder does not know."""
    return builder.group(change) if isinstance(builder, Grouping) else ""
