"""Makes the builder of a specification."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from pathlib import Path

from perfbisect.changes.git import Repository
from perfbisect.environments.base import Builder
from perfbisect.environments.build import DependencyLimits
from perfbisect.environments.builders.cached import BuildContext
from perfbisect.environments.builders.chain import ChainBuilder
from perfbisect.environments.builders.command import CommandBuilder
from perfbisect.environments.builders.existing import ExistingBuilder
from perfbisect.environments.builders.overlay import NearestBaseOverlay, OverlayBuilder
from perfbisect.environments.builders.overrides import OverrideBuilder
from perfbisect.environments.builders.pinned import PinnedBuilder
from perfbisect.environments.builders.release import ReleaseBuilder
from perfbisect.environments.builders.source import SourceBuilder
from perfbisect.environments.builders.wheel import WheelBuilder
from perfbisect.environments.cache import EnvironmentCache
from perfbisect.environments.spec import Spec, parse_chain
from perfbisect.errors import UsageError

BUILDERS: dict[str, Callable[[Spec, BuildContext], Builder]] = {
    "release": ReleaseBuilder,
    "overlay": OverlayBuilder,
    "wheel": WheelBuilder,
    "source": SourceBuilder,
    "pinned": PinnedBuilder,
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
) -> Builder:
    """The builder of a specification, which also overrides packages (``REV+pip:NAME==V``).

    ``exclude_newer`` (a day) and ``constraints`` (a file) limit the versions of dependencies.

    :raises UsageError: the specification is wrong, a file it names is missing, or it needs a repository.
    :raises RevisionError: its base commit does not exist.
    """
    specs = parse_chain(spec)
    if constraints is not None and not constraints.is_file():
        raise UsageError(f"no such constraints file: {constraints}")
    limits = DependencyLimits(exclude_newer, constraints.absolute() if constraints else None)
    context = BuildContext(EnvironmentCache(cache.expanduser().absolute()), limits, repository)
    builders: list[Builder] = []
    for name, group in groupby(specs, lambda spec: spec.name):
        builders += _adjacent(name, list(group), context)
    inner = builders[0] if len(builders) == 1 else ChainBuilder(builders, context.cache)
    pythons = {spec.option("python") for spec in specs}
    return OverrideBuilder(inner, context, pythons.pop() if len(pythons) == 1 else "")


def _adjacent(name: str, specs: list[Spec], context: BuildContext) -> list[Builder]:
    """Builders of adjacent specifications of one kind; several overlays choose among their bases."""
    if name == "overlay" and len(specs) > 1:
        return [NearestBaseOverlay([OverlayBuilder(spec, context) for spec in specs])]
    return [BUILDERS[name](spec, context) for spec in specs]
