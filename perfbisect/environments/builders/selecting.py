"""Builders that delegate each change to one of several: a chain of specifications."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from perfbisect.common.digests import environment_key
from perfbisect.environments.base import Builder, BuildPrice, Environment, Refusal
from perfbisect.environments.build import BuildRun
from perfbisect.environments.cache import EnvironmentCache
from perfbisect.errors import BuildError
from perfbisect.model.change import Change


class SelectingBuilder(Builder):
    """Delegates each change to one of several builders."""

    def __init__(self, builders: Sequence[Builder], spec: str = "") -> None:
        self.builders = tuple(builders)
        self.spec = spec or ",".join(builder.spec for builder in builders)

    @abstractmethod
    def select(self, change: Change) -> Builder | None:
        """The builder of a change; None if all refuse it."""

    def group(self, change: Change) -> str:
        builder = self.select(change)
        return builder.group(change) if builder else ""

    def binaries(self, change: Change) -> str:
        builder = self.select(change)
        return builder.binaries(change) if builder else self.key(change)

    def key(self, change: Change) -> str:
        builder = self.select(change)
        return builder.key(change) if builder else environment_key("no builder/1", self.spec, change.id)

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        builder = self.select(change)
        if builder is None:
            refusal = self.refuses(change)
            raise BuildError(f"{change.short}: {refusal.reason if refusal else 'no builder takes it'}")
        return builder.ensure(change, log=log, timeout=timeout)

    def cached(self, change: Change) -> bool:
        builder = self.select(change)
        return builder is not None and builder.cached(change)

    def minutes(self, change: Change) -> float | None:
        builder = self.select(change)
        return builder.minutes(change) if builder else None

    def price(self, changes: Iterable[Change]) -> BuildPrice:
        selected = [(self.select(change), change) for change in changes]
        return sum(
            (
                builder.price([change for chosen, change in selected if chosen is builder])
                for builder in self.builders
            ),
            BuildPrice(),
        )

    def disk(self, changes: Iterable[Change]) -> int | None:
        selected = [(self.select(change), change) for change in changes]
        total = 0
        for builder in self.builders:
            size = builder.disk([change for chosen, change in selected if chosen is builder])
            if size is None:
                return None
            total += size
        return total


class ChainBuilder(SelectingBuilder):
    """``SPEC,SPEC,...``: refuses a change only if all refuse it, fails only if all fail.

    A failure is remembered across restarts, so that a change always runs in the same environment; if all have
    failed, all are tried again. A failure of the machine ends the attempt.
    """

    name = "chain"

    def __init__(self, builders: Sequence[Builder], cache: EnvironmentCache) -> None:
        super().__init__(builders)
        self.cache = cache
        self._prepared: dict[str, Change] = {}

    def prepare(self, changes: Iterable[Change]) -> None:
        remaining = list(changes)
        self._prepared |= {change.id: change for change in remaining}
        for builder in self.builders:
            builder.prepare(remaining)
            remaining = [change for change in remaining if builder.refuses(change) is not None]

    def refuses(self, change: Change) -> Refusal | None:
        reasons = []
        for builder in self.builders:
            refusal = builder.refuses(change)
            if refusal is None or refusal.error:
                return refusal
            reasons.append(f"{builder.name}: {refusal.reason}")
        return Refusal("; ".join(reasons))

    def select(self, change: Change) -> Builder | None:
        """The first builder that neither refuses the change nor has failed to build it."""
        return next((builder for builder, reason in self._rejections(change) if reason is None), None)

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        if self.select(change) is None:
            for builder in self.builders:
                self.cache.forget_failure(builder.key(change))
        reasons: list[str] = []
        outputs: list[str] = []
        for builder, reason in self._rejections(change):
            if reason is None:
                try:
                    environment = builder.ensure(change, log=log, timeout=timeout)
                    return replace(environment, facts={**environment.facts, "handed_on": reasons})
                except BuildError as error:
                    reason = error.message
                    self.cache.note_failure(builder.key(change), reason)
                    outputs.append(error.output)
            reasons.append(f"{builder.name}: {reason}")
            BuildRun(log, timeout).note(f"# {builder.spec}: {reason}\n# the next builder")
        raise BuildError(
            f"{change.short}: every builder failed: {'; '.join(reasons)}",
            where=log,
            output="\n".join(outputs),
        )

    def client(self) -> Environment | None:
        """The client of the first builder that has one."""
        clients = (builder.client() for builder in self.builders)
        return next((client for client in clients if client is not None), None)

    def notes(self) -> tuple[str, ...]:
        notes = [note for builder in self.builders for note in builder.notes()]
        selected = [self.select(change) for change in self._prepared.values()]
        counts = Counter(builder.spec for builder in selected if builder is not None)
        if len(counts) > 1:
            shares = ", ".join(f"{count} by {spec}" for spec, count in counts.items())
            notes.append(
                f"changes are built in several ways ({shares}): a difference between two neighbours that are "
                "built in different ways may come from the build"
            )
        return tuple(notes)

    def _rejections(self, change: Change) -> Iterator[tuple[Builder, str | None]]:
        """Each builder, and why it cannot build the change; None if it can.

        Lazy, so that an index is not asked for what an overlay builds.
        """
        for builder in self.builders:
            refusal = builder.refuses(change)
            yield builder, refusal.reason if refusal else self.cache.failure(builder.key(change))
