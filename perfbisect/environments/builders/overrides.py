"""Package overrides (``REV+pip:NAME==V``): a layer of packages over a change's environment."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping
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
    Found,
    Recipe,
    base_environment,
)
from perfbisect.environments.cache import EnvironmentCache, variables
from perfbisect.environments.health import import_engine, is_same_version
from perfbisect.environments.packages import engine
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


@dataclass(frozen=True)
class OverrideSettings:
    """``inner``: builds what lies below. ``python``: of it; empty: our own.

    ``lookups``: why a package is unavailable, None if it is available.
    """

    inner: Builder
    cache: EnvironmentCache
    limits: DependencyLimits
    python: str
    lookups: dict[str, Refusal | None] = field(default_factory=dict)


def refuses(settings: OverrideSettings, found: Found) -> Refusal | None:
    """The registry is asked once for a package, and only for what can be built without the override."""
    if below := settings.inner.refuses(found.change.unswapped):
        return below
    for pip in found.change.pips:
        if pip not in settings.lookups:
            build = BuildRun(settings.cache.log(f"swap-{text_digest(pip)}"), 300.0, settings.limits)
            build.log.parent.mkdir(parents=True, exist_ok=True)
            python = settings.python or str(uv.base_python())
            try:
                uv.install_layer(build, build.log.parent / "nothing", pip, python, dry_run=True)
                settings.lookups[pip] = None
            except BuildError as error:
                settings.lookups[pip] = Refusal(f"{pip} is not available: {error.message}")
        if (refusal := settings.lookups[pip]) is not None:
            return refusal
    return None


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
    return {}


def check(settings: OverrideSettings, found: Found, build: BuildRun, folder: Path) -> Environment:
    base, change = base_environment(base_of(settings, found), build), found.change
    below = base.env.get("PYTHONPATH", "")
    path = (folder / LAYER, *map(Path, filter(None, below.split(":"))))
    env = {**base.env, **variables(folder, ":".join(map(str, path)))}
    module, what = Path(base.engine_file).parent.name, change.short
    server = engine(module).server
    imported = import_engine(build, base.interpreter, module, server=server, env=env, what=what)
    if imported.file.resolve() != Path(base.engine_file).resolve():
        raise BuildError(
            f"{what}: with the packages overridden, {module} comes from {imported.file} instead of "
            f"{base.engine_file}: +pip: cannot replace the engine itself",
            where=build.log,
        )
    wanted = dict(pip.split("==", 1) for pip in change.pips)
    output = build.run(
        [str(base.interpreter), "-c", _VERSIONS, *wanted],
        env=interpreter_environment(base.interpreter, env),
        cwd=build.log.parent,
    )
    try:
        versions: Any = parse_json(output.lines[-1])
        versions = {name: versions[name] for name in wanted}
    except WRONG_SHAPE:
        message = f"{what}: {base.interpreter} does not list its packages"
        raise BuildError(message, where=build.log) from None
    for name, version in wanted.items():
        if not is_same_version(versions[name], version):
            message = f"{what}: {name} is {versions[name] or 'not installed'}, not {version}"
            raise BuildError(message, where=build.log)
    listed = base.facts.get("packages", ())
    kept = [line for line in listed if canonicalize_name(re.split(r"[=@ ]", line)[0]) not in wanted]
    packages = sorted((*kept, *change.pips))
    facts = {**base.facts, **imported.facts, "packages": packages, "swapped": list(change.pips)}
    checked = imported.checked(base.engine_commit, packages, {**facts, "below": base.key}, *path)
    return replace(checked, packages_digest=text_digest(base.packages_digest + "\n".join(packages)))


RECIPE = Recipe(
    name="swap",
    # A layer that is built already needs no look-up in the registry.
    keyed_if_refused=True,
    refuses=refuses,
    key_parts=key_parts,
    make=make,
    check=check,
    base=base_of,
    group=lambda settings, found: settings.inner.group(found.change.unswapped),
)
