"""Package overrides (``REV+pip:NAME==V``): a layer of packages over a change's environment.

The layer is a folder that is first on ``PYTHONPATH``. The environment below it is unchanged, so both sides
of a comparison differ in these packages only.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from packaging.utils import canonicalize_name

from perfbisect.common.digests import environment_key, text_digest
from perfbisect.environments import uv
from perfbisect.environments.base import Builder, Environment, Refusal, group_of
from perfbisect.environments.builders.cached import BuildContext, earlier_stamps, median_bytes, median_minutes
from perfbisect.environments.builders.release import is_same_version
from perfbisect.environments.cache import CheckedEnvironment, Stamp, stamped_environment, variables
from perfbisect.environments.health import import_engine
from perfbisect.environments.packages import torch_backend_of
from perfbisect.environments.uv import interpreter_environment, run
from perfbisect.errors import BuildError
from perfbisect.model.change import Change

_LAYER = "layer"
_FIRST_MINUTES = 0.2
_FIRST_BYTES = 50_000_000
"""Estimated cost of the first layer; the cost of later ones is measured."""

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


class OverrideBuilder:
    """Wraps a builder and adds package overrides; changes without overrides pass through.

    ``python``: of the environments below; empty: our own.
    """

    def __init__(self, inner: Builder, context: BuildContext, python: str = "") -> None:
        self.inner = inner
        self.name, self.spec = inner.name, inner.spec
        self.cache = context.cache
        self.limits = context.limits
        self.python = python
        self._lookups: dict[str, Refusal | None] = {}

    def group(self, change: Change) -> str:
        return group_of(self.inner, change.unswapped)

    def prepare(self, changes: Iterable[Change]) -> None:
        self.inner.prepare([change.unswapped for change in changes])

    def refuses(self, change: Change) -> Refusal | None:
        refusal = self.inner.refuses(change.unswapped)
        if refusal is not None:
            return refusal
        refusals = (self._look_up(pip) for pip in change.pips)
        return next((refusal for refusal in refusals if refusal is not None), None)

    def key(self, change: Change) -> str:
        below = self.inner.key(change.unswapped)
        if not change.pips:
            return below
        return environment_key("swap/1", below, change.pips, self.limits.exclude_newer or "")

    def cached(self, change: Change) -> bool:
        below = self.inner.cached(change.unswapped)
        return below and (not change.pips or self.cache.stamp(self.key(change)) is not None)

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        below = self.inner.ensure(change.unswapped, log=log, timeout=timeout)
        if not change.pips:
            return below
        key = self.key(change)
        folder = self.cache.folder(key)
        path = ":".join(filter(None, (str(folder / _LAYER), below.env.get("PYTHONPATH", ""))))
        env = {**below.env, **variables(folder, path)}

        def make(staging: Path) -> None:
            for pip in change.pips:
                uv.install_layer(
                    staging / _LAYER,
                    pip,
                    python=str(below.interpreter),
                    limits=self.limits,
                    torch_backend=torch_backend_of(pip),
                    log=log,
                    timeout=timeout,
                )
            _check_libraries(staging / _LAYER, change, log)

        def check(_: Path) -> CheckedEnvironment:
            module = Path(below.engine_file).parent.name
            what = change.short
            found = import_engine(below.interpreter, module, env=env, log=log, what=what, timeout=timeout)
            if found.file.resolve() != Path(below.engine_file).resolve():
                raise BuildError(
                    f"{what}: with the packages overridden, {module} comes from {found.file} instead of "
                    f"{below.engine_file}: +pip: cannot replace the engine itself",
                    where=log,
                )
            _check_versions(below.interpreter, env, change, log, timeout)
            packages = override_packages(below.facts.get("packages", ()), change.pips)
            facts = {
                **below.facts,
                **found.facts,
                "packages": packages,
                "swapped": list(change.pips),
                "below": below.key,
            }
            digest = text_digest(below.packages_digest + "\n".join(packages))
            return CheckedEnvironment(
                below.interpreter, found.version, below.engine_commit, found.file, digest, facts
            )

        stamp, seconds = self.cache.ensure(
            key, builder="swap", spec=self.spec, change=change.id, make=make, check=check, timeout=timeout
        )
        environment = stamped_environment(stamp, folder, seconds=below.seconds + seconds)
        return replace(environment, env=env, engine_commit=below.engine_commit)

    def client(self) -> Environment | None:
        return self.inner.client()

    def minutes(self, change: Change) -> float | None:
        below = self.inner.minutes(change.unswapped)
        if below is None or not change.pips or self.cached(change):
            return below
        return below + (median_minutes(self._stamps()) or _FIRST_MINUTES)

    def notes(self) -> tuple[str, ...]:
        return self.inner.notes()

    def disk(self, changes: Iterable[Change]) -> int | None:
        changes = list(changes)
        below = self.inner.disk(dict.fromkeys(change.unswapped for change in changes))
        layers = {self.key(change) for change in changes if change.pips and not self.cached(change)}
        if below is None or not layers:
            return below
        return below + len(layers) * (median_bytes(self._stamps()) or _FIRST_BYTES)

    def _stamps(self) -> tuple[Stamp, ...]:
        return earlier_stamps(self.cache, "swap", self.spec)

    def _look_up(self, pip: str) -> Refusal | None:
        """Why a package is unavailable, looked up once; None if it is available."""
        if pip in self._lookups:
            return self._lookups[pip]
        log = self.cache.log(f"swap-{text_digest(pip)}")
        log.parent.mkdir(parents=True, exist_ok=True)
        refusal = None
        try:
            uv.install_layer(
                log.parent / "nothing", pip, python=self.python or str(uv.base_python()), limits=self.limits,
                torch_backend=torch_backend_of(pip), log=log, timeout=300.0, dry_run=True,
            )  # fmt: skip
        except BuildError as error:
            refusal = Refusal(f"{pip} is not available: {error.message}")
        self._lookups[pip] = refusal
        return refusal


def override_packages(packages: Sequence[str], pips: Sequence[str]) -> list[str]:
    """A sorted list of ``name==version`` with some replaced or added."""
    names = {pip.partition("==")[0] for pip in pips}
    kept = [line for line in packages if canonicalize_name(re.split(r"[=@ ]", line)[0]) not in names]
    return sorted((*kept, *pips))


def _check_libraries(layer: Path, change: Change, log: Path) -> None:
    """:raises BuildError: a package contains libraries only, which others load by their own path."""
    for package in importlib.metadata.distributions(path=[str(layer)]):
        files = [layer / str(file) for file in package.files or ()]
        libraries = [file.name for file in files if file.name.startswith("lib") and ".so" in file.name]
        modules = [file for file in files if file.suffix == ".so" and not file.name.startswith("lib")]
        python = [file for file in files if file.suffix == ".py" and file.stat().st_size]
        if libraries and not modules and not python:
            raise BuildError(
                f"{change.short}: {package.name} contains only libraries ({', '.join(libraries[:3])}), which "
                "other packages load from their own folder: an override has no effect",
                where=log,
                next_step="pin it for the whole environment of one side instead, with --constraints",
            )


def _check_versions(
    interpreter: Path, env: dict[str, str], change: Change, log: Path, timeout: float
) -> None:
    """:raises BuildError: the interpreter finds another version of a package."""
    names = [pip.partition("==")[0] for pip in change.pips]
    output = run(
        [str(interpreter), "-c", _VERSIONS, *names],
        env=interpreter_environment(interpreter, env),
        cwd=log.parent,
        log=log,
        timeout=timeout,
    )
    try:
        found = json.loads(output.text.splitlines()[-1])
    except (IndexError, ValueError):
        raise BuildError(f"{change.short}: {interpreter} does not list its packages", where=log) from None
    for pip in change.pips:
        name, _, wanted = pip.partition("==")
        if not is_same_version(found[name], wanted):
            raise BuildError(
                f"{change.short}: {name} is {found[name] or 'not installed'}, not {wanted}", where=log
            )
