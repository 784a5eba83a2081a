"""The builder of an environment's specification, or of several in a chain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from perfbisect.changes.git import Repository
from perfbisect.common.digests import environment_key
from perfbisect.environments.base import Artifact, Builder, BuildPrice, BuildSite, Environment, Refusal
from perfbisect.environments.build import BuildRun, DependencyLimits
from perfbisect.environments.builders import overrides
from perfbisect.environments.builders.cached import BuildContext, CachedBuilder
from perfbisect.environments.cache import EnvironmentCache
from perfbisect.environments.spec import NO_DAY, parse_chain
from perfbisect.errors import BuildError, UsageError
from perfbisect.model.change import Change


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
) -> ChainBuilder:
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
    # Only the modules of builders that are named are imported.
    modules = [import_module(f"perfbisect.environments.builders.{spec.name}") for spec in specs]
    builders = [module.builder(spec, context) for module, spec in zip(modules, specs, strict=True)]
    pythons = {spec.option("python") for spec in specs}
    python = pythons.pop() if len(pythons) == 1 else ""
    below = ChainBuilder(builders, context)
    settings = overrides.OverrideSettings(below, context.cache, context.limits, python)
    layers = CachedBuilder(overrides.RECIPE, below.spec, context.here, settings, kind=None)
    return ChainBuilder(builders, context, layers)


class ChainBuilder(Builder):
    """The builders of ``SPEC,SPEC,...``, one or more, and package overrides over what they build.

    Several refuse a change only if all do, and fail only if all fail. A failure is remembered across
    restarts, so that a change always runs in the same environment; if all have failed, all are tried again.
    A failure of the machine ends the attempt. ``overrides``: builds changes with package overrides.
    """

    def __init__(
        self, builders: Sequence[Builder], context: BuildContext, overrides: Builder | None = None
    ) -> None:
        self.builders = tuple(builders)
        self.name = self.builders[0].name if len(self.builders) == 1 else "chain"
        self.spec = ",".join(builder.spec for builder in self.builders)
        self.overrides = overrides
        self.cache = context.cache
        self.site = context.site
        self._prepared: dict[str, Change] = {}

    def prepare(self, changes: Iterable[Change]) -> None:
        remaining = [change.unswapped for change in changes]
        if self.site is not None:
            self.site.prepare(remaining)
        self._prepared |= {change.id: change for change in remaining}
        for builder in self.builders:
            builder.prepare(remaining)
            if len(self.builders) > 1:
                remaining = [change for change in remaining if builder.refuses(change) is not None]

    def _candidates(self, change: Change) -> tuple[Builder, ...]:
        return (self.overrides,) if self.overrides is not None and change.pips else self.builders

    def _rejections(self, change: Change) -> Iterator[tuple[Builder, str | None]]:
        """Each builder, and why it cannot build the change; None if it can.

        Lazy, so that an index is not asked for what an overlay builds.
        """
        for builder in self._candidates(change):
            refusal = builder.refuses(change)
            yield builder, refusal.reason if refusal else self.cache.failure(builder.key(change))

    def select(self, change: Change) -> Builder | None:
        """The only builder, or the first that neither refuses the change nor has failed to build it."""
        candidates = self._candidates(change)
        if len(candidates) == 1:
            return candidates[0]
        return next((builder for builder, reason in self._rejections(change) if reason is None), None)

    def refuses(self, change: Change) -> Refusal | None:
        candidates = self._candidates(change)
        reasons = []
        for builder in candidates:
            refusal = builder.refuses(change)
            if refusal is None or refusal.error or len(candidates) == 1:
                return refusal
            reasons.append(f"{builder.name}: {refusal.reason}")
        return Refusal("; ".join(reasons))

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        selected = self.select(change)
        if selected is not None and len(self._candidates(change)) == 1:
            return selected.ensure(change, log=log, timeout=timeout)
        if selected is None:
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

    def key(self, change: Change) -> str:
        builder = self.select(change)
        return builder.key(change) if builder else environment_key("no builder/1", self.spec, change.id)

    def cached(self, change: Change) -> bool:
        builder = self.select(change)
        return builder is not None and builder.cached(change)

    def client(self) -> Environment | None:
        """The client of the first builder that has one."""
        clients = (builder.client() for builder in self.builders)
        return next((client for client in clients if client is not None), None)

    def binaries(self, change: Change) -> str:
        builder = self.select(change)
        return builder.binaries(change) if builder else self.key(change)

    def group(self, change: Change) -> str:
        builder = self.select(change)
        return builder.group(change) if builder else ""

    def artifact(self, change: Change) -> Artifact | None:
        builder = self.select(change)
        return builder.artifact(change) if builder else None

    def minutes(self, change: Change) -> float | None:
        builder = self.select(change)
        return builder.minutes(change) if builder else None

    def price(self, changes: Iterable[Change]) -> BuildPrice:
        shares = self._shares(changes)
        return sum((builder.price(share) for builder, share in shares), BuildPrice())

    def disk(self, changes: Iterable[Change]) -> int | None:
        total = 0
        for builder, share in self._shares(changes):
            size = builder.disk(share)
            if size is None:
                return None
            total += size
        return total

    def _shares(self, changes: Iterable[Change]) -> Iterator[tuple[Builder, list[Change]]]:
        """Each builder, and the changes that it is selected for."""
        selected = [(self.select(change), change) for change in changes]
        for builder in (*self.builders, *filter(None, (self.overrides,))):
            yield builder, [change for chosen, change in selected if chosen is builder]

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
