"""Builders in a row: what one refuses or fails to build goes to the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from perfbisect.common.digests import environment_key
from perfbisect.environments.base import Builder, Environment, Refusal, group_of
from perfbisect.environments.cache import Cabinet
from perfbisect.environments.uv import append
from perfbisect.errors import BuildError
from perfbisect.model.change import Change


class ChainBuilder:
    """``SPEC,SPEC,...``: a change is refused only where all refuse it, and fails only where all fail.

    What failed once goes straight to the next builder, also after a restart, so that a change is always
    measured in the same environment; where all failed, all are tried again. A failure of the machine ends the
    try.
    """

    name = "chain"

    def __init__(self, builders: Sequence[Builder], cabinet: Cabinet) -> None:
        self.builders = tuple(builders)
        self.cabinet = cabinet
        self.spec = ",".join(builder.spec for builder in builders)
        self._asked: dict[str, Change] = {}

    def prepare(self, changes: Iterable[Change]) -> None:
        rest = list(changes)
        self._asked |= {change.id: change for change in rest}
        for builder in self.builders:
            builder.prepare(rest)
            rest = [change for change in rest if builder.refuses(change) is not None]

    def refuses(self, change: Change) -> Refusal | None:
        told = []
        for builder in self.builders:
            refusal = builder.refuses(change)
            if refusal is None:
                return None
            if refusal.error:
                return refusal
            told.append(f"{builder.name}: {refusal.reason}")
        return Refusal("; ".join(told))

    def chosen(self, change: Change) -> Builder | None:
        """The builder that would build a change now: the first that neither refuses it nor has failed."""
        return next((builder for builder, why in self._told(change) if why is None), None)

    def group(self, change: Change) -> str:
        """What the change stands on, as the builder that would build it tells."""
        builder = self.chosen(change)
        return group_of(builder, change) if builder else ""

    def key(self, change: Change) -> str:
        builder = self.chosen(change)
        return builder.key(change) if builder else environment_key("chain refused/1", self.spec, change.id)

    def cached(self, change: Change) -> bool:
        builder = self.chosen(change)
        return builder is not None and builder.cached(change)

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        if self.chosen(change) is None:
            for builder in self._willing(change):
                self.cabinet.forget_failure(builder.key(change))
        passed: list[str] = []
        outputs: list[str] = []
        for builder, why in self._told(change):
            if why is None:
                try:
                    made = builder.ensure(change, log=log, timeout=timeout)
                    return replace(made, facts={**made.facts, "handed_on": passed})
                except BuildError as error:
                    why = error.message
                    self.cabinet.note_failure(builder.key(change), why)
                    outputs.append(error.output)
            passed.append(f"{builder.name}: {why}")
            append(log, f"# {builder.spec}: {why}\n# the next builder")
        raise BuildError(
            f"{change.short}: every builder failed: {'; '.join(passed)}",
            where=log,
            output="\n".join(outputs),
        )

    def client(self) -> Environment | None:
        """That of the first builder that has one."""
        return next((made for builder in self.builders if (made := builder.client()) is not None), None)

    def minutes(self, change: Change) -> float | None:
        builder = self.chosen(change)
        return builder.minutes(change) if builder else None

    def notes(self) -> tuple[str, ...]:
        told = [note for builder in self.builders for note in builder.notes()]
        chosen = [self.chosen(change) for change in self._asked.values()]
        counts = Counter(builder.name for builder in chosen if builder is not None)
        if len(counts) > 1:
            shares = ", ".join(f"{count} by {name}" for name, count in counts.items())
            told.append(
                f"changes are built in several ways ({shares}): where two neighbours are built in unlike "
                "ways, a difference between them may be the build's"
            )
        return tuple(told)

    def disk(self, changes: Iterable[Change]) -> int | None:
        shares: dict[int, list[Change]] = {}
        for change in changes:
            builder = self.chosen(change)
            if builder is not None:
                shares.setdefault(self.builders.index(builder), []).append(change)
        sizes = [self.builders[place].disk(share) for place, share in shares.items()]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def _willing(self, change: Change) -> list[Builder]:
        return [builder for builder in self.builders if builder.refuses(change) is None]

    def _told(self, change: Change) -> Iterator[tuple[Builder, str | None]]:
        """Each builder, and why it is passed over; None if it is not.

        The later ones are asked only if need be: an index is not asked for what an overlay builds.
        """
        for builder in self.builders:
            refusal = builder.refuses(change)
            yield builder, refusal.reason if refusal else self.cabinet.failure(builder.key(change))
