"""Package overrides (``REV+pip:NAME==V``): a layer of packages over a change's environment."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from perfbisect.common.digests import environment_key, text_digest
from perfbisect.common.json_text import WRONG_SHAPE, parse_json
from perfbisect.environments import uv
from perfbisect.environments.base import Builder, Environment, Refusal, SelectingBuilder
from perfbisect.environments.build import BuildRun, interpreter_environment
from perfbisect.environments.builders.cached import LAYER, BuildContext, LayerBuilder
from perfbisect.environments.cache import CheckedEnvironment, variables
from perfbisect.environments.health import import_engine, is_same_version
from perfbisect.environments.spec import Spec
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
        self.layers = PackageLayerBuilder(inner, context, python)
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


class PackageLayerBuilder(LayerBuilder):
    """Builds the layers."""

    name = "swap"

    def __init__(self, inner: Builder, context: BuildContext, python: str) -> None:
        super().__init__(Spec(inner.spec, inner.name, "", {"python": python}), context.here)
        self.inner = inner
        self._lookups: dict[str, Refusal | None] = {}

    def base(self, change: Change) -> tuple[Builder, Change]:
        return self.inner, change.unswapped

    def refuses(self, change: Change) -> Refusal | None:
        refusals = (self._look_up(pip) for pip in change.pips)
        below = self.inner.refuses(change.unswapped)
        return below or next((refusal for refusal in refusals if refusal is not None), None)

    def key(self, change: Change) -> str:
        """Without a look at the registry: a built layer needs none."""
        return environment_key("swap/1", *self.key_parts(change))

    def key_parts(self, change: Change) -> tuple[object, ...]:
        return (self.inner.key(change.unswapped), change.pips, self.limits.exclude_newer or "")

    def make(self, build: BuildRun, change: Change, staging: Path) -> Mapping[str, Any]:
        base, layer = self.base_environment(build, change), staging / LAYER
        if "image" in base.facts:
            raise BuildError(f"{change.short}: +pip: cannot change an image", where=build.log)
        for pip in change.pips:
            uv.install_layer(build, layer, pip, str(base.interpreter))
        _check_libraries(build, layer, change)
        return {}

    def check(self, build: BuildRun, change: Change, folder: Path) -> CheckedEnvironment:
        base = self.base_environment(build, change)
        below = base.env.get("PYTHONPATH", "")
        path = (folder / LAYER, *map(Path, filter(None, below.split(":"))))
        env = {**base.env, **variables(folder, ":".join(map(str, path)))}
        module, what = Path(base.engine_file).parent.name, change.short
        found = import_engine(build, base.interpreter, module, env=env, what=what)
        if found.file.resolve() != Path(base.engine_file).resolve():
            raise BuildError(
                f"{what}: with the packages overridden, {module} comes from {found.file} instead of "
                f"{base.engine_file}: +pip: cannot replace the engine itself",
                where=build.log,
            )
        _check_versions(build, base.interpreter, env, change)
        packages = override_packages(base.facts.get("packages", ()), change.pips)
        facts = {**base.facts, **found.facts, "packages": packages, "swapped": list(change.pips)}
        checked = found.checked(base.engine_commit, packages, {**facts, "below": base.key}, *path)
        return replace(checked, packages_digest=text_digest(base.packages_digest + "\n".join(packages)))

    def _look_up(self, pip: str) -> Refusal | None:
        """Why a package is unavailable, looked up once; None if it is available."""
        if pip not in self._lookups:
            build = BuildRun(self.cache.log(f"swap-{text_digest(pip)}"), 300.0, self.limits)
            build.log.parent.mkdir(parents=True, exist_ok=True)
            python = self.python or str(uv.base_python())
            try:
                uv.install_layer(build, build.log.parent / "nothing", pip, python, dry_run=True)
                self._lookups[pip] = None
            except BuildError as error:
                self._lookups[pip] = Refusal(f"{pip} is not available: {error.message}")
        return self._lookups[pip]


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
