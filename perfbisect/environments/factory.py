"""Makes the builder of a specification, or of several in a chain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from perfbisect.changes.git import Repository
from perfbisect.environments.base import Builder, BuildSite, Environment, Refusal, SelectingBuilder
from perfbisect.environments.build import BuildRun, DependencyLimits
from perfbisect.environments.builders.cached import BuildContext
from perfbisect.environments.builders.command import CommandBuilder
from perfbisect.environments.builders.existing import ExistingBuilder
from perfbisect.environments.builders.image import ImageBuilder
from perfbisect.environments.builders.overlay import overlay_builder
from perfbisect.environments.builders.overrides import OverrideBuilder
from perfbisect.environments.builders.pinned import PinnedBuilder
from perfbisect.environments.builders.release import ReleaseBuilder
from perfbisect.environments.builders.source import SourceBuilder
from perfbisect.environments.builders.wheel import WheelBuilder
from perfbisect.environments.cache import EnvironmentCache
from perfbisect.environments.dependency_day import NO_DAY
from perfbisect.environments.spec import Spec, parse_chain
from perfbisect.errors import BuildError, UsageError
from perfbisect.model.change import Change


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


BUILDERS: dict[str, Callable[[Spec, BuildContext], Builder]] = {
    "release": ReleaseBuilder,
    "overlay": overlay_builder,
    "wheel": WheelBuilder,
    "source": SourceBuilder,
    "pinned": PinnedBuilder,
    "image": ImageBuilder,
    "command": CommandBuilder,
    "existing": ExistingBuilder,
}
"""The builders, by the name in a specification (:data:`perfbisect.environments.spec.FORMS`)."""


def make_builder(
    spec: str,
    *,
    repository: Repository | None,
    cache: Path,
    exclude_newer: str | None = None,
    constraints: Path | None = None,
    site: BuildSite | None = None,
    machine: str = "",
    is_plan: bool = False,
) -> Builder:
    """The builder of a specification, which also overrides packages (``REV+pip:NAME==V``).

    ``exclude_newer`` (a day, or ``none``) and ``constraints`` (a file) limit the versions of dependencies.
    ``site``: machines that build in place of this one. ``machine``: the kind that the environments are for,
    by default this one. ``is_plan``: nothing is built, and an index that does not answer is a note.

    :raises UsageError: the specification is wrong, a file it names is missing, or it needs a repository.
    :raises RevisionError: its base commit does not exist.
    """
    specs = parse_chain(spec)
    if constraints is not None and not constraints.is_file():
        raise UsageError(f"no such constraints file: {constraints}")
    day = None if exclude_newer == NO_DAY else exclude_newer
    limits = DependencyLimits(day or None, constraints.absolute() if constraints else None)
    context = BuildContext(
        EnvironmentCache(cache.expanduser().absolute()), limits, repository, site, machine, is_plan
    )
    builders = [BUILDERS[spec.name](spec, context) for spec in specs]
    inner = builders[0] if len(builders) == 1 else ChainBuilder(builders, context.cache)
    pythons = {spec.option("python") for spec in specs}
    return OverrideBuilder(inner, context, pythons.pop() if len(pythons) == 1 else "")
