"""A change -> an interpreter in which it runs; built once, keyed, checked, stamped last (DESIGN rule 8)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from perfbisect.model.change import Change


@dataclass(frozen=True)
class Environment:
    """An interpreter in which a change's engine imports, health-checked.

    ``env`` holds the variables that make it so (``PYTHONPATH``, cache folders); ``folder`` is its own
    folder, with ``caches`` inside for compile and kernel caches; ``seconds`` what building took, 0.0 when it
    was there already.
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
    """Why a builder cannot make an environment for a change: known before anything is built."""

    reason: str
    error: bool = False
    """True where the whole request is wrong (an unknown base commit), not this one change."""


class Builder(Protocol):
    """One way to get an environment. Reads git and the registry, never the engine's import."""

    name: str
    spec: str
    """How the user wrote it; enough to build it again."""

    def prepare(self, changes: Iterable[Change]) -> None:
        """Changes that will be asked about, so that they can be looked up together: only faster."""
        ...

    def refuses(self, change: Change) -> Refusal | None:
        """None if the change can be built, as far as that can be told without building. Cheap."""
        ...

    def key(self, change: Change) -> str:
        """Digest of all that makes the environment: equal keys, byte-identical environments. No building."""
        ...

    def cached(self, change: Change) -> bool:
        """True if ``ensure`` would build nothing."""
        ...

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        """The environment, built if it is not there.

        :raises BuildError: it could not be built, or its health check found something else; the log says
            what.
        :raises MachineError: no disk, no lock, no registry: not the change's fault.
        """
        ...

    def client(self) -> Environment | None:
        """The environment of the pinned client, one on all sides; None if this builder has no base."""
        ...

    def minutes(self, change: Change) -> float | None:
        """Minutes that ``ensure`` would take now, learnt from earlier builds: 0.0 if it is cached; None where
        nothing is known yet."""
        ...

    def notes(self) -> tuple[str, ...]:
        """What the user should know before the first launch, a line each (holes of an index, the variant that
        was chosen); after ``prepare``."""
        ...

    def disk(self, changes: Iterable[Change]) -> int | None:
        """Bytes that building these changes will take, those that are cached left out; None where nothing is
        known yet."""
        ...


@runtime_checkable
class Grouping(Protocol):
    """A builder that knows what a change stands on, where that moves within a range."""

    def group(self, change: Change) -> str:
        """In words, the version last (``vllm v0.21.0``); empty where it is not known."""
        ...


def group_of(builder: Builder, change: Change) -> str:
    """What a change stands on; empty where its builder knows of nothing like that."""
    return builder.group(change) if isinstance(builder, Grouping) else ""
