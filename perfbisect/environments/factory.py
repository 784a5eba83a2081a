"""Makes the builder of a specification, or of several in a chain."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from perfbisect.changes.git import Repository
from perfbisect.environments.base import Builder, BuildSite
from perfbisect.environments.build import DependencyLimits
from perfbisect.environments.builders.cached import BuildContext
from perfbisect.environments.builders.overrides import OverrideBuilder
from perfbisect.environments.builders.selecting import ChainBuilder
from perfbisect.environments.cache import EnvironmentCache
from perfbisect.environments.dependency_day import NO_DAY
from perfbisect.environments.spec import Spec, parse_chain
from perfbisect.errors import UsageError


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
    builders = [_builder(spec, context) for spec in specs]
    inner = builders[0] if len(builders) == 1 else ChainBuilder(builders, context.cache)
    pythons = {spec.option("python") for spec in specs}
    return OverrideBuilder(inner, context, pythons.pop() if len(pythons) == 1 else "")


def _builder(spec: Spec, context: BuildContext) -> Builder:
    """Call ``builder`` of the module that the specification names: only what is used is imported."""
    module = import_module(f"perfbisect.environments.builders.{spec.name}")
    make: Callable[[Spec, BuildContext], Builder] = module.builder
    return make(spec, context)
