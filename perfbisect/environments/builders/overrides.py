"""Package overrides (``REV+pip:NAME==V``): a layer of packages over a change's environment."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from perfbisect.common.digests import text_digest
from perfbisect.common.json_text import WRONG_SHAPE, parse_json
from perfbisect.environments import uv
from perfbisect.environments.base import Builder, Environment, Refusal
from perfbisect.environments.build import BuildRun, DependencyLimits, interpreter_environment
from perfbisect.environments.builders.cached import (
    LAYER,
    BuildContext,
    CachedBuilder,
    Found,
    Recipe,
    base_environment,
)
from perfbisect.environments.builders.selecting import SelectingBuilder
from perfbisect.environments.cache import EnvironmentCache, variables
from perfbisect.environments.health import import_engine, is_same_version
from perfbisect.errors import BuildError
from perfbisect.model.change import Change

_VERSIONS = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found[name] = ""
print(json.dumps(found))
"""


class OverrideBuilder(SelectingBuilder):
    """Wraps a builder and adds package overrides; changes without overrides go to ``inner``.

    ``python``: of the environments below; empty: our own.
    """

    def __init__(self, inner: Builder, context: BuildContext, python: str = "") -> None:
        settings = OverrideSettings(inner, context.cache, context.limits, python)
        self.layers = CachedBuilder(RECIPE, inner.spec, context.here, settings, kind=None)
        super().__init__((inner, self.layers), spec=inner.spec)
        self.inner = inner
        self.site = context.site
        self.name = inner.name

    def prepare(self, changes: Iterable[Change]) -> None:
        plain = [change.unswapped for change in changes]
        if self.site is not None:
            self.site.prepare(plain)
        self.inner.prepare(plain)

    def select(self, change: Change) -> Builder:
        return self.layers if change.pips else self.inner

    def group(self, change: Change) -> str:
        return self.inner.group(change.unswapped)

    def refuses(self, change: Change) -> Refusal | None:
        return self.select(change).refuses(change)

    def client(self) -> Environment | None:
        return self.inner.client()

    def notes(self) -> tuple[str, ...]:
        return self.inner.notes()


@dataclass(frozen=True)
class OverrideSettings:
    """``lookups``: why a package is unavailable, None if it is available."""

    inner: Builder
    cache: EnvironmentCache
    limits: DependencyLimits
    python: str
    lookups: dict[str, Refusal | None] = field(default_factory=dict)


def refuses(settings: OverrideSettings, found: Found) -> Refusal | None:
    below = settings.inner.refuses(found.change.unswapped)
    # The registry is asked only for what can be built without the override.
    refusals = (_look_up(settings, pip) for pip in found.change.pips)
    return below or next((refusal for refusal in refusals if refusal is not None), None)


def _look_up(settings: OverrideSettings, pip: str) -> Refusal | None:
    """Why a package is unavailable, looked up once; None if it is available."""
    if pip not in settings.lookups:
        build = BuildRun(settings.cache.log(f"swap-{text_digest(pip)}"), 300.0, settings.limits)
        build.log.parent.mkdir(parents=True, exist_ok=True)
        python = settings.python or str(uv.base_python())
        try:
            uv.install_layer(build, build.log.parent / "nothing", pip, python, dry_run=True)
            settings.lookups[pip] = None
        except BuildError as error:
            settings.lookups[pip] = Refusal(f"{pip} is not available: {error.message}")
    return settings.lookups[pip]


def key_parts(settings: OverrideSettings, found: Found) -> tuple[object, ...]:
    change = found.change
    return (settings.inner.key(change.unswapped), change.pips, settings.limits.exclude_newer or "")


def base_of(settings: OverrideSettings, found: Found) -> tuple[Builder, Change]:
    return settings.inner, found.change.unswapped


def make(settings: OverrideSettings, found: Found, build: BuildRun, staging: Path) -> Mapping[str, Any]:
    base, layer, change = base_environment(base_of(settings, found), build), staging / LAYER, found.change
    if "image" in base.facts:
        raise BuildError(f"{change.short}: +pip: cannot change an image", where=build.log)
    for pip in change.pips:
        uv.install_layer(build, layer, pip, str(base.interpreter))
    _check_libraries(build, layer, change)
    return {}


def check(settings: OverrideSettings, found: Found, build: BuildRun, folder: Path) -> Environment:
    base, change = base_environment(base_of(settings, found), build), found.change
    below = base.env.get("PYTHONPATH", "")
    path = (folder / LAYER, *map(Path, filter(None, below.split(":"))))
    env = {**base.env, **variables(folder, ":".join(map(str, path)))}
    module, what = Path(base.engine_file).parent.name, change.short
    imported = import_engine(build, base.interpreter, module, env=env, what=what)
    if imported.file.resolve() != Path(base.engine_file).resolve():
        raise BuildError(
            f"{what}: with the packages overridden, {module} comes from {imported.file} instead of "
            f"{base.engine_file}: +pip: cannot replace the engine itself",
            where=build.log,
        )
    _check_versions(build, base.interpreter, env, change)
    packages = override_packages(base.facts.get("packages", ()), change.pips)
    facts = {**base.facts, **imported.facts, "packages": packages, "swapped": list(change.pips)}
    checked = imported.checked(base.engine_commit, packages, {**facts, "below": base.key}, *path)
    return replace(checked, packages_digest=text_digest(base.packages_digest + "\n".join(packages)))


def override_packages(packages: Sequence[str], pips: Sequence[str]) -> list[str]:
    """A sorted list of ``name==version`` with some replaced or added."""
    names = {pip.partition("==")[0] for pip in pips}
    kept = [line for line in packages if canonicalize_name(re.split(r"[=@ ]", line)[0]) not in names]
    return sorted((*kept, *pips))


def _check_libraries(build: BuildRun, layer: Path, change: Change) -> None:
    """Refuse a package that contains libraries only, which others load by their own path."""
    for package in importlib.metadata.distributions(path=[str(layer)]):
        files = [layer / str(file) for file in package.files or ()]
        libraries = [file.name for file in files if file.name.startswith("lib") and ".so" in file.name]
        modules = [file for file in files if file.suffix == ".so" and not file.name.startswith("lib")]
        python = [file for file in files if file.suffix == ".py" and file.stat().st_size]
        if libraries and not modules and not python:
            raise BuildError(
                f"{change.short}: {package.name} contains only libraries ({', '.join(libraries[:3])}), which "
                "other packages load from their own folder: an override has no effect",
                where=build.log,
                next_step="pin it for the whole environment of one side instead, with --constraints",
            )


def _check_versions(build: BuildRun, interpreter: Path, env: Mapping[str, str], change: Change) -> None:
    """Refuse an interpreter that finds another version of a package."""
    wanted = dict(pip.split("==", 1) for pip in change.pips)
    output = build.run(
        [str(interpreter), "-c", _VERSIONS, *wanted],
        env=interpreter_environment(interpreter, env),
        cwd=build.log.parent,
    )
    try:
        found: Any = parse_json(output.lines[-1])
        found = {name: found[name] for name in wanted}
    except WRONG_SHAPE:
        message = f"{change.short}: {interpreter} does not list its packages"
        raise BuildError(message, where=build.log) from None
    for name, version in wanted.items():
        if not is_same_version(found[name], version):
            message = f"{change.short}: {name} is {found[name] or 'not installed'}, not {version}"
            raise BuildError(message, where=build.log)


RECIPE = Recipe(
    name="swap",
    # A layer that is built already needs no look-up in the registry.
    keyed_if_refused=True,
    refuses=refuses,
    key_parts=key_parts,
    make=make,
    check=check,
    base=base_of,
)
